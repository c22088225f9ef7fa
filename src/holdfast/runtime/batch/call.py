"""One call for many jobs, where something is around each of them.

Each job of the batch passes payload, middleware and spans by itself, as any job does, and they all meet here: when the last
one has arrived, the handler is called once, and each job returns with its own outcome. A job that ends before the call
(cancelled, a bad payload, refused by middleware) is not in the batch. If a job is lost or cancelled while the handler
runs, that job ends; the handler continues for the others, and is stopped when none is left.
"""

import asyncio
import contextvars
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ... import telemetry
from ...model.outcome import Outcome, Released
from .. import report
from ..decide import unforeseen
from ..execute import Executor
from ..handler import Handler
from ..inflight import Running
from ..job import Job
from .handler_call import Ending, call_handler, outcome_of, stopped
from .items import Batch, Item

_LATE = 5.0  # seconds: middleware with a lock around call_next would otherwise block the others for ever


async def run_each(
    members: Sequence[Running],
    handler: Handler,
    executor: Executor,
    worker: Callable[[], str],
    conclude: Callable[[Running, Outcome], None],
) -> None:
    """A batch in one slot: each job passes its middleware, waits for the one call, and returns with its outcome."""
    call = Call(members, handler, executor)

    async def run(running: Running) -> None:
        try:
            report.started(running, worker())
            outcome = await executor.execute(running, call.join)
        except BaseException as error:  # noqa: BLE001 as for a job in a slot of its own
            outcome = unforeseen(error, running)
        call.came(running)
        conclude(running, outcome)

    for running in members:
        running.task = asyncio.create_task(run(running), name=f"job {running.claimed.id_text}")
        running.task.add_done_callback(functools.partial(call.came, running))  # also one that never began
    for running in members:
        if running.task is not None:
            await asyncio.wait([running.task])
        if not running.settling:  # cancelled before it began
            conclude(running, Released("not started"))
    await call.over()


class Call:
    def __init__(self, group: Sequence[Running], handler: Handler, executor: Executor) -> None:
        self._handler = handler
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._coming = {id(running): running for running in group}
        self._items: dict[int, Item[Any]] = {}  # jobs that wait here for the call to end
        self._context = contextvars.copy_context()
        self._late: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[Ending] = self._loop.create_future()

    async def join(self, running: Running, handler: Handler, job: Job, arguments: dict[str, Any]) -> Outcome:
        """The innermost step of a job: wait for the others and for the call, and take this job's outcome."""
        item: Item[Any] = Item(arguments["item"], running, handler, self._executor.job_of)
        if self._late is None:
            self._context = contextvars.copy_context()  # the handler runs in the first job's span
            self._late = self._loop.call_later(_LATE, self._go)
        self._items[id(running)] = item
        self.came(running)
        try:
            ending = await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            return stopped(item)
        finally:
            self._items.pop(id(running))
            if not self._items and self._task is not None:
                self._task.cancel()  # no job is left; the call has ended already, except in this case
        return outcome_of(item, ending)

    def came(self, running: Running, _: object = None) -> None:
        """The job has arrived, or has ended before the call."""
        self._coming.pop(id(running), None)
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
                "batch.left_behind", level=logging.WARNING, job=running.claimed.id, task=self._handler.name
            )
            running.interrupt("release")
            if running.task is not None:
                running.task.cancel()
        if self._task is None and self._items:
            work = self._run(Batch(list(self._items.values())))
            self._task = self._loop.create_task(work, context=self._context)

    async def _run(self, batch: Batch[Any]) -> None:
        ending: Ending = functools.partial(unforeseen, RuntimeError("the call ended without an outcome"))
        try:
            ending = await call_handler(batch, self._handler, self._executor.threads)
        finally:  # every job of the batch waits for it
            if not self._ended.done():
                self._ended.set_result(ending)
