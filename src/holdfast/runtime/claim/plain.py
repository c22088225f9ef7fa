"""Plain claims: the first due jobs of a queue, whatever their keys.

A claim starts at a low-water mark per priority: all jobs before it are taken or were a moment ago. Jobs that appear before
a mark (a late commit, a release, a sweep, a new priority) are found by a full scan: low_water.py says when.
"""

import time

from ... import failpoints
from ...db.faults import BadRow
from ...model.job import ClaimedJob
from ...model.queue import QueueRules
from ...store import claim as store
from ...store.claim import PriorityMark
from ...store.limits import Allowance, oldest_of_each
from ...store.statement import Statement
from .claimer import Ask, QueueClaimer, Shared
from .low_water import LowWater


class PlainClaimer(QueueClaimer):
    def __init__(self, queue: str, rules: QueueRules, lease: float, shared: Shared) -> None:
        super().__init__(queue, rules, lease, shared)
        self._marks = LowWater()

    def look_again(self, *, thorough: bool = False) -> None:
        self.released()

    def released(self) -> None:
        """The place of the job may be before a mark."""
        self._marks.full_at = 0.0

    async def _claim_due(self, ask: Ask) -> list[ClaimedJob]:
        if self._marks.full_scan_due():
            return await self._full_scan(ask)
        return await self._take_from_marks(ask, await self._by_age(self._marks.ordered()))

    async def claim_new(self, ask: Ask) -> list[ClaimedJob]:
        return [] if self.rules.limited else await self._take_from_marks(ask, self._marks.ordered())

    async def _take_from_marks(self, ask: Ask, marks: list[PriorityMark]) -> list[ClaimedJob]:
        self._cut = False
        jobs = await self._take(ask, marks)
        self._marks.moved(jobs)
        if not jobs and not self._cut:
            self._marks.found_nothing()
        return jobs

    async def claim_suspects(self, ask: Ask) -> list[ClaimedJob]:
        ids = await self._session.run(store.find_suspects(self.queue, ask.want))
        return await self._take_these(ask, ids) if ids else []

    async def _full_scan(self, ask: Ask) -> list[ClaimedJob]:
        marks, began = self._marks, time.monotonic()
        self._cut = False
        priorities = await self._session.run(store.scan_priorities(self.queue))
        marks.at = {priority: None for priority, _ in priorities}
        jobs = await self._take(ask, await self._by_age(marks.ordered()))
        # It may have missed rows that others were changing. An empty result does not show that, so only the second counts.
        all_taken = jobs[0].locked <= len(jobs) if jobs else marks.empty
        marks.empty = not jobs
        if len(jobs) < ask.want and all_taken and not self._cut:
            # nothing due is left, but for commits that are late
            marks.at = dict(priorities)
        marks.moved(jobs)
        marks.scanned(time.monotonic() - began)
        return jobs

    async def _by_age(self, marks: list[PriorityMark]) -> list[PriorityMark]:
        """With aging, waiting counts: the priority whose first job has gained most goes first."""
        aging = self.rules.aging
        if aging is None or len(marks) < 2:
            return marks
        waited = await self._session.run(oldest_of_each(self.queue, marks))
        return sorted(marks, key=lambda m: m[0] + waited.get(m[0], 0.0) / aging, reverse=True)

    async def _take(self, ask: Ask, marks: list[PriorityMark]) -> list[ClaimedJob]:
        token = self._shared.new_token(ask.worker)

        def first(allowed: Allowance | None) -> Statement[list[ClaimedJob]]:
            return store.claim(
                self.queue,
                ask.worker,
                token,
                lease=self._lease,
                limit=ask.want if allowed is None else min(ask.want, allowed.total),
                marks=marks,
                limited=self.rules.limited,
                most_bytes=self._shared.portions.bytes,
            )

        try:
            jobs = await self._within_limits(ask, ask.want, first)
        except BadRow:
            return await self._take_others_than_bad(ask)
        failpoints.point("claim.after")
        return jobs

    async def _take_others_than_bad(self, ask: Ask) -> list[ClaimedJob]:
        """Some row makes the claim fail: take the others, and skip that row from now on."""
        ids = await self._session.run(store.claim_candidates(self.queue, max(ask.want, 1)))
        return await self._take_these(ask, ids) if ids else []
