"""Streams: which keys of an ordered queue to claim from next.

The database decides what may be taken from a key; this only proposes keys, so that a wrong guess costs a look and
nothing else. Proposed are: keys of which this worker just settled a job; keys of due jobs, met along the claim index from a
mark on, each row once; and, as a net under both, every key of this worker's buckets, stepped through one by one
whatever is due. The net takes a round every second at most, and a twentieth of the time at most: that is the bound for what
the other two miss (a commit that was late by more than two seconds, a key that somebody else released).
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from uuid import UUID

from .. import failpoints, telemetry
from ..db.faults import BadRow
from ..db.session import Session
from ..model.job import ClaimedJob
from ..model.text import storable
from ..store import claim, streams
from ..store.streams import Mark

_ROWS = 2000  # due jobs passed in one look
_KEYS = 1000  # keys stepped through in one statement
_MOST = 50_000  # keys remembered; the net finds the others later
_PATIENCE = 0.05  # seconds of claims in a row, while those before found less than was wanted
_LOOKS = 8  # looks in a row along the due jobs, while those before met few keys: one key may be deep
_OVERDUE = 10.0  # seconds after which the net has its turn, also while there is enough to do
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

    def __init__(self, queue: str, session: Session, lease: float, new_token: Callable[[str], UUID]) -> None:
        self._queue = queue
        self._session = session
        self._lease = lease
        self._new_token = new_token
        self._found = Candidates()
        self._marks: dict[int, Mark] = {}
        self._step_back_at = 0.0
        self._thorough = False
        self._net = _Net()

    def reset(self, *, thorough: bool) -> None:
        """Look from the start the next time; `thorough`: at every key there is, in one go, whatever it costs."""
        self._marks, self._step_back_at = {}, 0.0
        self._net.begin()
        self._thorough = thorough

    def settled(self, key: str, priority: int) -> None:
        """A job of the key is finished: the next one may be ready."""
        self._found.add(key, priority)

    def unheld(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._found.add(key, 0)

    async def claim(self, worker: str, want: int, run: int) -> list[ClaimedJob]:
        """Runs of at most `run` jobs from up to `want` keys."""
        thorough, self._thorough = self._thorough, False
        await self._look_around(want, thorough)
        until = math.inf if thorough else time.monotonic() + _PATIENCE
        jobs: list[ClaimedJob] = []
        while want > 0 and (proposed := self._found.take(want)):
            taken = await self._take(worker, proposed, run)
            failpoints.point("claim.after")
            jobs += taken
            want -= len({job.partition_key for job in taken})
            if time.monotonic() > until:
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

    async def _look_around(self, want: int, thorough: bool) -> None:
        if time.monotonic() >= self._step_back_at:
            await self._step_back()
        for _ in range(_LOOKS):
            if len(self._found) >= want or not await self._look():
                break
        if thorough:
            while not await self._net.step(self._session, self._queue, self._found):
                pass
        elif self._net.due(0.0 if len(self._found) < want else _OVERDUE):
            await self._net.step(self._session, self._queue, self._found)

    async def _step_back(self) -> None:
        """Priorities not seen before, and commits that came late: look at the last two seconds again."""
        began = time.monotonic()
        for priority, moment in await self._session.run(claim.scan_priorities(self._queue)):
            mark = self._marks.get(priority, _START)
            self._marks[priority] = min(mark, Mark(moment, -1))
        now = time.monotonic()
        self._step_back_at = now + max(1.0, 20 * (now - began))

    async def _look(self) -> bool:
        """True: there may be more behind it."""
        marks = sorted(self._marks.items(), reverse=True)
        found = await self._session.run(streams.due_streams(self._queue, marks, _ROWS, self._net.buckets))
        for due in found:
            self._marks[due.priority] = due.mark
            for key in due.keys:
                self._found.add(key, due.priority)
        return any(due.seen >= _ROWS for due in found)

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

    def __init__(self) -> None:
        self.buckets: list[int] | None = None  # None: all of them
        self._after: tuple[int, str] | None = None  # the last key looked at in this round
        self._next = 0.0

    def begin(self) -> None:
        """A new round, now."""
        self._after, self._next = None, 0.0

    def due(self, late: float) -> bool:
        """Is a step due for so many seconds?"""
        return time.monotonic() >= self._next + late

    async def step(self, session: Session, queue: str, found: Candidates) -> bool:
        """True: that was the end of the round."""
        began = time.monotonic()
        scan = await session.run(streams.scan_streams(queue, self.buckets, self._after, _KEYS))
        for ready in scan.ready:
            found.add(ready.key, ready.priority)
        now = time.monotonic()
        ended = scan.seen < _KEYS
        self._after = None if ended else scan.last
        self._next = now + max(1.0 if ended else 0.0, 20 * (now - began))
        return ended
