"""The claimer: which jobs this worker takes next, and at what cost.

A plain claim starts at a low-water mark per queue and priority: everything before it is taken or was a moment ago. What can
lie before a mark (a late commit, a release, a sweep, a priority not seen before) is found by a full look from
the start, at most every second and at most a twentieth of the time: that is the bound for late commits. Jobs a plain
claim leaves out have their own way in: held jobs of tasks we know, suspects of a crash, and the bisection around a
row that makes claims fail. Queues ordered by key are claimed key by key (streams.py).
"""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from uuid import UUID, uuid4

from .. import failpoints, telemetry
from ..db.database import Database
from ..db.faults import BadRow
from ..model.job import ClaimedJob
from ..model.queue import QueueRules
from ..model.text import storable
from ..store import claim as store
from ..store.streams import unhold
from ..store.sweep import disown
from .handler import Handlers
from .streams import StreamClaimer

_LOOK = 20_000


@dataclass(slots=True)
class Marks:
    """Where the next plain claim of a queue begins, per priority, and when to look from the start again."""

    at: dict[int, datetime | None] = field(default_factory=lambda: {0: None})
    full_at: float = 0.0
    held_at: float = 0.0

    def ordered(self) -> list[tuple[int, datetime | None]]:
        return sorted(self.at.items(), reverse=True)

    def moved(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            last = self.at.get(job.priority)
            if last is None or job.available_at > last:
                self.at[job.priority] = job.available_at


class Claimer:
    def __init__(
        self,
        database: Database,
        handlers: Handlers,
        lease: dict[str, float],
        rules: Mapping[str, QueueRules] = MappingProxyType({}),
    ) -> None:
        self._session = database.session("claim")
        self._handlers = handlers
        self._lease = lease
        self._marks = {queue: Marks() for queue in lease}
        self._streams = {
            queue: StreamClaimer(queue, self._session, seconds, self._token)
            for queue, seconds in lease.items()
            if queue in rules and rules[queue].keyed
        }
        self._turn = 0
        self._open: list[tuple[str, UUID]] = []
        self._in_doubt: list[tuple[str, UUID]] = []

    @property
    def queues(self) -> list[str]:
        return list(self._marks)

    def reset(self, *, thorough: bool = False) -> None:
        """Look from the start the next time: something was swept or enqueued by hand. `thorough`: and miss nothing."""
        for queue in self.queues:
            self.released(queue)
        for stream in self._streams.values():
            stream.reset(thorough=thorough)

    def released(self, queue: str) -> None:
        """A job went back to its place, which may lie before a mark. For a stream it is enough that its key is told."""
        self._marks[queue].full_at = 0.0
        self._marks[queue].held_at = 0.0

    def settled(self, queue: str, key: str, priority: int) -> None:
        """A job of a stream is finished: the next one may be ready."""
        self._streams[queue].settled(key, priority)

    async def claim(self, worker: str, want: int, run: int = 1) -> list[ClaimedJob]:
        """Up to `want` jobs over all queues, each queue first in its turn; of a stream up to `run` count as one."""
        await self.disown_doubtful()
        queues = self.queues
        self._turn = (self._turn + 1) % len(queues)
        found: list[ClaimedJob] = []
        with self._accounted():
            for queue in queues[self._turn :] + queues[: self._turn]:
                if want <= 0:
                    break
                if queue in self._streams:
                    jobs = await self._claim_streams(queue, worker, want, run)
                    want -= len({job.partition_key for job in jobs})
                else:
                    jobs = await self._claim_from(queue, worker, want)
                    want -= len(jobs)
                found += jobs
        return found

    async def _claim_streams(self, queue: str, worker: str, want: int, run: int) -> list[ClaimedJob]:
        """Held jobs we know go back to their place first; whether it is their turn, the claim finds out."""
        marks, now = self._marks[queue], time.monotonic()
        if now >= marks.held_at:
            marks.held_at = now + 1.0
            ids = await self._session.run(store.find_held(queue, self._handlers.known(), want))
            if ids:
                keys = await self._session.run(unhold(queue, ids))
                self._streams[queue].unheld(keys)
        return await self._streams[queue].claim(worker, want, run)

    @contextlib.contextmanager
    def _accounted(self) -> Iterator[None]:
        """What was claimed on the way to an error reaches nobody: it is in doubt, and given back before the next claim."""
        try:
            yield
        except BaseException:
            self._in_doubt += self._open
            raise
        finally:
            self._open = []

    async def _claim_from(self, queue: str, worker: str, want: int) -> list[ClaimedJob]:
        marks = self._marks[queue]
        now = time.monotonic()
        jobs: list[ClaimedJob] = []
        if now >= marks.held_at:  # first: they have waited, and a backlog must not keep them waiting
            marks.held_at = now + 1.0
            jobs = await self._claim_held(queue, worker, want)
        want -= len(jobs)
        if want <= 0:
            return jobs
        if now >= marks.full_at:
            return jobs + await self._full_look(queue, worker, want, marks)
        taken = await self._take(queue, worker, want, marks.ordered())
        marks.moved(taken)
        return jobs + taken

    async def _full_look(self, queue: str, worker: str, want: int, marks: Marks) -> list[ClaimedJob]:
        began = time.monotonic()
        priorities = await self._session.run(store.scan_priorities(queue))
        marks.at = {priority: None for priority, _ in priorities}
        jobs = await self._take(queue, worker, want, marks.ordered())
        if len(jobs) < want:  # nothing due is left, but for commits that are late
            marks.at = dict(priorities)
        marks.moved(jobs)
        cost = time.monotonic() - began
        marks.full_at = time.monotonic() + max(1.0, 20 * cost)
        return jobs

    async def _take(
        self, queue: str, worker: str, want: int, marks: list[tuple[int, datetime | None]]
    ) -> list[ClaimedJob]:
        token = self._token(worker)
        what = store.claim(queue, worker, token, lease=self._lease[queue], limit=want, marks=marks)
        try:
            jobs = await self._session.run(what)
        except BadRow:
            return await self._bisect(queue, worker, want)
        failpoints.point("claim.after")
        return jobs

    def _token(self, worker: str) -> UUID:
        token = uuid4()
        self._open.append((worker, token))
        return token

    async def _claim_held(self, queue: str, worker: str, want: int) -> list[ClaimedJob]:
        ids = await self._session.run(store.find_held(queue, self._handlers.known(), want))
        return await self._take_these(queue, worker, ids) if ids else []

    async def _take_these(self, queue: str, worker: str, ids: Sequence[UUID]) -> list[ClaimedJob]:
        token = self._token(worker)
        what = store.claim_these(queue, worker, token, lease=self._lease[queue], job_ids=ids)
        try:
            return await self._session.run(what)
        except BadRow as error:
            if len(ids) > 1:
                middle = len(ids) // 2
                first = await self._take_these(queue, worker, ids[:middle])
                return first + await self._take_these(queue, worker, ids[middle:])
            reason = storable(f"claim: {error}")
            await self._session.run(store.quarantine(ids[0], queue, reason))
            telemetry.emit("job.quarantined", level=logging.ERROR, job=ids[0], queue=queue, error=reason)
            return []

    async def _bisect(self, queue: str, worker: str, want: int) -> list[ClaimedJob]:
        """Some row makes the claim fail: take the others, and leave that one alone from now on."""
        ids = await self._session.run(store.claim_candidates(queue, max(want, 1)))
        return await self._take_these(queue, worker, ids) if ids else []

    async def claim_suspects(self, worker: str, most: int) -> list[ClaimedJob]:
        """Jobs whose process died, no more together than they are allowed. All of one queue and one group size."""
        with self._accounted():
            for queue in self.queues:
                if queue in self._streams:
                    if taken := await self._streams[queue].claim_suspects(worker, most):
                        return taken
                    continue
                suspects = await self._session.run(store.find_suspects(queue, most))
                if suspects:
                    size = suspects[0][1]
                    ids = [i for i, allowed in suspects if allowed >= size][: max(1, min(size, most))]
                    if taken := await self._take_these(queue, worker, ids):
                        return taken
            return []

    async def hold_unknown(self, queue: str) -> int:
        """Set aside what this worker does not know, from the front of the queue on."""
        held = 0
        while True:
            count = await self._session.run(store.hold_unknown(queue, self._handlers.known(), _LOOK))
            held += count
            if count < _LOOK // 4:
                break
        if held:
            telemetry.emit(
                "jobs.held", level=logging.WARNING, queue=queue, count=held, reason="unknown task or version"
            )
        return held

    async def disown_doubtful(self) -> None:
        """A claim whose answer was lost may have gone through: give its jobs back, they never started."""
        while self._in_doubt:
            worker, token = self._in_doubt[-1]
            await self._session.run(disown(worker, [token]))
            self._in_doubt.pop()

    async def close(self) -> None:
        await self._session.close()
