"""Ownership: work and completion commit together, and an owner that lost its lease changes nothing."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.conftest import QUICK, await_until, wait_until

from holdfast import (
    AsyncTransaction,
    Backoff,
    DatabaseUnavailable,
    Holdfast,
    Job,
    JobSettled,
    LeaseLost,
    Retry,
    Snooze,
    Transaction,
    WrongConnection,
    telemetry,
)
from holdfast.model.outcome import Held, Settlement
from holdfast.model.worker import WorkerIdentity
from holdfast.store.claim import claim
from holdfast.store.settle import settle as settle_jobs
from holdfast.store.workers import register
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Events = list[telemetry.Event]
AT_ONCE = Backoff(first=0, jitter=False)


@pytest.fixture(autouse=True)
def _table(kit: Kit) -> None:
    kit.sql("CREATE TABLE notes (text text)")


@pytest.fixture
def conn(kit: Kit) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(kit.url) as conn:
        yield conn


@pytest.fixture
async def aconn(akit: Kit) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(akit.url) as conn:
        yield conn


def notes(kit: Kit) -> list[str]:
    return [row["text"] for row in kit.sql("SELECT text FROM notes ORDER BY text")]


def steal(kit: Kit, job_id: UUID) -> None:
    """Another owner took the job, as a claim after a sweep would."""
    kit.sql(
        "UPDATE holdfast.work SET lease_generation = lease_generation + 1, claim_token = gen_random_uuid() WHERE id = %s",
        [job_id],
    )


def take_back(kit: Kit, job_id: UUID) -> None:
    """A sweep took the job back: it waits again."""
    kit.sql(
        """UPDATE holdfast.work SET status = 'pending', claim_token = '00000000-0000-0000-0000-000000000000'
           WHERE id = %s AND status = 'processing'""",
        [job_id],
    )


def ends(events: Events) -> list[str]:
    wanted = ("job.completed", "job.retry", "job.dead_letter", "job.lost", "job.snoozed", "job.released")
    return [event.name for event in events if event.name in wanted]


# Transaction and AsyncTransaction -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_writes_follow_up_and_completion_commit_together(app: Holdfast, kit: Kit, kind: str) -> None:
    before: list[tuple[list[str], str, int]] = []

    @app.task
    def follow_up(n: int) -> int:
        return n

    def look(job: Job) -> None:
        before.append((notes(kit), kit.job(job.id)["status"], len(kit.jobs(follow_up))))

    @app.task
    def s_work(job: Job, tx: Transaction) -> str:
        tx.execute("INSERT INTO notes VALUES (%s)", ["a"])
        follow_up.using(conn=tx).enqueue(1)
        follow_up.using(conn=tx.connection).enqueue(2)
        look(job)
        return "done"

    @app.task
    async def a_work(job: Job, tx: AsyncTransaction) -> str:
        await tx.execute("INSERT INTO notes VALUES (%s)", ["a"])
        await follow_up.using(conn=tx).aenqueue(1)
        await follow_up.using(conn=tx.connection).aenqueue(2)
        look(job)
        return "done"

    handle = (s_work if kind == "sync" else a_work).enqueue()
    kit.run_worker()
    assert before == [([], "processing", 0)]
    assert notes(kit) == ["a"]
    assert handle.result(timeout=25) == "done"
    row = kit.job(handle.id)
    assert (row["status"], row["attempts"], row["claimed_by"]) == (
        "completed",
        1,
        kit.sql("SELECT id FROM holdfast.workers")[0]["id"],
    )
    assert [row["result"] for row in kit.jobs(follow_up)] == [1, 2]
    # One transaction: what it wrote carries one transaction id.
    (ids,) = kit.sql(
        "SELECT n.xmin::text AS n, a.xmin::text AS a FROM notes n, holdfast.archive a WHERE a.id = %s",
        [handle.id],
    )
    assert ids["n"] == ids["a"]


ENDS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "error": (lambda: ValueError("x"), "scheduled"),
    "retry": (lambda: Retry(after=60), "scheduled"),
    "snooze": (lambda: Snooze(60), "scheduled"),
    "lease lost": (LeaseLost, "scheduled"),  # it was not: that is an error of the handler
    "rollback": (psycopg.Rollback, "scheduled"),
}


def test_nothing_of_a_failed_attempt_stays(app: Holdfast, kit: Kit) -> None:
    @app.task
    def follow_up() -> None: ...

    @app.task(retry=Backoff(first=60))
    def s_work(tx: Transaction, end: str) -> None:
        tx.execute("INSERT INTO notes VALUES ('a')")
        follow_up.using(conn=tx).enqueue()
        raise ENDS[end][0]()  # noqa: RSE102

    @app.task(retry=Backoff(first=60))
    async def a_work(tx: AsyncTransaction, end: str) -> None:
        await tx.execute("INSERT INTO notes VALUES ('a')")
        await follow_up.using(conn=tx).aenqueue()
        raise ENDS[end][0]()  # noqa: RSE102

    handles = {(task.name, end): task.enqueue(end) for task in (s_work, a_work) for end in ENDS}
    kit.run_worker()
    assert (notes(kit), kit.jobs(follow_up)) == ([], [])
    rows = {case: kit.job(handle.id) for case, handle in handles.items()}
    assert {case: row["status"] for case, row in rows.items()} == {
        (task, end): status for task, end in handles for status in [ENDS[end][1]]
    }
    for name in ("s_work", "a_work"):
        assert rows[name, "rollback"]["last_error"] == (
            "RuntimeError: the handler raised psycopg.Rollback, so nothing of it stays. "
            "Say what happens to the job: raise Retry, Snooze, Cancel or DeadLetter"
        )


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_transaction_of_a_lost_lease_rolls_back(app: Holdfast, kit: Kit, events: Events, kind: str) -> None:
    @app.task
    def follow_up() -> None: ...

    @app.task
    def s_work(job: Job, tx: Transaction) -> str:
        tx.execute("INSERT INTO notes VALUES ('stale')")
        follow_up.using(conn=tx).enqueue()
        steal(kit, job.id)
        return "stale"

    @app.task
    async def a_work(job: Job, tx: AsyncTransaction) -> str:
        await tx.execute("INSERT INTO notes VALUES ('stale')")
        await follow_up.using(conn=tx).aenqueue()
        steal(kit, job.id)
        return "stale"

    handle = (s_work if kind == "sync" else a_work).enqueue()
    kit.run_worker()
    assert (notes(kit), kit.jobs(follow_up)) == ([], [])
    assert ends(events) == ["job.lost"]
    row = kit.job(handle.id)
    assert (row["status"], row["lease_generation"], row["attempts"]) == ("processing", 2, 0)


def test_a_plain_handler_of_a_lost_lease_cannot_settle(app: Holdfast, kit: Kit, events: Events) -> None:
    @app.task
    def finish(job: Job, how: str) -> str:
        steal(kit, job.id)
        if how == "fail":
            raise ValueError
        if how == "snooze":
            raise Snooze(0)
        return "stale"

    handles = [finish.enqueue(how) for how in ("complete", "fail", "snooze")]
    kit.run_worker()
    assert set(ends(events)) == {"job.lost"}
    assert len(ends(events)) == 3
    for handle in handles:
        row = kit.job(handle.id)
        assert (row["status"], row["lease_generation"], row["attempts"]) == ("processing", 2, 0)
    assert kit.sql("SELECT * FROM holdfast.errors") == []


def test_a_job_that_was_taken_back_is_run_again_and_only_that_run_counts(app: Holdfast, kit: Kit) -> None:
    seen: list[tuple[int, int]] = []

    @app.task
    def work(job: Job, tx: Transaction) -> int:
        seen.append((job.generation, job.attempt))
        tx.execute("INSERT INTO notes VALUES (%s)", [f"run {job.generation}"])
        if job.generation == 1:
            take_back(kit, job.id)
        return job.generation

    handle = work.enqueue()
    kit.run_worker()
    wait_until(lambda: kit.run_worker() or kit.job(handle.id)["status"] == "completed", "the second run")  # type: ignore[func-returns-value]
    assert handle.result(timeout=25) == 2
    assert seen == [(1, 1), (2, 1)]
    assert notes(kit) == ["run 2"]


def test_a_handler_cannot_end_its_transaction_by_itself(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=1)
    def work(tx: Transaction) -> None:
        tx.execute("INSERT INTO notes VALUES ('a')")
        tx.connection.commit()

    handle = work.enqueue()
    kit.run_worker()
    assert notes(kit) == []
    assert "commit" in kit.job(handle.id)["last_error"]


def test_a_savepoint_in_a_handlers_transaction_works(app: Holdfast, kit: Kit) -> None:
    @app.task
    def work(tx: Transaction) -> None:
        tx.execute("INSERT INTO notes VALUES ('kept')")
        with pytest.raises(psycopg.errors.DivisionByZero), tx.connection.transaction():
            tx.execute("INSERT INTO notes VALUES ('dropped')")
            tx.execute("SELECT 1 / 0")

    work.enqueue()
    kit.run_worker()
    assert notes(kit) == ["kept"]


def test_what_a_handler_sets_on_its_connection_does_not_reach_the_next(
    app: Holdfast, holdfast_kit: Callable[..., Kit]
) -> None:
    kit = holdfast_kit(app, replace(QUICK, pool_size=1))

    @app.task(max_attempts=1)
    def spoil(tx: Transaction) -> None:
        tx.connection.row_factory = dict_row
        tx.connection.prepare_threshold = None
        tx.execute("SET statement_timeout = '7s'")
        tx.execute("SET search_path = nowhere")
        tx.execute("SET default_transaction_isolation = 'serializable'")
        tx.execute("SELECT pg_advisory_lock(42)")
        tx.execute("CREATE TEMP TABLE mine (n int)")
        tx.execute("LISTEN gossip")
        tx.execute("SET myapp.tenant = 'a'")

    @app.task(max_attempts=1)
    def look(tx: Transaction) -> list[object]:
        row = tx.execute(
            """SELECT current_setting('statement_timeout'), current_setting('search_path'),
               current_setting('transaction_isolation'),
               (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
               to_regclass('pg_temp.mine') IS NULL, (SELECT count(*) FROM pg_listening_channels()),
               coalesce(current_setting('myapp.tenant', true), ''), current_user = session_user"""
        ).fetchone()
        assert isinstance(row, tuple)
        return list(row)

    assert spoil.enqueue()
    handle = look.enqueue()
    kit.run_worker(concurrency=1)
    assert [row["status"] for row in kit.jobs()] == ["completed", "completed"]
    assert handle.result(timeout=25) == ["0", '"$user", public', "read committed", 0, True, 0, "", True]


def test_a_role_set_for_the_session_does_not_reach_the_next_handler(
    app: Holdfast, holdfast_kit: Callable[..., Kit]
) -> None:
    """SET ROLE in a transaction that commits is kept by the session, and RESET ALL leaves it alone."""
    kit = holdfast_kit(app, replace(QUICK, pool_size=1))
    role = f"tenant_{id(kit)}"
    kit.sql(f"CREATE ROLE {role} SUPERUSER")

    @app.task(max_attempts=1)
    def become(tx: Transaction) -> str:
        tx.execute(f"SET ROLE {role}")
        return "done"

    @app.task(max_attempts=1)
    def who(tx: Transaction) -> list[object]:
        row = tx.execute("SELECT current_user = session_user, current_setting('role')").fetchone()
        assert row is not None
        return list(row)

    try:
        assert become.enqueue()
        handle = who.enqueue()
        kit.run_worker(concurrency=1)
        assert [row["status"] for row in kit.jobs()] == ["completed", "completed"]
        assert handle.result(timeout=25) == [True, "none"]
    finally:
        kit.database.close()
        kit.sql(f"DROP ROLE {role}")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_connection_that_cannot_be_reset_is_not_given_to_the_next_handler(
    app: Holdfast, holdfast_kit: Callable[..., Kit], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("holdfast.db.pools.RESET", "SELECT 1 / 0")
    kit = holdfast_kit(app, replace(QUICK, pool_size=1))

    @app.task
    def s_pid(tx: Transaction) -> int:
        row = tx.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        return int(row[0])

    @app.task
    async def a_pid(tx: AsyncTransaction) -> int:
        row = await (await tx.execute("SELECT pg_backend_pid()")).fetchone()
        assert row is not None
        return int(row[0])

    handles = app.enqueue_many((s_pid if kind == "sync" else a_pid).job() for _ in range(3))
    kit.run_worker(concurrency=1)
    assert len({handle.result(timeout=25) for handle in handles}) == 3


def test_more_transaction_handlers_than_the_pool_holds_still_run(
    app: Holdfast, holdfast_kit: Callable[..., Kit]
) -> None:
    kit = holdfast_kit(app, replace(QUICK, pool_size=2))
    together = threading.Barrier(6)

    @app.task(max_attempts=1)
    def work(tx: Transaction) -> int:
        together.wait(50)
        return 1

    handles = app.enqueue_many(work.job() for _ in range(6))
    kit.run_worker(concurrency=6)
    assert [handle.result(timeout=25) for handle in handles] == [1] * 6


# job.complete on the user's own connection ----------------------------------------------------------------------


def test_complete_settles_in_the_users_own_transaction(app: Holdfast, kit: Kit) -> None:
    before: list[str] = []

    @app.task
    def work(job: Job) -> dict[str, int]:
        with psycopg.connect(kit.url, row_factory=dict_row) as conn:
            conn.execute("INSERT INTO notes VALUES ('a')")
            job.complete(conn=conn, result={"n": 1})
            before.append(kit.job(job.id)["status"])
            conn.commit()
            before.append(kit.job(job.id)["status"])
        return {"n": 2}  # too late: the job has its result

    handle = work.enqueue()
    kit.run_worker()
    assert before == ["processing", "completed"]
    assert notes(kit) == ["a"]
    assert handle.result(timeout=25) == {"n": 1}
    assert kit.job(handle.id)["attempts"] == 1


async def test_acomplete_settles_in_the_users_own_async_transaction(app: Holdfast, akit: Kit) -> None:
    @app.task
    async def work(job: Job) -> str:
        connect = psycopg.AsyncConnection.connect(akit.url, autocommit=True)
        async with await connect as conn, conn.transaction():
            await conn.execute("INSERT INTO notes VALUES ('a')")
            await job.acomplete(conn=conn, result="from within")
        return ""

    handle = await work.aenqueue()
    await akit.arun_worker()
    assert notes(akit) == ["a"]
    assert await handle.aresult(timeout=25) == "from within"


def test_complete_needs_a_transaction_and_the_right_kind_of_connection(app: Holdfast, kit: Kit) -> None:
    said: list[str] = []

    @app.task
    def work(job: Job) -> None:
        with psycopg.connect(kit.url, autocommit=True) as conn:
            for call in (job.complete, lambda conn: job.guard(conn=conn, resource="r")):
                with pytest.raises(WrongConnection) as caught:
                    call(conn=conn)
                said.append(str(caught.value))
        with pytest.raises(WrongConnection) as caught:
            job.complete(conn="postgresql://")
        said.append(str(caught.value))

    @app.task
    async def awork(job: Job) -> None:
        async with await psycopg.AsyncConnection.connect(kit.url) as conn:
            with pytest.raises(WrongConnection) as caught:
                job.complete(conn=conn)
            said.append(str(caught.value))
        with psycopg.connect(kit.url) as sync, pytest.raises(WrongConnection) as caught:
            await job.acomplete(conn=sync)
        said.append(str(caught.value))

    work.enqueue()
    kit.run_worker()
    awork.enqueue()
    kit.run_worker()
    advice = (
        "needs an open transaction, and this connection is in autocommit mode without one; "
        "wrap it: with conn.transaction(): ..."
    )
    assert said == [
        f"job.complete() {advice}",
        f"job.guard() {advice}",
        (
            "conn= got builtins.str, which Holdfast cannot use; "
            "pass the connection object whose transaction the job should join"
        ),
        "complete() got an async connection (AsyncConnection); use await acomplete()",
        "acomplete() got a sync connection (Connection); use complete()",
    ]
    assert {row["status"] for row in kit.jobs()} == {"completed"}


def test_complete_that_is_rolled_back_fails_the_attempt(app: Holdfast, kit: Kit) -> None:
    @app.task(retry=AT_ONCE)
    def work(job: Job) -> int:
        with psycopg.connect(kit.url) as conn:
            conn.execute("INSERT INTO notes VALUES (%s)", [f"attempt {job.attempt}"])
            job.complete(conn=conn, result=job.attempt)
            if job.attempt == 1:
                conn.rollback()
        return 0

    handle = work.enqueue()
    kit.run_worker()
    assert handle.result(timeout=25) == 2
    assert notes(kit) == ["attempt 2"]
    (error,) = kit.sql("SELECT * FROM holdfast.errors")
    assert (error["attempt"], error["kind"]) == (1, "NotCommitted")
    assert error["message"] == (
        "job.complete() was called, but its transaction was not committed before the handler returned"
    )


def test_complete_in_a_transaction_still_open_at_the_return_is_waited_for(app: Holdfast, kit: Kit) -> None:
    opened: list[psycopg.Connection[Any]] = []
    returned = threading.Event()

    @app.task(retry=Backoff(first=3600))
    def work(job: Job) -> None:
        opened.append(psycopg.connect(kit.url))
        job.complete(conn=opened[0], result=None)
        returned.set()

    handle = work.enqueue()
    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(kit.run_worker)
        assert returned.wait(50)
        wait_until(
            lambda: kit.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast settle'"),
            "a settle",
        )
        assert not worker.done()
        opened[0].commit()
        worker.result(timeout=100)
    opened[0].close()
    assert kit.job(handle.id)["status"] == "completed"
    assert kit.sql("SELECT * FROM holdfast.errors") == []


def test_what_happens_after_a_committed_complete_changes_nothing(
    app: Holdfast, kit: Kit, events: Events
) -> None:
    ran: list[str] = []

    @app.task
    def work(job: Job, end: str) -> str:
        ran.append(end)
        with psycopg.connect(kit.url) as conn:
            job.complete(conn=conn, result="done")
        raise ENDS[end][0]()  # noqa: RSE102

    handles = [work.enqueue(end) for end in ENDS]
    kit.run_worker()
    assert sorted(ran) == sorted(ENDS)
    assert [handle.result(timeout=25) for handle in handles] == ["done"] * len(ENDS)
    assert kit.sql("SELECT * FROM holdfast.errors") == []
    assert "job.retry" not in ends(events)


def test_a_second_complete_is_refused(app: Holdfast, kit: Kit, conn: psycopg.Connection[Any]) -> None:
    said: list[str] = []

    @app.task
    def work(job: Job) -> None:
        job.complete(conn=conn)
        calls: list[Callable[[], object]] = [
            lambda: job.complete(conn=conn),
            lambda: job.once("step", lambda: 1),
        ]
        for call in calls:
            with pytest.raises(JobSettled) as caught:
                call()
            said.append(str(caught.value))
        conn.commit()

    handle = work.enqueue()
    kit.run_worker()
    assert said == [f"job {handle.id} was already completed by this attempt"] * 2
    assert kit.job(handle.id)["status"] == "completed"


def test_complete_by_a_stale_owner_raises_and_the_transaction_can_be_rolled_back(
    app: Holdfast, kit: Kit, conn: psycopg.Connection[Any], events: Events
) -> None:
    lost: list[bool] = []

    @app.task
    def work(job: Job) -> None:
        conn.execute("INSERT INTO notes VALUES ('stale')")
        steal(kit, job.id)
        try:
            job.complete(conn=conn)
        except LeaseLost:
            lost.append(job.lost)
            conn.rollback()
            raise

    handle = work.enqueue()
    kit.run_worker()
    assert lost == [True]
    assert (notes(kit), ends(events)) == ([], ["job.lost"])
    assert kit.job(handle.id)["lease_generation"] == 2


def test_complete_takes_only_a_result_of_the_declared_type(
    app: Holdfast, kit: Kit, conn: psycopg.Connection[Any]
) -> None:
    @app.task(max_attempts=1)
    def work(job: Job) -> int:
        job.complete(conn=conn, result="seven")
        return 7

    handle = work.enqueue()
    kit.run_worker()
    conn.rollback()
    assert kit.job(handle.id)["last_error"] == (
        "InvalidPayload: the result of work does not fit its return annotation int: not str 'seven'. "
        "Correct the annotation or the return value"
    )


# job.once -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_once_runs_a_step_once_over_all_attempts(app: Holdfast, kit: Kit, kind: str) -> None:
    ran: list[str] = []

    def pay(amount: int, *, currency: str) -> dict[str, Any]:
        ran.append(f"{amount} {currency}")
        return {"receipt": len(ran)}

    async def apay(amount: int, *, currency: str) -> dict[str, Any]:
        return pay(amount, currency=currency)

    @app.task(retry=AT_ONCE)
    def s_work(job: Job) -> list[Any]:
        first = job.once("pay", pay, 5, currency="EUR")
        assert job.once("pay", pay, 5, currency="EUR") == first
        second = job.once("tip", pay, job.attempt, currency="EUR")
        if job.attempt < 3:
            raise ValueError
        return [first, second]

    @app.task(retry=AT_ONCE)
    async def a_work(job: Job) -> list[Any]:
        first = await job.aonce("pay", apay, 5, currency="EUR")
        assert await job.aonce("pay", apay, 5, currency="EUR") == first
        second = await job.aonce("tip", apay, job.attempt, currency="EUR")
        if job.attempt < 3:
            raise ValueError
        return [first, second]

    handle = (s_work if kind == "sync" else a_work).enqueue()
    kit.run_worker()
    assert handle.result(timeout=25) == [{"receipt": 1}, {"receipt": 2}]
    assert ran == ["5 EUR", "1 EUR"]


def test_once_records_nothing_of_a_step_that_failed(app: Holdfast, kit: Kit) -> None:
    ran: list[int] = []
    recorded: list[Any] = []

    @app.task(retry=AT_ONCE)
    def work(job: Job) -> Any:
        def step() -> None:
            ran.append(job.attempt)
            if job.attempt == 1:
                raise ValueError

        result = job.once("step", step)
        recorded.extend(kit.sql("SELECT result FROM holdfast.once"))
        return result

    handle = work.enqueue()
    kit.run_worker()
    assert handle.result(timeout=25) is None  # None is a value: it is recorded, too
    assert ran == [1, 2]
    assert recorded == [{"result": None}]


def test_steps_of_two_jobs_are_apart(app: Holdfast, kit: Kit) -> None:
    @app.task
    def work(job: Job, n: int) -> int:
        return job.once("step", lambda: n)

    handles = [work.enqueue(n) for n in range(3)]
    kit.run_worker()
    assert [handle.result(timeout=25) for handle in handles] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_stale_owner_cannot_record_a_step(app: Holdfast, kit: Kit, events: Events, kind: str) -> None:
    seen: list[bool] = []

    @app.task
    def s_work(job: Job) -> None:
        try:
            job.once("step", lambda: steal(kit, job.id))
        finally:
            seen.append(job.lost)

    @app.task
    async def a_work(job: Job) -> None:
        async def step() -> None:
            steal(kit, job.id)

        try:
            await job.aonce("step", step)
        finally:
            seen.append(job.lost)

    (s_work if kind == "sync" else a_work).enqueue()
    kit.run_worker()
    assert seen == [True]
    assert kit.sql("SELECT * FROM holdfast.once") == []
    assert ends(events) == ["job.lost"]


def test_a_step_whose_result_is_not_json_fails_with_its_type(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=1)
    def work(job: Job) -> None:
        job.once("step", lambda: {1, 2})

    handle = work.enqueue()
    kit.run_worker()
    assert kit.job(handle.id)["last_error"] == (
        "InvalidPayload: the result of type set cannot be stored as JSON (Object of type set is not JSON serializable); "
        "return plain values"
    )


# job.guard and job.fence ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_guard_lets_the_owner_pass_and_holds_takers_out_until_the_commit(
    app: Holdfast, kit: Kit, kind: str
) -> None:
    held: list[str] = []

    def try_to_take(job: Job) -> None:
        with kit.connect(autocommit=True) as taker:
            skipped = taker.execute(
                "SELECT id FROM holdfast.work WHERE id = %s FOR NO KEY UPDATE SKIP LOCKED", [job.id]
            ).fetchall()
            held.append("free" if skipped else "held")

    @app.task
    def s_work(job: Job) -> None:
        with psycopg.connect(kit.url) as conn:
            job.guard(conn=conn, resource="ledger")
            conn.execute("INSERT INTO notes VALUES ('guarded')")
            try_to_take(job)
            conn.commit()
            try_to_take(job)
            job.guard(conn=conn, resource="ledger")  # and again

    @app.task
    async def a_work(job: Job) -> None:
        async with await psycopg.AsyncConnection.connect(kit.url) as conn:
            await job.aguard(conn=conn, resource="ledger")
            await conn.execute("INSERT INTO notes VALUES ('guarded')")
            try_to_take(job)
            await conn.commit()
            try_to_take(job)

    handle = (s_work if kind == "sync" else a_work).enqueue()
    kit.run_worker()
    assert kit.job(handle.id)["status"] == "completed"
    assert (held, notes(kit)) == (["held", "free"], ["guarded"])
    (fence,) = kit.sql("SELECT * FROM holdfast.fences")
    assert (fence["resource"], fence["stream"]) == ("ledger", str(handle.id))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_guard_refuses_a_stale_owner(app: Holdfast, kit: Kit, events: Events, kind: str) -> None:
    @app.task
    def s_work(job: Job) -> None:
        steal(kit, job.id)
        with psycopg.connect(kit.url) as conn:
            conn.execute("INSERT INTO notes VALUES ('stale')")
            job.guard(conn=conn, resource="ledger")

    @app.task
    async def a_work(job: Job) -> None:
        steal(kit, job.id)
        async with await psycopg.AsyncConnection.connect(kit.url) as conn:
            await conn.execute("INSERT INTO notes VALUES ('stale')")
            await job.aguard(conn=conn, resource="ledger")

    (s_work if kind == "sync" else a_work).enqueue()
    kit.run_worker()
    assert (notes(kit), ends(events)) == ([], ["job.lost"])
    assert kit.sql("SELECT * FROM holdfast.fences") == []


def test_fences_are_sortable_text_and_rise_with_every_owner(app: Holdfast, kit: Kit) -> None:
    fences: list[str] = []

    @app.task(max_attempts=3, retry=AT_ONCE)
    def work(job: Job) -> None:
        fences.append(job.fence)
        if len(fences) == 2:
            raise Snooze(0)
        raise ValueError

    work.enqueue()
    kit.run_worker()
    assert len(fences) == 4  # three attempts and a snooze
    assert fences == sorted(set(fences))
    assert {len(fence) for fence in fences} == {8 + 1 + 16 + 1 + 16}
    (ordered,) = kit.sql(
        'SELECT array_agg(f ORDER BY f COLLATE "C") AS f FROM unnest(%s::text[]) f', [fences]
    )
    assert ordered["f"] == fences


# Losing the lease -----------------------------------------------------------------------------------------------


async def test_only_the_job_that_was_lost_is_told_of_a_whole_batch(
    app: Holdfast, akit: Kit, events: Events
) -> None:
    running: dict[int, Job] = {}
    cancelled: list[int] = []
    go = asyncio.Event()

    @app.task
    async def work(job: Job, n: int) -> int:
        running[n] = job
        try:
            await go.wait()
        except asyncio.CancelledError:
            cancelled.append(n)
            assert job.lost
            with pytest.raises(LeaseLost):
                job.check()
            raise
        job.check()
        return n

    handles = await app.aenqueue_many(work.job(n) for n in range(4))
    worker = asyncio.create_task(akit.arun_worker())
    await await_until(lambda: len(running) == 4, "all run")
    (claims,) = akit.sql("SELECT count(DISTINCT claim_token) AS n FROM holdfast.work")
    assert claims["n"] == 1
    steal(akit, handles[2].id)
    await await_until(lambda: cancelled, "the lost one is told")
    assert cancelled == [2]
    assert [n for n, job in running.items() if job.lost] == [2]
    go.set()
    await worker
    assert [await handles[n].aresult(timeout=25) for n in (0, 1, 3)] == [0, 1, 3]
    assert sorted(ends(events)) == ["job.completed"] * 3 + ["job.lost"]


async def test_a_sync_handler_sees_the_loss_at_its_check(app: Holdfast, akit: Kit, events: Events) -> None:
    started = threading.Event()
    seen: list[str] = []

    @app.task
    def work(job: Job) -> None:
        job.check()
        started.set()
        wait_until(lambda: job.lost, "the loss arrives")
        try:
            job.check()
        except LeaseLost as error:
            seen.append(str(error))
            raise

    handle = await work.aenqueue()
    worker = asyncio.create_task(akit.arun_worker())
    assert await asyncio.to_thread(started.wait, 10)
    steal(akit, handle.id)
    await worker
    assert seen == [f"job {handle.id} is no longer owned by this attempt (generation 1)"]
    assert ends(events) == ["job.lost"]


async def test_a_late_owner_that_nobody_challenged_may_finish(app: Holdfast, akit: Kit) -> None:
    """Expiry alone takes nothing away: it only gives others the right to take."""

    @app.task
    async def work(job: Job, tx: AsyncTransaction) -> str:
        akit.sql("UPDATE holdfast.claims SET lease_expires_at = holdfast.now() - interval '1 hour'")
        akit.sql("UPDATE holdfast.engine SET last_sweep_at = holdfast.now() + interval '1 hour'")
        return "finished"

    akit.sql("UPDATE holdfast.engine SET last_sweep_at = holdfast.now() + interval '1 hour'")
    handle = await work.aenqueue()
    await akit.arun_worker()
    assert await handle.aresult(timeout=25) == "finished"


def test_a_completion_that_was_rolled_back_may_be_tried_again_in_the_same_attempt(
    app: Holdfast, kit: Kit
) -> None:
    @app.task
    def settle(job: Job) -> None:
        with kit.connect() as conn:
            job.complete(conn=conn)
            conn.rollback()  # a serialization failure, say
            job.complete(conn=conn)
            conn.commit()

    settle.enqueue()
    kit.run_worker()
    (row,) = kit.jobs()
    assert (row["status"], row["attempts"]) == ("completed", 1)


def test_an_outage_that_the_handlers_own_calls_run_into_is_its_failure(app: Holdfast, kit: Kit) -> None:
    """Released without an attempt it would run for ever, if the outage is of its own making."""

    @app.task(max_attempts=2, retry=AT_ONCE)
    def settle(tx: Transaction) -> None:
        raise DatabaseUnavailable("all connections of the pool were in use")

    settle.enqueue()
    kit.run_worker()
    (row,) = kit.jobs()
    assert (row["status"], row["attempts"]) == ("dead_letter", 2)


def test_a_job_asked_to_cancel_is_not_held(app: Holdfast, kit: Kit) -> None:
    handle = app.send("nobody.knows", {})
    me = WorkerIdentity("h", 1, "b" * 12)
    kit.database.run(lambda: register(me, queues=["inbox"], tasks=[], concurrency=1, release="-"))
    (job,) = kit.database.run(lambda: claim("inbox", me.id, uuid4(), lease=60, limit=1, marks=[(0, None)]))
    assert handle.cancel()
    kit.database.run(lambda: settle_jobs([Settlement(job.grant, Held("unknown"))], "w"))
    kit.run_worker()
    assert kit.job(handle.id)["status"] == "cancelled"


async def test_a_full_worker_leaves_suspects_to_one_that_has_a_slot(app: Holdfast, akit: Kit) -> None:
    go = asyncio.Event()

    @app.task
    async def long() -> None:
        await go.wait()

    @app.task
    async def short() -> None: ...

    def sweeps() -> Any:
        return akit.sql("SELECT last_sweep_at FROM holdfast.engine")[0]["last_sweep_at"]

    busy = await long.aenqueue()
    full = asyncio.create_task(app.run_worker(concurrency=1))
    await await_until(lambda: akit.job(busy.id)["status"] == "processing", "the worker is full")
    suspect = await short.using(run_after=3600).aenqueue()
    akit.sql(
        "UPDATE holdfast.work SET suspect = 1, available_at = holdfast.now() WHERE id = %s", [suspect.id]
    )
    swept: set[Any] = set()

    def often() -> bool:
        swept.add(sweeps())
        return len(swept) > 4

    await await_until(often, "the full worker had its chances to take it")
    idle = asyncio.create_task(app.run_worker(concurrency=4))
    await suspect.aresult(timeout=50)
    go.set()
    for worker in (full, idle):
        worker.cancel()
    await asyncio.gather(full, idle, return_exceptions=True)
    assert akit.job(suspect.id)["lease_generation"] == 1


def test_handlers_in_transactions_can_use_once_however_small_the_pool(
    app: Holdfast, holdfast_kit: Callable[..., Kit]
) -> None:
    kit = holdfast_kit(app, replace(QUICK, pool_size=1))
    together = threading.Barrier(2, timeout=100)

    @app.task
    def step(job: Job, tx: Transaction) -> int:
        together.wait()
        return job.once("step", lambda: 1)

    for _ in range(2):
        step.enqueue()
    kit.run_worker(concurrency=2)
    assert {(r["status"], r["attempts"], r["lease_generation"]) for r in kit.jobs()} == {("completed", 1, 1)}


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_handler_that_takes_every_connection_of_the_pool_keeps_its_lease(
    app: Holdfast, akit: Kit, kind: str
) -> None:
    """For longer than a worker may be silent, and than its lease: renewal has a connection of its own."""
    most = 2 + 4  # concurrency and the spare ones
    pools = akit.database._ready()[1]
    go = threading.Event()

    @app.task
    def take_all_sync() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(most):
                stack.enter_context(pools.connection())
            go.wait(100)

    @app.task
    async def take_all_async() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(most):
                await stack.enter_async_context(pools.aconnection())
            await asyncio.to_thread(go.wait, 20)

    handle = await (take_all_sync if kind == "sync" else take_all_async).aenqueue()
    worker = asyncio.create_task(app.run_worker(concurrency=2))
    renewed: set[Any] = set()

    def over_three_leases() -> bool:
        rows = akit.sql("SELECT lease_expires_at FROM holdfast.jobs WHERE status = 'processing'")
        renewed.update(r["lease_expires_at"] for r in rows)
        return bool(renewed) and (max(renewed) - min(renewed)).total_seconds() > 3 * QUICK.lease

    await await_until(over_three_leases, "the lease was renewed for three times its length")
    go.set()
    await handle.aresult(timeout=50)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert akit.job(handle.id)["lease_generation"] == 1
