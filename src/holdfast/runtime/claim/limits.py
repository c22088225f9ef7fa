"""Limits, as a claimer meets them: how much to take, when to come again, and which keys to skip until then."""

import heapq
import random
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from ... import failpoints
from ...db.session import Session
from ...model.job import ClaimedJob, Owned
from ...model.queue import QueueRules
from ...store.limits import Allowance, Asked, Limited, trim_claims, within
from ...store.statement import Flow, Statement
from ..inflight import InFlight
from ..pace import Pace

_BUSY = (0.005, 0.1)  # seconds to wait while another worker claims from the same limited queue, doubling
_SHARED = 2  # jobs ahead of the slots, of a queue whose keys take turns
_LOOK = 0.5  # seconds for which a rate that allows none is trusted: an operator may have changed it
_FEW = 32  # jobs that are over and listed still: not worth a statement
MOST_RESTING = 50_000  # keys; the net finds the others later

Made = Statement[list[ClaimedJob]] | Flow[list[ClaimedJob]]
Claim = Callable[[Allowance | None], Made]


class Patience:
    """One worker at a time claims from a limited queue. If a worker finds another one there, it retries soon."""

    def __init__(self) -> None:
        self._tries = 0

    def wait(self, done: Limited) -> float | None:
        """Seconds until it is worth trying again; None: unknown, or no limit applied."""
        if not done.busy:
            self._tries = 0
            return done.again_in
        self._tries += 1
        longest = min(_BUSY[0] * 2.0 ** min(self._tries - 1, 10), _BUSY[1])
        return random.uniform(0.5, 1.0) * longest  # noqa: S311 no secret


class Claims:
    """The claims of a limited queue that this worker made. A limit counts the jobs that claims list, so if half of a claim
    has ended, it is trimmed, provided that this is worth a statement. So a count reads at most
    about three times the jobs that run."""

    def __init__(self, inflight: InFlight) -> None:
        self._inflight = inflight
        self._by_token: dict[UUID, Sequence[Owned]] = {}

    def add(self, jobs: Sequence[ClaimedJob]) -> None:
        if jobs:
            self._by_token[UUID(jobs[0].token_text)] = jobs

    def over(self) -> list[UUID]:
        """Those to trim now."""
        left = {token: self._inflight.still(jobs) for token, jobs in self._by_token.items()}
        found = [token for token, still in left.items() if 2 * len(still) <= len(self._by_token[token])]
        gone = sum(len(self._by_token[token]) - len(left[token]) for token in found)
        if gone < max(_FEW, sum(map(len, left.values()))):
            return []
        for token in found:
            if left[token]:
                self._by_token[token] = left[token]
            else:
                del self._by_token[token]
        return found


class _Sent:
    """A claim, and when it was sent: the tokens of its jobs are counted from there."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self.at = 0.0

    def __call__(self, allowed: Allowance) -> Made:
        failpoints.point("claim.limited")
        self.at = time.monotonic()
        return self._claim(allowed)


class Limiter:
    """Wraps the claims of one queue in its limits."""

    def __init__(self, queue: str, session: Session, inflight: InFlight, pace: Pace) -> None:
        self._queue = queue
        self._session = session
        self._inflight = inflight
        self._last: Sequence[Owned] = ()  # that came from this queue
        self._claims = Claims(inflight)
        self._pace = pace
        self._patience = Patience()
        self._ask_at = self._open_at = 0.0

    def closed_for(self, rules: QueueRules) -> float:
        """Seconds for which its rate allows none; 0: ask."""
        now = time.monotonic()
        return self._open_at - now if rules.limited and now < self._ask_at else 0.0

    def wish(self, rules: QueueRules, want: int, free: int | None, soon: int = 0, *, by_key: bool) -> int:
        """What to ask for: what waits here behind the slots has had its turn already, where keys have turns. So that is no
        more than what starts within a moment, and it is topped up when half of it has started: a claim of a few costs
        nearly as much as one of many. A few always, when nothing of it is here: what waits is of other queues then, and may
        be without an end."""
        if free is None or not by_key:
            return want
        if rules.limited and rules.ordered:
            ahead = free
        elif rules.ordered or (rules.limited and not rules.fair):
            return want
        elif not soon:
            ahead = free if rules.limited else max(0, free) + _SHARED
        else:
            ahead = free + soon if free > 0 or 2 * -free <= soon else 0
        if ahead < _SHARED and not self._inflight.still(self._last):
            ahead = _SHARED
        return min(want, ahead)

    def came(self, jobs: Sequence[Owned]) -> None:
        if jobs:
            self._last = jobs

    async def take(
        self,
        rules: QueueRules,
        claim: Claim,
        *,
        worker: str,
        want: int,
        free: int | None,
        keys: Sequence[str] = (),
    ) -> Limited:
        """Run the claim. `claim` gets what the limits allow, of the queue and of each key; None: it has none."""
        if not rules.limited:
            made = claim(None)
            if isinstance(made, Statement):
                return Limited(await self._session.run(made))
            return Limited(await self._session.flow(lambda: _whole(claim)))
        if over := self._claims.over():
            await self._session.run(trim_claims(self._queue, over))
        sent, asked = _Sent(claim), Asked(worker, want, free)
        done = await self._session.flow(lambda: within(self._queue, keys, sent, asked))
        self._claims.add(done.jobs)
        if done.starts:
            self._pace.add(done.jobs, done.starts, sent.at)
        if done.again_in is not None:
            now = time.monotonic()
            self._open_at, self._ask_at = now + done.again_in, now + min(done.again_in, _LOOK)
        return done._replace(again_in=self._patience.wait(done))


def _whole(claim: Claim) -> Flow[list[ClaimedJob]]:
    return (yield from claim(None))


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
