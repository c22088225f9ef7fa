"""The one call of a batch handler, and what its end means for a job without an outcome of its own."""

import asyncio
import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from ... import telemetry
from ...errors import LeaseLost
from ...model.outcome import NOTHING, Cancelled, Completed, Lost, Outcome, Released
from ...model.shown import name_of
from ...model.signals import Cancel
from ...model.state import LOST
from ...model.text import describe
from ..decide import completion, decide, is_timeout
from ..handler import FORGIVEN, Handler
from ..inflight import Running
from ..threads import Threads
from .items import Batch, Item

Ending = Callable[[Running], Outcome]  # how the call ended, for jobs without an outcome of their own
_RETURNED = (
    "{} returned {}; a batch handler returns None, and gives a job its result with item.complete(result)"
)


async def call_handler(batch: Batch[Any], handler: Handler, threads: Threads) -> Ending:
    """Every end of the handler is an ending: this raises nothing. Log lines of the call carry how many jobs it is for."""
    known = {k: v for k, v in telemetry.job_context.get().items() if k not in ("job", "attempt")}
    telemetry.job_context.set(MappingProxyType({**known, "batch": len(batch)}))
    limit = asyncio.timeout(handler.timeout)
    try:
        async with limit:
            if handler.is_async:
                value = await handler.func(batch)
            else:
                value = await threads.run(lambda: handler.func(batch))
        if value is not None:
            raise TypeError(_RETURNED.format(handler.name, name_of(type(value))))
        return functools.partial(_returned, handler, _nothing(handler))
    except BaseException as error:  # noqa: BLE001 every end of a handler is an outcome
        if is_timeout(error, limit):
            return functools.partial(_timed_out, handler)
        return functools.partial(_raised, handler, error, any(map(_is_cancelled, batch)))


def _nothing(handler: Handler) -> Outcome:
    return NOTHING if handler.returns_none else Completed(handler.encode(None))


def _is_cancelled(item: Item[Any]) -> bool:
    """True once its job was asked for: only then check() can have reported it."""
    job = item._running.job
    return job is not None and job._cancelled


def outcome_of(item: Item[Any], ending: Ending) -> Outcome:
    """The outcome that the handler set, or the one that follows from the end of the call."""
    try:
        return item._outcome or ending(item._running)
    except BaseException as error:  # noqa: BLE001 methods of what the handler raised may raise
        return decide(error, item._running, item._handler)


def stopped(item: Item[Any]) -> Outcome:
    """The end of a job that was lost, cancelled or released while the handler ran."""
    running = item._running
    said = None if running.stop == LOST else item._outcome
    return said or decide(asyncio.CancelledError(), running, item._handler)


def _returned(handler: Handler, nothing: Outcome, running: Running) -> Outcome:
    return nothing if running.job is None else completion(running.job, handler, None)


def _timed_out(handler: Handler, running: Running) -> Outcome:
    running.interrupt("timeout")
    return handler.timed_out(running.claimed.attempt)


def _raised(handler: Handler, error: BaseException, one_cancelled: bool, running: Running) -> Outcome:
    """An error of the call counts for every item without an outcome. An error of item.job.check() is about one item only;
    the other items are released."""
    if isinstance(error, LeaseLost) or (isinstance(error, Cancel) and one_cancelled):
        job, claimed = running.job, running.claimed
        if running.stop == LOST or (job is not None and job.lost):
            return Lost()
        if running.stop == "cancel" or (job is not None and job._cancelled):
            return Cancelled("cancelled while running")
        if claimed.generation - claimed.attempt < FORGIVEN:
            return Released("another job of its batch was lost or cancelled")
        return handler.failed(describe(error), claimed.attempt)
    return decide(error, running, handler)
