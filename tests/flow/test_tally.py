"""What workers finished is counted, minute by minute: exactly, over outages and lost answers, and at no one's cost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from tests.crash.proxy import Proxy

from holdfast import (
    AsyncTransaction,
    Backoff,
    Cancel,
    DeadLetter,
    Holdfast,
    Job,
    Retry,
    Snooze,
    Transaction,
    failpoints,
    telemetry,
)
from holdfast.model.outcome import Completed, ErrorText, Failed, Held, Lost, Released, Snoozed
from holdfast.model.tally import Sums
from holdfast.runtime.tally import _MOST_PAIRS, Tally
from holdfast.runtime.worker import Worker
from holdfast.testing import Kit

Counts = dict[str, tuple[int, int, int, int]]
AT_ONCE = Backoff(first=0, jitter=False)
COUNTS = """
SELECT task, sum(completed)::int AS completed, sum(failed)::int AS failed, sum(dead)::int AS dead,
       sum(cancelled)::int AS cancelled
FROM holdfast.throughput GROUP BY task
"""


def counts(kit: Kit) -> Counts:
    """task -> (completed, failed, dead, cancelled)"""
    return {r["task"]: (r["completed"], r["failed"], r["dead"], r["cancelled"]) for r in kit.sql(COUNTS)}


class Running:
    """A worker of the app, and the tally inside it."""

    def __init__(self, app: Holdfast) -> None:
        self._workers: list[Worker] = []
        self.task = asyncio.create_task(app._serve(on_start=self._workers.append))

    async def tally(self) -> Tally:
        worker = await await_until(lambda: self._workers and self._workers[0], "the worker started")
        assert isinstance(worker, Worker)
        return worker._tally

    async def stop(self) -> None:
        await self.tally()
        self._workers[0].stop()
        await self.task


@pytest.fixture
def proxied(app: Holdfast, dsn: str) -> Iterator[tuple[Kit, Proxy]]:
    """The app behind a proxy that can cut and refuse."""
    proxy = Proxy(dsn)
    kit = Kit(app, proxy.url, QUICK)
    yield kit, proxy
    kit.close()
    proxy.close()


@pytest.fixture
async def tally(akit: Kit) -> AsyncIterator[Tally]:
    """A tally without a worker."""
    session = akit.database.session("membership")
    yield Tally(session)
    await session.close()


def test_every_completion_is_counted_once(app: Holdfast, kit: Kit) -> None:
    kit.sql("CREATE TABLE notes (n int)")

    @app.task
    def in_a_thread(n: int) -> None: ...

    @app.task
    async def in_the_loop(n: int) -> None: ...

    @app.task
    def in_a_transaction(tx: Transaction, n: int) -> None:
        tx.execute("INSERT INTO notes VALUES (%s)", [n])

    @app.task
    async def in_an_async_transaction(tx: AsyncTransaction, n: int) -> None:
        await tx.execute("INSERT INTO notes VALUES (%s)", [n])

    @app.task
    def completes_itself(job: Job, n: int) -> None:
        with psycopg.connect(kit.url) as conn:
            job.complete(conn=conn)

    tasks: list[Any] = [in_a_thread, in_the_loop, in_a_transaction, in_an_async_transaction, completes_itself]
    for task in tasks:
        app.enqueue_many(task.job(n) for n in range(7))
    kit.run_worker()
    assert counts(kit) == {task.name: (7, 0, 0, 0) for task in tasks}


def test_every_other_end_of_an_attempt_is_counted_once(app: Holdfast, kit: Kit) -> None:
    snoozed: list[int] = []

    @app.task(retry=AT_ONCE, max_attempts=3)
    def fails(n: int) -> None:
        raise ValueError(n)

    @app.task(retry=AT_ONCE, max_attempts=3)
    def fails_once(job: Job, n: int) -> None:
        if job.attempt == 1:
            raise Retry("again", after=0)

    @app.task
    def dies(n: int) -> None:
        raise DeadLetter("no")

    @app.task
    def cancels(n: int) -> None:
        raise Cancel("no")

    @app.task
    def snoozes(n: int) -> None:
        if not snoozed:
            snoozed.append(n)
            raise Snooze(0)

    for task in (fails, fails_once, dies, cancels, snoozes):
        task.enqueue(1)
    app.send("unknown", {})
    app.send("dies", {"wrong": 1})  # a payload that does not fit: set aside, which is no end
    kit.run_worker()
    assert counts(kit) == {
        "fails": (0, 3, 1, 0),
        "fails_once": (1, 1, 0, 0),
        "dies": (0, 1, 1, 0),
        "cancels": (0, 0, 0, 1),
        "snoozes": (1, 0, 0, 0),
    }


def test_the_minute_is_the_databases_and_times_are_summed_up(app: Holdfast, kit: Kit) -> None:
    @app.task
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    kit.clock.advance(86_400)
    app.enqueue_many(work.job(s) for s in (0.2, 0.05, 0.0))
    kit.sql("UPDATE holdfast.work SET available_at = available_at - interval '10 s'")
    kit.run_worker()

    rows = kit.sql(
        "SELECT *, minute BETWEEN holdfast.now() - interval '2 min' AND holdfast.now() AS now FROM holdfast.throughput"
    )
    assert {(r["queue"], r["task"], r["now"]) for r in rows} == {("inbox", "work", True)}
    assert all(r["minute"].second == r["minute"].microsecond == 0 for r in rows)
    assert 0.25 <= sum(r["run_seconds"] for r in rows) < 5
    assert 0.2 <= max(r["max_run"] for r in rows) < 5
    assert 30 <= sum(r["wait_seconds"] for r in rows) < 90
    assert 10 <= max(r["max_wait"] for r in rows) < 30
    (view,) = kit.sql(
        "SELECT sum(completed)::int AS done, max(mean_wait) AS wait FROM holdfast.throughput_per_minute"
    )
    assert view["done"] == 3
    assert 10 <= view["wait"] < 30


async def test_two_workers_add_up(app: Holdfast, akit: Kit) -> None:
    @app.task
    async def work(n: int) -> None: ...

    app.enqueue_many(work.job(n) for n in range(300))
    await asyncio.gather(*(akit.arun_worker(concurrency=5) for _ in range(2)))
    assert counts(akit) == {"work": (300, 0, 0, 0)}


async def test_a_worker_reports_while_it_runs_and_on_no_connection_of_its_own(
    app: Holdfast, akit: Kit
) -> None:
    @app.task
    async def work(n: int) -> None: ...

    work.enqueue(1)
    running = Running(app)
    tally = await running.tally()
    await await_until(lambda: tally._sums, "the job was counted")
    tally.wake()
    await await_until(lambda: counts(akit) == {"work": (1, 0, 0, 0)}, "the sums were written down")
    query = "SELECT application_name AS name FROM pg_stat_activity WHERE datname = current_database()"
    names = {r["name"] for r in akit.sql(query)}
    assert "holdfast membership" in names
    assert "holdfast tally" not in names
    await running.stop()
    assert counts(akit) == {"work": (1, 0, 0, 0)}


async def test_a_database_that_is_away_loses_nothing(
    app: Holdfast, proxied: tuple[Kit, Proxy], dsn: str, events: list[telemetry.Event]
) -> None:
    kit, proxy = proxied

    @app.task
    async def work(n: int) -> None: ...

    work.enqueue(1)
    running = Running(app)
    tally = await running.tally()
    await await_until(lambda: tally._sums, "the first job was counted")
    tally.wake()
    await await_until(lambda: not tally._sums and not tally._sent, "the first report was written")

    work.enqueue(2)
    await await_until(lambda: tally._sums, "the second job was counted")
    proxy.refuse()
    tally.wake()
    failed = {"name": "service.failed", "service": "tally"}
    await await_until(
        lambda: any({"name": e.name, "service": e.fields.get("service")} == failed for e in events),
        "a report failed",
    )
    assert tally._sums["inbox", "work"].completed == 1
    proxy.heal()
    await running.stop()
    await kit.database.aclose()
    assert counts(kit) == {"work": (2, 0, 0, 0)}


@pytest.mark.parametrize("cut", ["INSERT INTO holdfast.throughput", "COMMIT"], ids=["undone", "done"])
async def test_a_lost_answer_is_looked_up_and_nothing_is_counted_twice(
    app: Holdfast, proxied: tuple[Kit, Proxy], cut: str
) -> None:
    """The connection breaks after the server has done the statement: before the commit, or right after it."""
    kit, proxy = proxied

    @app.task
    async def work(n: int) -> None: ...

    work.enqueue(1)
    proxy.cut_after(cut, name="holdfast membership")
    await kit.arun_worker()
    await kit.database.aclose()
    assert proxy.cuts == 1
    assert counts(kit) == {"work": (1, 0, 0, 0)}


async def test_a_report_that_is_still_under_way_is_waited_for(akit: Kit, tally: Tally) -> None:
    """Our side gave up, the server did not: what it writes later is not written again."""
    with psycopg.connect(akit.url) as other:
        other.execute(
            "INSERT INTO holdfast.throughput (minute, queue, task) VALUES (now(), 'inbox', 'other')"
        )
        row = other.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        tally._sent, tally._transaction = {("inbox", "work"): Sums(completed=1)}, row[0]
        assert await tally.report() is False
        assert tally._sent
    assert await tally.report() is True
    assert counts(akit) == {"other": (0, 0, 0, 0)}


@pytest.mark.parametrize("what", ["rolled back", "unheard of"])
async def test_a_report_that_was_undone_is_counted_again(akit: Kit, tally: Tally, what: str) -> None:
    """Rolled back with its session, or lost with a server that failed over to another one."""
    with psycopg.connect(akit.url) as other:
        row = other.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        other.rollback()
    tally._sent = {("inbox", "work"): Sums(completed=1)}
    tally._transaction = row[0] if what == "rolled back" else str(2**40)
    assert await tally.report() is True
    assert counts(akit) == {"work": (1, 0, 0, 0)}


async def test_somebody_who_holds_the_table_delays_the_sums_and_nothing_else(
    app: Holdfast, akit: Kit, events: list[telemetry.Event]
) -> None:
    @app.task
    async def work(n: int) -> None: ...

    with psycopg.connect(akit.url) as other:
        other.execute("LOCK TABLE holdfast.throughput")
        work.enqueue(1)
        running = Running(app)
        tally = await running.tally()
        await await_until(lambda: tally._sums, "the first job was counted")
        tally.wake()
        await await_until(lambda: any(e.fields.get("service") == "tally" for e in events), "a report gave up")
        work.enqueue(2)
        await await_until(lambda: tally._sums["inbox", "work"].completed == 2, "work goes on")
    await running.stop()
    assert counts(akit) == {"work": (2, 0, 0, 0)}


def test_a_job_that_killed_its_processes_counts_as_dead(app: Holdfast, kit: Kit) -> None:
    """The sweep buries it, nobody settles it."""
    kit.sql(
        """INSERT INTO holdfast.workers (id, host, pid, status, last_seen_at, started_at, queues, tasks,
                                         concurrency, release, fenced_at)
           VALUES ('w', 'h', 1, 'gone', now(), now(), '{inbox}', '{}', 1, '-', now())"""
    )
    handle = app.send("crasher", {})
    token = uuid4()
    kit.sql(
        "UPDATE holdfast.work SET status = 'processing', claim_token = %s, lease_generation = 1, crashes = 3, suspect = 1",
        [token],
    )
    kit.sql(
        """INSERT INTO holdfast.claims (token, queue, worker, claimed_at, lease_expires_at, job_ids)
           VALUES (%s, 'inbox', 'w', now(), now(), %s)""",
        [token, [handle.id]],
    )

    async def main() -> None:
        running = Running(app)
        tally = await running.tally()
        await await_until(lambda: tally._sums, "the sweep told the tally")
        await running.stop()
        await kit.database.aclose()

    asyncio.run(main())
    assert kit.job(handle.id)["status"] == "dead_letter"
    assert counts(kit) == {"crasher": (0, 1, 1, 0)}


async def test_what_has_not_ended_is_not_counted(tally: Tally) -> None:
    for outcome, state in (
        (Released("x"), "pending"),
        (Snoozed(1.0), "pending"),
        (Held("x"), "held"),
        (Lost(), "lost"),
        (Completed(), "lost"),
        (Failed(ErrorText("E", "x")), "lost"),
        (Failed(ErrorText("E", "x")), "quarantined"),
    ):
        tally.settled("inbox", "work", outcome, state, 1.0, 1.0)
    assert tally._sums == {}


async def test_the_memory_of_the_tally_is_bounded(akit: Kit, tally: Tally) -> None:
    for n in range(_MOST_PAIRS + 500):
        tally.settled("inbox", f"task{n}", Completed(), "completed")
    assert len(tally._sums) == _MOST_PAIRS + 1
    await tally.last()
    assert counts(akit)["(others)"] == (500, 0, 0, 0)
    (total,) = akit.sql("SELECT sum(completed)::int AS total FROM holdfast.throughput")
    assert total["total"] == _MOST_PAIRS + 500


async def test_a_clean_exit_in_the_middle_of_a_report_loses_nothing(app: Holdfast, akit: Kit) -> None:
    @app.task
    async def work(n: int) -> None: ...

    work.enqueue(1)
    running = Running(app)
    tally = await running.tally()
    await await_until(lambda: tally._sums, "the job was counted")
    under_way = asyncio.Event()
    failpoints.arm("membership.committed", under_way.set)
    with psycopg.connect(akit.url) as other:
        other.execute("LOCK TABLE holdfast.throughput")
        tally.wake()
        await await_until(lambda: tally._sent, "a report is under way")
        stopping = asyncio.create_task(running.stop())
        await await_until(tally._writing.locked, "it still is")
    await stopping
    assert under_way.is_set()
    assert counts(akit) == {"work": (1, 0, 0, 0)}
