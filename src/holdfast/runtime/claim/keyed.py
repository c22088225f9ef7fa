"""Claims from a queue key by key: which keys to propose next.

The database decides what may be taken from a key; this only proposes keys, so a wrong guess costs one probe and
nothing else. Proposed are: keys of which this worker just settled the last job it held, unless its claim took all they had;
keys of due jobs, met along the claim index from a mark on, each row once; and, as a net under both, every key of this
worker's buckets, stepped through in order. A round of the net starts every second at most, and takes a twentieth of
the time at most; it pauses within a round only while there is other work. That is the bound for what the other two miss: a
commit that was late by more than two seconds, a key that somebody else released. With a ring (ring.py) a worker proposes
keys of its own buckets only, and of the others those that nobody took for `takeover` seconds.
"""

import abc
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from ...db.faults import BadRow
from ...model.bucket import BUCKETS, bucket
from ...model.job import ClaimedJob
from ...model.queue import QueueRules
from ...store import claim, streams
from ...store.claim import Mark
from ...store.holds import DueTrial
from ...store.limits import Allowance, Limited
from ...store.statement import Flow, Statement
from .claimer import Ask, QueueClaimer, Shared
from .holds import Holds, try_held
from .limits import Claim, Resting
from .net import KEYS_AT_ONCE, Net

PATIENCE = 0.05  # seconds of consecutive claims, while those before found less than was wanted
_ROWS = 2000  # due jobs passed in one statement
_LOOKS = 8  # consecutive statements along the due jobs, while those before met few keys: one key may be deep
_SELDOM = 20  # times as long as it took to pass a deep queue, until what was passed is passed again
_LATE = 5.0  # seconds after which the last two are read again, whatever that takes
_BUSY = 1.0  # seconds by which a round of the net is late while every slot has a job
_SOON = 0.005  # seconds until the next claim, while a round of the net continues and finds nothing
_START = Mark(datetime(1970, 1, 1, tzinfo=UTC), -1)


class KeyedClaimer(QueueClaimer):
    by_key = True
    overdue = 10.0  # seconds after which the net has its turn, also while there is enough to do

    def __init__(self, queue: str, rules: QueueRules, lease: float, shared: Shared) -> None:
        super().__init__(queue, rules, lease, shared)
        self._takeover = shared.takeover
        self._mine: frozenset[int] | None = None  # buckets; None: all of them
        self._found = self._new_candidates()
        self._resting = Resting()
        self._holds = Holds(queue, shared.session)
        self._marks: dict[int, Mark] = {}
        self._step_back_at = 0.0
        self._again_at = 0.0  # when passed jobs may be passed again
        self._passing = 0.0  # seconds of looks in a row that met as many jobs as they pass
        self._thorough = False
        self._enough_until = 0.0
        self._looked = False  # for other keys, in this claim
        self._net = Net(1.0)
        self._others = Net(shared.takeover / 2)

    @abc.abstractmethod
    def _new_candidates(self) -> Any: ...

    @abc.abstractmethod
    async def _take(
        self, ask: Ask, keys: Sequence[str], run: int, *, suspects: bool = False
    ) -> list[ClaimedJob]: ...

    @abc.abstractmethod
    def _one_of_each(
        self, ask: Ask, token: UUID, keys: Sequence[str], *, suspects: bool
    ) -> Statement[list[ClaimedJob]]:
        """The trials of these keys, whose holds are locked."""

    @abc.abstractmethod
    def _suspect_keys(self, most: int) -> Statement[list[str]]: ...

    @abc.abstractmethod
    def _head(self, key: str, *, suspects: bool) -> Statement[UUID | None]: ...

    def look_after(self, buckets: Sequence[int] | None) -> None:
        """Claim from the keys of these buckets; None: of all. Other keys only when nobody has claimed them for long."""
        self._mine = None if buckets is None else frozenset(buckets)
        self._net.look_after(buckets)
        rest = [] if self._mine is None else [b for b in range(BUCKETS) if b not in self._mine]
        self._others.look_after(rest, later=self._takeover)
        self._found.keep(self._is_mine)
        self._marks, self._step_back_at = {}, 0.0

    def _is_mine(self, key: str) -> bool:
        return self._mine is None or bucket(key) in self._mine

    def look_again(self, *, thorough: bool = False) -> None:
        """A full scan the next time; `thorough`: at every key there is, in one go, whatever it costs. Where many jobs wait
        that cannot be taken, such as those of a key at its limit, passing them for each notification would cost more than
        all else: then only the net reads again, which takes one probe for a key however deep it is."""
        if thorough or time.monotonic() >= self._again_at:
            self._marks, self._step_back_at = {}, 0.0
        self._enough_until = 0.0
        self._net.begin()
        self._holds.look_again()
        self._thorough = thorough

    async def claim_new(self, ask: Ask) -> list[ClaimedJob]:
        """A notification names no key. But a hold may have been lifted, so the next round reads every key."""
        if self._holds.any:
            self._net.begin()
            self._holds.look_again()
        return []

    def _slots(self, held: Sequence[ClaimedJob]) -> int:
        return len({job.partition_key for job in held})

    async def _put_back_held(self, ids: Sequence[UUID]) -> None:
        """Held jobs go back to their place, and the claim finds out whether it is their turn."""
        for key in await self._session.run(streams.unhold(self.queue, ids)):
            self._found.add(key, 0)

    async def claim_suspects(self, ask: Ask) -> list[ClaimedJob]:
        """First jobs of keys that are to run apart from others."""
        keys = await self._session.run(self._suspect_keys(ask.want))
        jobs = await self._take(ask, keys, 1, suspects=True) if keys else []
        return jobs or await self._claim_trials(ask, suspects=True)

    async def _claim_trials(self, ask: Ask, *, suspects: bool = False) -> list[ClaimedJob]:
        """One job of each key whose hold has ended and that is to be tried first."""
        due = await self._holds.trials(ask.want, self._is_mine, ordered=self.rules.ordered, suspects=suspects)
        return await self._try(ask, due, suspects) if due else []

    async def _try(self, ask: Ask, due: Sequence[DueTrial], suspects: bool) -> list[ClaimedJob]:
        token = self._shared.new_token(ask.worker)

        def take(allowed: Allowance | None) -> Flow[list[ClaimedJob]]:
            some = due
            if allowed is not None:
                places = zip(due, allowed.keys, strict=True)
                some = [one for one, most in places if most > 0][: allowed.total]
            return try_held(self.queue, some, one_of_each, token)

        def one_of_each(keys: Sequence[str]) -> Statement[list[ClaimedJob]]:
            return self._one_of_each(ask, token, keys, suspects=suspects)

        try:
            keys = [one.key for one in due]
            done = await self.limiter.take(
                self.rules, take, worker=ask.worker, want=len(due), free=ask.free, keys=keys
            )
        except BadRow as error:
            if len(due) == 1:
                return await self._apart(ask, [due[0].key], 1, suspects, error)
            middle = len(due) // 2
            first = await self._try(ask, due[:middle], suspects)
            return first + await self._try(ask, due[middle:], suspects)
        self.come_again(done.again_in)
        return done.jobs

    def _rest(self) -> None:
        """A key that waits for its rate is a reason to come again, and so is the end of a hold."""
        self.come_again(self._resting.next_in)
        self.come_again(self._holds.next_in)

    async def _look_around(self, ask: Ask) -> bool:
        """Propose more keys. True: every existing key was read."""
        want = ask.want
        thorough, self._thorough = self._thorough, False
        self.again_in, self._cut = None, False
        if time.monotonic() >= self._step_back_at:
            await self._step_back()
        for key in await self._holds.look():
            if self._is_mine(key):
                self._found.add(key, 0)
        self._looked = thorough or not self._enough()
        for _ in range(_LOOKS):
            if len(self._found) >= want or not self._looked or not await self._look():
                break
        if thorough:
            while not await self._net.step(self._session, self._scan, self._found):
                pass
        elif self._net.due(self._late_net(ask), idle=not len(self._found)):
            await self._cast_net()
        if len(self._found) < want and self._others.due():
            await self._others.step(self._session, self._scan, self._found, late=self._takeover)
        return thorough

    def _enough(self) -> bool:
        """The keys at hand gave all that was asked for, a moment ago: others are looked for a moment later."""
        return len(self._found) > 0 and time.monotonic() < self._enough_until

    def _late_net(self, ask: Ask) -> float:
        """Seconds by which a round of the net may be late: none while slots would stay free."""
        found = len(self._found)
        if found >= ask.want:
            return self.overdue
        return 0.0 if ask.free is None or found < ask.free else min(_BUSY, self.overdue)

    async def _cast_net(self) -> None:
        """One step; while nothing at all is found there is nothing to slow down, so the round continues."""
        until = time.monotonic() + PATIENCE
        while not await self._net.step(self._session, self._scan, self._found):
            if len(self._found):
                return
            if time.monotonic() > until:
                self.again_in = _SOON
                return

    def _scan(self, buckets: Sequence[int] | None, after: tuple[int, str] | None) -> Statement[streams.Scan]:
        return streams.scan_streams(self.queue, buckets, after, KEYS_AT_ONCE)

    async def _step_back(self) -> None:
        """Priorities not seen before, and commits that came late: read the last two seconds again.

        A worker with its own buckets does not pass older jobs: they may be others' and deep, and the net finds them.
        """
        began = time.monotonic()
        for priority, late in await self._session.run(claim.scan_priorities(self.queue)):
            mark = self._marks.get(priority, _START if self._mine is None else late)
            self._marks[priority] = min(mark, late)
        now = time.monotonic()
        self._step_back_at = now + max(1.0, _SELDOM * (now - began))
        self._passing = 0.0

    async def _look(self) -> bool:
        """True: there may be more behind it."""
        began = time.monotonic()
        marks = sorted(self._marks.items(), reverse=True)
        mine = None if self._mine is None else sorted(self._mine)
        found = await self._session.run(streams.due_streams(self.queue, marks, _ROWS, mine))
        for due in found:
            self._marks[due.priority] = due.mark
            for key in due.keys:
                self._found.add(key, due.priority)
        more = any(due.seen >= _ROWS for due in found)
        if more or self._passing:
            now = time.monotonic()
            passed = self._passing + now - began
            self._again_at = now + _SELDOM * passed
            self._step_back_at = max(self._step_back_at, min(self._again_at, now + _LATE))
            self._passing = passed if more else 0.0
        return more

    async def _limited(self, ask: Ask, keys: Sequence[str], claim: Claim, want: int) -> Limited:
        done = await self.limiter.take(
            self.rules, claim, worker=ask.worker, want=want, free=ask.free, keys=keys
        )
        self._cut = done.cut
        if done.cut:
            self.again_in = done.again_in
        return done

    async def _apart(
        self, ask: Ask, keys: Sequence[str], run: int, suspects: bool, error: BadRow
    ) -> list[ClaimedJob]:
        """Some row makes the claim fail: take the others, and skip that one from now on. Its key waits for it."""
        if len(keys) > 1:
            middle = len(keys) // 2
            first = await self._take(ask, keys[:middle], run, suspects=suspects)
            return first + await self._take(ask, keys[middle:], run, suspects=suspects)
        if run > 1:
            return await self._take(ask, keys, 1, suspects=suspects)
        head = await self._session.run(self._head(keys[0], suspects=suspects))
        if head is not None:
            await self.quarantine(head, error)
        return []
