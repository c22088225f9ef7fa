"""Streams: which keys of an ordered queue to claim from next.

The database decides what may be taken from a key; this only proposes keys, so that a wrong guess costs a look and
nothing else. Proposed are: keys of which this worker just settled a job; keys of due jobs, met along the claim index from a
mark on, each row once; and, as a net under both, every key of this worker's buckets, stepped through one by one
whatever is due. The net runs at most every second and at most a twentieth of the time: that is the bound for what the
other two miss (a commit that was late by more than two seconds, a key that somebody else released). With a ring
(ring.py) a worker proposes keys of its own buckets only, and of the others those that nobody took for `takeover` seconds.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from uuid import UUID

from .. import failpoints, telemetry
from ..db.faults import BadRow
from ..db.session import Session
from ..model.bucket import BUCKETS, bucket
from ..model.job import ClaimedJob
from ..model.text import storable
from ..store import claim, streams
from ..store.streams import Mark

_ROWS = 2000  # due jobs passed in one look
_KEYS = 1000  # keys stepped through in one statement
_NEW = 3.0  # seconds in which buckets count as new
_WHILE = 0.05  # seconds of them in one look around
_MOST = 50_000  # keys remembered; the net finds the others later
_ROUNDS = 4  # claims in a row, while those before found less than was wanted
_START = Mark(datetime(1970, 1, 1, tzinfo=UTC), -1)


class Candidates:
    """Keys to look at, the highest priority first, then in the order they were met."""

    def __init__(self) -> None:
        self._by: dict[int, dict[str, None]] = {}
        self._known: set[str] = set()

    def add(self, key: str, priority: int) -> None:
        if key not in self._known and len(self._known) < _MOST:
            self._known.add(key)
            self._by.setdefault(priority, {})[key] = None

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget the others."""
        for keys in self._by.values():
            for key in [k for k in keys if not wanted(k)]:
                del keys[key]
                self._known.discard(key)

    def take(self, count: int) -> list[str]:
        taken: list[str] = []
        for priority in sorted(self._by, reverse=True):
            keys = self._by[priority]
            while keys and len(taken) < count:
                key = next(iter(keys))
                del keys[key]
                taken.append(key)
            if not keys:
                del self._by[priority]
        self._known.difference_update(taken)
        return taken

    def __len__(self) -> int:
        return len(self._known)


class StreamClaimer:
    """The claims of one ordered queue."""

    def __init__(
        self,
        queue: str,
        session: Session,
        new_token: Callable[[str], UUID],
        *,
        lease: float,
        takeover: float,
    ) -> None:
        self._queue = queue
        self._session = session
        self._lease = lease
        self._takeover = takeover
        self._mine: frozenset[int] | None = None  # buckets; None: all of them
        self._new_token = new_token
        self._found = Candidates()
        self._marks: dict[int, Mark] = {}
        self._marked_at = -1.0
        self._thorough = True
        self._net = _Net(1.0)
        self._others = _Net(takeover / 2)

    def look_after(self, buckets: Sequence[int] | None) -> None:
        """Claim from the keys of these buckets; None: of all. Keys of the others only when nobody does for long."""
        self._mine = None if buckets is None else frozenset(buckets)
        self._net.look_after(list(range(BUCKETS)) if buckets is None else list(buckets))
        rest = [] if self._mine is None else [b for b in range(BUCKETS) if b not in self._mine]
        self._others.look_after(rest, later=self._takeover)
        self._found.keep(self._is_mine)
        self._thorough = True

    def _is_mine(self, key: str) -> bool:
        return self._mine is None or bucket(key) in self._mine

    def reset(self) -> None:
        """Look everywhere the next time."""
        self._thorough = True

    def settled(self, key: str, priority: int) -> None:
        """A job of the key is finished: the next one may be ready."""
        if self._is_mine(key):
            self._found.add(key, priority)

    def unheld(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._found.add(key, 0)

    async def claim(self, worker: str, want: int, run: int) -> list[ClaimedJob]:
        """Runs of at most `run` jobs from up to `want` keys."""
        await self._look_around(want)
        jobs: list[ClaimedJob] = []
        keys: set[str | None] = set()
        for _ in range(_ROUNDS):
            proposed = self._found.take(want - len(keys))
            if not proposed:
                break
            taken = await self._take(worker, proposed, run)
            failpoints.point("claim.after")
            jobs += taken
            keys |= {job.partition_key for job in taken}
            if len(keys) >= want:
                break
        return jobs

    async def claim_suspects(self, worker: str, most: int) -> list[ClaimedJob]:
        """First jobs of keys that were in a process that died, no more together than they are allowed."""
        found = await self._session.run(streams.suspect_streams(self._queue, most))
        if not found:
            return []
        size = found[0][1]
        keys = [key for key, allowed in found if allowed >= size][: max(1, min(size, most))]
        return await self._take(worker, keys, 1, suspects=True)

    async def _look_around(self, want: int) -> None:
        now = time.monotonic()
        if self._thorough:
            self._net.begin()
            self._marks, self._marked_at = {}, -1.0
        if now - self._marked_at >= 1.0:
            await self._step_back()
            self._marked_at = now
        if len(self._found) < want:
            await self._look()
        now = time.monotonic()
        while self._net.due() and (self._thorough or self._has_time(now, want)):
            await self._net.step(self._session, self._queue, self._found)
        self._thorough = False
        now = time.monotonic()
        while self._others.due() and self._has_time(now, want):
            await self._others.step(self._session, self._queue, self._found, late=self._takeover)

    def _has_time(self, since: float, want: int) -> bool:
        return len(self._found) < want and time.monotonic() - since < _WHILE

    async def _step_back(self) -> None:
        """Priorities not seen before, and commits that came late: look at the last two seconds again.

        With buckets of its own a worker does not pass what is older: it may be others' and deep, and the net has it.
        """
        for priority, moment in await self._session.run(claim.scan_priorities(self._queue)):
            late = Mark(moment, -1)
            mark = self._marks.get(priority, _START if self._mine is None else late)
            self._marks[priority] = min(mark, late)

    async def _look(self) -> None:
        marks = sorted(self._marks.items(), reverse=True)
        mine = None if self._mine is None else sorted(self._mine)
        for due in await self._session.run(streams.due_streams(self._queue, marks, _ROWS, mine)):
            self._marks[due.priority] = due.mark
            for key in due.keys:
                self._found.add(key, due.priority)

    async def _take(
        self, worker: str, keys: Sequence[str], run: int, *, suspects: bool = False
    ) -> list[ClaimedJob]:
        what = streams.claim_streams(
            self._queue,
            worker,
            self._new_token(worker),
            lease=self._lease,
            keys=keys,
            run=run,
            suspects=suspects,
        )
        try:
            return await self._session.run(what)
        except BadRow as error:
            return await self._apart(worker, keys, run, suspects, error)

    async def _apart(
        self, worker: str, keys: Sequence[str], run: int, suspects: bool, error: BadRow
    ) -> list[ClaimedJob]:
        """Some row makes the claim fail: take the others, and leave that one alone from now on. Its key waits for it."""
        if len(keys) > 1:
            middle = len(keys) // 2
            first = await self._take(worker, keys[:middle], run, suspects=suspects)
            return first + await self._take(worker, keys[middle:], run, suspects=suspects)
        if run > 1:
            return await self._take(worker, keys, 1, suspects=suspects)
        head = await self._session.run(streams.stream_head(self._queue, keys[0]))
        if head is not None:
            reason = storable(f"claim: {error}")
            await self._session.run(claim.quarantine(head, self._queue, reason))
            telemetry.emit("job.quarantined", level=logging.ERROR, job=head, queue=self._queue, error=reason)
        return []


class _Net:
    """Every key of some buckets, stepped through in rounds."""

    def __init__(self, least: float) -> None:
        self._least = least  # seconds between two rounds
        self._buckets = list(range(BUCKETS))
        self._at = 0  # which bucket is next
        self._after: str | None = None
        self._next = 0.0
        self._cost = 0.0
        self._new_until = 0.0

    def begin(self) -> None:
        """A new round, now."""
        self._at, self._after, self._next, self._cost = 0, None, 0.0, 0.0

    def look_after(self, buckets: list[int], later: float = 0.0) -> None:
        """Other buckets: a new round through them, after so many seconds."""
        self._buckets = buckets
        self.begin()
        self._next = time.monotonic() + later
        self._new_until = 0.0 if later else self._next + _NEW

    def due(self) -> bool:
        return bool(self._buckets) and time.monotonic() >= self._next

    async def step(self, session: Session, queue: str, found: Candidates, late: float = 0.0) -> None:
        """Look at some more keys; those count whose first job is due for `late` seconds."""
        began = time.monotonic()
        scan = await session.run(streams.scan_streams(queue, self._buckets[self._at :], self._after, _KEYS))
        for ready in scan.ready:
            if ready.late >= late:
                found.add(ready.key, ready.priority)
        self._cost += time.monotonic() - began
        if scan.seen < _KEYS or scan.bucket is None:
            self._at, self._after = 0, None
            # Who had these buckets until now ends its last jobs and says so to nobody.
            least = self._least / 5 if began < self._new_until else self._least
            self._next = time.monotonic() + max(least, 20 * self._cost)
            self._cost = 0.0
        else:
            self._at, self._after = self._buckets.index(scan.bucket), scan.key
