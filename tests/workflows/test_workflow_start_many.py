"""start_many(): many runs from Python in one statement."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.workflows.support import Runs

from holdfast import Holdfast, InvalidOption, NewRun, UnknownQueue, Workflow, WorkflowType
from holdfast.shapes.workflows import store
from holdfast.testing import Kit


@pytest.fixture
def runs(kit: Kit) -> Iterator[Runs]:
    made = Runs.on(kit.url)
    yield made
    made.conn.close()


@pytest.fixture
def greets(app: Holdfast, kit: Kit, runs: Runs) -> WorkflowType[[int], int]:
    @app.workflow()
    async def greets(wf: Workflow, n: int) -> int:
        return n * 2

    return greets


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each statement of many had."""
    found: list[int] = []
    real = store.start_many

    def counted(news: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(len(news))
        return real(news, *args, **kwargs)

    monkeypatch.setattr(store, "start_many", counted)
    return found


def there(runs: Runs) -> dict[str, Any]:
    """Of each run its key, with the input of its job."""
    text = "SELECT r.key, w.payload FROM holdfast.workflow_runs r JOIN holdfast.work w ON w.id = r.id AND w.queue = r.queue"
    return {row["key"]: row["payload"] for row in runs.conn.execute(text)}


def test_runs_of_one_call_are_one_statement_and_come_back_in_their_order(
    greets: WorkflowType[[int], int], runs: Runs, kit: Kit, sizes: list[int]
) -> None:
    found = greets.start_many(greets.using(id=f"hello:{n}", priority=3).new(n) for n in range(50))
    assert sizes == [50]
    assert [run.id for run in found] == [f"hello:{n}" for n in range(50)]
    assert all(run.created for run in found)
    assert there(runs) == {f"hello:{n}": {"n": n} for n in range(50)}
    assert runs.one("SELECT array_agg(DISTINCT priority) FROM holdfast.work") == [3]
    kit.run_worker()
    assert [run.result(timeout=5) for run in found] == [n * 2 for n in range(50)]
    assert greets.start_many([]) == []


async def test_the_async_twin_does_the_same(
    greets: WorkflowType[[int], int], runs: Runs, akit: Kit, sizes: list[int]
) -> None:
    found = await greets.astart_many([greets.new(n) for n in range(3)])
    assert sizes == [3]
    assert there(runs) == {run.id: {"n": n} for n, run in enumerate(found)}
    assert await greets.astart_many(iter(())) == []


def test_an_id_that_has_a_run_gives_that_one(greets: WorkflowType[[int], int], runs: Runs) -> None:
    first = greets.using(id="a").start(1)
    found = greets.start_many(greets.using(id=one).new(n) for n, one in enumerate("bab"))
    assert [run.created for run in found] == [True, False, False]
    assert found[1].run_id == first.run_id
    assert found[2].run_id == found[0].run_id
    assert there(runs) == {"a": {"n": 1}, "b": {"n": 0}}


def test_they_start_when_the_callers_transaction_commits(
    greets: WorkflowType[[int], int], runs: Runs, kit: Kit
) -> None:
    with kit.connect() as conn:
        with pytest.raises(ZeroDivisionError), conn.transaction():
            greets.start_many([greets.using(id="a").new(1), greets.new(2)], conn=conn)
            raise ZeroDivisionError
        assert there(runs) == {}
        with conn.transaction():
            greets.start_many([greets.using(id="a").new(1), greets.using(id="b").new(2)], conn=conn)
            assert there(runs) == {}
        assert there(runs) == {"a": {"n": 1}, "b": {"n": 2}}


async def test_they_start_when_an_async_transaction_commits(
    greets: WorkflowType[[int], int], runs: Runs, akit: Kit
) -> None:
    async with await psycopg.AsyncConnection.connect(akit.url) as conn:
        await greets.astart_many([greets.using(id="a").new(1), greets.using(id="b").new(2)], conn=conn)
        assert there(runs) == {}
        await conn.commit()
    assert there(runs) == {"a": {"n": 1}, "b": {"n": 2}}


def test_an_id_that_is_refused_is_named_and_nothing_is_started(
    greets: WorkflowType[[int], int], runs: Runs, kit: Kit
) -> None:
    greets.using(id="c").start(0)
    new: list[NewRun[int]] = [greets.using(id=one, if_exists="refuse").new(n) for n, one in enumerate("abcd")]
    with pytest.raises(InvalidOption) as said:
        greets.start_many(new)
    text = "there is a run 'c' of greets already. Take another id, or leave if_exists out to get it"
    assert str(said.value).replace(greets.name, "greets") == f"runs[2]: {text}"
    assert there(runs) == {"c": {"n": 0}}
    with psycopg.connect(kit.url, row_factory=dict_row) as conn:  # a caller that goes on after it
        with pytest.raises(InvalidOption, match=r"^runs\[2\]: there is a run 'c'"):
            greets.start_many(new, conn=conn)
        conn.commit()
    twice = [greets.using(id="x", if_exists="refuse").new(1)] * 2
    with pytest.raises(InvalidOption, match=r"^runs\[1\]: there is a run 'x'"):
        greets.start_many(twice)
    assert there(runs) == {"c": {"n": 0}}
    assert runs.one("SELECT count(*) FROM holdfast.work") == 1


def test_what_cannot_be_started_together_is_named_by_its_place(
    app: Holdfast, greets: WorkflowType[[int], int], runs: Runs, kit: Kit
) -> None:
    @app.workflow(name="parts")
    async def parts(wf: Workflow, n: int) -> int:
        return n

    wrong: Any = [greets.new(1), 7]
    other = [greets.new(1), parts.new(2)]
    name = greets.name
    with kit.connect() as conn:
        for call, kind, says in (
            (wrong, TypeError, f"start_many() takes what {name}.new(...) returns; runs[1] is int 7"),
            (
                other,
                InvalidOption,
                f"runs[1] is of parts version 1, and this is {name} version 1. Start it with its own start_many()",
            ),
            (
                [greets.new(1), greets.using(tags=["x"]).new(2)],
                InvalidOption,
                (
                    "runs[1] has tags=('x',), and runs[0] has tags=(). The runs of one call differ in their input and id "
                    "alone: call start_many() once for each"
                ),
            ),
            (
                [
                    greets.using(timeout=5).new(1),
                    greets.using(timeout=5).new(1),
                    greets.using(timeout=6).new(2),
                ],
                InvalidOption,
                (
                    "runs[2] has timeout=6.0, and runs[0] has timeout=5.0. The runs of one call differ in their input and "
                    "id alone: call start_many() once for each"
                ),
            ),
            (
                [greets.using(conn=conn).new(1)],
                InvalidOption,
                (
                    "runs[0] was made with using(conn=...), which start_many() does not read. "
                    "Pass it there: start_many(runs, conn=conn)"
                ),
            ),
        ):
            with pytest.raises(kind) as said:
                greets.start_many(call)
            assert str(said.value) == says
        assert there(runs) == {}
        greets.start_many([greets.using(conn=conn, id="a").new(1)], conn=conn)
        conn.commit()
    assert there(runs) == {"a": {"n": 1}}


def test_a_queue_that_does_not_exist_is_named(app: Holdfast, kit: Kit, runs: Runs) -> None:
    @app.workflow(queue="nowhere")
    async def lost(wf: Workflow) -> None: ...

    with (
        psycopg.connect(kit.url) as conn,
        pytest.raises(UnknownQueue, match="queue 'nowhere' does not exist"),
    ):
        lost.start_many([lost.new(), lost.new()], conn=conn)
    assert there(runs) == {}
