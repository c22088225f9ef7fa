"""What a handler raised, as an outcome: decided in one place, for single jobs and for those of a batch."""

import asyncio

from ..errors import LeaseLost
from ..model.backoff import Backoff
from ..model.duration import Duration, seconds
from ..model.outcome import (
    Cancelled,
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


def is_timeout(error: BaseException, limit: asyncio.Timeout) -> bool:
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
    """The end of an attempt that passed by every other: a mistake of ours. Nothing of the user's is asked for it."""
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
    """What is alone in groups, if it is for us."""
    while isinstance(error, BaseExceptionGroup):
        if len(error.exceptions) != 1:
            return None
        error = error.exceptions[0]
    return error if isinstance(error, HandlerSignal | LeaseLost) else None
