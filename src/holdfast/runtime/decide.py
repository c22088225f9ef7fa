"""What a handler raised or returned, as an outcome: decided in one place, for single jobs and for those of a batch."""

import asyncio
from dataclasses import replace

from ..errors import LeaseLost
from ..model.backoff import Backoff
from ..model.duration import Duration, seconds
from ..model.outcome import (
    NOTHING,
    Cancelled,
    Completed,
    DeadLettered,
    ErrorText,
    Failed,
    Lost,
    Outcome,
    Released,
    Snoozed,
)
from ..model.shown import text_of
from ..model.signals import Cancel, DeadLetter, HandlerSignal, Retry, Snooze
from ..model.state import LOST
from ..model.text import describe, storable
from .handler import LONGEST_DELAY, Handler
from .inflight import Running
from .job import Job


class _Unlimited:
    """Most handlers have no limit: an asyncio.timeout(None) for each attempt would cost time for nothing."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None

    def expired(self) -> bool:
        return False


_UNLIMITED = _Unlimited()


def limited(seconds: float | None) -> asyncio.Timeout | _Unlimited:
    """A time limit for a block; None: there is none."""
    return _UNLIMITED if seconds is None else asyncio.timeout(seconds)


def is_timeout(error: BaseException, limit: asyncio.Timeout | _Unlimited) -> bool:
    """Whether this limit ended the handler. isinstance() would ask the error for its __class__, which may raise."""
    return limit.expired() and issubclass(type(error), TimeoutError)


def decide(error: BaseException, running: Running, handler: Handler) -> Outcome:
    """The one place where what a handler raised becomes an outcome. It never raises: what goes wrong with a signal or an
    exception (a wrong argument, methods of its own that raise) is why the attempt failed."""
    try:
        return _decide(error, running, handler)
    except BaseException as wrong:  # noqa: BLE001 nothing may be left unsettled
        return handler.failed(describe(wrong), running.claimed.attempt)


def unforeseen(error: BaseException, running: Running) -> Outcome:
    """The end of an attempt whose error was decided nowhere else: a defect of Holdfast. It calls no user code."""
    return Failed(describe(error), Backoff().delay(running.claimed.attempt))


def _decide(error: BaseException, running: Running, handler: Handler) -> Outcome:
    attempt = running.claimed.attempt
    error = signal_in(error) or error
    match error:
        case Retry(reason=reason, after=after):
            delay = handler.pause(attempt) if after is None else _delay(after, "Retry(after=)")
            return handler.fails(ErrorText("Retry", _reason(reason, "Retry")), delay)
        case Snooze(after=after):
            return Snoozed(_delay(after, "Snooze(after=)"))
        case DeadLetter(reason=reason):
            return DeadLettered(ErrorText("DeadLetter", _reason(reason, "DeadLetter")))
        case Cancel(reason=reason):
            return Cancelled(_reason(reason, "Cancel"))
        case LeaseLost() if running.stop == LOST or (running.job is not None and running.job.lost):
            return Lost()
        case asyncio.CancelledError() if running.stop == LOST:
            return Lost()
        case asyncio.CancelledError() if running.stop == "cancel":
            return Cancelled("cancelled while running")
        case asyncio.CancelledError() if running.stop == "release":
            return Released("the worker stopped before the handler ended")
        case _:
            return handler.failed(describe(error), attempt)


def _delay(after: Duration, what: str) -> float:
    return min(seconds(after, what), LONGEST_DELAY)


def _reason(reason: object, signal: str) -> str:
    return storable(text_of(reason, f"{signal}(reason=) has no text"))


def signal_in(error: BaseException) -> BaseException | None:
    """The only exception in nested groups, if it is one of Holdfast's signals."""
    while isinstance(error, BaseExceptionGroup):
        if len(error.exceptions) != 1:
            return None
        error = error.exceptions[0]
    return error if isinstance(error, HandlerSignal | LeaseLost) else None


def completion(job: Job, handler: Handler, value: object) -> Outcome:
    """The outcome of a handler that returned."""
    result = None if value is None and handler.returns_none else handler.encode(value)
    if job._completed:
        # Right when its transaction committed: then settling finds the job already done, and this is never stored.
        message = (
            "job.complete() was called, but its transaction was not committed before the handler returned"
        )
        failed = handler.failed(ErrorText("NotCommitted", message), job.attempt)
        return replace(failed, completed_itself=True)
    return NOTHING if result is None else Completed(result)
