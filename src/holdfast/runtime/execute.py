"""Execute one claimed job: decode, middleware, handler. Ends in an Outcome and never raises."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .. import telemetry
from ..db.database import Database
from ..db.faults import ConnectionLost, Contended
from ..errors import DatabaseUnavailable, LeaseLost
from ..model.duration import Duration, seconds
from ..model.outcome import (
    Cancelled,
    Completed,
    DeadLettered,
    ErrorText,
    Failed,
    Held,
    Lost,
    Outcome,
    Released,
    SettledElsewhere,
    Settlement,
    Snoozed,
)
from ..model.signals import Cancel, DeadLetter, Retry, Signal, Snooze
from ..model.text import describe, storable
from ..store.settle import settle_in
from .handler import Handler, Handlers, PayloadError
from .inflight import Running
from .job import Job
from .threads import Threads

_FORGIVEN = 10  # claims that spent no attempt, after which an outage counts as a failure
_LONGEST = 3600 * 24 * 3600.0  # 3600 days: what PostgreSQL takes for ten years

Next = Callable[[], Awaitable[Outcome]]
Middleware = Callable[[Job, Next], Awaitable[Outcome]]


class Executor:
    def __init__(
        self,
        database: Database,
        handlers: Handlers,
        worker: Callable[[], str],
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._database = database
        self._handlers = handlers
        self._worker = worker
        self._middleware = tuple(middleware)
        self._threads = Threads()

    def close(self) -> None:
        self._threads.close()

    def abandoned(self) -> int:
        return self._threads.abandoned

    async def execute(self, running: Running) -> Outcome:
        claimed = running.claimed
        if claimed.cancel_requested:
            return Cancelled("cancelled before it ran")
        handler = self._handlers.find(claimed.task, claimed.version)
        if handler is None:
            return Held(f"no worker here knows {claimed.task} version {claimed.version}")
        try:
            arguments = handler.decode(claimed.version, claimed.payload)
        except PayloadError as error:
            return DeadLettered(ErrorText("PayloadError", storable(str(error))))
        except Exception as error:  # noqa: BLE001 an upgrade function is the user's code
            return DeadLettered(describe(error))
        worker = self._worker()
        running.is_async = handler.is_async
        running.job = job = Job(claimed, self._database, worker, handler.encode)
        if running.stop:
            running.interrupt(running.stop)
        with telemetry.bound(
            job=str(claimed.id),
            task=claimed.task,
            queue=claimed.grant.queue,
            attempt=claimed.attempt,
            worker=worker,
        ):
            call = functools.partial(self._attempt, running, handler, job, arguments)
            for layer in reversed(self._middleware):
                call = functools.partial(_through, layer, job, call)
            try:
                outcome = await call()
            except BaseException as error:  # noqa: BLE001 middleware is the user's code, and a cancel may hit it
                outcome = decide(error, running, handler)
        if not isinstance(outcome, Outcome):
            message = f"middleware returned {type(outcome).__name__} instead of the Outcome that call_next() gave it"
            outcome = DeadLettered(ErrorText("TypeError", message))
        return outcome

    async def _attempt(
        self, running: Running, handler: Handler, job: Job, arguments: dict[str, Any]
    ) -> Outcome:
        limit = asyncio.timeout(handler.timeout)
        try:
            async with limit:
                return await self._call(handler, job, arguments)
        except BaseException as error:  # noqa: BLE001 every end of a handler is an outcome
            if isinstance(error, TimeoutError) and limit.expired():
                running.interrupt("timeout")
                message = f"ran longer than its timeout of {handler.timeout:g} s"
                return Failed(ErrorText("JobTimeout", message), handler.backoff.delay(job.attempt))
            return decide(error, running, handler)

    async def _call(self, handler: Handler, job: Job, arguments: dict[str, Any]) -> Outcome:
        injected = (job,) if handler.wants_job else ()
        if handler.transaction == "none":
            if handler.is_async:
                value = await handler.func(*injected, **arguments)
            else:
                value = await self._threads.run(functools.partial(handler.func, *injected, **arguments))
            return _completion(job, handler, value)

        def finish(value: object) -> Any:
            result = handler.encode(value)
            job._completed = True  # from here on the row may be gone because we took it away
            return settle_in(Settlement(job._grant, Completed(result)), self._worker())

        began = False
        try:
            database, limit = self._database, handler.timeout

            def body(tx: object) -> Any:
                nonlocal began
                began = True
                return handler.func(*injected, tx, **arguments)

            if handler.is_async:
                await database.atransact(body, finish, limit)
            else:
                await self._threads.run(lambda: database.transact(body, finish, limit))
        except (DatabaseUnavailable, Contended) as error:
            ours = isinstance(error, ConnectionLost | Contended) or not began
            if not ours or job.generation - job.attempt >= _FORGIVEN:
                raise  # the handler's failure, or an outage once too often: bounded by its attempts
            # In doubt or refused by the database. If the commit did go through, the release finds the job already
            # settled under this very token.
            return Released(f"{type(error).__name__}: {error}")
        return SettledElsewhere()


def _completion(job: Job, handler: Handler, value: object) -> Outcome:
    result = handler.encode(value)
    if job._completed:
        # Right when its transaction committed: then settling finds the job already done, and this is never stored.
        message = (
            "job.complete() was called, but its transaction was not committed before the handler returned"
        )
        return Failed(ErrorText("NotCommitted", message), handler.backoff.delay(job.attempt))
    return Completed(result)


async def _through(layer: Middleware, job: Job, call_next: Next) -> Outcome:
    return await layer(job, call_next)


def decide(error: BaseException, running: Running, handler: Handler) -> Outcome:
    """The one place where what a handler raised becomes an outcome."""
    attempt = running.claimed.attempt
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1 and _wraps_signal(error):
        error = error.exceptions[0]
    match error:
        case Retry(reason=reason, after=after):
            delay = handler.backoff.delay(attempt) if after is None else _delay(after, "Retry(after=)")
            return Failed(ErrorText("Retry", storable(str(reason))), delay)
        case Snooze(after=after):
            return Snoozed(_delay(after, "Snooze(after=)"))
        case DeadLetter(reason=reason):
            return DeadLettered(ErrorText("DeadLetter", storable(str(reason))))
        case Cancel(reason=reason):
            return Cancelled(storable(str(reason)))
        case LeaseLost():
            return Lost()
        case asyncio.CancelledError() if running.stop == "lost":
            return Lost()
        case asyncio.CancelledError() if running.stop == "cancel":
            return Cancelled("cancelled while running")
        case asyncio.CancelledError() if running.stop == "release":
            return Released("the worker stopped before the handler ended")
        case _:
            return Failed(describe(error), handler.backoff.delay(attempt))


def _delay(after: Duration, what: str) -> float:
    return min(seconds(after, what), _LONGEST)


def _wraps_signal(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return len(error.exceptions) == 1 and _wraps_signal(error.exceptions[0])
    return isinstance(error, Signal | LeaseLost)
