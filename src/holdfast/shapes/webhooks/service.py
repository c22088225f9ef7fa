"""A worker's duties for webhooks besides deliveries: it reports what the code declares, ends deliveries whose job is gone,
lifts holds that nobody else lifts, and closes connections at the end."""

import contextlib
import time

from ...db.database import Database
from ...db.faults import LockTimeout
from ...runtime.service import Service
from . import store
from .deliver import Deliverer
from .spec import Spec

MOST_DELIVERIES = 5000  # pending deliveries that one search reads
EVERY = 10.0  # seconds between two searches of all workers together
MEND_EACH = 30.0  # seconds between two searches of one worker for holds that nobody lifts
_SAY = 3600.0


class Upkeep(Service):
    name = "webhooks"
    outlives_jobs = True  # requests in progress when the worker drains end on these connections

    def __init__(self, database: Database, spec: Spec, deliverer: Deliverer) -> None:
        super().__init__()
        self._database = database
        self._spec = spec
        self._deliverer = deliverer
        self._said_at = -_SAY
        self._mended_at = -MEND_EACH

    async def tick(self) -> float:
        now = time.monotonic()
        if now - self._said_at >= _SAY:
            await self._say()
            self._said_at = now
        with contextlib.suppress(LockTimeout):  # one of them is locked: at the next search
            await self._database.arun(lambda: store.settle_lost(MOST_DELIVERIES, EVERY * 0.9))
        if now - self._mended_at >= MEND_EACH:
            await self._database.arun(store.mend_holds)
            self._mended_at = now
        return EVERY

    async def _say(self) -> None:
        spec = self._spec
        await self._database.arun(
            lambda: store.set_webhooks(spec.retention, spec.disable_after, spec.tenant_header)
        )

    async def finish(self) -> None:
        await self._deliverer.close()
