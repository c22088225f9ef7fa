"""The thread of the renewal. It also watches the event loop of the worker, and names the handler that blocks it."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

from .. import telemetry
from .inflight import InFlight
from .pulse import Pulse
from .renew import Renewal
from .vitals import Measured

_BLOCKED = 5.0


class RenewalThread:
    """Runs the renewal in its own thread and event loop, and watches the loop it was started from."""

    def __init__(self, make: Callable[[], Renewal], inflight: InFlight, measured: Measured) -> None:
        self._make = make
        self._measured = measured
        self._inflight = inflight
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self.pulse: Pulse | None = None
        self._watched: asyncio.AbstractEventLoop | None = None
        self._watched_thread = 0

    def start(self) -> None:
        if self._thread is None:
            self._watched = asyncio.get_running_loop()
            self._watched_thread = threading.get_ident()
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._main()), name="holdfast-renew", daemon=True
            )
            self._thread.start()

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._loop is not None and self._stopping is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stopping.set)
            await asyncio.to_thread(thread.join, 5.0)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        renewal = self._make()
        renewal.pulse = self.pulse
        renewal.start()
        watch = asyncio.create_task(self._watch())
        try:
            while not self._stopping.is_set():
                try:
                    async with asyncio.timeout(0.5):
                        await self._stopping.wait()
                except TimeoutError:
                    if self._watched is None or self._watched.is_closed():
                        break
        finally:
            watch.cancel()
            await renewal.stop()

    async def _watch(self) -> None:
        """Ask the worker's loop for a sign of life; if none comes, report which handler blocks it, and where."""
        reported = False
        while self._watched is not None and not self._watched.is_closed():
            asked = time.monotonic()
            answered = threading.Event()
            self._watched.call_soon_threadsafe(self._answer, answered, asked)
            while not answered.is_set():
                await asyncio.sleep(0.25)
                if not reported and time.monotonic() - asked > _BLOCKED:
                    reported = True
                    self._report(time.monotonic() - asked)
            reported = False
            await asyncio.sleep(1.0)

    def _answer(self, answered: threading.Event, asked: float) -> None:
        """Runs in the watched loop."""
        self._measured.lagged(time.monotonic() - asked)
        answered.set()

    def _report(self, waited: float) -> None:
        frame = sys._current_frames().get(self._watched_thread)
        stack = "".join(traceback.format_stack(frame)[-4:]) if frame else ""
        tasks = sorted({r.claimed.task for r in self._inflight.select(lambda r: r.started_at > 0)})
        telemetry.emit(
            "loop.blocked",
            level=logging.WARNING,
            seconds=round(waited, 1),
            running=", ".join(tasks) or "-",
            advice="an async handler blocks the event loop; make it a plain def, which runs in a thread",
            trace=stack,
        )
