"""The sweeper: any worker may sweep, in bounded batches; the clock in the database decides which worker's turn it is."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID, uuid4

from .. import telemetry
from ..db.database import Database
from ..db.faults import BadRow, LockNotAvailable
from ..model.state import DEAD_LETTER, JOB_DEAD_LETTER, JOB_QUARANTINED, PENDING
from ..model.text import storable
from ..store import breaker, housekeeping, misfits, pause, sweep
from ..store.chains import GroupBusy
from ..store.claim import quarantine
from ..store.tally import buried_tasks
from .pulse import TIDY_EVERY, Pulse, gap_and_grace
from .service import Service
from .tidy import Prune, Tidier

_CLAIMS = 10_000
_JOBS = 5000
_MISFITS = 1000
_LAST_WORD = 2.0
_MISFIT_LEASE = 60.0  # seconds that a search for misfits may take: others search when its worker died


class Sweeper(Service):
    name = "sweep"

    def __init__(
        self,
        database: Database,
        on_swept: Callable[[], None],
        on_buried: Callable[[str, str], None] = lambda queue, task: None,
        worker: Callable[[], str] = lambda: "",
        prunes: Mapping[str, Prune] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._settings = database.settings
        self._session = database.session("sweep")
        self._on_swept = on_swept
        self._on_buried = on_buried
        self._worker = worker
        self._held_since: float | None = None
        self._found = False  # the pulse has the turn, and found something to do
        self._untidy = False
        self._looking = False  # the search for misfits, which no other worker runs now
        self.tidier = Tidier(self._session, prunes)

    def felt(self, pulse: Pulse) -> None:
        """The pulse of a sleeping worker; wakes the sweeper if there is something to do."""
        self._found, self._untidy = self._found or bool(pulse.sweep), self._untidy or pulse.tidy
        if self._found or self._untidy or pulse.sweep is None:
            self.wake()

    async def tick(self) -> float:
        found, untidy, self._found, self._untidy = self._found, self._untidy, False, False
        pulse = self.pulse if self.pulse is not None and self.pulse.sweeps else None
        asleep = pulse is not None and pulse.lasts and pulse.sweep is not None
        if found or (not asleep and await self._is_turn()):
            await self.sweep_once()
            await self.hold_paused()
            await self.put_back()
            await self.bury_misfits()
        if untidy or not asleep:
            days = await self._session.run(housekeeping.tidy_begin(TIDY_EVERY))
            if days is not None:
                self.tidier.begin(days)
        return max(pulse.left, 0.0) if pulse is not None and asleep else self._settings.sweep

    async def _is_turn(self) -> bool:
        s = self._settings
        gap, grace = gap_and_grace(s)
        held, self._held_since = self._held_since, None  # an error below starts the count again
        turn = await self._session.run(sweep.sweep_begin(s.sweep * 0.9, gap, grace))
        if turn is None:  # another session locks the row that gives the turn: the grace is counted here
            self._held_since = held or time.monotonic()
            turn = time.monotonic() - self._held_since >= grace
        return turn

    async def sweep_once(self) -> int:
        """Fence, revoke, take back. Returns how many jobs went back."""
        for worker in await self._session.run(sweep.fence_workers(self._settings.dead_after)):
            telemetry.emit("worker.gone", level=logging.WARNING, worker=worker)
        await self._session.run(sweep.revoke_expired(_CLAIMS))
        return await self.take_revoked()

    async def take_revoked(self) -> int:
        """Take back the jobs of revoked claims, whichever worker revoked them. Returns how many went back."""
        taken = 0
        found = await self._session.run(sweep.revoked_claims(_CLAIMS))
        for revoked in found:
            for start in range(0, len(revoked.job_ids), _JOBS):
                taken += await self._take(revoked, revoked.job_ids[start : start + _JOBS])
        if found:
            await self._session.run(
                sweep.sweep_finish([token for revoked in found for token in revoked.tokens])
            )
        return taken

    async def _take(self, revoked: sweep.Revoked, job_ids: Sequence[UUID]) -> int:
        try:
            most = self._settings.max_crashes
            back = await self._session.flow(lambda: sweep.take_back(revoked, job_ids, most))
        except (GroupBusy, LockNotAvailable, BadRow) as error:
            if len(job_ids) > 1:  # one of them blocks all others
                middle = len(job_ids) // 2
                return await self._take(revoked, job_ids[:middle]) + await self._take(
                    revoked, job_ids[middle:]
                )
            await self._set_apart(revoked.queue, job_ids[0], error)
            return 0  # or the next sweep takes it
        if back:
            self._on_swept()
        for settled in back:
            level = logging.WARNING if settled.state == PENDING else logging.ERROR
            telemetry.emit(
                "job.swept", level=level, job=settled.id, state=settled.state, from_worker=revoked.worker
            )
        if buried := [settled.id for settled in back if settled.state == DEAD_LETTER]:
            for queue, task in await self._session.run(buried_tasks(buried)):
                self._on_buried(queue, task)
        return len(back)

    async def _set_apart(self, queue: str, job_id: UUID, error: Exception) -> None:
        """A job that cannot be ended whatever is tried. If its row is locked at this moment, it can."""
        if isinstance(error, BadRow):
            reason = storable(f"sweep: {error}")
            await self._session.run(quarantine(job_id, queue, reason))
            telemetry.emit(JOB_QUARANTINED, level=logging.ERROR, job=job_id, error=reason)

    async def hold_paused(self) -> int:
        """Set aside jobs that reached the front of a queue since their task was paused. Until then claims skip them, at a
        cost."""
        held = 0
        for queue in await self._session.run(pause.queues_to_hold()):
            count = pause.HOLD_BATCH
            try:
                while count >= pause.HOLD_BATCH // 4:
                    count = await self._session.flow(functools.partial(pause.hold_paused, queue))
                    held += count
            except BadRow as error:  # it stays where it is, and the sweep continues
                telemetry.emit("pause.hold_failed", level=logging.WARNING, queue=queue, error=str(error))
        if held:
            telemetry.emit("jobs.held", count=held, reason="their task is paused")
        return held

    async def put_back(self) -> int:
        """Jobs that were set aside for a breaker go back to waiting once it has closed."""
        back = 0
        for task in await self._session.run(breaker.breakers_to_put_back()):
            for queue in await self._session.run(pause.queues_with_held(task)):
                count = pause.HOLD_BATCH
                while count >= pause.HOLD_BATCH // 4:
                    count = await self._session.flow(functools.partial(pause.release_paused, queue, task))
                    back += count
            await self._session.run(breaker.breaker_put_back(task))
        if back:
            self._on_swept()
        return back

    def start(self) -> None:
        self.tidier.start()
        super().start()

    async def bury_misfits(self) -> int:
        """Make dead letters of jobs whose payload every live signature has refused for long enough. All workers together
        spend at most a twentieth of the time on the search: many jobs may wait for a worker that is alive and has not tried
        them."""
        wait = self._settings.misfit_wait
        queues = await self._session.run(misfits.queues_with_misfits(wait))
        if not queues:
            return 0
        self._looking = True  # before it is known: a worker that stops meanwhile may have the turn
        self._looking = await self._session.run(misfits.misfits_begin(_MISFIT_LEASE))
        if not self._looking:
            return 0
        began, buried = time.monotonic(), 0
        for queue in queues:
            place: misfits.RefusalCursor | None = None
            while found := await self._session.run(misfits.old_misfits(queue, wait, place, _MISFITS)):
                place = found[-1]
                buried += await self._bury(queue, list({p.job_id for p in found}))
        await self._session.run(misfits.misfits_done(20 * (time.monotonic() - began)))
        self._looking = False
        return buried

    async def _bury(self, queue: str, job_ids: Sequence[UUID]) -> int:
        s = self._settings
        bury = functools.partial(
            misfits.bury_misfits,
            queue,
            job_ids,
            uuid4(),
            self._worker(),
            wait=s.misfit_wait,
            dead_after=s.dead_after,
        )
        try:
            found = await self._session.flow(bury)
        except (BadRow, GroupBusy, LockNotAvailable) as error:
            if len(job_ids) > 1:
                middle = len(job_ids) // 2
                return await self._bury(queue, job_ids[:middle]) + await self._bury(queue, job_ids[middle:])
            await self._set_apart(queue, job_ids[0], error)
            return 0  # or the next search takes it
        for job in found:
            telemetry.emit(
                JOB_DEAD_LETTER,
                level=logging.ERROR,
                job=job.job_id,
                queue=queue,
                task=job.task,
                error=f"PayloadError: {job.error}",
                worker=self._worker(),
            )
            self._on_buried(queue, job.task)
        return len(found)

    async def finish(self) -> None:
        await self.tidier.stop()
        if self._looking:  # it stopped in the middle: the next worker need not wait for the lease to end
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_LAST_WORD):
                    await self._session.run(misfits.misfits_done(0))
        await self._session.close()
