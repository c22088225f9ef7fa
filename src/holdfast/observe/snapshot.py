"""One bounded query of the database every few seconds, kept for all readers.

Probes and scrapes read the kept values and never wait. While the database is unreachable they stay, and their age grows.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..db.database import Database
from ..operate.queues import queue_loads
from ..runtime.service import Service
from ..shape import Measures
from ..store import jobs, queue_load
from ..store import snapshot as store
from ..store.jobs import SchemaVersion
from ..store.queue_load import QueueLoad
from ..store.snapshot import Fleet, Staff
from ..store.statement import Flow

_JITTER = 0.9  # a service waits at least this share of the pause it asks for


@dataclass(frozen=True, slots=True)
class Snapshot:
    queues: list[QueueLoad]
    staff: dict[str, Staff]  # by queue
    dead_letters: dict[str, int]  # by queue, of the newest up to the cap
    workers: dict[str, Fleet]  # by status: alive, draining, late
    paused_tasks: int
    expired_claims: int
    schema_version: SchemaVersion
    measured: Sequence[Any] = ()  # the snapshots of the shapes


class Snapshots(Service):
    name = "snapshot"

    def __init__(self, database: Database, measures: Sequence[Measures] = ()) -> None:
        super().__init__()
        self._measures = measures
        self._session = database.session("snapshot")
        self._every = database.settings.metrics_snapshot
        self._late_after = database.settings.dead_after
        self._taken_at = time.monotonic()
        self.latest: Snapshot | None = None

    @property
    def age(self) -> float:
        """Seconds since the latest query; since the start, if there is none yet."""
        return time.monotonic() - self._taken_at

    async def tick(self) -> float:
        self.latest = await self._session.flow(self._look)
        self._taken_at = time.monotonic()
        return self._every / _JITTER

    def _look(self) -> Flow[Snapshot]:
        seen = yield from look(self._late_after)
        measured: list[Any] = []
        for measures in self._measures:
            measured += [(yield from measures.look(self._late_after))]
        return replace(seen, measured=measured)

    async def finish(self) -> None:
        await self._session.close()


def look(late_after: float) -> Flow[Snapshot]:
    """Its cost does not grow with the number of jobs: every count stops at the cap."""
    version = yield from jobs.schema_version()
    queues = yield from queue_loads()
    staff = yield from store.queue_staff(late_after)
    dead = yield from queue_load.dead_load()
    workers = yield from store.fleet(late_after)
    paused = yield from store.count_paused_tasks()
    expired = yield from store.count_expired()
    return Snapshot(queues, staff, dead, workers, paused, expired, version)
