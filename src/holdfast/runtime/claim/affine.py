"""Claims of a queue whose keys stay with one worker each, in no order: first the worker's own buckets, then abandoned jobs.

The ring (runtime/ring.py) decides which buckets are our own; a worker that is alone owns all, and its claims are plain.
Jobs are in claim order whatever their buckets, so a worker passes the jobs of other workers, each of them once: its marks
move past them. A statement passes a bounded number, so a backlog of others costs several short statements. Jobs that appear
before a mark are found in rounds from the start: low_water.py says when.

Affinity is not a guard, and nothing waits for it. A worker takes jobs of other buckets:
- when it has nothing else to do: those that have been due for `takeover` seconds, into free slots;
- when it has: those that have waited `takeover` seconds longer than its own, and those that have been due for `takeover`
  seconds and have a higher priority. So the jobs of a worker that hangs get their turn even when all others are busy.
  Otherwise one worker that hangs could hold up its buckets without end.
"""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from ... import failpoints
from ...db.faults import BadRow
from ...model.bucket import BUCKETS
from ...model.job import ClaimedJob
from ...model.queue import QueueRules
from ...store import affinity as store
from ...store.claim import Mark, PriorityMark, scan_priorities
from ...store.limits import Allowance
from ...store.statement import Statement
from .claimer import Ask, Shared
from .low_water import LATE, LowWater
from .plain import PlainClaimer

_ROWS = 5000  # jobs passed in one statement, in each priority
_PATIENCE = 0.05  # seconds of consecutive statements that pass jobs of other workers and find none of our own
_SOON = 0.001  # seconds until the next claim, while there are more to pass


class AffineClaimer(PlainClaimer):
    def __init__(self, queue: str, rules: QueueRules, lease: float, shared: Shared) -> None:
        super().__init__(queue, rules, lease, shared)
        self._mine: bytes | None = None  # a bit for each bucket; None: all are our own
        self._round: LowWater | None = None  # the current round through all that is due
        self._round_cost = 0.0
        self._last: ClaimedJob | None = (
            None  # that we took of our own, while there is more of it than we want
        )
        self._others: LowWater | None = None  # while there is more to take from others
        self._others_at = 0.0
        self._more = False  # jobs to pass, and perhaps some of our own behind them
        self._passed: store.Passed | None = None  # taken by the last statement

    def look_after(self, buckets: Sequence[int] | None) -> None:
        """The ring reports which buckets are our own; None: all."""
        self._mine = None if buckets is None else store.bit_of_each(buckets, BUCKETS)
        self._marks = LowWater()
        self._round = self._others = self._last = None

    def released(self) -> None:
        super().released()
        self._round = None

    async def claim_new(self, ask: Ask) -> list[ClaimedJob]:
        if self._mine is None or self.rules.limited:
            return await super().claim_new(ask)
        return await self._walk(self._marks, ask)

    async def _claim_due(self, ask: Ask) -> list[ClaimedJob]:
        if self._mine is None:
            return await super()._claim_due(ask)
        self._cut = self._more = False
        jobs = await self._help(ask) if self._last is not None else []
        if len(jobs) < ask.want and not self._cut:
            jobs += await self._claim_own(ask._replace(want=ask.want - len(jobs)))
        if self._last is None and not self._cut:
            # Below 0 other jobs wait here, which may be of other queues and without an end: then one.
            free = ask.want if ask.free is None else min(ask.want, ask.free if ask.free >= 0 else 1)
            jobs += await self._help(ask._replace(want=free - len(jobs)))
        if self._more and not jobs:
            self.come_again(_SOON)
        return jobs

    async def _claim_own(self, ask: Ask) -> list[ClaimedJob]:
        jobs, until = list[ClaimedJob](), time.monotonic() + _PATIENCE
        self._more = True
        while self._more and not jobs and not self._cut and time.monotonic() < until:
            self._more = False
            if self._marks.full_scan_due():
                jobs += await self._go_round(ask)
                self._more = self._round is not None
            if len(jobs) < ask.want and not self._cut:
                jobs += await self._walk(self._marks, ask._replace(want=ask.want - len(jobs)))
                self._more = self._more or bool(self._passed and self._passed.bounds)
        if len(jobs) >= ask.want or (jobs and self._cut):
            self._last = jobs[-1]
        elif not self._cut:
            self._last = None
            if not jobs and not self._more:
                self._marks.found_nothing()
        return jobs

    async def _go_round(self, ask: Ask) -> list[ClaimedJob]:
        """A step of a round through all that is due. The round ends at its end, or as soon as it meets more jobs of our own
        than are wanted: the marks continue from that place."""
        marks, around, began = self._marks, self._round, time.monotonic()
        if around is None:
            found = await self._session.run(scan_priorities(self.queue))
            self._round = around = LowWater({priority: None for priority, _ in found})
            self._round_cost = 0.0
            marks.at = {priority: marks.at.get(priority) or late for priority, late in found}
        jobs = await self._walk(around, ask)
        self._round_cost += time.monotonic() - began
        if (
            self._cut or self._round is not around
        ):  # a limit was in the way, or there is a reason for a new one
            return jobs
        if self._passed is None:
            marks.at = dict(around.at)
        elif self._passed.bounds:
            return jobs
        self._round = None
        marks.scanned(self._round_cost)
        return jobs

    async def _walk(self, marks: LowWater, ask: Ask) -> list[ClaimedJob]:
        """Take our own from these marks on. The marks move past what was taken, and past the jobs of other workers."""
        jobs = await self._take_some(ask, marks.ordered(), self._mine)
        marks.moved(jobs)
        passed = self._passed
        if passed is not None and passed.found <= len(jobs):
            recent = Mark(passed.now - LATE, -1)
            for priority, known in list(marks.at.items()):
                place = passed.bounds.get(priority, recent)
                marks.at[priority] = place if known is None else max(known, place)
        return jobs

    async def _help(self, ask: Ask) -> list[ClaimedJob]:
        """Take jobs that another worker should have taken, the oldest first."""
        began = time.monotonic()
        if ask.want <= 0 or began < self._others_at:
            return []
        marks = self._others = self._others or LowWater(dict.fromkeys(self._marks.at))
        wanted, until = _before(self._last, marks.ordered(), self._shared.takeover)
        jobs = await self._take_some(ask, wanted, None, self._shared.takeover, until)
        marks.moved(jobs)
        if len(jobs) < ask.want:
            now = time.monotonic()
            self._others = None
            self._others_at = now + max(self._shared.takeover / 2, 20 * (now - began))
        return jobs

    async def _take_some(
        self,
        ask: Ask,
        marks: Sequence[PriorityMark],
        buckets: bytes | None,
        late: float = 0.0,
        until: Sequence[datetime | None] = (),
    ) -> list[ClaimedJob]:
        token, self._passed = self._shared.new_token(ask.worker), None

        def first(allowed: Allowance | None) -> Statement[list[ClaimedJob]]:
            return store.claim_mine(
                self.queue,
                ask.worker,
                token,
                lease=self._lease,
                limit=ask.want if allowed is None else min(ask.want, allowed.total),
                marks=marks,
                buckets=buckets,
                rows=max(_ROWS, ask.want),
                keyless=self._last is None,
                late=late,
                until=until,
                limited=self.rules.limited,
                most_bytes=self._shared.portions.bytes,
                tell=self._tell,
            )

        try:
            jobs = await self._within_limits(ask, ask.want, first)
        except BadRow:
            return await self._take_others_than_bad(ask)
        failpoints.point("claim.after")
        return jobs

    def _tell(self, passed: store.Passed) -> None:
        self._passed = passed


def _before(
    last: ClaimedJob | None, marks: Sequence[PriorityMark], takeover: float
) -> tuple[list[PriorityMark], list[datetime | None]]:
    """Which jobs of other workers go before our own, of which `last` was taken last: from these marks, due until then."""
    if last is None:
        return list(marks), []
    limit = last.available_at - timedelta(seconds=takeover)
    wanted = [mark for mark in marks if mark[0] >= last.priority]
    return wanted, [limit if priority == last.priority else None for priority, _ in wanted]
