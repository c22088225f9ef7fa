"""Jobs that this very process enqueued: its worker needs no notification for them."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator

from ..db.reachability import Calls
from .sleep import Pause
from .slots import Slots

BETWEEN_LOOKS = 0.001  # seconds


class LocalEnqueues:
    def __init__(
        self,
        enqueued: "Calls[[Collection[str] | None]]",
        queues: Callable[[], Collection[str]],
        pause: Pause,
        slots: Slots,
    ) -> None:
        self._enqueued = enqueued
        self._queues = queues
        self._pause = pause
        self._slots = slots

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """While the block lasts, an enqueue in a thread of this process ends the pause of the claim loop."""
        loop, process = asyncio.get_running_loop(), os.getpid()

        def enqueued(queues: Collection[str] | None) -> None:
            """Called in the producer's thread."""
            if os.getpid() != process:  # in a forked child, which has a copy of the loop that nobody runs
                return
            if queues is not None and not set(queues).intersection(self._queues()):
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self.look)

        with self._enqueued.during(enqueued):
            yield

    def look(self) -> None:
        """At once if there is little to do, but not for each of many. A busy worker finds the job in its next turn."""
        if self._pause.ended.is_set() or 2 * self._slots.free < self._slots.concurrency:
            return
        self._pause.end_in(max(0.0, self._pause.looked_at + BETWEEN_LOOKS - time.monotonic()))
