"""Streams: which keys of an ordered queue to claim from next.

The database decides what may be taken from a key; this only proposes keys, so that a wrong guess costs a look and
nothing else. Proposed are: keys of which this worker just settled the last job it held, unless its claim took all they had;
keys of due jobs, met along the claim index from a mark on, each row once; and, as a net under both, every key of this
worker's buckets, stepped through one by one whatever is due. The net takes a round every second at most, and a twentieth of
the time at most; it pauses within a round only while there is other work. That is the bound for what the other two miss: a
commit that was late by more than two seconds, a key that somebody else released. With a ring (ring.py) a worker proposes
keys of its own buckets only, and of the others those that nobody took for `takeover` seconds.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

from .. import failpoints, telemetry
from ..db.faults import BadRow
from ..db.session import Session
from ..model.bucket import BUCKETS, bucket
from ..model.job import ClaimedJob
from ..model.queue import QueueRules
from ..model.state import JOB_QUARANTINED
from ..model.text import storable
from ..store import claim, limits, streams
from ..store.claim import Mark
from ..store.limits import Allowance
from ..store.statement import Flow, Statement
from .candidates import Candidates
from .inflight import InFlight
from .limiting import Limiter, Resting
from .pace import Pace
from .portions import Portions

_ROWS = 2000  # due jobs passed in one look
KEYS_AT_ONCE = 1000  # keys stepped through in one statement
PATIENCE = 0.05  # seconds of claims in a row, while those before found less than was wanted
_LOOKS = 8  # looks in a row along the due jobs, while those before met few keys: one key may be deep
_SOON = 0.005  # seconds until the next claim, while a round of the net goes on and nothing is found
_NEW = 3.0  # seconds in which buckets count as new
_START = Mark(datetime(1970, 1, 1, tzinfo=UTC), -1)
_key: Callable[[ClaimedJob], Any] = attrgetter("partition_key")


class StreamClaimer:
    """The claims of one ordered queue."""

    suspect_keys = staticmethod(streams.suspect_streams)
    head = staticmethod(streams.stream_head)
    overdue = 10.0  # seconds after which the net has its turn, also while there is enough to do

    def __init__(
        self,
        queue: str,
        session: Session,
        new_token: Callable[[str], UUID],
        limiter: Limiter | None = None,
        *,
        rules: QueueRules,
        lease: float,
        takeover: float,
    ) -> None:
        self.rules = rules
        self.again_in: float | None = None  # a limit was in the way: when to come again
        self._cut = False  # by the limits of the whole queue: another try would take no more
        self._queue = queue
        self._session = session
        self._lease = lease
        self._takeover = takeover
        self._mine: frozenset[int] | None = None  # buckets; None: all of them
        self._new_token = new_token
        self.portions = Portions(claim.CLAIM_BYTES)
        self._found = self._new_candidates()
        self._limiter = limiter or Limiter(queue, session, InFlight(), Pace({}))
        self._resting = Resting()
        self._marks: dict[int, Mark] = {}
        self._step_back_at = 0.0
        self._thorough = False
        self._net = _Net(1.0)
        self._others = _Net(takeover / 2)

    def _new_candidates(self) -> Any:
        return Candidates()

    def look_after(self, buckets: Sequence[int] | None) -> None:
        """Claim from the keys of these buckets; None: of all. Keys of the others only when nobody does for long."""
        self._mine = None if buckets is None else frozenset(buckets)
        self._net.look_after(buckets)
        rest = [] if self._mine is None else [b for b in range(BUCKETS) if b not in self._mine]
        self._others.look_after(rest, later=self._takeover)
        self._found.keep(self._is_mine)
        self._marks, self._step_back_at = {}, 0.0

    def _is_mine(self, key: str) -> bool:
        return self._mine is None or bucket(key) in self._mine

    def reset(self, *, thorough: bool) -> None:
        """Look from the start the next time; `thorough`: at every key there is, in one go, whatever it costs."""
        self._marks, self._step_back_at = {}, 0.0
        self._net.begin()
        self._thorough = thorough

    def settled(self, key: str, priority: int, *, finished: bool) -> None:
        """Nothing of the key is held here any more: the next one may be ready."""
        if self._is_mine(key):
            self._found.ended(key, priority, finished=finished)

    def unheld(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._found.add(key, 0)

    async def take_held(self, worker: str, job_ids: Sequence[UUID]) -> list[ClaimedJob]:
        """Put held jobs back to their place, and take those whose turn it is. In one transaction: as soon as another worker
        sees one that waits, it may take it, also one whose signature has refused it."""
        if self.rules.limited:
            keys = await self._session.run(streams.unhold(self._queue, job_ids))
            self.unheld(keys)
            return []
        token, keys = self._new_token(worker), []

        def back_and_take() -> Flow[list[ClaimedJob]]:
            nonlocal keys
            keys = list(dict.fromkeys((yield from streams.unhold(self._queue, job_ids))))
            return (
                yield from streams.claim_streams(
                    self._queue,
                    worker,
                    token,
                    lease=self._lease,
                    keys=keys,
                    run=1,
                    most_bytes=self.portions.bytes,
                )
            )

        try:
            jobs = await self._session.flow(back_and_take)
        except BadRow:  # the usual way finds out which
            keys = await self._session.run(streams.unhold(self._queue, job_ids))
            jobs = []
        taken = {job.partition_key for job in jobs}
        self.unheld([key for key in keys if key not in taken])
        return jobs

    async def claim(self, worker: str, want: int, run: int) -> list[ClaimedJob]:
        """Runs of at most `run` jobs from up to `want` keys."""
        thorough = await self._look_around(want)
        for key, priority in self._resting.rested():
            self._found.add(key, priority)
        until = math.inf if thorough else time.monotonic() + PATIENCE
        jobs: list[ClaimedJob] = []
        while want > 0 and (proposed := self._found.take(want)):
            taken = await self._take(worker, proposed, run)
            failpoints.point("claim.after")
            jobs += taken
            keys = {job.partition_key for job in taken}
            want -= len(keys)
            if taken and taken[0].locked > len(
                taken
            ):  # its bytes were enough: the others have their turn the next time
                self._found.put_back([key for key in proposed if key not in keys])
                break
            if time.monotonic() > until or self._cut:
                break
        self._rest()
        return jobs

    def _rest(self) -> None:
        """A key that waits for its rate is a reason to come again."""
        if (seconds := self._resting.next_in) is not None:
            self.again_in = min(seconds, self.again_in or seconds)

    async def claim_suspects(self, worker: str, most: int) -> list[ClaimedJob]:
        """First jobs of keys that are to run apart from others."""
        keys = await self._session.run(self.suspect_keys(self._queue, most))
        return await self._take(worker, keys, 1, suspects=True) if keys else []

    async def _look_around(self, want: int) -> bool:
        """Propose more keys. True: every key there is was looked at."""
        thorough, self._thorough = self._thorough, False
        self.again_in, self._cut = None, False
        if time.monotonic() >= self._step_back_at:
            await self._step_back()
        for _ in range(_LOOKS):
            if len(self._found) >= want or not await self._look():
                break
        if thorough:
            while not await self._net.step(self._session, self._scan, self._found):
                pass
        elif self._net.due(0.0 if len(self._found) < want else self.overdue, idle=not len(self._found)):
            await self._cast_net()
        if len(self._found) < want and self._others.due():
            await self._others.step(self._session, self._scan, self._found, late=self._takeover)
        return thorough

    async def _cast_net(self) -> None:
        """One step; while nothing at all is found there is nothing to slow down, so the round goes on."""
        until = time.monotonic() + PATIENCE
        while not await self._net.step(self._session, self._scan, self._found):
            if len(self._found):
                return
            if time.monotonic() > until:
                self.again_in = _SOON
                return

    def _scan(self, buckets: Sequence[int] | None, after: tuple[int, str] | None) -> Statement[streams.Scan]:
        return streams.scan_streams(self._queue, buckets, after, KEYS_AT_ONCE)

    async def _step_back(self) -> None:
        """Priorities not seen before, and commits that came late: look at the last two seconds again.

        With buckets of its own a worker does not pass what is older: it may be others' and deep, and the net has it.
        """
        began = time.monotonic()
        for priority, late in await self._session.run(claim.scan_priorities(self._queue)):
            mark = self._marks.get(priority, _START if self._mine is None else late)
            self._marks[priority] = min(mark, late)
        now = time.monotonic()
        self._step_back_at = now + max(1.0, 20 * (now - began))

    async def _look(self) -> bool:
        """True: there may be more behind it."""
        marks = sorted(self._marks.items(), reverse=True)
        mine = None if self._mine is None else sorted(self._mine)
        found = await self._session.run(streams.due_streams(self._queue, marks, _ROWS, mine))
        for due in found:
            self._marks[due.priority] = due.mark
            for key in due.keys:
                self._found.add(key, due.priority)
        return any(due.seen >= _ROWS for due in found)

    async def _take(
        self, worker: str, keys: Sequence[str], run: int, *, suspects: bool = False
    ) -> list[ClaimedJob]:
        def statement(keys: Sequence[str], run: int) -> Statement[list[ClaimedJob]]:
            return streams.claim_streams(
                self._queue,
                worker,
                token,
                lease=self._lease,
                keys=keys,
                run=run,
                suspects=suspects,
                limited=self.rules.limited,
                most_bytes=self.portions.bytes,
            )

        left = list(keys)  # those that were not asked, because of a limit

        def allowed(allowance: Allowance) -> Statement[list[ClaimedJob]]:
            failpoints.point("claim.limited")
            free = [key for key, most in zip(keys, allowance.keys, strict=True) if most > 0]
            asked = free[: allowance.total]
            for key, most, wait in zip(keys, allowance.keys, allowance.waits, strict=True):
                if most <= 0:
                    self._resting.add(key, wait, self._found.priority(key))
            left[:] = free[len(asked) :]
            return statement(asked, 1)

        token = self._new_token(worker)
        try:
            if not self.rules.limited:
                taken = await self._session.run(statement(keys, run))
                self._found.emptied(_emptied(taken, run))
                return taken
            taken = await self._within(worker, keys, allowed, len(keys))
            self._found.put_back(left)
            return taken
        except BadRow as error:
            return await self._apart(worker, keys, run, suspects, error)

    async def _within(
        self, worker: str, keys: Sequence[str], take: limits.Take, want: int
    ) -> list[ClaimedJob]:
        done = await self._limiter.within(worker, keys, take, want)
        self._cut = done.cut
        if done.cut:
            self.again_in = done.again_in
        return done.jobs

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
        head = await self._session.run(self.head(self._queue, keys[0], suspects=suspects))
        if head is not None:
            reason = storable(f"claim: {error}")
            await self._session.run(claim.quarantine(head, self._queue, reason))
            telemetry.emit(JOB_QUARANTINED, level=logging.ERROR, job=head, queue=self._queue, error=reason)
        return []


def _emptied(taken: Sequence[ClaimedJob], run: int) -> list[str]:
    """The keys that gave fewer jobs than were asked for, unless the claim was cut short by its bytes."""
    if run == 1 or not taken or taken[0].locked > len(taken):
        return []
    return [key for key, jobs in Counter(map(_key, taken)).items() if jobs < run]


class _Net:
    """Every key of some buckets, stepped through in rounds."""

    def __init__(self, least: float) -> None:
        self._least = least  # seconds between two rounds
        self._buckets: Sequence[int] | None = None  # None: all of them
        self._after: tuple[int, str] | None = None  # the last key looked at in this round
        self._next = self._cost = 0.0
        self._first = True
        self._new_until = 0.0

    def begin(self) -> None:
        """A new round, now, and without a pause."""
        self._after, self._next, self._first, self._cost = None, 0.0, True, 0.0

    def look_after(self, buckets: Sequence[int] | None, later: float = 0.0) -> None:
        """Other buckets: a new round through them, after so many seconds."""
        self._buckets = buckets
        self.begin()
        self._next = time.monotonic() + later
        self._new_until = 0.0 if later else self._next + _NEW

    def due(self, late: float = 0.0, *, idle: bool = False) -> bool:
        """Is a step due for so many seconds? Within a round it always is while there is nothing else to do."""
        wanted = self._buckets is None or len(self._buckets) > 0
        return wanted and (time.monotonic() >= self._next + late or (idle and self._after is not None))

    async def step(
        self,
        session: Session,
        scan_from: Callable[[Sequence[int] | None, tuple[int, str] | None], Statement[streams.Scan]],
        found: Any,
        late: float = 0.0,
    ) -> bool:
        """Look at some more keys; those count whose first job is due for `late` seconds. True: the end of the round."""
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
            # Who had these buckets until now ends its last jobs and says so to nobody.
            least = self._least / 5 if began < self._new_until else self._least
            pause, self._first, self._cost = max(least, 20 * self._cost), False, 0.0
        self._next = now + pause
        return ended
