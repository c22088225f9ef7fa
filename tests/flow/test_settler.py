"""The settler at work: a batch goes the quick way, and nobody waits for a neighbour that somebody holds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.conftest import await_until
from tests.sql.support import (
    Conn,
    configure,
    enqueue,
    later,
    one,
    put,
    register,
    status,
    sweep_all,
    take,
    take_one,
)

from holdfast import failpoints
from holdfast.db.executors import listen_in
from holdfast.db.faults import BadRow, ConnectionLost
from holdfast.model.job import ClaimedJob, NewRow
from holdfast.model.outcome import NOTHING, Settlement
from holdfast.runtime import settle as module
from holdfast.runtime.inflight import InFlight
from holdfast.runtime.renew import Renewal
from holdfast.runtime.settle import Settler
from holdfast.testing import Kit

Told = list[tuple[str, int, str]]


@pytest.fixture
def conn(kit: Kit) -> Iterator[Conn]:
    with psycopg.connect(kit.url, autocommit=True) as made:
        configure(made, kit)
        yield made


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
async def settler(akit: Kit, told: Told) -> AsyncIterator[Settler]:
    def tell(settlements: Any, states: Any) -> None:
        for settlement, state in zip(settlements, states, strict=True):
            told.append((settlement.grant.id_text, settlement.grant.generation, state))

    made = Settler(akit.database, lambda: "w", tell)
    yield made
    await made.stop()


def give(settler: Settler, jobs: list[ClaimedJob]) -> None:
    for job in jobs:
        settler.settle(Settlement(job, NOTHING))


def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The points that a settle passes."""
    passed: list[str] = []
    monkeypatch.setattr(failpoints, "point", passed.append)
    return passed


async def test_a_plain_batch_is_one_statement(
    settler: Settler, conn: Conn, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn, 30)
    jobs = take(conn, register(conn), 30)
    passed = names(monkeypatch)
    give(settler, jobs)
    assert await settler.tick() == 3600.0
    assert told == [(job.id_text, 1, "completed") for job in jobs]
    assert [name for name in passed if name.startswith("settle.")] == [
        "settle.before",
        "settle.settle_done.done",
    ]
    assert one(conn, "SELECT count(*) FROM holdfast.archive") == 30


async def test_ends_are_counted_for_the_renewal_where_all_of_a_batch_ended(
    akit: Kit, settler: Settler, conn: Conn, worker: str
) -> None:
    """The renewal then drops the claim without a look at its jobs. A batch in which one was not ours proves nothing."""
    enqueue(conn, 20)
    whole, part = take(conn, worker, 10), take(conn, worker, 10)
    give(settler, whole)
    await settler.tick()
    conn.execute("DELETE FROM holdfast.work WHERE id = %s", [part[0].id])
    give(settler, part)
    await settler.tick()
    assert settler.endings.counted() == (whole[0].timeline, {whole[0].token_text: 10})
    inflight, ended = InFlight(), []
    renewal = Renewal(akit.database, inflight, lambda: worker, 60.0, endings=settler.endings)
    stop = listen_in(
        lambda what, _rows, _took: ended.append(what.params) if what.name == "tidy_claims" else None
    )
    try:
        inflight.add(whole, 0.0)
        await renewal.tick()
        inflight.remove(whole)
        await renewal.tick()
    finally:
        stop()
        await renewal.finish()
    assert [params[3] for params in ended] == ["{}", "{10}"]  # not while it is in use
    assert settler.endings.counted().counts == {}
    assert one(conn, "SELECT count(*) FROM holdfast.claims") == 0


async def test_a_batch_is_told_while_the_next_one_is_written(
    settler: Settler, conn: Conn, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_SETTLED", 10)
    seen: list[tuple[int, int]] = []  # jobs told when a batch was sent, and when it was answered
    run = settler._session.run

    async def noted(what: Any) -> Any:
        sent = len(told)
        answer = await run(what)
        seen.append((sent, len(told)))
        return answer

    monkeypatch.setattr(settler._session, "run", noted)
    enqueue(conn, 25)
    jobs = take(conn, register(conn), 25)
    give(settler, jobs)
    assert await settler.tick() == 3600.0
    assert seen == [(0, 0), (0, 10), (10, 20)]
    assert told == [(job.id_text, 1, "completed") for job in jobs]


@pytest.mark.parametrize("error", [ConnectionLost("cut"), asyncio.CancelledError()])
async def test_a_batch_is_told_also_when_the_next_one_fails(
    settler: Settler, conn: Conn, told: Told, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(module, "_MOST_SETTLED", 10)
    run, count = settler._session.run, 0

    async def second_fails(what: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            raise error
        return await run(what)

    monkeypatch.setattr(settler._session, "run", second_fails)
    enqueue(conn, 20)
    jobs = take(conn, register(conn), 20)
    give(settler, jobs)
    with pytest.raises(type(error)):
        await settler.tick()
    assert told == [(job.id_text, 1, "completed") for job in jobs[:10]]
    assert settler.pending == 10
    assert await settler.tick() == 3600.0
    assert told == [(job.id_text, 1, "completed") for job in jobs]


async def test_a_stop_while_a_batch_is_written_leaves_no_statement_behind(
    settler: Settler, conn: Conn, kit: Kit, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_SETTLED", 10)
    enqueue(conn, 20)
    jobs = take(conn, register(conn), 20)
    give(settler, jobs)
    with kit.connect() as other:
        other.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [jobs[15].id])
        settler.start()
        await await_until(lambda: len(told) == 10, "the first ten are told while the others wait for a lock")
        await settler.stop()
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_the_others_of_a_row_that_somebody_holds_are_settled_at_once(
    settler: Settler, conn: Conn, kit: Kit, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn, 20)
    jobs = take(conn, register(conn), 20)
    give(settler, jobs)
    with kit.connect() as other:
        other.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [jobs[7].id])
        assert await settler.tick() < 1
        assert {job for job, _, _ in told} == {job.id_text for job in jobs} - {jobs[7].id_text}
        assert settler.pending == 1
        enqueue(conn, 1)
        (late,) = take(conn, register(conn), 1)
        passed = names(monkeypatch)
        give(settler, [late])
        await settler.tick()  # who came later does not wait either
        assert told[-1] == (late.id_text, 1, "completed")
        # and what is held is not tried the quick way again, which would cost every batch its wait
        assert passed.count("settle.settle_done.done") == 1
        assert settler.pending == 1
        other.rollback()
    await settler.tick()
    assert told[-1] == (jobs[7].id_text, 1, "completed")
    assert settler.pending == 0
    assert len(told) == len(set(told)) == 21


async def test_a_held_row_is_tried_again_without_the_quick_way(
    settler: Settler, conn: Conn, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn, 1)
    jobs = take(conn, register(conn), 1)
    give(settler, jobs)
    with kit.connect() as other:
        other.execute("SELECT FROM holdfast.work FOR UPDATE")
        await settler.tick()
        quick: list[Any] = []
        tried = settler._quickly

        async def noted(batch: list[Settlement]) -> list[Settlement]:
            quick.append(batch)
            return await tried(batch)

        monkeypatch.setattr(settler, "_quickly", noted)
        for _ in range(3):
            await settler.tick()
        assert quick == []
        other.rollback()
    await settler.tick()
    assert one(conn, "SELECT count(*) FROM holdfast.archive") == 1


async def test_each_of_two_generations_of_one_job_gets_its_own_answer(
    settler: Settler, conn: Conn, kit: Kit, told: Told
) -> None:
    enqueue(conn)
    worker = register(conn)
    stale = take_one(conn, worker, lease=30)
    later(kit, 31, conn)
    sweep_all(conn)
    give(settler, [stale, take_one(conn, worker)])
    await settler.tick()
    assert sorted(told) == [(stale.id_text, 1, "lost"), (stale.id_text, 2, "completed")]


async def test_follow_ups_come_with_a_completion_that_looked_plain(
    settler: Settler, conn: Conn, told: Told
) -> None:
    (first,) = put(conn, NewRow("work", "{}", follow_ups=(NewRow("after", "{}"),)))
    (second,) = enqueue(conn)
    jobs = [job._replace(rest=None) for job in take(conn, register(conn), 2)]
    give(settler, jobs)
    await settler.tick()
    assert {(job, state) for job, _, state in told} == {
        (str(first.id), "completed"),
        (str(second), "completed"),
    }
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE task = 'after'") == 1


async def test_a_bad_row_spoils_no_neighbour(settler: Settler, conn: Conn, told: Told) -> None:
    enqueue(conn, 3)
    enqueue(conn, 1, task="bad")
    jobs = take(conn, register(conn), 4)
    conn.execute(
        """
        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
        CREATE TRIGGER refuse BEFORE DELETE ON holdfast.inbox FOR EACH ROW
            WHEN (OLD.task = 'bad') EXECUTE FUNCTION public.refuse();
        """
    )
    give(settler, jobs)
    await settler.tick()
    assert {job for job, _, state in told if state == "completed"} == {job.id_text for job in jobs[:3]}
    assert [state for job, _, state in told if job == jobs[3].id_text] == ["quarantined"]


async def test_what_was_told_before_an_outage_is_not_told_again(
    settler: Settler, conn: Conn, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two go the quick way; the connection breaks before the third has gone the usual one."""
    put(conn, NewRow("work", "{}", follow_ups=(NewRow("after", "{}"),)))
    enqueue(conn, 2)
    jobs = [job._replace(rest=None) for job in take(conn, register(conn), 3)]
    give(settler, jobs)
    flow = settler._session.flow

    async def broken(make: Callable[[], Any]) -> Any:
        raise ConnectionLost("cut")

    monkeypatch.setattr(settler._session, "flow", broken)
    with pytest.raises(ConnectionLost):
        await settler.tick()
    assert len(told) == 2
    monkeypatch.setattr(settler._session, "flow", flow)
    enqueue(conn, 1)
    give(settler, take(conn, register(conn), 1))
    await settler.tick()
    assert len(told) == len(set(told)) == 4
    assert settler.pending == 0
    assert {state for _, _, state in told} == {"completed"}


async def test_an_answer_that_was_lost_is_recognised_as_done(
    settler: Settler, conn: Conn, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn, 3)
    jobs = take(conn, register(conn), 3)
    give(settler, jobs)

    def lose(name: str) -> None:
        if name == "settle.settle_done.done":
            raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "point", lose)
        with pytest.raises(ConnectionResetError):
            await settler.tick()
    assert told == []  # the database has it, and nobody here knows
    assert one(conn, "SELECT count(*) FROM holdfast.archive") == 3
    await settler.tick()
    assert sorted(told) == sorted((job.id_text, 1, "completed") for job in jobs)


async def test_drained_waits_for_what_somebody_holds(settler: Settler, conn: Conn, kit: Kit) -> None:
    enqueue(conn, 2)
    jobs = take(conn, register(conn), 2)
    settler.start()
    with kit.connect() as other:
        other.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [jobs[0].id])
        give(settler, jobs)
        await await_until(lambda: status(conn, jobs[1].id) == "completed", "the other is settled")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(settler.drained(), 0.3)
        other.rollback()
    await asyncio.wait_for(settler.drained(), 50)
    assert status(conn, jobs[0].id) == "completed"


async def test_an_outcome_that_comes_while_a_batch_is_cut_short_is_not_taken_for_told(
    settler: Settler, conn: Conn, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job is buried because its row refuses the outcome, then the connection breaks: what was made to bury it is gone,
    and its address may be that of an outcome that comes now."""
    enqueue(conn, 40)
    bad, good, *late = take(conn, register(conn), 40)
    flow, run, cut = settler._session.flow, settler._session.run, True

    async def quick_refused(what: Any) -> Any:
        if what.name == "settle_done" and what.params[5] == 2:
            raise BadRow("refused", "22000")
        return await run(what)

    async def refused(make: Any) -> Any:
        nonlocal cut
        batch = make().gi_frame.f_locals["batch"]
        if any(s.grant is bad and s.outcome == NOTHING for s in batch):
            raise BadRow("refused", "22000")
        if cut and any(s.grant is good for s in batch):
            cut = False
            give(settler, late)
            raise ConnectionLost("cut")
        return await flow(make)

    monkeypatch.setattr(settler._session, "run", quick_refused)
    monkeypatch.setattr(settler._session, "flow", refused)
    give(settler, [bad, good])
    with pytest.raises(ConnectionLost):
        await settler.tick()
    await settler.tick()
    assert settler.pending == 0
    assert sorted(job for job, _, _ in told) == sorted(job.id_text for job in (bad, good, *late))
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 0
