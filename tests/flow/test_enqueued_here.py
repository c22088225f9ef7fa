"""A worker finds at once what its own process enqueues, without a notification."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.conftest import QUICK, await_until

from holdfast import Holdfast, Workflow
from holdfast.runtime import sleep
from holdfast.runtime.local_enqueues import LocalEnqueues
from holdfast.testing import Kit

DEAF = replace(QUICK, poll=3600.0, notify=False)  # it hears of nothing, and does not look by itself


@asynccontextmanager
async def deaf(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, queues: tuple[str, ...] = ()
) -> AsyncIterator[Callable[[], bool]]:
    """A worker whose first pause outlasts the test. Yields whether it is in such a pause."""
    pauses: list[float] = []
    monkeypatch.setattr(sleep, "FIRST_PAUSE", 3600.0)
    wait = sleep.Pause.wait

    async def waiting(self: sleep.Pause, seconds: float) -> bool:
        pauses.append(seconds)
        try:
            return await wait(self, seconds)
        finally:
            pauses.remove(seconds)

    def is_pausing() -> bool:
        return max(pauses, default=0.0) > 1000

    monkeypatch.setattr(sleep.Pause, "wait", waiting)
    worker = asyncio.create_task(kit.app.run_worker(concurrency=4, queues=queues))
    try:
        await await_until(is_pausing, "it pauses for an hour")
        yield is_pausing
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await kit.database.aclose()


async def test_jobs_and_runs_of_the_same_process_start_at_once(
    app: Holdfast, holdfast_kit: Callable[..., Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    @app.workflow()
    async def flow(wf: Workflow, n: int) -> None:
        ran.append(n)

    kit = holdfast_kit(app, DEAF)
    async with deaf(kit, monkeypatch):
        await note.aenqueue(1)
        await await_until(lambda: ran == [1], "a job of this event loop")
        await asyncio.to_thread(note.enqueue, 2)
        await await_until(lambda: ran == [1, 2], "a job of another thread")
        await app.aenqueue_many([note.job(3)])
        await await_until(lambda: ran == [1, 2, 3], "one of many")
        await flow.astart(4)
        await await_until(lambda: ran == [1, 2, 3, 4], "a run")
        await asyncio.gather(flow.astart(5), flow.astart(6))
        await await_until(lambda: sorted(ran) == [1, 2, 3, 4, 5, 6], "runs that were started together")


async def test_what_is_not_its_own_or_not_due_does_not_wake_it(
    app: Holdfast, holdfast_kit: Callable[..., Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    app.queue("elsewhere")
    looks: list[None] = []
    monkeypatch.setattr(LocalEnqueues, "look", lambda _: looks.append(None))

    @app.task
    async def note(n: int) -> None: ...

    kit = holdfast_kit(app, DEAF)
    async with deaf(kit, monkeypatch, queues=("inbox",)):
        await note.using(queue="elsewhere").aenqueue(1)
        await note.using(run_after=3600).aenqueue(2)
        await note.using(run_after=datetime.now(UTC) + timedelta(hours=1)).aenqueue(3)
        assert looks == []
        await note.aenqueue(4)
        await await_until(lambda: len(looks) == 1, "its own and due")


async def test_a_busy_worker_is_not_woken_for_each_job(
    app: Holdfast, holdfast_kit: Callable[..., Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    started: list[int] = []

    @app.task
    async def wait(n: int) -> None:
        started.append(n)
        await gate.wait()

    kit = holdfast_kit(app, DEAF)
    async with deaf(kit, monkeypatch) as is_pausing:
        for n in range(3):
            await wait.aenqueue(n)
            await await_until(lambda wanted=n + 1: len(started) == wanted, "it runs")  # type: ignore[misc]
        await await_until(is_pausing, "it has seen that there is no more")
        await wait.aenqueue(3)  # one slot of four is free
        calls: list[None] = []
        asyncio.get_running_loop().call_later(0.1, calls.append, None)
        await await_until(lambda: bool(calls), "a moment has passed")
        assert started == [0, 1, 2]
        gate.set()
        await await_until(lambda: len(started) == 4, "found when a slot came free")
