"""A worker's place in the registry: alive, draining, gone.

An identity that was fenced never comes back; its process takes a new one."""

import functools
import logging

from .. import telemetry
from ..db.database import Database
from ..errors import DatabaseUnavailable
from ..model.labels import parse_labels
from ..model.release import own_version
from ..model.worker import WorkerIdentity
from ..store import workers as store
from ..store.sweep import take_back_blame
from .handler import Handlers, masked_names, signatures
from .options import WorkerOptions
from .supervisor_link import predecessor


class Membership:
    def __init__(self, database: Database, handlers: Handlers, options: WorkerOptions) -> None:
        self.session = database.session("membership")
        self._queues = list(options.leases)
        self._tasks = sorted({name for name, _ in handlers.known()})
        names = (f"{task}/{version}" for task, version in handlers.known())
        self._signatures = dict(zip(names, signatures(handlers), strict=True))
        self._concurrency = options.concurrency
        self._release = options.release
        labels = parse_labels(database.settings.labels or "")
        self._metadata = {"holdfast": own_version(), "labels": labels, "masked": masked_names(handlers)}
        self.identity = WorkerIdentity.create()
        self._died = predecessor()
        self._fenced: list[str] = []  # identities whose silence still has to be taken back

    @property
    def id(self) -> str:
        return self.identity.id

    async def register(self) -> None:
        if self._died is not None:
            await self.session.run(store.report_death(self.identity.host, *self._died))
            self._died = None
        await self.session.run(
            store.register(
                self.identity,
                queues=self._queues,
                tasks=self._tasks,
                signatures=self._signatures,
                concurrency=self._concurrency,
                release=self._release,
                metadata=self._metadata,
            )
        )
        telemetry.emit(
            "worker.started",
            worker=self.id,
            queues=",".join(self._queues),
            concurrency=self._concurrency,
            release=self._release,
        )

    async def start_over(self) -> None:
        """This identity was fenced during a silence: continue under a new one."""
        old = self.id
        fresh = WorkerIdentity.create()
        self.identity = fresh
        self._fenced.append(old)
        telemetry.emit("worker.fenced", level=logging.WARNING, worker=old, now=fresh.id)
        await self.register()

    async def take_back_blame(self, *also: str) -> None:
        """Identities of this process that were fenced: it is alive, so their silence was no death."""
        self._fenced += also
        while self._fenced:
            worker = self._fenced[0]
            for job in await self.session.flow(functools.partial(take_back_blame, worker)):
                telemetry.emit("job.redriven", job=job, reason="the worker that fell silent is alive")
            self._fenced = [other for other in self._fenced if other != worker]

    async def drain(self) -> None:
        try:
            await self.session.run(store.drain(self.id))
        except DatabaseUnavailable:  # the connection may have died while nobody used it
            await self.session.run(store.drain(self.id))
        telemetry.emit("worker.draining", worker=self.id)

    async def leave(self) -> None:
        await self.session.run(store.leave(self.id))
        telemetry.emit("worker.stopped", worker=self.id)

    async def close(self) -> None:
        await self.session.close()
