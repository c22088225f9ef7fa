"""Jobs that this very process enqueued: its worker needs no notification of them."""

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
        """While the block lasts, what a thread of this process enqueued ends the pause of the claim loop."""
        loop, process = asyncio.get_running_loop(), os.getpid()

        def enqueued(queues: Collection[str] | None) -> None:
            """In the thread of the producer."""
            if os.getpid() != process:  # of a child, which has a copy of the loop that nobody runs
                return
            if queues is not None and not set(queues).intersection(self._queues()):
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self.look)

        with self._enqueued.during(enqueued):
            yield

    def look(self) -> None:
        """At once where there is little to do, though not for each of many. A busy worker finds it in its next turn."""
        if self._pause.ended.is_set() or 2 * self._slots.free < self._slots.concurrency:
            return
        self._pause.end_in(max(0.0, self._pause.looked_at + BETWEEN_LOOKS - time.monotonic()))
