"""Jobs that rest: in flight, and without a slot, while they wait for something outside.

Their lease is renewed with their claim, so resting costs nothing. A worker that drains, and one with too many, asks them to
leave: the event that rest() gives is set, and a job that rests ends its attempt.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .inflight import Running
    from .slots import Slots

MOST_RESTING = 10_000  # jobs that rest in a worker: a process that dies makes a suspect of each of its jobs


class Resting:
    def __init__(self) -> None:
        self.slots: Slots | None = None  # None: this process has one job, and no slots
        self.on_free: Callable[[], None] = lambda: None
        self._resting: dict[Running, asyncio.Event] = {}  # the oldest first
        self._closed = False

    def __len__(self) -> int:
        return len(self._resting)

    @asynccontextmanager
    async def rest(self, running: "Running") -> AsyncIterator[asyncio.Event]:
        """The slot is free while the block lasts. The end waits for a slot, unless the block raised."""
        leave = self._resting[running] = asyncio.Event()
        if self._closed:
            leave.set()
        elif len(self._resting) > MOST_RESTING:
            next(event for event in self._resting.values() if not event.is_set()).set()
        began = time.monotonic()
        if (slots := self.slots) is not None:
            slots.rest()
            if slots.free <= 1:  # else there was one before
                self.on_free()
        try:
            yield leave
        except BaseException:
            if slots is not None:
                slots.running += 1
            raise
        else:
            if slots is not None:
                await slots.unrest()
        finally:
            self._resting.pop(running, None)
            running.rested += time.monotonic() - began

    def close(self) -> None:
        """No job may rest any more."""
        self._closed = True
        for event in self._resting.values():
            event.set()
