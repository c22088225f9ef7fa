"""A transaction in a thread, which nobody can stop: who no longer waits for it says so, and it does not commit."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from .bodies import threads

T = TypeVar("T")


class Handover:
    """Who was first: the thread that is about to commit, or the caller who leaves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = "open"

    def _become(self, state: str) -> bool:
        with self._lock:
            if self._state == "open":
                self._state = state
            return self._state == state

    def commits(self) -> bool:
        """Asked by the thread. False: the caller has left, so nothing may stay."""
        return self._become("commits")

    def leaves(self) -> bool:
        """Asked by the caller. False: it is being committed, so its end is to be waited for."""
        return self._become("left")


async def in_thread(function: Callable[[], T], handover: Handover) -> T:
    """What it returns. Cancelled before the thread commits: it is left to end by itself, without a trace."""
    thread = asyncio.get_running_loop().create_task(threads.run(function))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        if handover.leaves():
            thread.cancel()
            raise
    return await thread
