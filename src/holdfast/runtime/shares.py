"""Shares: claims from a queue without order that gives every key its turn, or limits each.

Keys take turns by stride: a key with weight w moves 1/w further with every job, and the one that has moved least is next.
So a key with a million jobs and one with ten get the same share of what is started while both have something, and the ten
start within a second (a look at every key) and one turn of the keys that are ready.
"""

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .. import failpoints
from ..db.faults import BadRow
from ..model.job import ClaimedJob
from ..store import limits
from ..store.limits import Allowance
from ..store.statement import Statement
from ..store.streams import Scan
from .candidates import MOST_KEYS
from .streams import KEYS_AT_ONCE, PATIENCE, StreamClaimer

_MORE = 200  # keys asked about in one claim, when those before were at their limits


class Turn(NamedTuple):
    key: str
    share: int  # how many jobs it may have
    at: float  # where it stood


class Turns:
    """Keys that may have something to claim, by whose turn it is."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._at: dict[str, float] = {}  # what else is in the heap is out of date
        self._now = 0.0

    def add(self, key: str, priority: int = 0, *, at: float = 0.0) -> None:
        """A key that comes new starts where the others are: it has not been waiting."""
        if key not in self._at and len(self._at) < MOST_KEYS:
            self._put(key, max(at, self._now))

    def put_back(self, key: str, at: float) -> None:
        """One that was taken, to where it stands now."""
        if key not in self._at:
            self._put(key, at)

    def _put(self, key: str, at: float) -> None:
        self._at[key] = at
        heapq.heappush(self._heap, (at, key))
        if len(self._heap) > 2 * len(self._at) + 1000:
            self.keep(lambda _: True)

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget the others."""
        self._at = {key: at for key, at in self._at.items() if wanted(key)}
        self._heap = [(at, key) for key, at in self._at.items()]
        heapq.heapify(self._heap)

    def take(self, count: int, weight: Callable[[str], float], keys: int = 0) -> list[Turn]:
        """Share out so many jobs, and one each to further keys, up to so many keys. They are out until they are put back."""
        shares: dict[str, int] = {}
        began: dict[str, float] = {}
        while self._heap and (count > 0 or len(shares) < keys):
            at, key = heapq.heappop(self._heap)
            if self._at.get(key) != at:
                continue
            shares[key] = shares.get(key, 0) + 1
            began.setdefault(key, at)
            if count > 0:
                self._now = max(self._now, at)
                self._at[key] = at + 1.0 / weight(key)
                heapq.heappush(self._heap, (self._at[key], key))
            else:
                del self._at[key]
            count -= 1
        for key in shares:
            self._at.pop(key, None)
        return [Turn(key, share, began[key]) for key, share in shares.items()]

    def __len__(self) -> int:
        return len(self._at)


class ShareClaimer(StreamClaimer):
    """The claims of one queue that is claimed key by key and not in order."""

    suspect_keys = staticmethod(limits.suspect_shares)
    head = staticmethod(limits.share_head)
    _found: Turns

    def _new_candidates(self) -> Turns:
        return Turns()

    overdue = 0.0  # who is not known yet has to get its turn too

    def _scan(self, buckets: Sequence[int] | None, after: tuple[int, str] | None) -> Statement[Scan]:
        return limits.scan_shares(self._queue, buckets, after, KEYS_AT_ONCE)

    def settled(self, key: str, priority: int, *, finished: bool) -> None:
        """A place of a key with a limit is free."""
        if self.rules.limited and key not in self._resting:
            self._found.add(key)

    def _weight(self, key: str) -> float:
        return self.rules.weights.get(key, 1.0)

    async def claim(self, worker: str, want: int, run: int) -> list[ClaimedJob]:
        """Up to `want` jobs, shared out between the keys."""
        thorough = await self._look_around(want)
        for key, _ in self._resting.rested():
            self._found.add(key)
        until = math.inf if thorough else time.monotonic() + PATIENCE
        jobs: list[ClaimedJob] = []
        more = 0
        while len(jobs) < want and (turns := self._found.take(want - len(jobs), self._weight, more)):
            taken, later = await self._share(worker, turns, want - len(jobs))
            failpoints.point("claim.after")
            got = Counter(job.partition_key for job in taken)
            for key, share, at in turns:  # one that gave less has no more, unless a limit was in the way
                if got[key] == share or key in later:
                    self._found.put_back(key, at + got[key] / self._weight(key))
            jobs += taken
            more = _MORE if self.rules.limited == 2 else 0
            if time.monotonic() > until or self._cut:
                break
        self._rest()
        return jobs

    async def _take(
        self, worker: str, keys: Sequence[str], run: int, *, suspects: bool = False
    ) -> list[ClaimedJob]:
        turns = [Turn(key, run, 0.0) for key in keys]
        return (await self._share(worker, turns, run * len(keys), suspects=suspects))[0]

    async def _share(
        self, worker: str, turns: Sequence[Turn], want: int, *, suspects: bool = False
    ) -> tuple[list[ClaimedJob], set[str]]:
        """Claim up to `want` of what the turns are for. Also the keys that have more, but for a limit."""
        keys = [turn.key for turn in turns]
        asked: dict[str, int] = {}
        most = want

        def statement() -> Statement[list[ClaimedJob]]:
            return limits.claim_shares(
                self._queue,
                worker,
                token,
                lease=self._lease,
                shares=[(key, share) for key, share in asked.items() if share > 0],
                limit=most,
                suspects=suspects,
                limited=self.rules.limited,
            )

        def allowed(allowance: Allowance) -> Statement[list[ClaimedJob]]:
            nonlocal most
            failpoints.point("claim.limited")
            most = min(want, allowance.total)
            for turn, places, wait in zip(turns, allowance.keys, allowance.waits, strict=True):
                asked[turn.key] = min(turn.share, places)
                if wait > 0:
                    self._resting.add(turn.key, wait)
            return statement()

        token = self._new_token(worker)
        try:
            if not self.rules.limited:
                asked |= {turn.key: turn.share for turn in turns}
                return await self._session.run(statement()), set()
            taken = await self._within(worker, keys, allowed, want)
        except BadRow as error:
            return await self._apart(worker, keys, 1, suspects, error), set(keys)
        if self._cut and not taken:
            return [], set(keys)
        return taken, _later(turns, asked, taken, most)


def _later(turns: Sequence[Turn], asked: dict[str, int], taken: list[ClaimedJob], most: int) -> set[str]:
    """Keys that were not reached, and those of which a limit left a part. One that is at its limit waits for a place."""
    got = Counter(job.partition_key for job in taken)
    ended = len(taken) >= most
    return {
        key
        for key, share, _ in turns
        if asked[key] > 0 and ((ended and got[key] < asked[key]) or got[key] == asked[key] < share)
    }
