"""The end of a handler's transaction is one message: the job's own end, COMMIT and the reset of the connection."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.conftest import QUICK

from holdfast import AsyncTransaction, Backoff, Holdfast, Job, Transaction, telemetry
from holdfast.store.statement import Flow, Statement
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

AT_ONCE = Backoff(first=0, jitter=False)
SETTLE = "holdfast_settle_inbox"


@pytest.fixture
def one(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    """Handlers share one connection, unless the worker's own questions take it just then: the pool has one to spare."""
    kit = holdfast_kit(app, replace(QUICK, pool_size=1))
    kit.sql("CREATE TABLE notes (text text)")
    return kit


def written(kit: Kit) -> list[str]:
    return [row["text"] for row in kit.sql("SELECT text FROM notes ORDER BY text")]


def ends(kit: Kit) -> list[tuple[str, int, int]]:
    """Status, attempts and claims of each job, in their order."""
    rows = kit.sql("SELECT status, attempts, lease_generation FROM holdfast.archive ORDER BY seq")
    return [(row["status"], row["attempts"], row["lease_generation"]) for row in rows]


class Used:
    """The connections that handlers had, and whether the first was still open at each use."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.pids: list[int] = []
        self.open: list[bool] = []

    def note(self, tx: Transaction | AsyncTransaction) -> None:
        self.pids.append(tx.connection.info.backend_pid)
        found = self._kit.sql("SELECT pid FROM pg_stat_activity WHERE pid = %s", self.pids[:1])
        self.open.append(bool(found))


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    "reset", ["SELECT 1 / 0", "SELECT pg_terminate_backend(pg_backend_pid())"], ids=["fails", "is cut off"]
)
def test_what_goes_wrong_after_the_commit_is_no_failed_commit(
    app: Holdfast, one: Kit, monkeypatch: pytest.MonkeyPatch, kind: str, reset: str
) -> None:
    @app.task
    def s_work(job: Job, tx: Transaction) -> None:
        tx.execute("INSERT INTO notes VALUES (%s)", [str(job.id)])

    @app.task
    async def a_work(job: Job, tx: AsyncTransaction) -> None:
        await tx.execute("INSERT INTO notes VALUES (%s)", [str(job.id)])

    handles = app.enqueue_many((s_work if kind == "sync" else a_work).job() for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.db.pools.RESET", reset)
        one.run_worker(concurrency=1)
    assert written(one) == sorted(str(handle.id) for handle in handles)
    assert ends(one) == [("completed", 1, 1)] * 2
    assert one.sql("SELECT * FROM holdfast.errors") == []


async def test_a_reset_that_fails_is_not_told_to_whoever_committed(
    one: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agreed(_: str) -> Flow[bool]:
        return (yield from Statement("agree", "SELECT 1", (), bool))

    async def body(tx: AsyncTransaction) -> str:
        await tx.execute("INSERT INTO notes VALUES ('async')")
        return "async"

    def write(tx: Transaction) -> str:
        tx.execute("INSERT INTO notes VALUES ('sync')")
        return "sync"

    monkeypatch.setattr("holdfast.db.pools.RESET", "SELECT 1 / 0")
    assert await one.database.atransact(body, agreed) == "async"
    assert await asyncio.to_thread(one.database.transact, write, agreed) == "sync"
    assert written(one) == ["async", "sync"]
    await one.database.aclose()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_commit_that_is_refused_fails_the_attempt_and_nothing_stays(
    app: Holdfast, one: Kit, kind: str
) -> None:
    one.sql("CREATE TABLE places (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    one.sql("INSERT INTO places VALUES (1)")
    used = Used(one)

    @app.task(retry=AT_ONCE)
    def s_work(job: Job, tx: Transaction) -> None:
        used.note(tx)
        tx.execute("INSERT INTO notes VALUES (%s)", [f"attempt {job.attempt}"])
        tx.execute("INSERT INTO places VALUES (%s)", [job.attempt])

    @app.task(retry=AT_ONCE)
    async def a_work(job: Job, tx: AsyncTransaction) -> None:
        used.note(tx)
        await tx.execute("INSERT INTO notes VALUES (%s)", [f"attempt {job.attempt}"])
        await tx.execute("INSERT INTO places VALUES (%s)", [job.attempt])

    assert (s_work if kind == "sync" else a_work).enqueue()
    one.run_worker(concurrency=1)
    assert written(one) == ["attempt 2"]
    assert ends(one) == [("completed", 2, 2)]
    (error,) = one.sql("SELECT * FROM holdfast.errors")
    assert "places_n_key" in error["message"]
    assert used.open == [True, True]  # the connection is as good as before


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_job_that_is_no_longer_ours_is_lost_and_its_connection_goes_on(
    app: Holdfast, one: Kit, events: list[telemetry.Event], kind: str
) -> None:
    used = Used(one)

    def lose(job: Job) -> None:
        if job.attempt == 1 and not used.pids[1:]:
            one.sql(
                "UPDATE holdfast.work SET lease_generation = 2, claim_token = gen_random_uuid() WHERE id = %s",
                [job.id],
            )

    @app.task
    def s_work(job: Job, tx: Transaction) -> None:
        used.note(tx)
        tx.execute("INSERT INTO notes VALUES (%s)", [str(len(used.pids))])
        lose(job)

    @app.task
    async def a_work(job: Job, tx: AsyncTransaction) -> None:
        used.note(tx)
        await tx.execute("INSERT INTO notes VALUES (%s)", [str(len(used.pids))])
        lose(job)

    work = s_work if kind == "sync" else a_work
    for _ in range(2):
        work.enqueue()
    one.run_worker(concurrency=1)
    assert written(one) == ["2"]
    assert [event.name for event in events if event.name in ("job.lost", "job.failed")] == ["job.lost"]
    assert used.open == [True, True]  # rolled back, not closed


def test_the_plan_of_the_end_is_kept_and_scans_no_table(app: Holdfast, one: Kit) -> None:
    """A queue of one page is cheapest read as a whole, and a plan that is kept would go on doing so when it is long."""
    seen: list[tuple[int, str]] = []

    @app.task
    def work(tx: Transaction) -> None:
        query = f"SELECT generic_plans FROM pg_prepared_statements WHERE name = '{SETTLE}'"
        kept = tx.execute(query).fetchone()
        if kept is None or kept[0] < 2:  # to explain it makes a plan, if there is none
            return
        tx.execute("SET LOCAL plan_cache_mode = 'force_generic_plan'")
        nobody = "'00000000-0000-0000-0000-000000000000'"
        plan = tx.execute(
            f"EXPLAIN (COSTS off) EXECUTE {SETTLE} ('inbox', {nobody}, 1, {nobody}, '', NULL, 'null')"
        ).fetchall()
        tx.execute("SET LOCAL plan_cache_mode = 'auto'")
        seen.append((kept[0], "\n".join(line for (line,) in plan)))

    app.enqueue_many(work.job() for _ in range(12))
    with psycopg.connect(one.url, autocommit=True) as conn:
        conn.execute("VACUUM ANALYZE holdfast.inbox")
    one.run_worker(concurrency=1)
    assert ends(one) == [("completed", 1, 1)] * 12
    times, plan = seen[-1]
    assert times > 1
    assert "Seq Scan on inbox" not in plan


def test_a_savepoint_that_was_rolled_back_costs_no_attempt(app: Holdfast, one: Kit) -> None:
    """The driver drops everything that is prepared then."""
    ran: list[bool] = []

    @app.task
    def work(tx: Transaction, spoil: bool) -> None:
        ran.append(spoil)
        tx.connection.execute("SELECT 1", prepare=True)
        if spoil:
            with pytest.raises(psycopg.errors.DivisionByZero), tx.connection.transaction():
                tx.execute("SELECT 1 / 0")

    app.enqueue_many(work.job(spoil) for spoil in (False, True, False))
    one.run_worker(concurrency=1)
    assert ran == [False, True, False]
    assert ends(one) == [("completed", 1, 1)] * 3


def test_a_handler_that_drops_what_is_prepared_is_run_once_more_and_fails_no_attempt(
    app: Holdfast, one: Kit
) -> None:
    @app.task
    def work(job: Job, tx: Transaction, spoil: bool) -> None:
        tx.execute("INSERT INTO notes VALUES (%s)", [f"run {job.generation}"])
        if spoil:
            tx.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")

    app.enqueue_many(work.job(spoil) for spoil in (False, True, False))
    one.run_worker(concurrency=1)
    assert sorted(ends(one)) == [("completed", 1, 1), ("completed", 1, 1), ("completed", 1, 2)]
    assert written(one) == ["run 1", "run 1", "run 2"]
    assert one.sql("SELECT * FROM holdfast.errors") == []


@pytest.mark.parametrize("setting", ["standard_conforming_strings = off", "client_encoding = 'LATIN1'"])
def test_a_result_is_stored_as_it_is_whatever_the_handler_has_set(
    app: Holdfast, one: Kit, setting: str
) -> None:
    result = "it's \\' a \\\\ b; \"é\" -- $1"

    @app.task(max_attempts=1)
    def work(tx: Transaction) -> str:
        tx.execute(f"SET {setting}")
        return result

    handle = work.enqueue()
    one.run_worker(concurrency=1)
    assert handle.result(timeout=25) == result


def test_a_block_that_a_handler_left_open_is_refused(app: Holdfast, one: Kit) -> None:
    opened: list[Any] = []

    @app.task(max_attempts=1)
    def work(tx: Transaction) -> None:
        tx.execute("INSERT INTO notes VALUES ('a')")
        opened.append(psycopg.Transaction(tx.connection))
        opened[0].__enter__()

    handle = work.enqueue()
    one.run_worker(concurrency=1)
    assert written(one) == []
    assert "nesting" in one.job(handle.id)["last_error"]


def test_what_a_handler_prepared_or_declared_does_not_reach_the_next(app: Holdfast, one: Kit) -> None:
    @app.task(max_attempts=1)
    def leave(tx: Transaction, what: str) -> None:
        tx.execute(what)

    @app.task(max_attempts=1)
    def look(tx: Transaction) -> list[int]:
        row = tx.execute(
            """SELECT (SELECT count(*) FROM pg_prepared_statements WHERE name = 'mine'),
                      (SELECT count(*) FROM pg_cursors WHERE name = 'mine')"""
        ).fetchone()
        assert row is not None
        return list(row)

    for what in ("PREPARE mine AS SELECT 1", "DECLARE mine CURSOR WITH HOLD FOR SELECT 1"):
        leave.enqueue(what)
        handle = look.enqueue()
        one.run_worker(concurrency=1)
        assert handle.result(timeout=25) == [0, 0]
