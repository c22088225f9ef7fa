"""One call for many jobs.

Each job of the batch goes its own way through payload, middleware and spans, as any job does, and these ways meet here: when
the last one has come, the handler is called once, and each goes back with an outcome of its own. A job that ends on its way
(cancelled, a bad payload, middleware that does not let it through) is not in the batch. One that is lost or cancelled while
the handler runs ends by itself; the handler goes on for the others, and is stopped when none is left.
"""

import asyncio
import contextvars
import functools
import logging
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from ... import telemetry
from ...errors import LeaseLost
from ...model.job import Grant
from ...model.outcome import Cancelled, Lost, Outcome, Released
from ...model.shown import name_of
from ...model.signals import Cancel
from ...model.state import LOST
from ...model.text import describe
from .. import report
from ..decide import completion, decide, is_timeout, unforeseen
from ..execute import Executor
from ..handler import FORGIVEN, Handler
from ..inflight import Running
from ..job import Job
from ..threads import Threads
from .items import Batch, Item

Ending = Callable[[Running, Job], Outcome]  # how the call ended, for a job that it said nothing of
_RETURNED = (
    "{} returned {}; a batch handler returns None, and gives a job its result with item.complete(result)"
)
_LATE = 5.0  # seconds: middleware that holds a lock around call_next would keep the others out for ever


async def run_together(
    members: Sequence[Running],
    handler: Handler,
    began: float,
    executor: Executor,
    worker: Callable[[], str],
    conclude: Callable[[Running, Outcome], None],
) -> None:
    """A batch in one slot: each job on its own way to the one call, and back from it."""
    call = Call(members, handler, executor.threads)

    async def run(running: Running) -> None:
        try:
            report.started(running, worker())
            outcome = await executor.execute(running, call.join)
        except BaseException as error:  # noqa: BLE001 as for a job in a slot of its own
            outcome = unforeseen(error, running)
        call.came(running)
        conclude(running, outcome)

    number = uuid4()
    for running in members:
        running.started_at, running.call = began, number
        running.task = asyncio.create_task(run(running), name=f"job {running.claimed.id_text}")
        running.task.add_done_callback(functools.partial(call.came, running))  # also one that never began
    for running in members:
        if running.task is not None:
            await asyncio.wait([running.task])
        if not running.settling:  # cancelled before it began
            conclude(running, Released("not started"))
    await call.over()


class Call:
    def __init__(self, group: Sequence[Running], handler: Handler, threads: Threads) -> None:
        self._handler = handler
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._coming = {r.grant: r for r in group}
        self._items: dict[Grant, Item[Any]] = {}  # those that wait here for the call to end
        self._context = contextvars.copy_context()
        self._late: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[Ending] = self._loop.create_future()

    async def join(self, running: Running, handler: Handler, job: Job, arguments: dict[str, Any]) -> Outcome:
        """The end of a job's own way: wait for the others and for the call, and take this job's outcome."""
        item: Item[Any] = Item(
            arguments["item"],
            job,
            encode=handler.encode,
            fail=functools.partial(handler.failed, attempt=job.attempt),
            decide=lambda error: decide(error, running, handler),
        )
        if self._late is None:
            self._context = contextvars.copy_context()  # the handler runs in the first job's, so in its span
            self._late = self._loop.call_later(_LATE, self._go)
        self._items[running.grant] = item
        self.came(running)
        try:
            ending = await asyncio.shield(self._ended)
        except asyncio.CancelledError as cancelled:
            said = None if running.stop == LOST else item._outcome
            return said or decide(cancelled, running, handler)
        finally:
            self._items.pop(running.grant)
            if not self._items and self._task is not None:
                self._task.cancel()  # nobody is left to work for; it has ended already, but for that
        return item._outcome or ending(running, job)

    def came(self, running: Running, _: object = None) -> None:
        """It is here, or has ended on its way and does not come."""
        self._coming.pop(running.grant, None)
        if not self._coming:
            self._go()

    async def over(self) -> None:
        """Until the handler has returned, if it was called."""
        if self._late is not None:
            self._late.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _go(self) -> None:
        late, self._coming = self._coming, {}
        for running in late.values():
            telemetry.emit(
                "batch.left_behind", level=logging.WARNING, job=running.grant.id, task=self._handler.name
            )
            running.interrupt("release")
            if running.task is not None:
                running.task.cancel()
        if self._task is None and self._items:
            work = self._run(Batch(list(self._items.values())))
            self._task = self._loop.create_task(work, context=self._context)

    async def _run(self, batch: Batch[Any]) -> None:
        known = {k: v for k, v in telemetry.job_context.get().items() if k not in ("job", "attempt")}
        telemetry.job_context.set(MappingProxyType({**known, "batch": len(batch)}))
        handler = self._handler
        limit = asyncio.timeout(handler.timeout)
        ending: Ending = functools.partial(
            _raised, handler, RuntimeError("the call ended without an outcome"), False
        )
        try:
            async with limit:
                if handler.is_async:
                    value = await handler.func(batch)
                else:
                    value = await self._threads.run(lambda: handler.func(batch))
            if value is not None:
                raise TypeError(_RETURNED.format(handler.name, name_of(type(value))))
            ending = functools.partial(_returned, handler)
        except BaseException as error:  # noqa: BLE001 every end of a handler is an outcome
            if is_timeout(error, limit):
                ending = functools.partial(_timed_out, handler)
            else:
                one_cancelled = any(item.job._cancelled for item in batch)
                ending = functools.partial(_raised, handler, error, one_cancelled)
        finally:  # every job of the batch waits for it
            if not self._ended.done():
                self._ended.set_result(ending)


def _returned(handler: Handler, running: Running, job: Job) -> Outcome:
    return completion(job, handler, None)


def _timed_out(handler: Handler, running: Running, job: Job) -> Outcome:
    running.interrupt("timeout")
    return handler.timed_out(job.attempt)


def _raised(
    handler: Handler, error: BaseException, one_cancelled: bool, running: Running, job: Job
) -> Outcome:
    """What the call raised is for every item that nothing was said of, but for what item.job.check() raises: that is about
    one item, and the others go back as they were."""
    if isinstance(error, LeaseLost) or (isinstance(error, Cancel) and one_cancelled):
        if running.stop == LOST or job.lost:
            return Lost()
        if job._cancelled:
            return Cancelled("cancelled while running")
        if job.generation - job.attempt < FORGIVEN:
            return Released("another job of its batch was lost or cancelled")
        return handler.failed(describe(error), job.attempt)
    return decide(error, running, handler)
