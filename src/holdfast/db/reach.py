"""Whether the database is in reach, known to all sessions of it: the first one that reconnects reports it to the others.

After an outage every loop pauses for seconds between its tries. Without this each of them would find out by itself.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator


class Reach:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # sessions live in several threads
        self._lost = False
        self._calls: list[Callable[[], None]] = []

    def lost(self) -> None:
        self._lost = True

    def connected(self) -> None:
        with self._lock:
            calls = list(self._calls) if self._lost else []
            self._lost = False
        for call in calls:
            call()

    @contextlib.contextmanager
    def on_return(self, call: Callable[[], None]) -> Iterator[None]:
        """Call this when a session reconnects after an outage, in the thread of that session, until the block ends."""
        with self._lock:
            self._calls.append(call)
        try:
            yield
        finally:
            with self._lock:
                self._calls.remove(call)
