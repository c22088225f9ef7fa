"""Every background service is an `async tick()` that returns the seconds until the next one.

Loop, jitter, wake-up, error handling, start and stop exist here, once. Start and stop are safe twice, stop is safe
unstarted and waits, but not for ever: code that a tick calls may swallow the cancellation.
"""

import abc
import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from .. import telemetry
from ..db.faults import ConnectionLost
from ..errors import DatabaseUnavailable
from ..store.wake import Question
from .pulse import Pulse

_FIRST_PAUSE = 0.25
_CANCELLED_EACH = 5.0  # seconds that a tick has to end before it is cancelled again
_CANCELS = 3


class Service(abc.ABC):
    name = "service"
    longest_pause = 5.0  # between tries while the database is unreachable
    question: Question | None = None  # its question for each pulse of a sleeping worker
    pulse: Pulse | None = None  # until then it need not ask by itself
    topic: str | None = None  # the topic that wakes it, as holdfast.wake() names it
    outlives_jobs = False  # running jobs need it to end: it stops after the last of them
    is_lost: Callable[[], bool] = staticmethod(lambda: False)  # an outage of the database has been reported
    worker: Callable[[], str] = staticmethod(lambda: "")  # the identity of its worker

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self._failures = 0
        self._outage = False
        self._told_at = -1.0

    @abc.abstractmethod
    async def tick(self) -> float:
        """One round of work. Returns the seconds until the next."""

    async def catch_up(self) -> bool:
        """Do now what is due, for a worker that ends when it is idle; True: that created work."""
        return False

    def on_answer(self, answer: Any) -> None:  # noqa: B027 most services ask nothing
        """The reply to its question."""

    def heard(self) -> None:  # noqa: B027 most services have no topic
        """A notification for its topic."""

    def listening(self, hears: bool) -> None:  # noqa: B027
        """Whether it receives notifications for its topic."""

    async def finish(self) -> None:  # noqa: B027 most services have nothing to finish
        """Runs once after the last tick."""

    def start(self) -> None:
        if self._task is None:
            self._ending = False
            self._task = asyncio.get_running_loop().create_task(self.run(), name=f"holdfast {self.name}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None and not await self._halt(task):
            telemetry.emit("service.stuck", level=logging.ERROR, service=self.name)
            return  # what it holds cannot be finished
        await self.finish()

    async def _halt(self, task: "asyncio.Task[None]") -> bool:
        """A tick that swallows the cancellation is the last one anyway."""
        self._ending = True
        for _ in range(_CANCELS):
            task.cancel()
            ended, _ = await asyncio.wait({task}, timeout=_CANCELLED_EACH)
            if ended:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
                return True
        return False

    async def until(self, event: asyncio.Event) -> None:
        """Wait until a tick sets it. A loop that is closed has cancelled the task of the ticks: then another continues."""
        while not event.is_set():
            if self._task is None or self._task.done():
                self._task = None
                self.start()
            done = asyncio.create_task(event.wait())
            try:
                await asyncio.wait([done, *filter(None, [self._task])], return_when=asyncio.FIRST_COMPLETED)
            finally:
                done.cancel()

    def wake(self) -> None:
        self._wake.set()

    def retry_now(self) -> None:
        """The database is back: do not wait for the end of the pause."""
        if self._failures:
            self.wake()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            delay = await self._round()
            if self._ending:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay * random.uniform(0.9, 1.0)):  # noqa: S311 jitter
                    await self._wake.wait()

    async def _round(self) -> float:
        """One tick; an error costs a growing pause, never the service. At most one line is logged per second."""
        try:
            delay = await self.tick()
        except asyncio.CancelledError as error:
            me = asyncio.current_task()
            if self._ending or me is None or me.cancelling():
                raise
            return self._pause_after(error)  # raised by code that it called: this service was not cancelled
        except Exception as error:  # noqa: BLE001 a service outlives every error of a tick
            return self._pause_after(error)
        if self._failures:
            level = logging.DEBUG if self._outage else logging.INFO
            telemetry.emit("service.recovered", level=level, service=self.name, failures=self._failures)
            self._failures = 0
        return delay

    def _pause_after(self, error: BaseException) -> float:
        self._failures += 1
        self._outage = self._is_outage(error)
        pause: float = min(_FIRST_PAUSE * 2.0 ** min(self._failures, 6), self.longest_pause)
        self._say_failed(error, pause)
        return pause

    def _is_outage(self, error: BaseException) -> bool:
        """Errors that database.lost and database.back report for all: a connection broke, or the pool could open none."""
        return isinstance(error, ConnectionLost) or (
            isinstance(error, DatabaseUnavailable) and self.is_lost()
        )

    def _say_failed(self, error: BaseException, pause: float) -> None:
        if time.monotonic() - self._told_at < 1.0:
            return
        self._told_at = time.monotonic()
        known = isinstance(error, DatabaseUnavailable)
        telemetry.emit(
            "service.failed",
            level=logging.DEBUG if self._outage else logging.WARNING if known else logging.ERROR,
            service=self.name,
            error=f"{type(error).__name__}: {error}",
            failures=self._failures,
            next_try_in=round(pause, 2),
        )
        if not known:
            telemetry.log.debug("%s failed", self.name, exc_info=error)


def loudness(error: BaseException) -> int:
    """A lost connection is reported once for all, by database.lost; each loop logs its own at debug level."""
    return logging.DEBUG if isinstance(error, ConnectionLost) else logging.WARNING
