"""Limits, as a claimer meets them: when to come again, and which keys to leave alone until then."""

import heapq
import random
import time

from ..store.limits import Limited

_BUSY = (0.02, 0.5)  # seconds to wait while another worker claims from the same limited queue, doubling
MOST_RESTING = 50_000  # keys; the net finds the others later


class Patience:
    """One worker at a time claims from a limited queue. Who finds another there comes again soon, later each time."""

    def __init__(self) -> None:
        self._tries = 0

    def wait(self, done: Limited) -> float | None:
        """Seconds until it is worth to come again; None: nobody knows, or nothing was in the way."""
        if not done.busy:
            self._tries = 0
            return done.again_in
        self._tries += 1
        longest = min(_BUSY[0] * 2.0 ** min(self._tries - 1, 10), _BUSY[1])
        return random.uniform(0.5, 1.0) * longest  # noqa: S311 no secret


class Resting:
    """Keys whose rate allows none now, until it does."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str, int]] = []
        self._known: set[str] = set()

    def add(self, key: str, seconds: float, priority: int = 0) -> None:
        if key not in self._known and len(self._known) < MOST_RESTING:
            self._known.add(key)
            heapq.heappush(self._heap, (time.monotonic() + seconds, key, priority))

    def rested(self) -> list[tuple[str, int]]:
        """Those whose time has come, with their priority; they are out."""
        found = []
        while self._heap and self._heap[0][0] <= time.monotonic():
            _, key, priority = heapq.heappop(self._heap)
            self._known.discard(key)
            found.append((key, priority))
        return found

    @property
    def next_in(self) -> float | None:
        return max(self._heap[0][0] - time.monotonic(), 0.001) if self._heap else None

    def __contains__(self, key: str) -> bool:
        return key in self._known
