"""Renewal and heartbeat, in their own thread and on their own connection.

A handler may block the event loop, hold every handler connection or sleep for three leases: this thread continues. It renews
one row per claim, learns which single jobs were lost or cancelled, and writes progress. The thread itself is in
renewal_thread.py.
"""

import time
from collections.abc import Callable
from uuid import UUID

from ..db.database import Database
from ..model.job import Owned
from ..model.state import LOST
from ..store import owner
from ..store.renew import Ended, heartbeat, renew, report_held
from .endings import Endings
from .inflight import InFlight, Running, Stop
from .pulse import Pulse
from .service import Service
from .vitals import ASLEEP, REPORTED, Measured

_A_WHILE = 2  # heartbeats
_WORTH = 8  # jobs of a claim: fewer are read as quickly as they are counted


class Renewal(Service):
    name = "renew"

    def __init__(
        self,
        database: Database,
        inflight: InFlight,
        worker: Callable[[], str],
        lease: float,
        measured: Measured | None = None,
        endings: Endings | None = None,
    ) -> None:
        super().__init__()
        self._database = database
        self._endings = endings or Endings()
        self._session = database.session("renew", patience=database.settings.heartbeat)
        self._inflight = inflight
        self._worker = worker
        self._lease = lease
        self.measured = measured or Measured(database)
        self.pulse: Pulse | None = None
        self._asked_at = 0.0
        self._reported: tuple[str, list[UUID]] | None = None
        # After an outage a sweeper gives living owners two heartbeats to renew: be back within one.
        self.longest_pause = min(self.longest_pause, database.settings.heartbeat)
        self.on_fenced: Callable[[], None] = lambda: None
        self.on_drain: Callable[[str], None] = lambda worker: None
        self.on_stop: Callable[[Running, Stop], None] = lambda running, reason: running.interrupt(reason)
        self.on_abandoned: Callable[[Running], None] = lambda running: None

    async def tick(self) -> float:
        worker, began = self._worker(), time.monotonic()
        # A sleeping worker holds nothing, and its pulse is a heartbeat. One is made here first, to drop its last claims.
        if self.pulse is not None and not len(self._inflight):
            left = self.pulse.beats_for(worker, self._asked_at)
            if left > 0 and not self.measured.due(ASLEEP):
                return left
        self._asked_at = began
        vitals = self.measured.take() if self.measured.due(REPORTED) else None
        status = await self._session.run(heartbeat(worker, vitals))
        if status in (None, "gone"):
            self.on_fenced()
        elif status == "draining":
            self.on_drain(worker)
        ended = self._endings.counted()  # before the next read: a claim with no jobs left is over
        held = self._inflight.select()
        for running in held:
            if running.abandoned:
                self.on_abandoned(running)
        claimed = [r.claimed for r in held]
        in_use = {job.token_text for job in claimed}
        over = Ended(
            ended.timeline, {t: n for t, n in ended.counts.items() if t not in in_use and n >= _WORTH}
        )
        lost, cancel = await self._session.flow(lambda: renew(worker, claimed, self._lease, over))
        self._endings.forget(t for t in ended.counts if t not in in_use)
        for job in lost:
            self._interrupt(job, LOST)
        for job in cancel:
            self._interrupt(job, "cancel")
        for running in held:
            running.renewed_at = began
        await self._write_progress(held)
        await self._report_held(worker, held, began)
        return self._database.settings.heartbeat

    def _interrupt(self, job: Owned, reason: Stop) -> None:
        running = self._inflight.get(job)
        # A job that completed itself, or is being settled, has no row any more because we settled it.
        if running is None or running.settling or (running.job is not None and running.job._completed):
            return
        if running.stop != reason:
            self.on_stop(running, reason)

    async def _report_held(self, worker: str, held: list[Running], now: float) -> None:
        """Report the jobs that this worker has held for a while: the doctor compares them with the claims."""
        long_ago = now - _A_WHILE * self._database.settings.heartbeat
        ids = sorted(r.claimed.id for r in held if r.claimed_at <= long_ago and not r.abandoned)
        if (worker, ids) != self._reported:
            await self._session.run(report_held(worker, ids))
            self._reported = (worker, ids)

    async def _write_progress(self, held: list[Running]) -> None:
        reports = []
        for running in held:
            job = running.job
            if job is not None and job._report is not None:
                reports.append((running.grant, *job._report))
                job._report = None
        if reports:
            await self._session.run(owner.progress(reports))

    async def finish(self) -> None:
        await self._session.close()
