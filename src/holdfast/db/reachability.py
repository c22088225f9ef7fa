"""Whether the database is reachable, known to all its sessions: the first one that reconnects reports it to the others.

After an outage every loop pauses for seconds between its tries. Without this each of them would find out by itself.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, ParamSpec

from .. import telemetry

P = ParamSpec("P")


class Calls(Generic[P]):
    """Functions to call at an event, in the thread in which it happens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced, and never changed: a child may be forked at any moment.
        self._calls: tuple[Callable[P, None], ...] = ()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._calls)

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


class Reachability:
    """An outage is one line when it begins and one when it ends, however many sessions notice it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost_at: float | None = None
        self._back_at = 0.0
        self.returned = Calls[[]]()  # a session has reconnected after an outage

    def is_lost(self) -> bool:
        """Since it was reported, and until the end of the outage."""
        return self._lost_at is not None

    def lost(self, error: object = "", since: float | None = None) -> None:
        """`since`: when the failed connection was made. One from before the last return failed with that outage."""
        with self._lock:
            if self._lost_at is not None or (since is not None and since < self._back_at):
                return
            self._lost_at = time.monotonic()
        advice = "work continues when it is back"
        telemetry.emit(
            "database.lost", level=logging.WARNING, error=" ".join(str(error).split()), advice=advice
        )

    def connected(self) -> None:
        with self._lock:
            lost_at, self._lost_at = self._lost_at, None
            if lost_at is None:
                return
            self._back_at = time.monotonic()
        telemetry.emit("database.back", seconds=round(self._back_at - lost_at, 1))
        self.returned()
