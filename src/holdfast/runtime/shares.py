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

from .. import failpoints
from ..db.faults import BadRow
from ..model.job import ClaimedJob
from ..store import limits
from ..store.limits import Allowance
from ..store.statement import Statement
from ..store.streams import Scan
from .streams import KEYS_AT_ONCE, MOST_KEYS, PATIENCE, StreamClaimer

Share = tuple[str, int]


class Turns:
    """Keys that may have something to claim, by whose turn it is."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._at: dict[str, float] = {}
        self._now = 0.0

    def add(self, key: str, priority: int = 0, *, at: float = 0.0) -> None:
        """A key that comes new starts where the others are: it has not been waiting."""
        if key not in self._at and len(self._at) < MOST_KEYS:
            self._at[key] = max(at, self._now)
            heapq.heappush(self._heap, (self._at[key], key))

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget the others."""
        self._at = {key: at for key, at in self._at.items() if wanted(key)}
        self._heap = [(at, key) for key, at in self._at.items()]
        heapq.heapify(self._heap)

    def take(self, count: int, weight: Callable[[str], float]) -> list[tuple[str, int, float]]:
        """Share out so many jobs: (key, how many, where that leaves it). The keys are out until they are added again."""
        shares: dict[str, int] = {}
        at: dict[str, float] = {}
        while count > 0 and self._heap:
            moved, key = heapq.heappop(self._heap)
            self._now = max(self._now, moved)
            shares[key] = shares.get(key, 0) + 1
            at[key] = moved + 1.0 / max(weight(key), 1e-6)
            heapq.heappush(self._heap, (at[key], key))
            count -= 1
        self.keep(lambda key: key not in shares) if shares else None
        return [(key, share, at[key]) for key, share in shares.items()]

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

    def settled(self, key: str, priority: int) -> None:
        """A place of a key with a limit is free."""
        if self.rules.limited:
            super().settled(key, priority)

    async def claim(self, worker: str, want: int, run: int) -> list[ClaimedJob]:
        """Up to `want` jobs, shared out between the keys."""
        thorough = await self._look_around(want)
        until = math.inf if thorough else time.monotonic() + PATIENCE
        jobs: list[ClaimedJob] = []
        while turns := self._found.take(want - len(jobs), lambda key: self.rules.weights.get(key, 1.0)):
            taken = await self._share(worker, [(key, share) for key, share, _ in turns])
            failpoints.point("claim.after")
            got = Counter(job.partition_key for job in taken)
            for key, share, at in turns:  # one that gave less has no more, unless a limit was in the way
                if got[key] == share or self.again_in is not None:
                    self._found.add(key, at=at)
            jobs += taken
            if time.monotonic() > until or self.again_in is not None:
                break
        return jobs

    async def _take(
        self, worker: str, keys: Sequence[str], run: int, *, suspects: bool = False
    ) -> list[ClaimedJob]:
        return await self._share(worker, [(key, run) for key in keys], suspects=suspects)

    async def _share(
        self, worker: str, shares: Sequence[Share], *, suspects: bool = False
    ) -> list[ClaimedJob]:
        def statement(wanted: Sequence[Share], limit: int) -> Statement[list[ClaimedJob]]:
            return limits.claim_shares(
                self._queue, worker, token, lease=self._lease, shares=wanted, limit=limit, suspects=suspects
            )

        def allowed(allowance: Allowance) -> Statement[list[ClaimedJob]]:
            cut = [(key, min(n, most)) for (key, n), most in zip(shares, allowance.keys, strict=True)]
            return statement([share for share in cut if share[1] > 0], allowance.total)

        token = self._new_token(worker)
        try:
            if not self.rules.limited:
                return await self._session.run(statement(shares, sum(n for _, n in shares)))
            return await self._within([key for key, _ in shares], sum(n for _, n in shares), allowed)
        except BadRow as error:
            return await self._apart(worker, [key for key, _ in shares], 1, suspects, error)
