"""The claimer: which jobs this worker takes next, and at what cost.

A plain claim starts at a low-water mark per queue and priority: everything before it is taken or was a moment ago. What can
lie before a mark (a late commit, a release, a sweep, a priority not seen before) is found by a full look from
the start, at most every second and at most a twentieth of the time: that is the bound for late commits. Jobs a plain
claim leaves out have their own way in: held jobs of tasks we know, suspects of a crash, and the bisection around a
row that makes claims fail. Queues ordered by key are claimed key by key (streams.py).
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

from .. import failpoints, telemetry
from ..db.database import Database
from ..db.faults import BadRow
from ..model.job import ClaimedJob
from ..model.queue import QueueRules
from ..model.state import JOB_QUARANTINED
from ..model.text import storable
from ..store import breaker
from ..store import claim as store
from ..store.claim import Place
from ..store.limits import Allowance, oldest_of_each
from ..store.queues import queue_rules
from ..store.statement import Statement
from ..store.streams import unhold
from .aside import Aside
from .doubt import Doubt
from .handler import Handlers
from .inflight import InFlight
from .limiting import Limiter
from .low_water import LowWater
from .pace import Pace
from .portions import Portions
from .shares import ShareClaimer
from .streams import StreamClaimer

_FULL_LOOK = 1.0  # seconds between two looks from the start
_RULES = 5.0  # seconds until a changed rule of a queue is known


class Claimer:
    def __init__(
        self,
        database: Database,
        handlers: Handlers,
        lease: dict[str, float],
        rules: Mapping[str, QueueRules] = MappingProxyType({}),
        inflight: InFlight | None = None,
    ) -> None:
        self._session = database.session("claim", keep_plans=True)
        self.aside = Aside(self._session, handlers)
        self._doubt = Doubt(self._session, database.settings.max_crashes)
        self._lease = lease
        self._marks = {queue: LowWater() for queue in lease}
        self._rules = {queue: rules.get(queue, QueueRules()) for queue in lease}
        self._rules_at = time.monotonic()
        self.again_in: float | None = None  # a limit was in the way: when to come again
        self.pace = Pace(self._rules)
        own = InFlight() if inflight is None else inflight
        self._limiters = {queue: Limiter(queue, self._session, own, self.pace) for queue in lease}
        self._portions = Portions(database.settings.claim_bytes)
        self._cut = False  # by a limit: there may be more
        self._takeover = database.settings.takeover
        self._streams = {
            queue: self._by_key(queue, rule) for queue, rule in self._rules.items() if rule.keyed
        }
        # Jobs that a key brings, as of late: so many fewer keys are asked for.
        self._deep = dict.fromkeys(lease, 1.0)
        self._turn = 0

    def _by_key(self, queue: str, rule: QueueRules) -> StreamClaimer:
        kind = StreamClaimer if rule.ordered else ShareClaimer
        lease, limiter = self._lease[queue], self._limiters[queue]
        made = kind(
            queue, self._session, self._doubt.token, limiter, rules=rule, lease=lease, takeover=self._takeover
        )
        made.portions = self._portions
        return made

    @property
    def queues(self) -> list[str]:
        return list(self._marks)

    def reset(self, *, thorough: bool = False) -> None:
        """Look from the start the next time: something was swept or enqueued by hand. `thorough`: and miss nothing."""
        for queue in self.queues:
            self.released(queue)
        for stream in self._streams.values():
            stream.reset(thorough=thorough)
        if thorough:
            self._rules_at = -_RULES
            self.aside.look_now()

    def released(self, queue: str) -> None:
        """A job went back to its place, which may lie before a mark. For a stream it is enough that its key is told."""
        self._marks[queue].full_at = 0.0
        self.aside.look_again(queue)

    @property
    def ringed(self) -> list[str]:
        """The queues whose keys are looked after by one worker each. Where keys share a queue without order, everybody looks
        at all of them: else the share of a key would depend on who its neighbours are."""
        return [queue for queue in self._streams if self._rules[queue].ordered]

    def look_after(self, queue: str, buckets: Sequence[int] | None) -> None:
        """The ring says which buckets of a queue are ours; None: all."""
        self._streams[queue].look_after(buckets)

    @property
    def by_key(self) -> bool:
        """Whether some queue is claimed key by key."""
        return bool(self._streams)

    def settled(self, job: ClaimedJob, *, finished: bool) -> None:
        """The last job of its key that was held here has ended: there may be more of the key."""
        if job.queue in self._streams and job.partition_key is not None:
            self._streams[job.queue].settled(job.partition_key, job.priority, finished=finished)

    async def claim(
        self, worker: str, want: int, run: int = 1, free: int | None = None, waiting: int = 0
    ) -> list[ClaimedJob]:
        """Up to `want` jobs over all queues, each queue first in its turn; of a stream up to `run` count as one.

        `free` are the slots: of a limited queue no more is claimed to wait here than its limits can spare. `waiting` are
        bytes of payloads that do."""
        await self.disown_doubtful()
        await self._refresh_rules()
        self.again_in = None
        queues = self.queues
        self._turn = (self._turn + 1) % len(queues)
        found: list[ClaimedJob] = []
        with self._doubt.accounted():
            for queue in queues[self._turn :] + queues[: self._turn]:
                rule, limiter = self._rules[queue], self._limiters[queue]
                if rule.limited and (wait := limiter.closed_for) > 0:
                    self._come_again(wait)
                    continue
                most = limiter.wish(rule, want, free, by_key=queue in self._streams)
                if most <= 0:
                    continue
                with self._portions.of(queue, most, waiting) as most:
                    if queue in self._streams:
                        keys = max(1, min(free or 0, most), round(most / self._deep[queue]))
                        jobs = await self._claim_streams(queue, worker, min(most, keys), run)
                        self._come_again(self._streams[queue].again_in)
                    else:
                        jobs = await self._claim_from(queue, worker, most)
                waiting += self._portions.came(queue, jobs)
                slots = self._slots_of(queue, jobs)
                want -= slots
                free = None if free is None else free - slots
                found += jobs
        return found

    def _slots_of(self, queue: str, jobs: Sequence[ClaimedJob]) -> int:
        """How many of them can run at once; in an ordered queue one of each key."""
        if not self._rules[queue].ordered or not jobs:
            return len(jobs)
        keys = len({job.partition_key for job in jobs})
        self._deep[queue] += 0.3 * (len(jobs) / keys - self._deep[queue])
        return keys

    async def claim_new(
        self, worker: str, queues: Sequence[str], want: int, waiting: int = 0
    ) -> list[ClaimedJob]:
        """What came into these queues since they were last looked at: one statement each, and no promise to find all. Queues
        that are claimed key by key or have limits are left to the usual way."""
        await self.disown_doubtful()
        found: list[ClaimedJob] = []
        with self._doubt.accounted():
            for queue in queues:
                rule = self._rules[queue]
                if len(found) < want and not (rule.keyed or rule.limited):
                    marks = self._marks[queue]
                    with self._portions.of(queue, want - len(found), waiting) as most:
                        jobs = await self._take(queue, worker, most, marks.ordered())
                    waiting += self._portions.came(queue, jobs)
                    marks.moved(jobs)
                    found += jobs
        return found

    def _come_again(self, seconds: float | None) -> None:
        if seconds is not None:
            self.again_in = min(seconds, self.again_in or seconds)

    async def _refresh_rules(self) -> None:
        """What an operator changes of a queue is known here within a few seconds."""
        if time.monotonic() - self._rules_at < _RULES:
            return
        found = await self._session.run(queue_rules(self.queues))
        self._rules_at = time.monotonic()
        for queue, rule in found.items():
            self._rules[queue] = rule
            if queue in self._streams:
                self._streams[queue].rules = rule
            elif rule.keyed:
                self._streams[queue] = self._by_key(queue, rule)

    async def _run_claim(
        self, queue: str, worker: str, want: int, make: Callable[[int], Statement[list[ClaimedJob]]]
    ) -> list[ClaimedJob]:
        """Claim up to `want`, and no more than the limits of the queue allow."""
        if not self._rules[queue].limited:
            return await self._session.run(make(want))

        def take(allowed: Allowance) -> Statement[list[ClaimedJob]]:
            failpoints.point("claim.limited")
            return make(min(want, allowed.total))

        done = await self._limiters[queue].within(worker, [], take, want)
        if len(done.jobs) < want:
            self._cut = self._cut or done.cut
            self._come_again(done.again_in)
        return done.jobs

    async def _by_age(self, queue: str, marks: list[Place]) -> list[Place]:
        """With aging, waiting counts: the priority whose first job has gained most goes first."""
        aging = self._rules[queue].aging
        if aging is None or len(marks) < 2:
            return marks
        waited = await self._session.run(oldest_of_each(queue, marks))
        return sorted(marks, key=lambda m: m[0] + waited.get(m[0], 0.0) / aging, reverse=True)

    async def _claim_streams(self, queue: str, worker: str, want: int, run: int) -> list[ClaimedJob]:
        """Held jobs that we may take come first. Where keys have limits they go back to their place, and the claim finds
        out whether it is their turn."""
        rule, stream = self._rules[queue], self._streams[queue]
        jobs: list[ClaimedJob] = []
        if held := await self.aside.find(queue, want, ordered=rule.ordered):
            if rule.ordered:
                jobs = await stream.take_held(worker, held)
            elif rule.limited < 2:
                jobs = await self._take_these(queue, worker, held)
            else:
                keys = await self._session.run(unhold(queue, held))
                stream.unheld(keys)
        want -= len({job.partition_key for job in jobs})
        return jobs + (await stream.claim(worker, want, run) if want > 0 else [])

    async def _claim_from(self, queue: str, worker: str, want: int) -> list[ClaimedJob]:
        marks = self._marks[queue]
        # Held ones first: they have waited, and a backlog must not keep them waiting.
        held = await self.aside.find(queue, want)
        jobs = await self._take_these(queue, worker, held) if held else []
        want -= len(jobs)
        if want <= 0:
            return jobs
        if time.monotonic() >= marks.full_at:
            return jobs + await self._full_look(queue, worker, want, marks)
        taken = await self._take(queue, worker, want, await self._by_age(queue, marks.ordered()))
        marks.moved(taken)
        return jobs + taken

    async def _full_look(self, queue: str, worker: str, want: int, marks: LowWater) -> list[ClaimedJob]:
        began = time.monotonic()
        self._cut = False
        priorities = await self._session.run(store.scan_priorities(queue))
        marks.at = {priority: None for priority, _ in priorities}
        jobs = await self._take(queue, worker, want, await self._by_age(queue, marks.ordered()))
        # It may have left out what others were changing; of nothing at all it cannot tell, so that counts the second time.
        all_taken = jobs[0].locked <= len(jobs) if jobs else marks.empty
        marks.empty = not jobs
        if len(jobs) < want and all_taken and not self._cut:
            # nothing due is left, but for commits that are late
            marks.at = dict(priorities)
        marks.moved(jobs)
        cost = time.monotonic() - began
        marks.full_at = time.monotonic() + max(_FULL_LOOK, 20 * cost)
        return jobs

    async def _take(self, queue: str, worker: str, want: int, marks: list[Place]) -> list[ClaimedJob]:
        token, limited = self._doubt.token(worker), self._rules[queue].limited

        def what(limit: int) -> Statement[list[ClaimedJob]]:
            return store.claim(
                queue,
                worker,
                token,
                lease=self._lease[queue],
                limit=limit,
                marks=marks,
                limited=limited,
                most_bytes=self._portions.bytes,
            )

        try:
            jobs = await self._run_claim(queue, worker, want, what)
        except BadRow:
            return await self._bisect(queue, worker, want)
        failpoints.point("claim.after")
        return jobs

    async def _take_these(self, queue: str, worker: str, ids: Sequence[UUID]) -> list[ClaimedJob]:
        token, limited = self._doubt.token(worker), self._rules[queue].limited

        def what(limit: int) -> Statement[list[ClaimedJob]]:
            return store.claim_these(
                queue,
                worker,
                token,
                lease=self._lease[queue],
                job_ids=ids[:limit],
                limited=limited,
                most_bytes=self._portions.bytes,
            )

        try:
            return await self._run_claim(queue, worker, len(ids), what)
        except BadRow as error:
            if len(ids) > 1:
                middle = len(ids) // 2
                first = await self._take_these(queue, worker, ids[:middle])
                return first + await self._take_these(queue, worker, ids[middle:])
            await self._quarantine(ids[0], queue, error)
            return []

    async def _quarantine(self, job_id: UUID, queue: str, error: BadRow) -> None:
        reason = storable(f"claim: {error}")
        await self._session.run(store.quarantine(job_id, queue, reason))
        telemetry.emit(JOB_QUARANTINED, level=logging.ERROR, job=job_id, queue=queue, error=reason)

    async def _bisect(self, queue: str, worker: str, want: int) -> list[ClaimedJob]:
        """Some row makes the claim fail: take the others, and leave that one alone from now on."""
        ids = await self._session.run(store.claim_candidates(queue, max(want, 1)))
        return await self._take_these(queue, worker, ids) if ids else []

    async def claim_suspects(self, worker: str, most: int) -> list[ClaimedJob]:
        """Jobs that are to run apart from others, of one queue."""
        for limiter in self._limiters.values():
            limiter.free = None
        with self._doubt.accounted():
            for queue in self.queues:
                if queue in self._streams:
                    taken = await self._streams[queue].claim_suspects(worker, most)
                else:
                    ids = await self._session.run(store.find_suspects(queue, most))
                    taken = await self._take_these(queue, worker, ids) if ids else []
                if taken:
                    return taken
            return []

    async def claim_trial(
        self, worker: str, tasks: Mapping[str, Sequence[int]], *, suspects: bool
    ) -> list[ClaimedJob]:
        """One job of a task whose breaker may try one: of all workers that look, one gets it."""
        for task in await self._session.run(breaker.breakers_due(list(tasks))):
            with self._doubt.accounted():
                for queue in self.queues:
                    if taken := await self._try(queue, worker, task, tasks[task], suspects):
                        return taken
        return []

    async def _try(
        self, queue: str, worker: str, task: str, versions: Sequence[int], suspects: bool
    ) -> list[ClaimedJob]:
        rules = self._rules[queue]
        try:
            trial = await self._session.flow(
                lambda: breaker.find_trial(queue, task, versions, suspects=suspects, ordered=rules.ordered)
            )
        except BadRow:  # some row cannot be set aside: whoever sweeps tells
            trial = None
        if trial is None:
            return []
        token, lease = self._doubt.token(worker), self._lease[queue]
        try:
            return await self._session.flow(
                lambda: breaker.claim_trial(
                    queue, worker, token, lease=lease, task=task, trial=trial, rules=rules
                )
            )
        except BadRow as error:
            await self._quarantine(trial.job_id, queue, error)
            return []

    async def disown_doubtful(self) -> None:
        await self._doubt.give_back()

    async def close(self) -> None:
        await self._session.close()
