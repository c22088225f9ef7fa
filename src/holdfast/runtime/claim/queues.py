"""All queues of this worker, each first in its turn, within the bytes that may wait in it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from ...db.database import Database
from ...model.job import ClaimedJob
from ...model.queue import QueueRules
from ...store.queues import queue_rules
from ..handler import Handlers
from ..inflight import InFlight
from ..pace import Pace
from .affine import AffineClaimer
from .claimer import Ask, QueueClaimer, Shared
from .fair import FairClaimer
from .held import HeldJobs
from .keyed import KeyedClaimer
from .lost_replies import LostReplies
from .ordered import OrderedClaimer
from .plain import PlainClaimer
from .portions import Portions

_RULES = 5.0  # seconds until a changed rule of a queue is known
_EMPTY = 0.02  # seconds for which a queue that had nothing is not asked again, while no slot is free for what it has


class Queues:
    def __init__(
        self,
        database: Database,
        handlers: Handlers,
        leases: Mapping[str, float],
        rules: Mapping[str, QueueRules] = MappingProxyType({}),
        inflight: InFlight | None = None,
    ) -> None:
        self.session = database.session("claim", keep_plans=True)
        self.held = HeldJobs(self.session, handlers)
        self.lost_replies = LostReplies(self.session, database.settings.max_crashes)
        self.leases = leases
        self._rules = {queue: rules.get(queue, QueueRules()) for queue in leases}
        self._rules_at = time.monotonic()
        self.pace = Pace(self._rules)
        self.portions = Portions(database.settings.claim_bytes)
        own = InFlight() if inflight is None else inflight
        takeover = database.settings.takeover
        self._shared = Shared(
            self.session, self.held, self.lost_replies.token, takeover, self.portions, own, self.pace
        )
        self._claimers = {queue: self._claimer(queue, rule) for queue, rule in self._rules.items()}
        self._turn = 0
        self.cut = False  # the last claim ended at the bytes that may wait here: there may be more

    def _claimer(self, queue: str, rule: QueueRules) -> QueueClaimer:
        return _kind(rule)(queue, rule, self.leases[queue], self._shared)

    def __iter__(self) -> Iterator[QueueClaimer]:
        return iter(list(self._claimers.values()))

    def __getitem__(self, queue: str) -> QueueClaimer:
        return self._claimers[queue]

    @property
    def names(self) -> list[str]:
        return list(self._claimers)

    async def claim(self, ask: Ask) -> list[ClaimedJob]:
        """Up to `ask.want` jobs over all queues."""
        await self.lost_replies.give_back()
        await self._refresh_rules()
        claimers = list(self._claimers.values())
        self.cut = False
        self._turn = (self._turn + 1) % len(claimers)
        found: list[ClaimedJob] = []
        with self.lost_replies.accounted():
            for claimer in claimers[self._turn :] + claimers[: self._turn]:
                if ask.free is not None and ask.free <= 0 and time.monotonic() < claimer.empty_until:
                    continue
                jobs, size = await self._claim_from(claimer, ask)
                claimer.empty_until = 0.0 if jobs else time.monotonic() + _EMPTY
                slots = claimer.slots_of(jobs)
                free = None if ask.free is None else ask.free - slots
                ask = ask._replace(want=ask.want - slots, free=free, waiting=ask.waiting + size)
                found += jobs
        return found

    async def _claim_from(self, claimer: QueueClaimer, ask: Ask) -> tuple[list[ClaimedJob], int]:
        """Jobs of one queue, and the bytes of their payloads."""
        claimer.again_in = None
        limiter, rules = claimer.limiter, claimer.rules
        if (wait := limiter.closed_for(rules)) > 0:
            claimer.again_in = wait
            return [], 0
        want = limiter.wish(rules, ask.want, ask.free, ask.soon, by_key=claimer.by_key)
        if want <= 0:
            return [], 0
        with self.portions.of(claimer.queue, want, ask.waiting) as most:
            budget = self.portions.bytes
            jobs = await claimer.claim(ask._replace(want=most))
        limiter.came(jobs)
        size = self.portions.came(claimer.queue, jobs)
        more = most <= len(jobs) < want or (ask.soon > 0 and want == len(jobs) < ask.want)
        self.cut = self.cut or size >= budget or more
        return jobs, size

    async def _refresh_rules(self) -> None:
        """Read an operator's changes to a queue, every few seconds."""
        if time.monotonic() - self._rules_at < _RULES:
            return
        found = await self.session.run(queue_rules(self.names))
        self._rules_at = time.monotonic()
        for queue, rule in found.items():
            claimer = self._claimers[queue]
            self._rules[queue] = claimer.rules = rule
            if not claimer.by_key and type(claimer) is not _kind(rule):
                self._claimers[queue] = self._claimer(queue, rule)

    @property
    def again_in(self) -> float | None:
        """A limit stopped the claim: when to try again."""
        return min((c.again_in for c in self._claimers.values() if c.again_in is not None), default=None)

    def look_again(self, *, thorough: bool = False) -> None:
        """A job was swept or enqueued by hand: make a full scan next time; `thorough`: one that misses nothing."""
        for claimer in self:
            self.held.look_again(claimer.queue)
            claimer.look_again(thorough=thorough)
        if thorough:
            self._rules_at = -_RULES
            self.held.look_now()

    def released(self, queue: str) -> None:
        """A job went back to its place."""
        self.held.look_again(queue)
        self._claimers[queue].released()

    def settled(self, job: ClaimedJob, *, finished: bool) -> None:
        """The last job of its key in this worker has ended: the key may have more."""
        self._claimers[job.queue].settled(job, finished=finished)

    @property
    def by_key(self) -> bool:
        """Whether a queue is claimed key by key."""
        return any(claimer.by_key for claimer in self._claimers.values())

    @property
    def ringed(self) -> list[str]:
        """The queues whose keys belong to one worker each. If keys take turns, every worker claims from all of them."""
        return [c.queue for c in self if isinstance(c, AffineClaimer) or (c.by_key and c.rules.ordered)]

    def look_after(self, queue: str, buckets: Sequence[int] | None) -> None:
        """The ring says which buckets of a queue this worker owns; None: all."""
        claimer = self._claimers[queue]
        if isinstance(claimer, KeyedClaimer | AffineClaimer):
            claimer.look_after(buckets)

    async def close(self) -> None:
        await self.session.close()


def _kind(rule: QueueRules) -> type[QueueClaimer]:
    if rule.keyed:
        return OrderedClaimer if rule.ordered else FairClaimer
    return AffineClaimer if rule.affine else PlainClaimer
