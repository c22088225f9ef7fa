"""Execute one claimed job: decode, middleware, handler. Ends in an Outcome and never raises.

prepare() finds the handler and its arguments; perform() makes the call with everything around it. An async
handler with nothing around it is awaited by Attempts.run.
"""

import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from .. import telemetry
from ..db.database import Database
from ..db.faults import ConnectionLost, Contended
from ..errors import DatabaseUnavailable
from ..model.outcome import (
    NOTHING,
    Cancelled,
    Completed,
    DeadLettered,
    ErrorText,
    Held,
    Misfit,
    Outcome,
    Released,
    SettledElsewhere,
    Settlement,
)
from ..model.text import describe, storable
from ..store.settle_last import settle_last
from .decide import completion, decide, is_timeout, limited
from .handler import FORGIVEN, Handler, Handlers, NeedsNewer, NeverFits, PayloadError
from .inflight import Processes, Running
from .job import Job, no_rest
from .lazy_job import JobMaker
from .middleware import Middleware, Next, SkippableMiddleware
from .record import Recorders
from .report import JobFields
from .resting_jobs import Resting
from .threads import Threads

Call = tuple[Handler, dict[str, Any] | None]  # with these arguments; None: a child process reads the payload
Attempt = Callable[[Running, Handler, Job, dict[str, Any]], Awaitable[Outcome]]


class Executor:
    """`processes` runs handlers with process=True. Inside such a process it is None: everything runs here, and `supervised`
    leaves the time limit to the worker outside."""

    def __init__(
        self,
        database: Database,
        handlers: Handlers,
        worker: Callable[[], str],
        middleware: Sequence[Middleware] = (),
        *,
        processes: Processes | None = None,
        supervised: bool = False,
        recorders: Recorders | None = None,
    ) -> None:
        self._database = database
        self._handlers = handlers
        self._worker = worker
        self._middleware = tuple(middleware)
        self._part_time = [layer for layer in self._middleware if isinstance(layer, SkippableMiddleware)]
        self._always = [layer for layer in self._middleware if not isinstance(layer, SkippableMiddleware)]
        self.layers: Sequence[Middleware] = self._middleware  # that are in use
        self._processes = processes
        self._supervised = supervised
        self.job_of = JobMaker(database, worker, recorders or Recorders())
        self.threads, self.resting = Threads(), Resting()

    def close(self) -> None:
        self.threads.close()

    def look(self) -> None:
        """Find out which middleware is in use; called once for many jobs."""
        wanted = any(layer.wanted() for layer in self._part_time)
        self.layers = self._middleware if wanted else self._always

    async def execute(self, running: Running, attempt: Attempt | None = None) -> Outcome:
        """`attempt` runs inside the middleware: the handler's own call, unless a batch shares one."""
        call = self.prepare(running)
        return call if isinstance(call, Outcome) else await self.perform(running, call, attempt)

    def prepare(self, running: Running) -> Call | Outcome:
        """Returns the call to make, or the outcome of an attempt that needs none."""
        claimed = running.claimed
        handler = self._handlers.find(claimed.task, claimed.version)
        if claimed.cancel_requested and (handler is None or handler.drive is None):
            return Cancelled("cancelled before it ran")
        if handler is None:
            return Held(f"no worker here knows {claimed.task} version {claimed.version}")
        apart = running.apart is not None or (handler.process and self._processes is not None)
        if apart and handler.drive is None:  # which writes through what its worker keeps
            return handler, None
        try:
            arguments = handler.decode(claimed.version, claimed.payload)
        except NeverFits as error:
            return DeadLettered(ErrorText("PayloadError", storable(str(error))))
        except PayloadError as error:
            return Misfit(storable(str(error)), handler.signature, newer=isinstance(error, NeedsNewer))
        except BaseException as error:  # noqa: BLE001 upgrades, models and their validators are the user's code
            return Misfit(describe(error).summary, handler.signature)
        running.is_async = handler.is_async
        # The context belongs to this task and ends with it: nothing to reset.
        telemetry.job_context.set(JobFields(claimed, self._worker))
        return handler, arguments

    async def perform(self, running: Running, call: Call, attempt: Attempt | None = None) -> Outcome:
        """Make the call that was prepared."""
        handler, arguments = call
        if arguments is None:
            return await self._in_a_process(running, handler)
        running.is_driven = handler.drive is not None
        layers = self.layers
        if layers or attempt is not None or not handler.plain or handler.is_async:
            return await self._inside(layers, attempt or self._attempt, running, handler, arguments)
        try:
            value = await self.threads.run(functools.partial(handler.func, **arguments))
            return NOTHING if value is None and handler.returns_none else Completed(handler.encode(value))
        except BaseException as error:  # noqa: BLE001 every end of a handler is an outcome
            return decide(error, running, handler)

    async def _inside(
        self,
        layers: Sequence[Middleware],
        attempt: Attempt,
        running: Running,
        handler: Handler,
        arguments: dict[str, Any],
    ) -> Outcome:
        """The attempt inside the middleware, with the Job that both may ask for."""
        running.job = None  # one of a child process that could not be used
        job = self.job_of(running, handler)
        job._rest = functools.partial(self.resting.rest, running)
        call: Next = functools.partial(attempt, running, handler, job, arguments)
        for layer in reversed(layers):
            call = functools.partial(layer, job, call)
        try:
            outcome = await call()
        except BaseException as error:  # noqa: BLE001 middleware is the user's code, and a cancel may interrupt it
            outcome = decide(error, running, handler)
        job._rest = no_rest  # it references `running`, which references the job: a cycle for the collector
        if not isinstance(outcome, Outcome):
            message = f"middleware returned {type(outcome).__name__} instead of the Outcome that call_next() gave it"
            outcome = DeadLettered(ErrorText("TypeError", message))
        return job._ended(outcome)

    async def _in_a_process(self, running: Running, handler: Handler) -> Outcome:
        """The child handles payload, middleware and handler; this only prepares the renewal."""
        processes = running.apart or self._processes
        assert processes is not None  # else it was prepared to run here
        running.in_process = True
        running.job = Job(running.claimed, self._database, self._worker())
        try:
            outcome = await processes.execute(running, handler)
            # A child may run other code than its worker. The worker's own signature decides which held jobs it takes back.
            return replace(outcome, signature=handler.signature) if isinstance(outcome, Misfit) else outcome
        except BaseException as error:  # noqa: BLE001 a cancel may hit it
            return decide(error, running, handler)

    async def _attempt(
        self, running: Running, handler: Handler, job: Job, arguments: dict[str, Any]
    ) -> Outcome:
        limit = limited(None if self._supervised else handler.timeout)
        try:
            async with limit:
                return await self._call(handler, job, arguments)
        except BaseException as error:  # noqa: BLE001 every end of a handler is an outcome
            if is_timeout(error, limit):
                running.interrupt("timeout")
                return handler.timed_out(job.attempt)
            return decide(error, running, handler)

    async def _call(self, handler: Handler, job: Job, arguments: dict[str, Any]) -> Outcome:
        if handler.drive is not None:
            return await handler.drive(job, arguments)
        injected = (job,) if handler.wants_job else ()
        if handler.transaction == "none":
            if handler.is_async:
                value = await handler.func(*injected, **arguments)
            else:
                value = await self.threads.run(functools.partial(handler.func, *injected, **arguments))
            return completion(job, handler, value)

        def finish(value: object) -> Any:
            result = NOTHING.result if value is None and handler.returns_none else handler.encode(value)
            job._completes()
            outcome = Completed(result, job._beside)
            return settle_last(Settlement(job._claimed, outcome, keep=handler.keep), self._worker())

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
                await self.threads.run(lambda: database.transact(body, finish, limit))
        except (DatabaseUnavailable, Contended) as error:
            ours = isinstance(error, ConnectionLost | Contended) or not began
            if not ours or job.generation - job.attempt >= FORGIVEN:
                raise  # the handler's failure, or one outage too many: bounded by its attempts
            # In doubt or refused by the database. If the commit did go through, the release finds the job already
            # settled under this very token.
            return Released(f"{type(error).__name__}: {error}")
        return SettledElsewhere()
