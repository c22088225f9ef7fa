"""The net: every key of some buckets, stepped through in order, whether it has due jobs or not."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from ...db.session import Session
from ...store import streams
from ...store.statement import Statement

KEYS_AT_ONCE = 1000  # keys stepped through in one statement
_NEW = 3.0  # seconds in which buckets count as new


class Net:
    """Every key of some buckets, stepped through in rounds."""

    def __init__(self, least: float) -> None:
        self._least = least  # seconds between two rounds
        self._buckets: Sequence[int] | None = None  # None: all of them
        self._after: tuple[int, str] | None = None  # the last key read in this round
        self._next = self._cost = 0.0
        self._first = True
        self._new_until = 0.0

    def begin(self) -> None:
        """A new round, now, and without a pause."""
        self._after, self._next, self._first, self._cost = None, 0.0, True, 0.0

    def look_after(self, buckets: Sequence[int] | None, later: float = 0.0) -> None:
        """Other buckets: a new round through them, after that many seconds."""
        self._buckets = buckets
        self.begin()
        self._next = time.monotonic() + later
        self._new_until = 0.0 if later else self._next + _NEW

    def due(self, late: float = 0.0, *, idle: bool = False) -> bool:
        """Whether a step has been due for that many seconds. Within a round it always is, while nothing else is to do."""
        wanted = self._buckets is None or len(self._buckets) > 0
        return wanted and (time.monotonic() >= self._next + late or (idle and self._after is not None))

    async def step(
        self,
        session: Session,
        scan_from: Callable[[Sequence[int] | None, tuple[int, str] | None], Statement[streams.Scan]],
        found: Any,
        late: float = 0.0,
    ) -> bool:
        """Read some more keys; keys count whose first job has been due for `late` seconds. True: the end of the round."""
        began = time.monotonic()
        scan = await session.run(scan_from(self._buckets, self._after))
        for ready in scan.ready:
            if ready.late >= late:
                found.add(ready.key, ready.priority)
        now = time.monotonic()
        ended = scan.seen < KEYS_AT_ONCE
        self._after = None if ended else scan.last
        self._cost += now - began
        # Buckets that are new here are stepped through in one go, and so is everything while nothing is found.
        pause = 0.0 if self._first or not len(found) else 20 * (now - began)
        if ended:
            # The previous owner of these buckets ends its last jobs and reports that to nobody: read five times as often.
            seldom = 0.2 if began < self._new_until else 1.0
            pause, self._first, self._cost = seldom * max(self._least, 20 * self._cost), False, 0.0
        self._next = now + pause
        return ended
