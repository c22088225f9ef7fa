"""What `app.webhooks(...)` returns, apart from the subscription: its endpoints and their deliveries.

`holdfast.registry` joins both parts, since shapes do not import each other."""

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from ...db.database import Database
from ...errors import ConfigurationError
from ...model.asgi import ASGI
from ...model.queue import Rate
from ...settings import default_actor
from ...tasks.payload import shown
from .acts import Acts, Only
from .endpoints import Endpoints
from .model import Delivery, DeliveryStatus
from .portal import Authorize, Portal, PortalLimits
from .spec import Spec

_Found = list[Delivery]


class Hooks:
    """`hooks = app.webhooks(on=["order.*"])`, then `hooks.endpoints.create(...)`."""

    def __init__(self, spec: Spec, database: Callable[[], Database]) -> None:
        self._spec = spec
        self._database = database
        self.endpoints = Endpoints(spec, database)

    @property
    def _acts(self) -> Acts:
        return Acts(self._spec, default_actor())

    def deliveries(
        self,
        *,
        tenant: str,
        endpoint: UUID | None = None,
        status: DeliveryStatus | None = None,
        after: UUID | None = None,
        limit: int = 100,
    ) -> _Found:
        """Deliveries of a tenant with their attempts, the newest first. `after`: the last id of a page, for the next one."""
        act = self._acts.deliveries(tenant, endpoint, status, after, limit, tried=True)
        return self._database().run(act)

    async def adeliveries(
        self,
        *,
        tenant: str,
        endpoint: UUID | None = None,
        status: DeliveryStatus | None = None,
        after: UUID | None = None,
        limit: int = 100,
    ) -> _Found:
        act = self._acts.deliveries(tenant, endpoint, status, after, limit, tried=True)
        return await self._database().arun(act)

    def ping(self, endpoint: UUID, *, tenant: str) -> Delivery:
        """Send `webhook.ping` once, also to an endpoint that is paused or disabled. Returns the delivery."""
        return self._database().run(self._acts.ping(endpoint, tenant))

    async def aping(self, endpoint: UUID, *, tenant: str) -> Delivery:
        return await self._database().arun(self._acts.ping(endpoint, tenant))

    def redeliver(self, delivery: UUID, *, tenant: str) -> Delivery:
        """Deliver an event again, in a new delivery: with the same id, to the endpoint's current address and with its
        current secrets. Raises EventsGone if the log no longer has it."""
        return self._database().run(self._acts.redeliver(delivery, tenant))

    async def aredeliver(self, delivery: UUID, *, tenant: str) -> Delivery:
        return await self._database().arun(self._acts.redeliver(delivery, tenant))

    def redeliver_range(
        self,
        endpoint: UUID,
        *,
        tenant: str,
        since: datetime | int,
        until: datetime | int | None = None,
        only: Only = "failed",
        rate: Rate | None = None,
        dry_run: bool = False,
    ) -> int:
        """Deliver a range of the log again to one endpoint: since a time, or after a position. Returns how many
        deliveries that makes; workers make them, at the rate. `only`: "failed": no delivery of the event arrived;
        "missing": there was none, though the endpoint wants it now; "all". `dry_run`: count, and do nothing."""
        act = self._acts.redeliver_range(endpoint, tenant, since, until, only, rate, dry_run=dry_run)
        return self._database().run(act).count

    async def aredeliver_range(
        self,
        endpoint: UUID,
        *,
        tenant: str,
        since: datetime | int,
        until: datetime | int | None = None,
        only: Only = "failed",
        rate: Rate | None = None,
        dry_run: bool = False,
    ) -> int:
        act = self._acts.redeliver_range(endpoint, tenant, since, until, only, rate, dry_run=dry_run)
        return (await self._database().arun(act)).count

    def portal(self, authorize: Authorize, *, limits: PortalLimits | None = None) -> ASGI:
        """A JSON API for tenants, to be mounted at any path. `authorize(scope)` returns the tenant, or None: 401. Only it
        decides whose rows are visible."""
        if not callable(authorize):
            raise ConfigurationError(
                f"portal() needs a function that returns the tenant, not {shown(authorize)}"
            )
        return Portal(self._spec, self._database, authorize, limits or PortalLimits()).asgi
