"""What `app.webhooks(...)` makes: its endpoints, their deliveries, and the subscription behind them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, get_args
from uuid import UUID

from ...db.database import Database
from ...errors import ConfigurationError
from ...tasks import checks
from ...tasks.payload import shown
from . import store
from .endpoints import Endpoints
from .model import Delivery, DeliveryStatus, deliveries_of
from .spec import Spec

if TYPE_CHECKING:
    from ..events.verbs import Followed

MOST_LISTED = 1000
_Found = list[Delivery]


class Webhooks:
    """`hooks = app.webhooks(on=["order.*"])`, then `hooks.endpoints.create(...)`."""

    def __init__(self, spec: Spec, subscription: "Followed", database: Callable[[], Database]) -> None:
        self._spec = spec
        self._database = database
        self.subscription = subscription  # of the log: pause(), resume(), reset(), failures()
        self.endpoints = Endpoints(spec, database)

    @property
    def name(self) -> str:
        return self.subscription.name

    def lag(self) -> tuple[int, float]:
        """How far the fan-out is behind the log: events, seconds."""
        return self.subscription.lag()

    async def alag(self) -> tuple[int, float]:
        return await self.subscription.alag()

    def deliveries(
        self,
        *,
        tenant: str,
        endpoint: UUID | None = None,
        status: DeliveryStatus | None = None,
        before: UUID | None = None,
        limit: int = 100,
    ) -> _Found:
        """Deliveries of a tenant with their attempts, the newest first. `before`: an id, for the page after it."""
        most = _checked(status, limit)
        return deliveries_of(
            *self._database().run(lambda: store.deliveries(tenant, endpoint, status, before, most))
        )

    async def adeliveries(
        self,
        *,
        tenant: str,
        endpoint: UUID | None = None,
        status: DeliveryStatus | None = None,
        before: UUID | None = None,
        limit: int = 100,
    ) -> _Found:
        most = _checked(status, limit)
        return deliveries_of(
            *await self._database().arun(lambda: store.deliveries(tenant, endpoint, status, before, most))
        )

    def __repr__(self) -> str:
        return f"Webhooks({self.name!r})"


def _checked(status: object, limit: object) -> int:
    if status is not None and status not in get_args(DeliveryStatus):
        raise ConfigurationError(
            f"status must be one of {', '.join(get_args(DeliveryStatus))}, not {shown(status)}"
        )
    return checks.integer(limit, "limit", 1, MOST_LISTED, ConfigurationError)
