"""A job's run: how it is called, how its attempt may end, what it leaves behind, and what a worker claims."""

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel
from tests.conftest import QUICK, await_until, wait_until

from holdfast import (
    AsyncTransaction,
    Backoff,
    Cancel,
    DeadLetter,
    Holdfast,
    Job,
    JobCancelled,
    JobFailed,
    LeaseLost,
    Next,
    Outcome,
    ResultExpired,
    ResultTimeout,
    Retry,
    Snooze,
    Transaction,
    telemetry,
)
from holdfast.db.session import Session
from holdfast.model.outcome import Completed
from holdfast.sql import query
from holdfast.testing import Kit

Events = list[telemetry.Event]


@contextlib.asynccontextmanager
async def working(kit: Kit, **options: Any) -> AsyncIterator[None]:
    """A worker that runs until the block ends."""
    worker = asyncio.create_task(kit.arun_worker(until_idle=False, **options))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.wait([worker])
    with contextlib.suppress(asyncio.CancelledError):
        worker.result()


def named(events: Events, name: str) -> list[dict[str, Any]]:
    return [event.fields for event in events if event.name == name]


def errors(kit: Kit, job_id: object) -> list[dict[str, Any]]:
    return kit.sql("SELECT * FROM holdfast.errors WHERE job_id = %s ORDER BY at", [job_id])


# How a handler is called ----------------------------------------------------------------------------------------

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def test_async_handlers_run_in_the_loop_and_sync_handlers_in_threads(app: Holdfast, kit: Kit) -> None:
    @app.task
    async def loop() -> str:
        asyncio.get_running_loop()
        return threading.current_thread().name

    @app.task
    def thread() -> str:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return threading.current_thread().name

    one, two = loop.enqueue(), thread.enqueue()
    kit.run_worker()
    assert one.result(timeout=25) == "MainThread"
    assert two.result(timeout=25).startswith("holdfast-handler-")


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_context_variables_of_the_job_and_of_middleware_reach_the_handler(
    holdfast_kit: Callable[..., Kit], kind: str
) -> None:
    async def set_tenant(job: Job, call_next: Next) -> Outcome:
        tenant.set(job.metadata["tenant"])
        return await call_next()

    app = Holdfast(middleware=[set_tenant])

    def look() -> list[object]:
        context = telemetry.job_context.get()
        return [tenant.get(), context["job"], context["task"], context["attempt"]]

    if kind == "async":

        @app.task(name="look")
        async def _async() -> list[object]:
            return look()
    else:

        @app.task(name="look")
        def _sync() -> list[object]:
            return look()

    kit = holdfast_kit(app, QUICK)
    first = app.send("look", {}, metadata={"tenant": "a"})
    second = app.send("look", {}, metadata={"tenant": "b"})
    kit.run_worker()
    assert first.result(timeout=25) == ["a", str(first.id), "look", 1]
    assert second.result(timeout=25) == ["b", str(second.id), "look", 1]
    assert tenant.get() == "nobody"


def test_job_and_transaction_are_injected_in_every_combination(app: Holdfast, kit: Kit) -> None:
    @app.task
    async def a_job(job: Job, n: int) -> list[object]:
        return [str(job.id), n]

    @app.task
    async def a_tx(tx: AsyncTransaction, n: int) -> list[object]:
        row = await (await tx.execute("SELECT 7")).fetchone()
        assert row is not None
        return [row[0], n]

    @app.task
    async def a_both(job: Job, tx: AsyncTransaction, n: int) -> list[object]:
        row = await (await tx.execute("SELECT %s::int", [n])).fetchone()
        assert row is not None
        return [str(job.id), row[0]]

    @app.task
    def s_job(job: Job, n: int) -> list[object]:
        return [str(job.id), n]

    @app.task
    def s_tx(tx: Transaction, n: int) -> list[object]:
        row = tx.execute("SELECT 7").fetchone()
        assert row is not None
        return [row[0], n]

    @app.task
    def s_both(job: Job, tx: Transaction, n: int) -> list[object]:
        row = tx.execute("SELECT %(n)s::int", {"n": n}).fetchone()
        assert row is not None
        return [str(job.id), row[0]]

    handles = [task.enqueue(n=3) for task in (a_job, a_tx, a_both, s_job, s_tx, s_both)]
    kit.run_worker()
    ids = [str(handle.id) for handle in handles]
    assert [handle.result(timeout=25) for handle in handles] == [
        [ids[0], 3], [7, 3], [ids[2], 3], [ids[3], 3], [7, 3], [ids[5], 3],
    ]  # fmt: skip


def test_a_job_tells_its_handler_what_it_is(app: Holdfast, kit: Kit) -> None:
    @app.task
    def look(job: Job) -> dict[str, Any]:
        return {
            "id": str(job.id), "task": job.task, "queue": job.queue, "attempt": job.attempt, "max": job.max_attempts,
            "key": job.partition_key, "metadata": job.metadata, "generation": job.generation, "lost": job.lost,
        }  # fmt: skip

    handle = look.using(partition_key="p", metadata={"a": [1]}, max_attempts=3).enqueue()
    kit.run_worker()
    assert handle.result(timeout=25) == {
        "id": str(handle.id), "task": "look", "queue": "inbox", "attempt": 1, "max": 3,
        "key": "p", "metadata": {"a": [1]}, "generation": 1, "lost": False,
    }  # fmt: skip


def test_current_task_is_the_jobs_own_so_timeout_and_task_groups_work(app: Holdfast, kit: Kit) -> None:
    names: list[str] = []

    @app.task
    async def fan_out(n: int) -> int:
        me = asyncio.current_task()
        assert me is not None
        names.append(me.get_name())
        done: list[int] = []

        async def part(k: int) -> None:
            done.append(k)

        async with asyncio.TaskGroup() as group:
            for k in range(n):
                group.create_task(part(k))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        return sum(done)

    handles = [fan_out.enqueue(4), fan_out.enqueue(5)]
    kit.run_worker()
    assert [handle.result(timeout=25) for handle in handles] == [6, 10]
    assert sorted(names) == sorted(f"job {handle.id}" for handle in handles)


# Middleware and lifespan ----------------------------------------------------------------------------------------


def _middle(name: str, said: list[str]) -> Callable[[Job, Next], Any]:
    async def layer(job: Job, call_next: Next) -> Outcome:
        said.append(f"{name} in")
        outcome = await call_next()
        said.append(f"{name} out {type(outcome).__name__}")
        return outcome

    return layer


def test_middleware_wraps_the_handler_from_first_to_last(holdfast_kit: Callable[..., Kit]) -> None:
    said: list[str] = []
    app = Holdfast(middleware=[_middle("a", said), _middle("b", said)])

    @app.task
    def work() -> None:
        said.append("work")

    @app.task(max_attempts=1)
    def fail() -> None:
        raise ValueError

    kit = holdfast_kit(app, QUICK)
    work.enqueue()
    kit.run_worker()
    assert said == ["a in", "b in", "work", "b out Completed", "a out Completed"]
    said.clear()
    fail.enqueue()
    kit.run_worker()
    assert said == ["a in", "b in", "b out Failed", "a out Failed"]


def test_middleware_may_change_the_outcome_raise_or_talk_nonsense(holdfast_kit: Callable[..., Kit]) -> None:
    async def meddle(job: Job, call_next: Next) -> Outcome:
        kind = job.metadata["kind"]
        if kind == "early":
            raise RuntimeError("before the handler")
        if kind == "signal":
            raise DeadLetter("not on a sunday")
        outcome = await call_next()
        if kind == "late":
            raise RuntimeError("after the handler")
        if kind == "forgive":
            return Completed('"forgiven"')
        return outcome if kind == "plain" else kind

    app = Holdfast(middleware=[meddle])
    ran: list[str] = []

    @app.task(max_attempts=1)
    def work(job: Job) -> str:
        ran.append(job.metadata["kind"])
        if job.metadata["kind"] == "forgive":
            raise ValueError
        return "done"

    kit = holdfast_kit(app, QUICK)
    kinds = ["early", "signal", "late", "forgive", "plain", "nonsense"]
    handles = {kind: work.using(metadata={"kind": kind}).enqueue() for kind in kinds}
    kit.run_worker()
    assert sorted(ran) == ["forgive", "late", "nonsense", "plain"]
    assert handles["plain"].result(timeout=25) == "done"
    assert handles["forgive"].result(timeout=25) == "forgiven"
    told = {kind: kit.job(handles[kind].id) for kind in ("early", "signal", "late", "nonsense")}
    assert {row["status"] for row in told.values()} == {"dead_letter"}
    assert {kind: row["last_error"] for kind, row in told.items()} == {
        "early": "RuntimeError: before the handler",
        "signal": "DeadLetter: not on a sunday",
        "late": "RuntimeError: after the handler",
        "nonsense": "TypeError: middleware returned str instead of the Outcome that call_next() gave it",
    }


def test_middleware_cannot_undo_what_a_transaction_settled(holdfast_kit: Callable[..., Kit]) -> None:
    async def late(job: Job, call_next: Next) -> Outcome:
        await call_next()
        raise RuntimeError("after the commit")

    app = Holdfast(middleware=[late])

    @app.task
    def work(tx: Transaction) -> str:
        return "done"

    kit = holdfast_kit(app, QUICK)
    handle = work.enqueue()
    kit.run_worker()
    assert handle.result(timeout=25) == "done"
    assert errors(kit, handle.id) == []


def test_the_lifespan_is_around_all_work(holdfast_kit: Callable[..., Kit]) -> None:
    said: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Holdfast) -> AsyncIterator[None]:
        said.append("enter")
        try:
            yield
        finally:
            said.append("exit")

    app = Holdfast(lifespan=lifespan)

    @app.task
    def work() -> None:
        said.append("work")

    kit = holdfast_kit(app, QUICK)
    work.enqueue()
    kit.run_worker()
    assert said == ["enter", "work", "exit"]


async def test_the_lifespan_ends_after_a_cancelled_worker_has_drained(
    holdfast_kit: Callable[..., Kit],
) -> None:
    said: list[str] = []
    started, release = asyncio.Event(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(app: Holdfast) -> AsyncIterator[None]:
        try:
            yield
        finally:
            said.append("exit")

    app = Holdfast(lifespan=lifespan)

    @app.task
    async def work() -> None:
        started.set()
        await release.wait()
        said.append("work")

    kit = holdfast_kit(app, QUICK)
    handle = await work.aenqueue()
    worker = asyncio.create_task(kit.arun_worker(until_idle=False))
    await started.wait()
    worker.cancel()
    await await_until(
        lambda: kit.sql("SELECT id FROM holdfast.workers WHERE status = 'draining'"), "it drains"
    )
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert said == ["work", "exit"]
    assert kit.job(handle.id)["status"] == "completed"
    await kit.database.aclose()


def test_a_lifespan_that_cannot_start_keeps_the_worker_from_claiming(
    holdfast_kit: Callable[..., Kit],
) -> None:
    @contextlib.asynccontextmanager
    async def lifespan(app: Holdfast) -> AsyncIterator[None]:
        raise RuntimeError("no cache server")
        yield

    app = Holdfast(lifespan=lifespan)

    @app.task
    def work() -> None: ...

    kit = holdfast_kit(app, QUICK)
    handle = work.enqueue()
    with pytest.raises(RuntimeError, match="no cache server"):
        kit.run_worker()
    row = kit.job(handle.id)
    assert (row["status"], row["lease_generation"]) == ("pending", 0)
    assert kit.sql("SELECT id FROM holdfast.workers") == []


# Timeouts -------------------------------------------------------------------------------------------------------


async def test_an_async_handler_is_cancelled_at_its_timeout(app: Holdfast, akit: Kit, events: Events) -> None:
    ended: list[bool] = []

    @app.task(timeout=0.1, max_attempts=2, retry=Backoff(first=60, jitter=False))
    async def hang(job: Job) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(job.lost)

    handle = await hang.aenqueue()
    await akit.arun_worker()
    row = akit.job(handle.id)
    assert (row["status"], row["attempts"]) == ("scheduled", 1)
    assert row["last_error"] == "JobTimeout: ran longer than its timeout of 0.1 s"
    assert len(ended) == 1
    akit.clock.advance(61)
    await akit.arun_worker()
    with pytest.raises(JobFailed):
        await handle.aresult(timeout=25)
    assert len(ended) == 2


async def test_the_handlers_own_timeout_is_an_ordinary_failure(app: Holdfast, akit: Kit) -> None:
    @app.task(timeout=60, max_attempts=1)
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    handle = await impatient.aenqueue()
    await akit.arun_worker()
    assert akit.job(handle.id)["last_error"] == "TimeoutError"


async def test_a_sync_handler_past_its_timeout_frees_its_slot_and_learns_it(app: Holdfast, akit: Kit) -> None:
    release, seen = threading.Event(), []

    @app.task(timeout=0.1, max_attempts=1)
    def stuck(job: Job) -> None:
        release.wait(150)
        try:
            job.check()
        except LeaseLost as error:
            seen.append((str(error), job.lost))
            raise

    @app.task
    def next_one() -> str:
        return "ran"

    handle = await stuck.aenqueue()
    other = await next_one.aenqueue()
    await akit.arun_worker(concurrency=1)
    assert await other.aresult(timeout=25) == "ran"  # with one slot, while the thread still hangs
    assert not seen
    row = akit.job(handle.id)
    assert (row["status"], row["last_error"]) == (
        "dead_letter",
        "JobTimeout: ran longer than its timeout of 0.1 s",
    )
    release.set()
    await await_until(lambda: seen, "the thread sees that it is too late")
    assert seen == [(f"job {handle.id} is no longer owned by this attempt (generation 1)", True)]


async def test_a_transaction_handler_past_its_timeout_commits_nothing(app: Holdfast, akit: Kit) -> None:
    akit.sql("CREATE TABLE notes (text text)")
    release, ended = threading.Event(), threading.Event()

    @app.task(timeout=0.2, max_attempts=1)
    def slow(tx: Transaction) -> None:
        try:
            tx.execute("INSERT INTO notes VALUES ('late')")
            release.wait(150)
        finally:
            ended.set()

    handle = await slow.aenqueue()
    await akit.arun_worker()
    assert akit.job(handle.id)["status"] == "dead_letter"
    release.set()
    assert await asyncio.to_thread(ended.wait, 10)
    idle = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%%'"
    await await_until(lambda: not akit.sql(idle, []), "the late transaction ends")
    assert akit.sql("SELECT text FROM notes") == []
    assert akit.job(handle.id)["status"] == "dead_letter"


# Retries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "backoff",
    [Backoff(first=10, factor=3, cap=60, jitter=False), Backoff(steps=["10s", 30, "1m"], jitter=False)],
    ids=["exponential", "steps"],
)
def test_retries_back_off_to_the_cap_and_end_as_a_dead_letter(
    app: Holdfast, kit: Kit, events: Events, backoff: Backoff
) -> None:
    attempts: list[int] = []

    @app.task(max_attempts=5, retry=backoff)
    def fail(job: Job) -> None:
        attempts.append(job.attempt)
        raise ValueError(f"attempt {job.attempt}")

    handle = fail.enqueue()
    delays = []
    for n in range(1, 5):
        kit.run_worker()
        row = kit.job(handle.id)
        assert (row["status"], row["attempts"], row["last_error"]) == (
            "scheduled",
            n,
            f"ValueError: attempt {n}",
        )
        delays.append((row["available_at"] - errors(kit, handle.id)[-1]["at"]).total_seconds())
        kit.run_worker()  # not before its time
        assert len(attempts) == n
        kit.clock.advance(delays[-1])
    kit.run_worker()
    assert delays == [10, 30, 60, 60]
    assert attempts == [1, 2, 3, 4, 5]
    row = kit.job(handle.id)
    assert (row["status"], row["attempts"], row["lease_generation"]) == ("dead_letter", 5, 5)
    assert row["last_error"] == "ValueError: attempt 5"
    with pytest.raises(JobFailed) as caught:
        handle.result(timeout=25)
    assert str(caught.value) == (
        f"job {handle.id} (fail) is a dead letter after 5 attempts: ValueError: attempt 5"
    )
    assert (caught.value.job_id, caught.value.error) == (handle.id, "ValueError: attempt 5")
    assert [fields["attempt"] for fields in named(events, "job.retry")] == [1, 2, 3, 4]
    assert [fields["error"] for fields in named(events, "job.dead_letter")] == ["ValueError: attempt 5"]


def test_jobs_that_fail_together_do_not_come_back_together(app: Holdfast, kit: Kit) -> None:
    @app.task(retry=Backoff(first=100))
    def fail() -> None:
        raise ValueError

    app.enqueue_many(fail.job() for _ in range(30))
    kit.run_worker()
    delays = [
        row["delay"].total_seconds()
        for row in kit.sql(
            "SELECT w.available_at - e.at AS delay FROM holdfast.work w JOIN holdfast.errors e ON e.job_id = w.id"
        )
    ]
    assert len(set(delays)) == 30
    assert 50 <= min(delays) < max(delays) <= 100


def test_every_failed_attempt_is_kept_with_its_traceback(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=3, retry=Backoff(first=0, jitter=False))
    def flaky(job: Job) -> str:
        if job.attempt < 3:
            raise LookupError(f"no {job.attempt}")
        return "at last"

    handle = flaky.enqueue()
    kit.run_worker()
    assert handle.result(timeout=25) == "at last"
    assert kit.job(handle.id)["attempts"] == 3
    history = errors(kit, handle.id)
    assert [(e["attempt"], e["generation"], e["kind"], e["message"], e["queue"]) for e in history] == [
        (1, 1, "LookupError", "no 1", "inbox"),
        (2, 2, "LookupError", "no 2", "inbox"),
    ]
    for entry in history:
        assert entry["trace"].startswith("Traceback (most recent call last):")
        assert 'raise LookupError(f"no {job.attempt}")' in entry["trace"]
        assert entry["trace"].rstrip().endswith(f"LookupError: {entry['message']}")
        assert entry["worker"] == kit.sql("SELECT id FROM holdfast.workers")[0]["id"]


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


NASTY: dict[str, Callable[[], BaseException]] = {
    "NUL and surrogates": lambda: ValueError("a\0b\udc80c"),
    "a megabyte": lambda: ValueError("ü" * 1_000_000),
    "raising __str__": Rude,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "CancelledError": asyncio.CancelledError,
    "MemoryError": MemoryError,
    "a bad Retry": lambda: Retry(after=-1),
    "a bad Snooze": lambda: Snooze(float("nan")),
}


def test_no_error_of_a_handler_harms_the_worker_or_the_settle(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=1)
    async def a_raise(which: str) -> None:
        raise NASTY[which]()  # noqa: RSE102

    @app.task(max_attempts=1)
    def s_raise(which: str) -> None:
        raise NASTY[which]()  # noqa: RSE102

    @app.task
    async def innocent() -> str:
        return "fine"

    handles = [(which, task.enqueue(which)) for which in NASTY for task in (a_raise, s_raise)]
    last = innocent.enqueue()
    kit.run_worker()
    assert last.result(timeout=25) == "fine"
    for which, handle in handles:
        row = kit.job(handle.id)
        assert (which, row["status"]) == (which, "dead_letter")
        assert row["last_error"]
        assert len(row["last_error"].encode()) <= 8192 + 20
        assert len(errors(kit, handle.id)) == 1
    texts = {which: kit.job(handle.id)["last_error"] for which, handle in handles}
    assert texts["NUL and surrogates"] == "ValueError: a\ufffdb\ufffdc"
    assert texts["raising __str__"] == "Rude: <no message: __str__ raised RuntimeError>"


# Signals --------------------------------------------------------------------------------------------------------


def test_retry_spends_an_attempt_and_its_delay_replaces_the_backoff(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=2, retry=Backoff(first=500))
    def again() -> None:
        try:
            raise Retry("busy", after=timedelta(seconds=7))
        except Exception:  # a signal is no Exception, so this does not swallow it
            pytest.fail("swallowed")

    handle = again.enqueue()
    kit.run_worker()
    row = kit.job(handle.id)
    (error,) = errors(kit, handle.id)
    assert (row["attempts"], row["last_error"]) == (1, "Retry: busy")
    assert row["available_at"] - error["at"] == timedelta(seconds=7)
    kit.clock.advance(8)
    kit.run_worker()
    assert kit.job(handle.id)["status"] == "dead_letter"


def test_retry_without_a_delay_uses_the_backoff_of_the_task(app: Holdfast, kit: Kit) -> None:
    @app.task(retry=Backoff(first=500, jitter=False))
    async def again() -> None:
        raise Retry

    handle = again.enqueue()
    kit.run_worker()
    (error,) = errors(kit, handle.id)
    assert kit.job(handle.id)["available_at"] - error["at"] == timedelta(seconds=500)


def test_snooze_spends_no_attempt_however_often(app: Holdfast, kit: Kit) -> None:
    seen: list[tuple[int, int]] = []

    @app.task(max_attempts=1)
    def not_yet(job: Job) -> str:
        seen.append((job.attempt, job.generation))
        if len(seen) < 4:
            raise Snooze(30)
        return "now"

    handle = not_yet.enqueue()
    for n in range(1, 4):
        kit.run_worker()
        row = kit.job(handle.id)
        assert (row["status"], row["attempts"], len(seen)) == ("scheduled", 0, n)
        kit.clock.advance(31)
    kit.run_worker()
    assert handle.result(timeout=25) == "now"
    assert seen == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert errors(kit, handle.id) == []


def test_dead_letter_ends_a_job_whatever_attempts_are_left(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=10)
    def hopeless() -> None:
        raise DeadLetter("the account is closed")

    handle = hopeless.enqueue()
    kit.run_worker()
    row = kit.job(handle.id)
    assert (row["status"], row["attempts"]) == ("dead_letter", 1)
    with pytest.raises(
        JobFailed, match="is a dead letter after 1 attempt: DeadLetter: the account is closed"
    ):
        handle.result(timeout=25)


def test_cancel_ends_a_job_as_cancelled(app: Holdfast, kit: Kit) -> None:
    @app.task
    async def moot() -> None:
        raise Cancel("the order is gone")

    handle = moot.enqueue()
    kit.run_worker()
    assert kit.job(handle.id)["status"] == "cancelled"
    with pytest.raises(JobCancelled) as caught:
        handle.result(timeout=25)
    assert str(caught.value) == f"job {handle.id} (moot) was cancelled: the order is gone"


def test_a_signal_in_an_exception_group_of_one_counts(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=1)
    async def grouped(kind: str) -> None:
        async def part() -> None:
            if kind == "snooze":
                raise Snooze(60)
            async with asyncio.TaskGroup() as inner:
                inner.create_task(nested())

        async def nested() -> None:
            raise Cancel("nested")

        async with asyncio.TaskGroup() as group:
            group.create_task(part())

    @app.task(max_attempts=1)
    async def two() -> None:
        raise BaseExceptionGroup("both", [Snooze(60), ValueError("x")])

    snoozed, cancelled, failed = grouped.enqueue("snooze"), grouped.enqueue("cancel"), two.enqueue()
    kit.run_worker()
    assert (kit.job(snoozed.id)["status"], kit.job(snoozed.id)["attempts"]) == ("scheduled", 0)
    assert (kit.job(cancelled.id)["status"], kit.job(cancelled.id)["last_error"]) == ("cancelled", "nested")
    assert kit.job(failed.id)["last_error"] == "BaseExceptionGroup: both (2 sub-exceptions)"
    assert "ValueError: x" in errors(kit, failed.id)[0]["trace"]


# Cancelling -----------------------------------------------------------------------------------------------------


def test_a_waiting_or_scheduled_or_held_job_is_cancelled_at_once(app: Holdfast, kit: Kit) -> None:
    ran: list[int] = []

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    held = app.send("unknown", {})
    kit.run_worker()
    assert kit.job(held.id)["status"] == "held"
    for handle in (work.enqueue(1), work.using(run_after=60).enqueue(2), held):
        assert handle.cancel() is True
        row = kit.job(handle.id)
        assert (row["status"], row["attempts"], row["claimed_by"]) == ("cancelled", 0, None)
        assert handle.cancel() is False
        with pytest.raises(JobCancelled) as caught:
            handle.result(timeout=25)
        assert str(caught.value).endswith("was cancelled")
    kit.clock.advance(120)
    kit.run_worker()
    assert ran == []


async def test_a_running_async_job_is_cancelled_in_its_await(app: Holdfast, akit: Kit) -> None:
    started = asyncio.Event()
    seen: list[str] = []

    @app.task
    async def long() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    handle = await long.aenqueue()
    async with working(akit):
        await started.wait()
        assert await handle.acancel() is True
        with pytest.raises(JobCancelled) as caught:
            await handle.aresult(timeout=50)
    assert str(caught.value) == f"job {handle.id} (long) was cancelled: cancelled while running"
    assert seen == ["cancelled"]
    assert await handle.acancel() is False


async def test_a_running_sync_job_sees_the_cancel_at_its_check(app: Holdfast, akit: Kit) -> None:
    started = threading.Event()

    @app.task
    def long(job: Job) -> None:
        started.set()
        wait_until(job.check, "the cancel arrives")

    handle = await long.aenqueue()
    async with working(akit):
        assert await asyncio.to_thread(started.wait, 10)
        assert await handle.acancel() is True
        with pytest.raises(JobCancelled):
            await handle.aresult(timeout=50)


def test_a_handler_that_ignores_the_cancel_and_finishes_is_completed(app: Holdfast, kit: Kit) -> None:
    @app.task
    def stubborn(job: Job) -> str:
        kit.sql("UPDATE holdfast.work SET cancel_requested_at = holdfast.now() WHERE id = %s", [job.id])
        wait_until(lambda: job._cancelled, "the cancel arrives")
        return "done"

    handle = stubborn.enqueue()
    kit.run_worker()
    assert handle.result(timeout=25) == "done"
    assert handle.cancel() is False


def test_a_cancelled_job_that_fails_does_not_run_again(app: Holdfast, kit: Kit) -> None:
    ran: list[int] = []

    @app.task(retry=Backoff(first=3600))
    def unlucky(job: Job) -> None:
        ran.append(job.attempt)
        kit.sql("UPDATE holdfast.work SET cancel_requested_at = holdfast.now() WHERE id = %s", [job.id])
        raise ValueError

    handle = unlucky.enqueue()
    kit.run_worker()
    assert ran == [1]
    assert kit.job(handle.id)["status"] == "cancelled"


# Results --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    sku: str
    price: float
    on: date


class Invoice(BaseModel):
    lines: list[Line]
    at: datetime
    note: str | None = None


def test_results_come_back_in_their_declared_type(app: Holdfast, kit: Kit) -> None:
    line = Line("ü", 1.5, date(2030, 1, 2))
    invoice = Invoice(lines=[line], at=datetime(2030, 1, 2, 3, tzinfo=UTC))

    @app.task
    async def as_dataclass(line: Line) -> Line:
        assert isinstance(line, Line)
        return line

    @app.task
    def as_model(invoice: Invoice) -> Invoice:
        assert isinstance(invoice, Invoice)
        return invoice

    @app.task
    def as_datetime(at: datetime) -> datetime:
        return at + timedelta(days=1)

    @app.task
    def in_transaction(tx: Transaction, line: Line) -> list[Line]:
        return [line, line]

    @app.task
    def nothing() -> None: ...

    one, two = as_dataclass.enqueue(line), as_model.enqueue(invoice)
    three, four = as_datetime.enqueue(invoice.at), in_transaction.enqueue(line)
    five = nothing.enqueue()
    kit.run_worker()
    assert one.result(timeout=25) == line
    assert two.result(timeout=25) == invoice
    assert three.result(timeout=25) == datetime(2030, 1, 3, 3, tzinfo=UTC)
    assert four.result(timeout=25) == [line, line]
    assert five.result(timeout=25) is None


async def test_a_result_is_awaited_while_the_worker_runs(app: Holdfast, akit: Kit) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with working(akit):
        handles = [await add.aenqueue(n, n) for n in range(5)]
        assert [await handle.aresult(timeout=50) for handle in handles] == [0, 2, 4, 6, 8]


def test_a_result_that_does_not_fit_fails_the_attempt_and_says_so(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=1)
    def large() -> str:
        return "x" * 70_000

    @app.task(max_attempts=1)
    def wrong() -> int:
        return "seven"  # type: ignore[return-value]

    one, two = large.enqueue(), wrong.enqueue()
    kit.run_worker()
    assert kit.job(one.id)["last_error"] == (
        "InvalidPayload: large: result is 70,002 bytes of JSON, more than the limit of 65,536 (64 KiB). "
        "Store it elsewhere (a table, a file, object storage) and return a reference"
    )
    assert kit.job(two.id)["last_error"] == (
        "InvalidPayload: the result of wrong does not fit its return annotation int: not str 'seven'. "
        "Correct the annotation or the return value"
    )


async def test_a_result_that_is_not_there_in_time_is_a_timeout(app: Holdfast, akit: Kit) -> None:
    @app.task
    def work() -> None: ...

    handle = await work.aenqueue()
    for timeout in (0, 0.05, timedelta(milliseconds=50)):
        with pytest.raises(ResultTimeout):
            handle.result(timeout=timeout)
        with pytest.raises(TimeoutError) as caught:
            await handle.aresult(timeout=timeout)
    assert str(caught.value) == (
        f"job {handle.id} (work) is still waiting after 0.05 s. "
        "Is a worker running for its queue, and is the enqueue committed?"
    )


async def test_a_result_past_the_retention_is_expired(app: Holdfast, akit: Kit) -> None:
    @app.task
    def work() -> int:
        return 1

    handle = await work.aenqueue()
    async with working(akit):
        assert await handle.aresult(timeout=50) == 1
        await await_until(
            lambda: akit.sql("SELECT slot FROM holdfast.archive_slots WHERE day IS NOT NULL"),
            "a worker tidied",
        )
    akit.clock.advance(6 * 86400)
    assert await handle.aresult(timeout=50) == 1
    akit.clock.advance(3 * 86400)
    async with working(akit):
        await await_until(lambda: not akit.sql("SELECT id FROM holdfast.archive"), "the old day is emptied")
    with pytest.raises(ResultExpired) as caught:
        await handle.aresult(timeout=25)
    assert str(caught.value) == (
        f"nothing is kept of job {handle.id} (work): it finished longer ago than results are kept, "
        "its transaction was rolled back, or its queue or task has keep_completed=False"
    )


def test_a_handle_of_a_rolled_back_job_is_expired_not_waited_for(app: Holdfast, kit: Kit) -> None:
    @app.task
    def work() -> None: ...

    with kit.connect() as conn:
        handle = work.using(conn=conn).enqueue()
        conn.rollback()
    with pytest.raises(ResultExpired):
        handle.result(timeout=25)
    assert handle.cancel() is False


# Progress -------------------------------------------------------------------------------------------------------


async def test_progress_is_visible_while_the_job_runs(app: Holdfast, akit: Kit) -> None:
    go = asyncio.Event()

    @app.task
    async def long(job: Job) -> None:
        with pytest.raises(ValueError, match=r"progress must be between 0 and 1, not 1\.5"):
            job.progress(1.5)
        job.progress(0.1)
        job.progress(0.25, "a quarter\0")
        await go.wait()
        job.progress(0.75)
        await asyncio.Event().wait()

    handle = await long.aenqueue()

    def seen() -> list[tuple[float, str]]:
        rows = akit.sql("SELECT * FROM holdfast.progress WHERE job_id = %s", [handle.id])
        return [(row["fraction"], row["message"]) for row in rows]

    async with working(akit):
        await await_until(lambda: seen() == [(0.25, "a quarter\ufffd")], "the first report")
        go.set()
        await await_until(lambda: seen() == [(0.75, "")], "the second report")
        await handle.acancel()
        with pytest.raises(JobCancelled):
            await handle.aresult(timeout=50)


# Versions, unknown tasks, bad payloads --------------------------------------------------------------------------


def test_an_old_payload_is_upgraded_step_by_step(holdfast_kit: Callable[..., Kit]) -> None:
    old, new = Holdfast(), Holdfast()

    @old.task(name="greet")
    def greet_1(name: str) -> str:
        return name

    @new.task(
        name="greet",
        version=3,
        upgrade={
            1: lambda p: {"first": p["name"], "last": ""},
            2: lambda p: {**p, "polite": True},
        },
    )
    def greet_3(first: str, last: str, polite: bool) -> str:
        return f"{first}/{last}/{polite}"

    kit = holdfast_kit(new, QUICK)
    holdfast_kit(old, QUICK)
    one = greet_1.enqueue("Ada")
    two = new.send("greet", {"first": "Bob", "last": "B", "polite": False})
    kit.run_worker()
    assert one.result(timeout=25) == "Ada//True"
    assert two.result(timeout=25) == "Bob/B/False"
    assert (kit.job(one.id)["version"], kit.job(two.id)["version"]) == (1, 3)


def test_unknown_tasks_and_versions_are_held_and_come_back(
    holdfast_kit: Callable[..., Kit], events: Events
) -> None:
    old, new = Holdfast(), Holdfast()

    @old.task(name="known")
    def known_1() -> str:
        return "old"

    @new.task(name="known", version=2)
    def known_2() -> str:
        return "new"

    @new.task
    def fresh(job: Job) -> list[int]:
        return [job.attempt, job.generation]

    one, two = holdfast_kit(old, QUICK), holdfast_kit(new, QUICK)
    newer, unknown, fine = known_2.enqueue(), fresh.enqueue(), known_1.enqueue()
    one.run_worker()
    assert fine.result(timeout=25) == "old"
    for handle, what in ((newer, "known version 2"), (unknown, "fresh version 1")):
        row = one.job(handle.id)
        assert (row["status"], row["attempts"]) == ("held", 0)
        assert row["hold_reason"] == f"no worker here knows {what}"
        assert errors(one, handle.id) == []
    assert named(events, "job.held")  # the alarm
    one.run_worker()
    generation = one.job(unknown.id)["lease_generation"]
    assert generation <= 1  # a held job is not claimed again and again
    two.run_worker()
    assert newer.result(timeout=25) == "new"
    assert unknown.result(timeout=25) == [1, generation + 1]


def test_a_hundred_thousand_unknown_jobs_ahead_cost_nothing(app: Holdfast, kit: Kit) -> None:
    @app.task
    def known() -> str:
        return "done"

    kit.sql(
        """INSERT INTO holdfast.work (id, queue, task, payload)
           SELECT holdfast.uuid7(), 'inbox', 'unknown', '{}' FROM generate_series(1, 100000)"""
    )
    handle = known.enqueue()
    kit.run_worker()
    assert handle.result(timeout=0) == "done"
    (count,) = kit.sql(
        "SELECT count(*) AS n, max(attempts) AS spent FROM holdfast.work WHERE status = 'held'"
    )
    assert count == {"n": 100_000, "spent": 0}

    due = kit.job(known.enqueue().id)["available_at"]
    plain, start = _claim_buffers(kit, f"'{due.isoformat()}'::timestamptz"), _claim_buffers(kit, "NULL")
    assert plain < 100, f"a plain claim touched {plain} buffers"
    with kit.connect(autocommit=True) as conn:
        conn.execute("VACUUM holdfast.inbox")
    fresh = _claim_buffers(kit, "NULL")
    assert fresh < 100, f"a claim from the start touched {fresh} buffers, {start} before the vacuum"


def _claim_buffers(kit: Kit, mark: str) -> int:
    """What the claim of a worker touches, with a job due; nothing of it stays."""
    text = query("claim")
    values = [
        "'inbox'",
        "'w'",
        f"'{uuid4()}'",
        "60",
        "10",
        "'{0}'",
        f"ARRAY[{mark}]",
        "0",
        "'{0}'",
        "1000000",
    ]
    for n, value in reversed(list(enumerate(values, 1))):
        text = text.replace(f"${n}", value)
    with kit.connect() as conn:
        conn.execute(
            "INSERT INTO holdfast.workers VALUES ('w', 'h', 1, 'alive', now(), now(), '{}', '{}', 1, '')"
        )
        (row,) = conn.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}".encode()).fetchall()
        conn.rollback()
    plan = row["QUERY PLAN"][0]["Plan"]
    assert plan["Actual Rows"] == 1
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_a_payload_that_no_signature_would_take_is_a_dead_letter_at_once(app: Holdfast, kit: Kit) -> None:
    @app.task
    def greet(name: str) -> None: ...

    kit.sql(
        """INSERT INTO holdfast.work (id, queue, task, payload) VALUES (holdfast.uuid7(), 'inbox', 'greet', '[1, 2]')"""
    )
    kit.run_worker()
    (row,) = kit.jobs(greet)
    assert (row["status"], row["attempts"]) == ("dead_letter", 1)
    assert row["last_error"] == "PayloadError: the payload of greet must be a JSON object, not list"


# What a worker claims -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_no_more_handlers_run_at_once_than_the_concurrency(app: Holdfast, akit: Kit, kind: str) -> None:
    lock = threading.Lock()
    running = most = 0
    gate = threading.Event()

    def enter() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    @app.task
    async def a_work() -> None:
        enter()
        await asyncio.to_thread(gate.wait, 30)
        leave()

    @app.task
    def s_work() -> None:
        enter()
        gate.wait(150)
        leave()

    task = a_work if kind == "async" else s_work
    await app.aenqueue_many(task.job() for _ in range(12))
    worker = asyncio.create_task(akit.arun_worker(concurrency=3))
    await await_until(lambda: running == 3, "three run")
    gate.set()
    await worker
    assert most == 3
    assert {row["status"] for row in akit.jobs()} == {"completed"}


async def test_a_worker_claims_what_its_slots_need_and_a_small_prefetch(app: Holdfast, akit: Kit) -> None:
    gate = asyncio.Event()
    running: list[int] = []

    @app.task
    async def work(n: int) -> None:
        running.append(n)
        await gate.wait()

    await app.aenqueue_many(work.job(n) for n in range(20))
    query = "SELECT count(*) AS n FROM holdfast.work WHERE status = 'processing'"
    async with working(akit, concurrency=2):
        await await_until(lambda: len(running) == 2, "two run")
        claims = [akit.sql(query)[0]["n"]]
        (beats,) = akit.sql("SELECT max(last_seen_at) AS at FROM holdfast.workers")
        await await_until(
            lambda: akit.sql("SELECT id FROM holdfast.workers WHERE last_seen_at > %s", [beats["at"]]),
            "the worker went on for a heartbeat",
        )
        claims.append(akit.sql(query)[0]["n"])
        assert max(claims) <= 2 + akit.database.settings.prefetch
        assert sorted(running) == [0, 1]
        gate.set()
        await await_until(lambda: len(running) == 20, "all ran")


def test_slow_handlers_are_not_prefetched_for(
    app: Holdfast, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers of 10 ms look like 1 s to the worker's measure; after a few of them it claims for free slots only."""
    fast = SimpleNamespace(monotonic=lambda: 100 * time.monotonic())
    monkeypatch.setattr("holdfast.runtime.slots.time", fast)

    @app.task
    def work(n: int) -> None:
        time.sleep(0.01)

    app.enqueue_many(work.job(n) for n in range(20))
    kit.run_worker(concurrency=1)
    sizes = [
        row["size"]
        for row in kit.sql(
            "SELECT count(*) OVER (PARTITION BY claim_token) AS size FROM holdfast.archive ORDER BY seq"
        )
    ]
    assert max(sizes[:3]) == 3  # one slot and a prefetch of two, before anything is known of the handlers
    assert sizes[10:] == [1] * 10


def test_outcomes_are_settled_in_natural_batches(
    app: Holdfast, kit: Kit, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows: list[str] = []
    flow = Session.flow

    async def counted(self: Session, make: Any) -> Any:
        flows.append(self._name)
        return await flow(self, make)

    monkeypatch.setattr(Session, "flow", counted)

    @app.task
    async def quick(n: int) -> int:
        return n

    handles = app.enqueue_many(quick.job(n) for n in range(500))
    kit.run_worker(concurrency=50)
    assert handles[499].result(timeout=25) == 499
    assert len(named(events, "job.completed")) == 500
    assert 0 < flows.count("settle") < 100
    (claims,) = kit.sql("SELECT count(DISTINCT claim_token) AS n FROM holdfast.archive")
    assert claims["n"] < 100


def test_higher_priorities_run_first_and_equal_ones_in_order(app: Holdfast, kit: Kit) -> None:
    ran: list[int] = []

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    priorities = [0, -5, 10, 0, 100, -100, 10]
    app.enqueue_many(work.using(priority=p).job(n) for n, p in enumerate(priorities))
    kit.run_worker(concurrency=1)
    assert ran == [4, 2, 6, 0, 3, 1, 5]


def test_a_worker_serves_the_queues_it_is_asked_to(app: Holdfast, kit: Kit) -> None:
    for name in ("mail", "bulk", "rest"):
        kit.sql("SELECT holdfast.create_queue(%s)", [name])

    @app.task(queue="mail")
    def mail() -> str:
        return "mail"

    @app.task(queue="bulk")
    def bulk() -> str:
        return "bulk"

    one, two, three = mail.enqueue(), bulk.enqueue(), mail.using(queue="rest").enqueue()
    kit.run_worker(queues=["mail"])
    assert one.result(timeout=25) == "mail"
    assert kit.job(two.id)["status"] == "pending"
    kit.run_worker()  # every queue a task is declared for
    assert two.result(timeout=25) == "bulk"
    assert kit.job(three.id)["status"] == "pending"
    kit.run_worker(queues=["rest", "inbox"])
    assert three.result(timeout=25) == "mail"


def test_no_queue_starves_another(app: Holdfast, kit: Kit) -> None:
    kit.sql("SELECT holdfast.create_queue('mail')")
    ran: list[str] = []

    @app.task
    def work(job: Job) -> None:
        ran.append(job.queue)

    app.enqueue_many(work.job() for _ in range(60))
    app.enqueue_many(work.using(queue="mail").job() for _ in range(3))
    kit.run_worker(queues=["inbox", "mail"], concurrency=2)
    assert "mail" in ran[:12]
    assert len(ran) == 63


def test_a_worker_for_a_queue_that_does_not_exist_says_so(app: Holdfast, kit: Kit) -> None:
    with pytest.raises(LookupError) as caught:
        kit.run_worker(queues=["inbxo"])
    assert str(caught.value) == (
        "queue 'inbxo' does not exist (known: inbox). Did you mean 'inbox'? Create it: holdfast queue create inbxo"
    )


async def test_run_after_is_not_before_its_time(app: Holdfast, akit: Kit) -> None:
    @app.task
    def work() -> str:
        return "ran"

    soon = await work.using(run_after=timedelta(seconds=0.2)).aenqueue()
    late = await work.using(run_after=datetime.now(UTC) + timedelta(hours=1)).aenqueue()
    async with working(akit):
        assert await soon.aresult(timeout=50) == "ran"
    row = akit.job(soon.id)
    assert row["claimed_at"] >= row["available_at"]
    assert akit.job(late.id)["status"] == "scheduled"


def test_until_idle_stops_at_once_when_nothing_is_due(app: Holdfast, kit: Kit) -> None:
    @app.task
    def work() -> None: ...

    work.using(run_after=3600).enqueue()
    app.send("unknown", {})
    kit.run_worker()
    assert [row["status"] for row in kit.jobs()] == ["scheduled", "held"]
    (worker,) = kit.sql("SELECT * FROM holdfast.workers")
    assert worker["status"] == "gone"
    assert (
        kit.sql(
            "SELECT token FROM holdfast.claims c WHERE worker = %s AND revoked_at IS NOT NULL", [worker["id"]]
        )
        == []
    )


def test_until_idle_runs_retries_that_are_due_at_once(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=4, retry=Backoff(first=0, jitter=False))
    def flaky(job: Job) -> int:
        if job.attempt < 4:
            raise ValueError
        return job.attempt

    handles = app.enqueue_many(flaky.job() for _ in range(5))
    kit.run_worker()
    assert [handle.result(timeout=0) for handle in handles] == [4] * 5


async def test_two_workers_share_a_queue_and_run_each_job_once(
    holdfast_kit: Callable[..., Kit], app: Holdfast
) -> None:
    ran: list[int] = []
    workers: set[str] = set()
    both = asyncio.Event()

    @app.task
    async def work(n: int) -> None:
        workers.add(telemetry.job_context.get()["worker"])
        if len(workers) == 2:
            both.set()
        await both.wait()
        ran.append(n)

    kit = holdfast_kit(app, QUICK)
    await app.aenqueue_many(work.job(n) for n in range(200))
    await asyncio.gather(kit.arun_worker(concurrency=4), kit.arun_worker(concurrency=4))
    assert sorted(ran) == list(range(200))
    (generations,) = kit.sql(
        "SELECT max(lease_generation) AS most, count(DISTINCT claimed_by) AS workers FROM holdfast.archive"
    )
    assert generations == {"most": 1, "workers": 2}
    await kit.database.aclose()


def test_handler_threads_end_with_their_worker(app: Holdfast, kit: Kit) -> None:
    @app.task
    def work() -> None: ...

    def alive() -> int:
        return sum(thread.name.startswith("holdfast-handler-") for thread in threading.enumerate())

    before = alive()
    app.enqueue_many(work.job() for _ in range(5))
    kit.run_worker()
    wait_until(lambda: alive() <= before, "the threads of the worker ended", seconds=5)
