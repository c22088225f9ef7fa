"""What a worker does for webhooks beside deliveries: says what the code declares, and closes connections at the end."""

from ...db.database import Database
from ...runtime.service import Service
from . import store
from .deliver import Deliverer
from .spec import Spec


class Upkeep(Service):
    name = "webhooks"

    def __init__(self, database: Database, spec: Spec, deliverer: Deliverer) -> None:
        super().__init__()
        self._database = database
        self._spec = spec
        self._deliverer = deliverer

    async def tick(self) -> float:
        spec = self._spec
        await self._database.arun(
            lambda: store.set_webhooks(spec.retention, spec.disable_after, spec.tenant_header)
        )
        return 3600.0

    async def finish(self) -> None:
        await self._deliverer.close()
