"""Many starts in one statement: in SQL, and of callers that start at the same time."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from tests.conftest import wait_until
from tests.workflows.support import QUEUE, TYPE, Runs

from holdfast import Holdfast, InvalidOption, Workflow
from holdfast.shapes.workflows import starting, store
from holdfast.testing import Kit

MANY = (
    "SELECT run_id, created, conflict"
    " FROM holdfast.workflow_start_many(%s, %s::text[]::jsonb[], %s::text[], 1, %s{}) ORDER BY ordinal"
)


@pytest.fixture
def runs(kit: Kit) -> Iterator[Runs]:
    made = Runs.on(kit.url)
    yield made
    made.conn.close()


def many(runs: Runs, ids: Sequence[str | None], more: str = "", queue: str = QUEUE) -> list[tuple[Any, ...]]:
    inputs = [json.dumps({"n": n}) for n in range(len(ids))]
    found = runs.conn.execute(MANY.format(more).encode(), [TYPE, inputs, list(ids), queue]).fetchall()
    return [tuple(row.values()) for row in found]


def jobs(runs: Runs) -> dict[Any, Any]:
    """Of each run its key, with the input of its job."""
    text = "SELECT r.key, w.payload FROM holdfast.workflow_runs r JOIN holdfast.work w ON w.id = r.id AND w.queue = r.queue"
    found = runs.conn.execute(text).fetchall()
    return {row["key"]: row["payload"] for row in found}


def count(runs: Runs, table: str) -> int:
    return int(runs.one(f"SELECT count(*) FROM holdfast.{table}"))


def test_each_gets_its_run_and_its_job_in_the_order_given(runs: Runs) -> None:
    found = many(runs, ["b", None, "a"])
    assert [(created, conflict) for _, created, conflict in found] == [(True, None)] * 3
    assert jobs(runs) == {"b": {"n": 0}, str(found[1][0]): {"n": 1}, "a": {"n": 2}}
    told = runs.conn.execute(
        "SELECT w.metadata->'workflow'->>'id' AS id FROM holdfast.work w ORDER BY w.payload"
    )
    assert [row["id"] for row in told] == ["b", None, "a"]


def test_an_id_that_is_there_gives_its_run_and_twice_in_one_call_is_one(runs: Runs) -> None:
    (first,) = many(runs, ["a"])
    found = many(runs, ["b", "a", "b"])
    assert [created for _, created, _ in found] == [True, False, False]
    assert found[1][0] == first[0]
    assert found[2][0] == found[0][0]
    assert (count(runs, "workflow_runs"), count(runs, "work")) == (2, 2)
    assert [row[2] for row in many(runs, ["a", "c"], ", if_exists => 'refuse'")] == ["exists", None]


def test_what_is_wrong_is_said_and_nothing_is_started(runs: Runs) -> None:
    for ids, more, says in (
        (["a", ""], "", "id 2 must have 1 to 512 bytes, not 0"),
        (["a"], ", if_exists => 'x'", "if_exists must be same, restart_ended or refuse, not 'x'"),
        (["a"], ", timeout => '0'", "timeout must be more than 0 and at most 10 years"),
        (["a"], ", delay => '-1s'", "delay must be between 0 and 10 years"),
    ):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=says):
            many(runs, ids, more)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="queue 'nowhere' does not exist"):
        many(runs, ["a"], queue="nowhere")
    assert many(runs, ["a", "b"], ", quiet => true", "nowhere") == [(None, False, "queue")] * 2
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="there are 2 inputs and 1 ids"):
        runs.conn.execute(
            "SELECT holdfast.workflow_start_many('x', ARRAY['{}', '{}']::jsonb[], ARRAY['a'], 1, 'workflows')"
        )
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="input 1 must be a JSON object"):
        runs.conn.execute(
            "SELECT holdfast.workflow_start_many('x', ARRAY['1']::jsonb[], NULL, 1, 'workflows')"
        )
    assert (count(runs, "workflow_runs"), count(runs, "work")) == (0, 0)


def test_an_id_that_another_transaction_is_about_to_start_is_that_ones_run(runs: Runs, kit: Kit) -> None:
    """The second waits for the first, and leaves no job behind."""
    found: list[Any] = []
    with kit.connect() as other:
        other.execute("BEGIN")
        row = other.execute(
            "SELECT run_id FROM holdfast.workflow_start(%s, '{}', 'b', 1, %s)", [TYPE, QUEUE]
        ).fetchone()
        waits = threading.Thread(target=lambda: found.extend(many(runs, ["a", "b", "c"])))
        waits.start()
        asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        beside = Runs.on(kit.url)
        wait_until(lambda: beside.one(asked) == 1, "a start waits for another's end")
        beside.conn.close()
        other.execute("COMMIT")
        waits.join(60)
    assert row is not None
    assert [created for _, created, _ in found] == [True, False, True]
    assert found[1][0] == row["run_id"]
    assert (count(runs, "workflow_runs"), count(runs, "work")) == (3, 3)


def declared(kit: Kit) -> Any:
    app = Holdfast(kit.url)

    @app.workflow()
    async def greets(wf: Workflow, n: int) -> int:
        return n

    return app, greets


async def test_starts_of_one_moment_are_one_statement(
    runs: Runs, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = store.start_many

    def counted(news: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(news))
        return real(news, *args, **kwargs)

    monkeypatch.setattr(store, "start_many", counted)
    app, greets = declared(kit)
    async with app:
        await greets.using(id="first").astart(-1)  # the queue is looked for once
        found: Any = await asyncio.gather(
            *(greets.astart(n) for n in range(40)), greets.using(priority=5).astart(40)
        )
        assert sizes == [40]
        assert {run.run_id: run.created for run in found} == {run.run_id: True for run in found}
        assert jobs(runs) == {run.id: {"n": n} for n, run in enumerate(found)} | {"first": {"n": -1}}
        again = await asyncio.gather(*(greets.using(id="same").astart(n) for n in range(3)))
        assert [run.created for run in again] == [True, False, False]


async def test_a_start_that_is_refused_harms_itself_alone(runs: Runs, kit: Kit) -> None:
    app, greets = declared(kit)
    async with app:
        await greets.using(id="there").astart(0)
        refuses = greets.using(id="there", if_exists="refuse")
        found: Any = await asyncio.gather(
            refuses.astart(1),
            greets.using(id="new", if_exists="refuse").astart(2),
            return_exceptions=True,
        )
        assert isinstance(found[0], InvalidOption)
        assert found[1].created


async def test_a_batch_that_the_database_refuses_is_tried_one_by_one(runs: Runs, kit: Kit) -> None:
    """One of them has an id with a NUL, which a caller's check would refuse."""
    app, greets = declared(kit)
    async with app:
        await greets.astart(0)  # the queue is there
        new = greets.using(id="good")._new((1,), {})
        bad = greets.using(id="bad")._new((2,), {})
        bad = type(bad)(bad.workflow, bad.version, "a\0b", bad.payload, bad.queue)
        starter = starting.start_writer_of(app.database)
        found: Any = await asyncio.gather(
            starter.start(new, None), starter.start(bad, None), return_exceptions=True
        )
        assert found[0].created
        assert isinstance(found[1], Exception)
    assert "good" in jobs(runs)


async def test_a_start_that_nobody_waits_for_any_more_does_not_stop_the_others(runs: Runs, kit: Kit) -> None:
    app, greets = declared(kit)
    async with app:
        tasks = [asyncio.ensure_future(greets.astart(n)) for n in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        found: Any = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert [run.created for run in found[1:]] == [True, True]
