"""Which endpoints want an event: all that are active, in memory. Before each page what changed since is read."""

import re
from collections.abc import Iterable
from uuid import UUID

from ...db.database import Database
from . import store
from .store import Wanted


class Wants:
    """The filter of one endpoint: types, where * stands for anything."""

    __slots__ = ("_known", "_pattern")

    def __init__(self, events: Iterable[str]) -> None:
        self._pattern = re.compile("|".join(re.escape(one).replace(r"\*", ".*") for one in events))
        self._known: dict[str, bool] = {}

    def __call__(self, event_type: str) -> bool:
        found = self._known.get(event_type)
        if found is None:
            found = self._known[event_type] = self._pattern.fullmatch(event_type) is not None
        return found


class Registry:
    def __init__(self) -> None:
        self._snapshot: str | None = None
        self._tenants: dict[str, dict[UUID, Wants]] = {}
        self._tenant_of: dict[UUID, str] = {}

    async def refresh(self, database: Database) -> None:
        """An endpoint that was committed before this is known after it."""
        snapshot, changed = await database.arun(lambda: store.registry(self._snapshot))
        self._snapshot = snapshot
        for endpoint in changed:
            self._forget(endpoint.id)
            if endpoint.is_active:
                self._add(endpoint)

    def _add(self, endpoint: Wanted) -> None:
        self._tenants.setdefault(endpoint.tenant, {})[endpoint.id] = Wants(endpoint.events)
        self._tenant_of[endpoint.id] = endpoint.tenant

    def _forget(self, endpoint: UUID) -> None:
        tenant = self._tenant_of.pop(endpoint, None)
        if tenant is not None:
            of_tenant = self._tenants[tenant]
            del of_tenant[endpoint]
            if not of_tenant:
                del self._tenants[tenant]

    def wanting(self, tenant: str, event_type: str) -> list[UUID]:
        """The endpoints of a tenant that get an event of this type. One that was removed since may be among them: nothing is
        written for it."""
        return [endpoint for endpoint, wants in self._tenants.get(tenant, {}).items() if wants(event_type)]
