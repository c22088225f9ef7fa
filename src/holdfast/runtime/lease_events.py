"""Findings of the renewing thread, passed to the worker: a job is lost or cancelled, the worker is fenced or must drain."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from .. import telemetry
from ..errors import DatabaseError
from .attempts import Attempts
from .context import WorkerContext
from .inflight import Running, Stop
from .membership import Membership
from .renew import Renewal
from .vitals import Measured


class LeaseEvents:
    def __init__(
        self,
        context: WorkerContext,
        membership: Membership,
        attempts: Attempts,
        look_again: Callable[[], None],
        measured: Measured,
    ) -> None:
        self._context = context
        self._membership = membership
        self._attempts = attempts
        self._look_again = look_again
        self._measured = measured
        self._loop = asyncio.get_running_loop()

    def renewal(self) -> Renewal:
        """A renewal that reports here. It is made and runs in its own thread."""
        context, membership = self._context, self._membership
        lease = max(context.options.leases.values())
        renewal = Renewal(
            context.database, context.inflight, context.me, lease, self._measured, context.endings
        )
        renewal.on_fenced = lambda: self._call(self._start_over, membership.id)
        renewal.on_drain = lambda identity: self._call(self._drain_asked, identity)
        renewal.on_stop = self._interrupt
        renewal.on_abandoned = lambda running: self._call(self._attempts.end_abandoned, running)
        return renewal

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """In the worker's event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to act
            self._loop.call_soon_threadsafe(function, *arguments)

    def _interrupt(self, running: Running, reason: Stop) -> None:
        """Called in the renewing thread. Sync handlers see it at once; an async one is cancelled in its own loop."""
        running.interrupt(reason)
        self._call(self._cancel, running)

    def _cancel(self, running: Running) -> None:
        if self._attempts.dispatcher.drop(running):
            self._attempts.end_unstarted(running)
        elif running.is_driven and running.stop == "cancel":
            pass  # it is notified, and ends by itself
        elif running.task is not None and running.is_async and not running.settling:
            running.cancel()

    def _start_over(self, fenced: str) -> None:
        if self._membership.id == fenced and not self._context.stopping.is_set():
            self._context.side(self._start_again())

    async def _start_again(self) -> None:
        await self._membership.start_over()
        self._look_again()  # notifications go to the old name
        while True:
            try:
                return await self._membership.take_back_blame()
            except DatabaseError as error:
                telemetry.emit("worker.blame_stands", level=logging.WARNING, error=str(error))
                await asyncio.sleep(self._context.settings.heartbeat)

    def _drain_asked(self, identity: str) -> None:
        """An operator set our status: treated as a first signal, however often the heartbeat reports it."""
        if self._membership.id == identity and not self._context.stopping.is_set():
            telemetry.emit("worker.drain_asked", worker=identity)
            self._context.stop()
