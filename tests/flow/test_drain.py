"""What a worker does with its jobs when it is told to stop: some finish, others go back, and who is late is fenced."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from tests.conftest import QUICK, await_until, within

from holdfast import AsyncTransaction, Backoff, Batch, Holdfast, Rate, Transaction, failpoints, telemetry
from holdfast.runtime.worker import Worker
from holdfast.testing import Kit


class Stage:
    """A worker in this loop, and the task it runs in."""

    def __init__(self, app: Holdfast) -> None:
        self.workers: list[Worker] = []
        self.task = asyncio.create_task(app._serve((), 2, on_start=self.workers.append))

    async def until_started(self) -> Worker:
        await await_until(lambda: self.workers, "the worker is made")
        return self.workers[0]

    async def end(self) -> None:
        done, _ = await asyncio.wait([self.task], timeout=100)
        assert done, "the worker does not leave"
        self.task.result()


@contextlib.asynccontextmanager
async def serving(app: Holdfast) -> AsyncIterator[Stage]:
    stage = Stage(app)
    try:
        yield stage
    finally:
        stage.task.cancel()
        await asyncio.wait([stage.task])


@pytest.fixture
async def short(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> AsyncIterator[Kit]:
    """A kit whose workers have next to no patience with handlers that do not end."""
    kit = holdfast_kit(app, replace(QUICK, drain=0.2))
    yield kit
    await kit.database.aclose()


def untouched(kit: Kit) -> bool:
    rows = kit.sql("SELECT status, attempts, crashes, suspect FROM holdfast.work")
    return [*rows] == [{"status": "pending", "attempts": 0, "crashes": 0, "suspect": 0}] * len(rows) != []


async def test_what_is_claimed_while_the_signal_comes_is_not_started(app: Holdfast, akit: Kit) -> None:
    ran: list[int] = []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)

    work.enqueue(1)
    async with serving(app) as stage:
        worker = await stage.until_started()
        failpoints.arm("claim.after", worker.stop)
        await stage.end()
    assert ran == []
    assert untouched(akit)
    assert akit.sql("SELECT lease_generation FROM holdfast.work") == [{"lease_generation": 1}]


async def test_a_batch_that_is_whole_while_the_signal_comes_is_not_started(app: Holdfast, akit: Kit) -> None:
    ran: list[int] = []

    @app.batch_task(size=2, wait=60)
    async def work(batch: Batch[int]) -> None:
        ran.append(len(batch))

    app.enqueue_many([work.job(1), work.job(2)])
    async with serving(app) as stage:
        worker = await stage.until_started()
        failpoints.arm("claim.after", worker.stop)
        await stage.end()
    assert ran == []
    assert akit.sql("SELECT status, lease_generation FROM holdfast.work") == 2 * [
        {"status": "pending", "lease_generation": 1}
    ]


async def test_a_draining_worker_stays_draining_whatever_the_heartbeat_does(app: Holdfast, akit: Kit) -> None:
    gate = asyncio.Event()

    @app.task
    async def work() -> None:
        await gate.wait()

    job = work.enqueue()
    async with serving(app) as stage:
        worker = await stage.until_started()
        await await_until(lambda: worker.slots.running == 1, "it runs")
        worker.stop()
        await await_until(lambda: _registry(akit)["status"] == "draining", "it drains")
        for _ in range(3):
            seen = _registry(akit)["last_seen_at"]
            await await_until(partial(_seen_after, akit, seen), "a heartbeat")
        assert _registry(akit)["status"] == "draining"
        assert not worker._context.hurry.is_set()
        gate.set()
        await stage.end()
    row = akit.job(job.id)
    assert (row["status"], row["attempts"]) == ("completed", 1)


def _seen_after(kit: Kit, at: datetime) -> bool:
    return bool(_registry(kit)["last_seen_at"] > at)


def _registry(kit: Kit) -> dict[str, Any]:
    (row,) = kit.sql("SELECT status, ended, last_seen_at FROM holdfast.workers")
    return row


async def test_a_sync_handler_past_the_limit_can_change_nothing_any_more(app: Holdfast, short: Kit) -> None:
    """It cannot be stopped: its job goes back by its fence, and what it does later finds that."""
    gate, ended = threading.Event(), threading.Semaphore(0)
    short.sql("CREATE TABLE marks (n int)")

    @app.task
    def work() -> str:
        gate.wait(100)
        ended.release()
        return "late"

    @app.task
    def write(tx: Transaction) -> None:
        tx.execute("INSERT INTO marks VALUES (1)")
        gate.wait(100)
        ended.release()

    work.enqueue()
    write.enqueue()
    async with serving(app) as stage:
        worker = await stage.until_started()
        await await_until(lambda: worker.slots.running == 2, "both run")
        worker.stop()
        await stage.end()
        assert untouched(short)
        gate.set()
        for _ in range(2):
            assert await asyncio.to_thread(ended.acquire, timeout=50)
        free = (
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in tr%%'"
        )
        await await_until(lambda: not short.sql(free), "the late transaction is over")
    assert untouched(short)
    assert short.sql("SELECT * FROM marks") == []
    assert _registry(short)["ended"] == "left"


async def test_an_async_handler_that_ignores_its_cancellation_is_released_too(
    app: Holdfast, short: Kit, events: list[telemetry.Event]
) -> None:
    gate = asyncio.Event()

    @app.task
    async def stubborn() -> str:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()
        return "late"

    stubborn.enqueue()
    async with serving(app) as stage:
        worker = await stage.until_started()
        await await_until(lambda: worker.slots.running == 1, "it runs")
        worker.stop()
        try:
            await stage.end()
            assert untouched(short)
        finally:
            gate.set()
        await await_until(lambda: worker.slots.running == 0, "it has ended after all")
    assert untouched(short)
    assert [e.name for e in events if e.name.startswith("job.")][-1] == "job.released"


@pytest.mark.parametrize("form", ["async", "sync", "transaction", "batch", "ordered", "limited", "rated"])
async def test_a_cancelled_worker_hands_back_jobs_that_run_and_that_wait(
    app: Holdfast, holdfast_kit: Callable[..., Kit], form: str
) -> None:
    gate, started = threading.Event(), list[int]()
    rules: dict[str, dict[str, Any]] = {
        "ordered": {"ordering": "key"},
        "limited": {"concurrency": 5},
        "rated": {"rate": Rate(20, burst=1)},
    }
    if form in rules:
        app.queue("special", **rules[form])
    work = _task_of(app, form, "special" if form in rules else "inbox", started, gate)
    kit = holdfast_kit(app, replace(QUICK, drain=0.2))
    app.enqueue_many(work.using(partition_key=f"k{n % 3}").job(n) for n in range(8))

    def held() -> int:
        (row,) = kit.sql("SELECT count(*) AS n FROM holdfast.work WHERE status = 'processing'")
        return int(row["n"])

    serving = asyncio.create_task(app.run_worker(concurrency=2))
    try:
        if form == "batch":
            await await_until(lambda: held() == 8, "all gather")
        else:
            await await_until(lambda: len(started) == 2, "both slots have a job")
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert untouched(kit)
        assert len(kit.sql("SELECT id FROM holdfast.work")) == 8
        assert _registry(kit)["ended"] == "left"
    finally:
        gate.set()
        await kit.database.aclose()


@pytest.mark.parametrize("form", ["async", "sync"])
async def test_a_worker_that_is_cancelled_again_and_again_hands_back_everything(
    app: Holdfast, holdfast_kit: Callable[..., Kit], form: str
) -> None:
    """As a task group of anyio does it: in every turn of the loop, until the task has ended."""
    gate, started = threading.Event(), list[int]()
    work = _task_of(app, form, "inbox", started, gate)
    kit = holdfast_kit(app, replace(QUICK, drain=3600.0))  # a second cancellation waits for no handler
    app.enqueue_many(work.job(n) for n in range(8))
    beside = {thread for thread in threading.enumerate() if thread.name == "holdfast-renew"}
    serving = asyncio.create_task(app.run_worker(concurrency=2))
    try:
        await await_until(lambda: len(started) == 2, "both slots have a job")
        async with asyncio.timeout(within(20)):
            while not serving.done():
                serving.cancel()
                await asyncio.sleep(0)
        assert serving.cancelled()
        assert untouched(kit)
        assert len(kit.sql("SELECT id FROM holdfast.work")) == 8
        assert _registry(kit)["ended"] == "left"
        assert {t for t in threading.enumerate() if t.name == "holdfast-renew"} <= beside, (
            "nobody renews them"
        )
    finally:
        gate.set()
        await kit.database.aclose()


@pytest.mark.parametrize("form", ["async", "sync", "transaction", "batch"])
@pytest.mark.parametrize("when", ["works", "drains"])
def test_a_loop_that_is_closed_over_a_worker_leaves_nothing_behind(
    app: Holdfast, holdfast_kit: Callable[..., Kit], form: str, when: str
) -> None:
    """asyncio.run() cancels all tasks when it ends, those of jobs, of the settler and of the drain too: when main() returns
    beside a worker, and at a second Ctrl-C."""
    gate, started = threading.Event(), list[int]()
    work = _task_of(app, form, "inbox", started, gate)
    if form == "batch":  # one that runs
        work = app.batch_task(name="together", size=2)(_waits_together(started))
    kit = holdfast_kit(app, replace(QUICK, drain=3600.0))
    app.enqueue_many(work.job(n) for n in range(8))

    async def main() -> None:
        serving = asyncio.create_task(app.run_worker(concurrency=2))
        await await_until(lambda: len(started) >= 2, "both slots have a job")
        if when == "drains":
            serving.cancel()
            await await_until(lambda: _registry(kit)["status"] == "draining", "it drains")

    program = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    program.start()
    try:
        program.join(within(20))
        assert not program.is_alive(), "it waits for no handler"
        assert untouched(kit)
        assert len(kit.sql("SELECT id FROM holdfast.work")) == 8
        assert _registry(kit)["ended"] == "left"
    finally:
        gate.set()


@pytest.mark.parametrize("when", ["works", "drains"])
async def test_a_handler_that_ends_by_a_cancellation_of_its_own_has_failed(
    app: Holdfast, akit: Kit, when: str
) -> None:
    """Nobody closes the loop: its worker goes on, and waits for the others as long as it may."""
    own, other = asyncio.Event(), asyncio.Event()

    @app.task(retry=Backoff(first=600))
    async def ends() -> None:
        await own.wait()
        if when == "works":
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(0)
        raise asyncio.CancelledError

    @app.task
    async def stays() -> None:
        await other.wait()

    failed, finished = ends.enqueue(), stays.enqueue()
    async with serving(app) as stage:
        worker = await stage.until_started()
        await await_until(lambda: worker.slots.running == 2, "both run")
        if when == "drains":
            worker.stop()
        own.set()
        await await_until(lambda: akit.job(failed.id)["attempts"] == 1, "it has failed")
        assert worker.draining == (when == "drains")
        assert not worker._context.hurry.is_set()
        other.set()
        await await_until(lambda: akit.job(finished.id)["status"] == "completed", "the other has ended")
        worker.stop()
        await stage.end()


def _waits_together(started: list[int]) -> Callable[[Batch[int]], Any]:
    async def waits(batch: Batch[int]) -> None:
        started.append(len(batch))
        await asyncio.Event().wait()

    return waits


def _task_of(app: Holdfast, form: str, queue: str, started: list[int], gate: threading.Event) -> Any:
    """A task whose handlers do not end by themselves."""

    async def waits(n: int) -> None:
        started.append(n)
        await asyncio.Event().wait()

    def blocks(n: int) -> None:
        started.append(n)
        gate.wait(100)

    async def has_transaction(tx: AsyncTransaction, n: int) -> None:
        started.append(n)
        await asyncio.Event().wait()

    async def gathers(batch: Batch[int]) -> None: ...

    if form == "batch":
        return app.batch_task(name="work", size=50, wait=60)(gathers)
    forms: dict[str, Any] = {"sync": blocks, "transaction": has_transaction}
    return app.task(name="work", queue=queue)(forms.get(form, waits))


@pytest.mark.parametrize("where", ["claim.claim.done", "claim.scan_priorities.done"])
async def test_a_cancelled_worker_hands_back_what_it_claimed(app: Holdfast, short: Kit, where: str) -> None:
    """Also a claim that was committed while the cancellation came: nobody else is there to take it back."""

    @app.task
    async def nothing(n: int) -> None: ...

    app.enqueue_many(nothing.job(n) for n in range(20))

    def cancel() -> None:
        failpoints.disarm()
        raise asyncio.CancelledError

    failpoints.arm(where, cancel)
    with pytest.raises(asyncio.CancelledError):
        await app.run_worker(concurrency=2)
    assert untouched(short)
    assert short.sql("SELECT worker FROM holdfast.claims") == []
    assert short.sql("SELECT status FROM holdfast.workers") == [{"status": "gone"}]
