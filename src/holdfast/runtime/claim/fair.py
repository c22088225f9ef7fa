"""Fair claims, from a queue without order that gives every key its turn, or limits each.

Keys take turns by stride: a key with weight w moves 1/w further with every job, and the one that has moved least is next.
So a key with a million jobs and one with ten get the same share while both have jobs, and the ten start within a second
(every key is read that often) plus one turn of the ready keys.
"""

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from ... import failpoints
from ...db.faults import BadRow
from ...model.job import ClaimedJob
from ...store import limits
from ...store.limits import Allowance
from ...store.statement import Statement
from ...store.streams import Scan
from .candidates import MOST_KEYS
from .claimer import Ask
from .keyed import PATIENCE, KeyedClaimer
from .net import KEYS_AT_ONCE

_MOMENT = 0.02  # seconds for which keys that gave enough are used again before all keys are read
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
        """Share out `count` jobs, and one each to further keys, up to `keys` keys. They are out until they are put back."""
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


class FairClaimer(KeyedClaimer):
    """The claims of one queue that is claimed key by key and not in order."""

    _found: Turns
    overdue = 0.0  # a key that is not known yet has to get its turn too

    def _new_candidates(self) -> Turns:
        return Turns()

    def _suspect_keys(self, most: int) -> Statement[list[str]]:
        return limits.suspect_shares(self.queue, most)

    def _head(self, key: str, *, suspects: bool) -> Statement[UUID | None]:
        return limits.share_head(self.queue, key, suspects=suspects)

    def _scan(self, buckets: Sequence[int] | None, after: tuple[int, str] | None) -> Statement[Scan]:
        return limits.scan_shares(self.queue, buckets, after, KEYS_AT_ONCE)

    def settled(self, job: ClaimedJob, *, finished: bool) -> None:
        """A place of a key with a limit is free."""
        key = job.partition_key
        if key is not None and self.rules.limited and key not in self._resting:
            self._found.add(key)

    def _weight(self, key: str) -> float:
        return self.rules.weights.get(key, 1.0)

    async def _take_held(self, ask: Ask, ids: Sequence[UUID]) -> list[ClaimedJob]:
        if self.rules.limited < 2 and not self._holds.any:
            return await self._take_these(ask, ids)
        await self._put_back_held(ids)  # the limits are of keys, and so are holds
        return []

    async def _claim_due(self, ask: Ask) -> list[ClaimedJob]:
        """Up to `ask.want` jobs, shared out between the keys."""
        want = ask.want
        thorough = await self._look_around(ask)
        for key, _ in self._resting.rested():
            self._found.add(key)
        until = math.inf if thorough else time.monotonic() + PATIENCE
        jobs = await self._claim_trials(ask)
        more = 0
        while len(jobs) < want and (turns := self._found.take(want - len(jobs), self._weight, more)):
            taken, later = await self._share(ask, turns, want - len(jobs))
            failpoints.point("claim.after")
            got = Counter(job.partition_key for job in taken)
            for key, share, at in turns:  # one that gave less has no more, unless a limit was in the way
                if got[key] == share or key in later:
                    self._found.put_back(key, at + got[key] / self._weight(key))
            jobs += taken
            more = _MORE if self.rules.limited == 2 else 0
            if time.monotonic() > until or self._cut:
                break
        if len(jobs) < want:
            self._enough_until = 0.0
        elif self._looked:  # only then: claims that come one soon after the other would never look again
            self._enough_until = time.monotonic() + _MOMENT
        self._rest()
        return jobs

    def _one_of_each(
        self, ask: Ask, token: UUID, keys: Sequence[str], *, suspects: bool
    ) -> Statement[list[ClaimedJob]]:
        return limits.claim_shares(
            self.queue,
            ask.worker,
            token,
            lease=self._lease,
            shares=[(key, 1) for key in keys],
            limit=len(keys),
            suspects=suspects,
            limited=self.rules.limited,
            trial=True,
        )

    async def _take(
        self, ask: Ask, keys: Sequence[str], run: int, *, suspects: bool = False
    ) -> list[ClaimedJob]:
        turns = [Turn(key, run, 0.0) for key in keys]
        return (await self._share(ask, turns, run * len(keys), suspects=suspects))[0]

    async def _share(
        self, ask: Ask, turns: Sequence[Turn], want: int, *, suspects: bool = False
    ) -> tuple[list[ClaimedJob], set[str]]:
        """Claim up to `want` of what the turns are for. Also the keys that have more, but for a limit."""
        keys = [turn.key for turn in turns]
        token = self._shared.new_token(ask.worker)

        def shares(allowed: Allowance | None) -> Statement[list[ClaimedJob]]:
            asked = _asked(turns, allowed)
            return limits.claim_shares(
                self.queue,
                ask.worker,
                token,
                lease=self._lease,
                shares=[(key, share) for key, share in asked.items() if share > 0],
                limit=want if allowed is None else min(want, allowed.total),
                suspects=suspects,
                limited=self.rules.limited,
            )

        try:
            done = await self._limited(ask, keys, shares, want)
        except BadRow as error:
            return await self._apart(ask, keys, 1, suspects, error), set(keys)
        if not self.rules.limited:
            return done.jobs, set()
        if done.allowed is None:
            return [], set(keys)
        return self._after(turns, done.jobs, done.allowed, min(want, done.allowed.total))

    def _after(
        self, turns: Sequence[Turn], taken: list[ClaimedJob], allowed: Allowance, most: int
    ) -> tuple[list[ClaimedJob], set[str]]:
        """What a claim within limits leaves: keys that rest until their rate allows one, and keys that have more."""
        for turn, wait in zip(turns, allowed.waits, strict=True):
            if wait > 0:
                self._resting.add(turn.key, wait)
        if self._cut and not taken:
            return [], {turn.key for turn in turns}
        return taken, _later(turns, _asked(turns, allowed), taken, most)


def _asked(turns: Sequence[Turn], allowed: Allowance | None) -> dict[str, int]:
    """How many jobs of each key to ask for."""
    if allowed is None:
        return {turn.key: turn.share for turn in turns}
    return {turn.key: min(turn.share, places) for turn, places in zip(turns, allowed.keys, strict=True)}


def _later(turns: Sequence[Turn], asked: dict[str, int], taken: list[ClaimedJob], most: int) -> set[str]:
    """Keys that were not reached, and those of which a limit left a part. One that is at its limit waits for a place."""
    got = Counter(job.partition_key for job in taken)
    ended = len(taken) >= most
    return {
        key
        for key, share, _ in turns
        if asked[key] > 0 and ((ended and got[key] < asked[key]) or got[key] == asked[key] < share)
    }
