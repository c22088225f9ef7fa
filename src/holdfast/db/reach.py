"""Whether the database is in reach, known to all sessions of it: the first one that reconnects reports it to the others.

After an outage every loop pauses for seconds between its tries. Without this each of them would find out by itself.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator


class Calls:
    """Functions to call when something happens, in the thread in which it does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] = []

    def __call__(self) -> None:
        if self._calls:
            with self._lock:
                calls = list(self._calls)
            for call in calls:
                call()

    @contextlib.contextmanager
    def during(self, call: Callable[[], None]) -> Iterator[None]:
        """Call this one too, until the block ends."""
        with self._lock:
            self._calls.append(call)
        try:
            yield
        finally:
            with self._lock:
                self._calls.remove(call)


class Reach:
    def __init__(self) -> None:
        self._lost = False
        self.returned = Calls()  # a session has reconnected after an outage

    def lost(self) -> None:
        self._lost = True

    def connected(self) -> None:
        if self._lost:
            self._lost = False
            self.returned()
