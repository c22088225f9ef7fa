"""A worker from its registration to its last write: what runs beside the claim loop starts once, in order, and stops once.

Stopping is draining: no more claims, hand back what has not started, let the rest finish or release it, leave. Nothing here
may wait longer than its limit: a handler that never ends, or an unreachable database, must not keep the process.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from .. import telemetry
from ..errors import DatabaseError
from ..model.outcome import Failed, Outcome, Released
from .attempts import Attempts
from .claim.queues import Queues
from .context import WorkerContext
from .membership import Membership
from .notify import Notify
from .pulse import Pulse
from .renewal_thread import RenewalThread
from .resting_jobs import Resting
from .ring import Ring
from .service import Service
from .sleep import Sleep
from .sweep import Sweeper
from .tally import Tally

_NAMED = 3  # named tasks, awaited together
_LAST_WRITES = 5.0
_LAST_SUMS = 2.0
_CANCELLED = "CancelledError"  # as describe() names it
_DRAINS = 3  # tries: asyncio.run() cancels all tasks once, at its end


async def _briefly(work: Awaitable[object], seconds: float, what: str) -> None:
    try:
        await asyncio.wait_for(work, seconds)
    except (TimeoutError, DatabaseError) as error:
        telemetry.emit(
            "drain.incomplete", level=logging.WARNING, step=what, error=f"{type(error).__name__}: {error}"
        )


@dataclass(slots=True, frozen=True)
class Services:
    """What runs beside the claim loop."""

    membership: Membership
    renewal: RenewalThread
    sweeper: Sweeper
    tally: Tally
    ring: Ring
    notify: Notify
    of_shapes: Sequence[Service]
    resting: Resting
    sleep: Sleep

    def share_pulse(self, context: WorkerContext) -> None:
        """While the worker sleeps, one statement per heartbeat asks for all services."""
        asking = [(s.question, s.on_answer) for s in self.of_shapes if s.question is not None]
        pulse = Pulse(context.settings, self.ring.queues, asking)
        for service in (self.sweeper, self.ring, *self.of_shapes):
            service.pulse = pulse
        for service in self.of_shapes:
            service.worker = context.me
            service.is_lost = context.database.reach.is_lost
            self.notify.add(service)
        self.sleep.pulse = self.renewal.pulse = pulse

        def felt(pulse: Pulse) -> None:
            self.sweeper.felt(pulse)
            self.ring.felt(pulse)

        pulse.on_felt, pulse.on_end = felt, self.ring.wake


class Lifecycle:
    def __init__(
        self,
        context: WorkerContext,
        services: Services,
        attempts: Attempts,
        queues: Queues,
        look_again: Callable[[], None],
    ) -> None:
        self._context = context
        self._services = services
        services.share_pulse(context)
        self._attempts = attempts
        self._settler = attempts.settler
        self._queues = queues
        self._look_again = look_again
        self._loop = asyncio.get_running_loop()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Register, start everything, do the work, and drain, even if one of these fails."""
        await self._services.membership.register()
        witness = asyncio.create_task(asyncio.Event().wait(), name="holdfast witness")
        self._attempts.ended_by_loop = functools.partial(self._ended_by_loop, witness)
        try:
            await self._start()
            with self._ending_pauses():
                await work()
        finally:
            await self._drain_to_the_end()
            witness.cancel()

    def _ended_by_loop(self, witness: asyncio.Task[Any], outcome: Outcome) -> bool:
        """Only the end of the loop cancels the witness; any other task is also cancelled by a timeout in it."""
        if witness.cancelling() == 0 or not isinstance(outcome, Failed) or outcome.error.kind != _CANCELLED:
            return False
        self._context.stop()  # before the next job starts in this slot
        return True

    async def _drain_to_the_end(self) -> None:
        """A loop that is closed cancels all tasks, also the drain. Then it begins again: jobs of an unfinished drain would
        be renewed for ever, and run by nobody."""
        again: asyncio.CancelledError | None = None
        for _ in range(_DRAINS):
            draining = asyncio.create_task(self._drain(), name="holdfast drain")
            again = await self._hurry_if_cancelled(draining) or again
            if not draining.cancelled():
                draining.result()
                break
        else:
            raise asyncio.CancelledError
        if again is not None:
            raise again

    async def _hurry_if_cancelled(self, draining: asyncio.Task[None]) -> asyncio.CancelledError | None:
        """A second cancellation of the worker means that it should hurry, as a second signal does; a task group may cancel
        in every turn of the loop. Returns the last one."""
        again: asyncio.CancelledError | None = None
        while not draining.done():
            try:
                await asyncio.wait([draining])
            except asyncio.CancelledError as error:
                self._context.hurry.set()
                again = error
        return again

    async def _start(self) -> None:
        of = self._services
        of.renewal.start()
        self._settler.start()
        of.sweeper.start()
        of.tally.start()
        await of.ring.begin()
        of.ring.start()
        if self._context.listens:
            of.notify.start()
        for service in of.of_shapes:
            service.start()

    def _ending_pauses(self) -> AbstractContextManager[None]:
        """While the block lasts, the first session that reaches the database after an outage ends the pauses of all loops.
        The renewing thread needs no help: it never pauses for longer than a heartbeat."""
        of = self._services
        services = (self._settler, of.sweeper, of.ring, of.notify, of.tally, *of.of_shapes)

        def retry() -> None:
            for service in services:
                service.retry_now()
            self._look_again()

        def returned() -> None:
            """Called in the thread of the session."""
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(retry)

        return self._context.database.reach.returned.during(returned)

    async def _drain(self) -> None:
        of = self._services
        self._context.stopping.set()
        for service in of.of_shapes:
            if not service.outlives_jobs:
                await service.stop()
        await of.notify.stop()
        await _briefly(of.membership.drain(), _LAST_WRITES, "say draining")  # its seats are free from here on
        await of.ring.stop()
        self._attempts.hand_back(self._attempts.dispatcher.clear())
        of.resting.close()
        await self._let_finish()
        await self._release_rest()
        await _briefly(self._settler.drained(), _LAST_WRITES, "settle the rest")
        for service in of.of_shapes:
            if service.outlives_jobs:
                await service.stop()
        await _briefly(
            self._queues.lost_replies.give_back(), _LAST_WRITES, "give back what a lost answer claimed"
        )
        await of.sweeper.stop()
        await self._settler.stop()
        await _briefly(of.tally.last(), _LAST_SUMS, "write down what was finished")
        await of.tally.stop()
        await of.renewal.stop()
        me = of.membership.id  # it may have been fenced while it drained
        await _briefly(of.membership.take_back_blame(me), _LAST_WRITES, "take back what a silence counted")
        await _briefly(of.membership.leave(), _LAST_WRITES, "leave")
        await self._queues.close()
        await of.membership.close()

    async def _let_finish(self) -> None:
        """Wait until the last handler ends, the drain limit is reached, or a second signal arrives."""
        tasks = [r.task for r in self._attempts.inflight.select() if r.task is not None]
        if not tasks:
            return
        self._say_waiting()
        hurry = asyncio.ensure_future(self._context.hurry.wait())
        finished = asyncio.ensure_future(asyncio.wait(tasks))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait(
                {hurry, finished}, timeout=self._context.settings.drain, return_when=asyncio.FIRST_COMPLETED
            )
        hurry.cancel()
        finished.cancel()

    def _say_waiting(self) -> None:
        running = self._attempts.inflight.select(lambda r: r.task is not None)
        names = sorted({r.claimed.task for r in running})
        telemetry.emit(
            "drain.waiting",
            running=len(running),
            tasks=", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else ""),
            seconds=self._context.settings.drain,
            advice="a second Ctrl-C or SIGTERM hands them back at once, with no attempt spent",
        )

    async def _release_rest(self) -> None:
        """Async handlers are cancelled and processes killed, and return their outcome; a sync handler cannot be stopped, so
        its job is released and its fence keeps its writes out."""
        rest = self._attempts.inflight.select(
            lambda r: r.task is not None and (not r.task.done() or r.abandoned)
        )
        for running in rest:
            running.interrupt("release")
            if running.is_async:
                running.cancel()
        ending = [r.task for r in rest if (r.is_async or r.in_process) and r.task is not None]
        if ending:
            await asyncio.wait(ending, timeout=2.0)
        for running in rest:
            self._attempts.conclude(running, Released("the worker stopped before the handler ended"))
