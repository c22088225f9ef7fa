"""Housekeeping keeps up: one tidy removes all that has expired, however much it is."""

import asyncio
from collections.abc import Callable

import pytest
from tests.sql.support import DAY, Conn, end, enqueue, later, one, register, run, take_one

from holdfast import telemetry
from holdfast.model.outcome import Completed, Settlement
from holdfast.runtime import tidy as tidying
from holdfast.runtime.sweep import Sweeper
from holdfast.runtime.tidy import BATCH
from holdfast.store import housekeeping, owner
from holdfast.store.settle import settle
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]
MANY = 12_000  # more than two batches

SOON = "holdfast.now() + n * interval '1 ms'"
LOAD = {
    "idempotency": f"'inbox', 'k' || n, gen_random_uuid(), '', {SOON}",
    "once": f"gen_random_uuid(), 'inbox', 'step', '1', {SOON}",
    "progress": f"gen_random_uuid(), 'inbox', 1, 0.5, '', {SOON}",
    "errors": f"gen_random_uuid(), 'inbox', 1, 1, {SOON}, 'w', 'E', 'm', ''",
    "fences": f"'r' || n, 's', 'inbox', gen_random_uuid(), '1', {SOON}",
    "throughput": f"{SOON}, 'inbox', 'work'",
}


def load_all(conn: Conn) -> None:
    for table, row in LOAD.items():
        text = f"INSERT INTO holdfast.{table} SELECT {row} FROM generate_series(1, %s) n"
        conn.execute(text.encode(), [MANY])


def count(conn: Conn, table: str) -> int:
    return int(one(conn, f"SELECT count(*) FROM holdfast.{table}"))


def tidy(kit: Kit, budget: float) -> None:
    async def main() -> None:
        sweeper = Sweeper(kit.database, lambda: None)
        await sweeper.tidier.tidy_once(7, budget)
        await sweeper.stop()

    asyncio.run(main())


def test_one_tidy_removes_all_that_has_expired_however_much_it_is(kit: Kit, conn: Conn) -> None:
    load_all(conn)
    later(kit, 8 * DAY, conn)
    tidy(kit, 600.0)
    assert {table: count(conn, table) for table in LOAD} == dict.fromkeys(LOAD, 0)


def test_a_tidy_whose_time_is_used_up_leaves_the_rest_to_the_next_and_says_so(kit: Kit, conn: Conn) -> None:
    load_all(conn)
    later(kit, 8 * DAY, conn)
    said: list[telemetry.Event] = []
    end = telemetry.subscribe(said.append)
    try:
        tidy(kit, 0.0)
    finally:
        end()
    assert {table: count(conn, table) for table in LOAD} == dict.fromkeys(LOAD, MANY - BATCH)
    (done,) = [event for event in said if event.name == "tidy.done"]
    assert {table: done.fields[table] for table in LOAD} == dict.fromkeys(LOAD, BATCH)
    (behind,) = [event for event in said if event.name == "tidy.behind"]
    assert set(behind.fields["tables"].split(", ")) == set(LOAD)


async def test_who_is_behind_goes_on_in_the_next_minute_by_itself(
    akit: Kit, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidying, "BUDGET", 0.0)
    load_all(conn)
    later(akit, 8 * DAY, conn)
    tidier = Sweeper(akit.database, lambda: None).tidier
    tidier.begin(run(conn, housekeeping.tidy_begin(60)) or 0)
    left = []
    for seconds in (0, 61, 1, 61):
        later(akit, seconds, conn)
        await tidier.tick()
        left.append(count(conn, "errors"))
    assert left == [MANY - BATCH, MANY - 2 * BATCH, MANY - 2 * BATCH, 0]
    await tidier._session.close()


# Progress and the end of its job ------------------------------------------------------------------------------------


def test_a_report_neither_waits_for_a_transaction_that_ends_its_job_nor_outlives_the_job(
    connect: Connect, conn: Conn
) -> None:
    worker = register(conn)
    enqueue(conn)
    job = take_one(conn, worker)
    run(conn, owner.progress([(job.grant, 0.5, "")]))
    handler = connect()
    conn.execute("SET lock_timeout = '1s'")
    with handler.transaction():
        run(handler, settle([Settlement(job.grant, Completed("1", beside=True))], worker))
        run(conn, owner.progress([(job.grant, 0.6, "")]))
    run(conn, owner.progress([(job.grant, 0.7, "")]))
    assert count(conn, "progress") == 0


def test_a_settle_waits_for_a_report_that_is_being_written(connect: Connect, conn: Conn) -> None:
    worker = register(conn)
    enqueue(conn)
    job = take_one(conn, worker)
    renewal = connect()
    with renewal.transaction():
        run(renewal, owner.progress([(job.grant, 0.5, "")]))
        assert end(conn, job.grant, Completed("1", beside=True)) == "busy"
    assert end(conn, job.grant, Completed("1", beside=True)) == "completed"
    assert count(conn, "progress") == 0
