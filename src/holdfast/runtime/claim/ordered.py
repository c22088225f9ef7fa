"""Claims from an ordered queue: from each key a gapless run of jobs, from its front."""

import math
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from operator import attrgetter
from typing import Any
from uuid import UUID

from ... import failpoints
from ...db.faults import BadRow
from ...model.job import ClaimedJob
from ...store import streams
from ...store.limits import Allowance
from ...store.statement import Flow, Statement
from .candidates import Candidates
from .claimer import Ask
from .keyed import PATIENCE, KeyedClaimer

_key: Callable[[ClaimedJob], Any] = attrgetter("partition_key")
_priority: Callable[[ClaimedJob], int] = attrgetter("priority")


class OrderedClaimer(KeyedClaimer):
    _found: Candidates
    _deep = 1.0  # jobs that a key brings, as of late: the number of keys asked for is divided by it

    def _new_candidates(self) -> Candidates:
        return Candidates()

    def _suspect_keys(self, most: int) -> Statement[list[str]]:
        return streams.suspect_streams(self.queue, most)

    def _head(self, key: str, *, suspects: bool) -> Statement[UUID | None]:
        return streams.stream_head(self.queue, key, suspects=suspects)

    def _wanted(self, ask: Ask) -> int:
        return min(ask.want, max(1, min(ask.free or 0, ask.want), round(ask.want / self._deep)))

    def slots_of(self, jobs: Sequence[ClaimedJob]) -> int:
        """One of each key."""
        if not jobs:
            return 0
        keys = len(set(map(_key, jobs)))
        self._deep += 0.3 * (len(jobs) / keys - self._deep)
        return keys

    def _most(self, ask: Ask, keys: int) -> int:
        """Jobs that one claim takes: a run for each free slot, or twice as many as these keys should bring. Where keys are
        deeper than those before, it would else take and lock 32 times what is wanted, while others wait for it.
        Limits are bounds of their own."""
        if self.rules.limited:
            return keys * ask.run
        return max((ask.free or 1) * ask.run, round(2 * ask.want * self._deep))

    def settled(self, job: ClaimedJob, *, finished: bool) -> None:
        key = job.partition_key
        if key is not None and self._is_mine(key):
            self._found.ended(key, job.priority, finished=finished)

    async def _take_held(self, ask: Ask, ids: Sequence[UUID]) -> list[ClaimedJob]:
        """Put held jobs back to their place, and take those whose turn it is. In one transaction: as soon as another worker
        sees one that waits, it may take it, also one whose signature has refused it."""
        if self.rules.limited:
            await self._put_back_held(ids)
            return []
        token = self._shared.new_token(ask.worker)

        def back_and_take() -> Flow[tuple[list[str], list[ClaimedJob]]]:
            keys = list(dict.fromkeys((yield from streams.unhold(self.queue, ids))))
            return keys, (yield from self._statement(ask, token, keys, 1))

        try:
            keys, jobs = await self._session.flow(back_and_take)
        except BadRow:  # the usual way finds out which
            await self._put_back_held(ids)
            return []
        taken = {job.partition_key for job in jobs}
        for key in keys:
            if key not in taken:
                self._found.add(key, 0)
        return jobs

    async def _claim_due(self, ask: Ask) -> list[ClaimedJob]:
        """Runs of at most `ask.run` jobs from up to `ask.want` keys."""
        want = ask.want
        thorough = await self._look_around(ask)
        for key, priority in self._resting.rested():
            self._found.add(key, priority)
        until = math.inf if thorough else time.monotonic() + PATIENCE
        jobs = await self._claim_trials(ask)
        want -= len(jobs)
        while want > 0 and (proposed := self._found.take(want)):
            most = self._most(ask, len(proposed))
            taken = await self._take(ask, proposed, ask.run, most)
            failpoints.point("claim.after")
            jobs += taken
            keys = set(map(_key, taken))
            want -= len(keys)
            self._found.put_back(left := _left(proposed, taken, keys, ask.run, most))
            if (left and taken) or time.monotonic() > until or self._cut:
                break
        self._rest()
        return jobs

    def _statement(
        self,
        ask: Ask,
        token: UUID,
        keys: Sequence[str],
        run: int,
        most: int | None = None,
        *,
        suspects: bool = False,
        trial: bool = False,
    ) -> Statement[list[ClaimedJob]]:
        return streams.claim_streams(
            self.queue,
            ask.worker,
            token,
            lease=self._lease,
            keys=keys,
            run=run,
            most=most,
            suspects=suspects,
            limited=self.rules.limited,
            most_bytes=self._shared.portions.bytes,
            trial=trial,
        )

    def _one_of_each(
        self, ask: Ask, token: UUID, keys: Sequence[str], *, suspects: bool
    ) -> Statement[list[ClaimedJob]]:
        return self._statement(ask, token, keys, 1, suspects=suspects, trial=True)

    async def _take(
        self, ask: Ask, keys: Sequence[str], run: int, most: int | None = None, *, suspects: bool = False
    ) -> list[ClaimedJob]:
        token = self._shared.new_token(ask.worker)

        def fronts(allowed: Allowance | None) -> Statement[list[ClaimedJob]]:
            if allowed is None:
                return self._statement(ask, token, keys, run, most, suspects=suspects)
            return self._statement(ask, token, _open(keys, allowed)[: allowed.total], 1, suspects=suspects)

        try:
            done = await self._limited(ask, keys, fronts, len(keys))
        except BadRow as error:
            return await self._apart(ask, keys, run, suspects, error)
        if self.rules.limited:
            self._put_off(keys, done.allowed)
        else:
            self._found.emptied(_emptied(keys, done.jobs, run, most))
        return _in_turn(done.jobs)

    def _put_off(self, keys: Sequence[str], allowed: Allowance | None) -> None:
        """Keys that were skipped because of a limit: those whose rate allows none rest, the others come next."""
        if allowed is None:
            self._found.put_back(keys)
            return
        for key, most, wait in zip(keys, allowed.keys, allowed.waits, strict=True):
            if most <= 0:
                self._resting.add(key, wait, self._found.priority(key))
        self._found.put_back(_open(keys, allowed)[allowed.total :])


def _open(keys: Sequence[str], allowed: Allowance) -> list[str]:
    """Those that have a place free."""
    return [key for key, most in zip(keys, allowed.keys, strict=True) if most > 0]


def _in_turn(jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
    """First the job with which each key begins: by the highest priority among the jobs of its key, then by when it is due.
    The others stay as they came: each starts after the one before it."""
    heads: dict[Any, ClaimedJob] = {}
    for job in jobs:
        head = heads.get(job.partition_key)
        if head is None or job.seq < head.seq:
            heads[job.partition_key] = job
    top: dict[Any, int] = {}
    if len(set(map(_priority, jobs))) > 1:
        for job in jobs:
            top[job.partition_key] = max(job.priority, top.get(job.partition_key, job.priority))
    first = sorted(heads.values(), key=lambda job: (-top.get(job.partition_key, 0), job.due, job.seq))
    begun = set(map(id, first))
    return first + [job for job in jobs if id(job) not in begun]


def _emptied(asked: Sequence[str], taken: Sequence[ClaimedJob], run: int, most: int | None) -> list[str]:
    """The keys that gave fewer jobs than were asked for, unless the claim was cut short."""
    if run == 1 or not taken or taken[0].locked > len(taken):
        return []
    gave = Counter(map(_key, taken))
    if most is not None and len(asked) * run > most:
        gave.pop(asked[_last(asked, gave)])  # its run may have been cut
    return [key for key, jobs in gave.items() if jobs < run]


def _left(
    asked: Sequence[str], taken: Sequence[ClaimedJob], gave: Container[Any], run: int, most: int
) -> Sequence[str]:
    """The keys that a claim which was cut short has not reached: they come next."""
    if taken and taken[0].locked > len(taken):  # its bytes were enough
        return [key for key in asked if key not in gave]
    if len(asked) * run <= most:
        return []
    # It went from key to key, and its jobs were enough for this many at least, also where others hold them all.
    return asked[max(most // run, _last(asked, gave) + 1) :]


def _last(asked: Sequence[str], gave: Container[Any]) -> int:
    """The place of the last key that gave a job; -1: none did."""
    return next((place for place in range(len(asked) - 1, -1, -1) if asked[place] in gave), -1)
