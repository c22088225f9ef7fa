"""Whether the database is in reach, known to all sessions of it: the first one that reconnects reports it to the others.

After an outage every loop pauses for seconds between its tries. Without this each of them would find out by itself.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Calls(Generic[P]):
    """Functions to call when something happens, in the thread in which it does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced, and never changed: a child may be forked at any moment.
        self._calls: tuple[Callable[P, None], ...] = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for call in self._calls:
            call(*args, **kwargs)

    @contextlib.contextmanager
    def during(self, call: Callable[P, None]) -> Iterator[None]:
        """Call this one too, until the block ends."""
        with self._lock:
            self._calls = (*self._calls, call)
        try:
            yield
        finally:
            with self._lock:
                self._calls = tuple(other for other in self._calls if other is not call)


class Reach:
    def __init__(self) -> None:
        self._lost = False
        self.returned = Calls[[]]()  # a session has reconnected after an outage

    def lost(self) -> None:
        self._lost = True

    def connected(self) -> None:
        if self._lost:
            self._lost = False
            self.returned()
