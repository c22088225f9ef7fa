"""The protocol of claimers, and what the claimers of a queue share: limits, held jobs, rows that make a claim fail."""

import abc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from uuid import UUID

from ... import telemetry
from ...db.faults import BadRow
from ...db.session import Session
from ...model.job import ClaimedJob
from ...model.queue import QueueRules
from ...model.state import JOB_QUARANTINED
from ...model.text import storable
from ...store import claim as store
from ...store.limits import Allowance
from ...store.statement import Statement
from ..inflight import InFlight
from ..pace import Pace
from .held import HeldJobs
from .limits import Claim, Limiter
from .portions import Portions


class Ask(NamedTuple):
    """A worker's request to its claimers."""

    worker: str
    want: int  # jobs
    free: int | None = None  # slots, where it matters: a limited queue gives few jobs that would wait for one
    run: int = 1  # jobs of one stream that count as one
    waiting: int = 0  # bytes of payloads that wait here already
    soon: int = 0  # slots that come free within a moment


class Claimer(Protocol):
    async def claim(self, ask: Ask) -> list[ClaimedJob]:
        """Take jobs for this worker, up to `ask.want`. From here on their leases run."""
        ...


@dataclass(slots=True)
class Shared:
    """Shared by the claimers of one worker share."""

    session: Session
    held: HeldJobs
    new_token: Callable[[str], UUID]
    takeover: float
    portions: Portions = field(default_factory=lambda: Portions(store.CLAIM_BYTES))
    inflight: InFlight = field(default_factory=InFlight)
    pace: Pace = field(default_factory=lambda: Pace({}))


class QueueClaimer(abc.ABC):
    """The claims of one queue."""

    by_key = False

    def __init__(self, queue: str, rules: QueueRules, lease: float, shared: Shared) -> None:
        self.queue = queue
        self.rules = rules
        self.again_in: float | None = None  # a limit was in the way: when to come again
        self.empty_until = 0.0  # it had nothing a moment ago
        self._cut = False  # by the limits of the whole queue: there may be more
        self._lease = lease
        self._shared = shared
        self._session = shared.session
        self.limiter = Limiter(queue, shared.session, shared.inflight, shared.pace)

    async def claim(self, ask: Ask) -> list[ClaimedJob]:
        """Held jobs that this worker may take come first: they have waited, and a backlog must not keep them waiting."""
        want = self._wanted(ask)
        held = await self._shared.held.find(self.queue, want, ordered=self.rules.ordered)
        jobs = await self._take_held(ask, held) if held else []
        want -= self._slots(jobs)
        return jobs + (await self._claim_due(ask._replace(want=want)) if want > 0 else [])

    @abc.abstractmethod
    async def _claim_due(self, ask: Ask) -> list[ClaimedJob]: ...

    @abc.abstractmethod
    async def claim_suspects(self, ask: Ask) -> list[ClaimedJob]:
        """Jobs that must run separately from others."""

    async def claim_new(self, ask: Ask) -> list[ClaimedJob]:
        """Jobs that came since the last claim, by one statement that may miss some. Empty if that is not possible."""
        return []

    @abc.abstractmethod
    def look_again(self, *, thorough: bool = False) -> None:
        """A job was swept or enqueued by hand: make a full scan next time; `thorough`: one that misses nothing."""

    def released(self) -> None:  # noqa: B027 a stream is read again by its key
        """A job went back to its place."""

    def settled(self, job: ClaimedJob, *, finished: bool) -> None:  # noqa: B027 most queues have no keys
        """The last job of its key in this worker has ended: the key may have more."""

    def slots_of(self, jobs: Sequence[ClaimedJob]) -> int:
        """How many of them can run at once."""
        return len(jobs)

    def _wanted(self, ask: Ask) -> int:
        return ask.want

    def _slots(self, held: Sequence[ClaimedJob]) -> int:
        return len(held)

    async def _take_held(self, ask: Ask, ids: Sequence[UUID]) -> list[ClaimedJob]:
        return await self._take_these(ask, ids)

    async def _take_these(self, ask: Ask, ids: Sequence[UUID]) -> list[ClaimedJob]:
        """Take these jobs, if they are due and free. A row that makes the claim fail is found by halving, and skipped from
        then on."""
        token = self._shared.new_token(ask.worker)

        def these(allowed: Allowance | None) -> Statement[list[ClaimedJob]]:
            return store.claim_these(
                self.queue,
                ask.worker,
                token,
                lease=self._lease,
                job_ids=ids if allowed is None else ids[: allowed.total],
                limited=self.rules.limited,
                most_bytes=self._shared.portions.bytes,
            )

        try:
            return await self._within_limits(ask, len(ids), these)
        except BadRow as error:
            if len(ids) > 1:
                middle = len(ids) // 2
                first = await self._take_these(ask, ids[:middle])
                return first + await self._take_these(ask, ids[middle:])
            await self.quarantine(ids[0], error)
            return []

    async def _within_limits(self, ask: Ask, want: int, claim: Claim) -> list[ClaimedJob]:
        """Claim up to `want`, and no more than the limits of the whole queue allow."""
        done = await self.limiter.take(self.rules, claim, worker=ask.worker, want=want, free=ask.free)
        if len(done.jobs) < want:
            self._cut = self._cut or done.cut
            self.come_again(done.again_in)
        return done.jobs

    def come_again(self, seconds: float | None) -> None:
        if seconds is not None:
            self.again_in = min(seconds, self.again_in or seconds)

    async def quarantine(self, job_id: UUID, error: BadRow) -> None:
        reason = storable(f"claim: {error}")
        await self._session.run(store.quarantine(job_id, self.queue, reason))
        telemetry.emit(JOB_QUARANTINED, level=logging.ERROR, job=job_id, queue=self.queue, error=reason)
