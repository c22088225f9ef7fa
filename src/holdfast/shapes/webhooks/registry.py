"""The endpoints that want an event: all active ones, in memory. Before each page the changes since are read."""

from collections.abc import Iterable
from uuid import UUID

from ...db.database import Database
from . import store
from .store import Wanted


class EventFilter:
    """The filter of one endpoint: types, where * stands for anything. Tenants write it, so it never backtracks in a text, as
    a regular expression of many stars would: each part is searched once, behind the part before it."""

    __slots__ = ("_known", "_patterns")

    def __init__(self, events: Iterable[str]) -> None:
        self._patterns = [one.split("*") for one in events]
        self._known: dict[str, bool] = {}

    def __call__(self, event_type: str) -> bool:
        found = self._known.get(event_type)
        if found is None:
            found = any(_fits(event_type, parts) for parts in self._patterns)
            self._known[event_type] = found
        return found


def _fits(text: str, parts: list[str]) -> bool:
    if len(parts) == 1:
        return text == parts[0]
    first, *middle, last = parts
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


class Registry:
    def __init__(self) -> None:
        self._snapshot: str | None = None
        self._tenants: dict[str, dict[UUID, EventFilter]] = {}
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
        self._tenants.setdefault(endpoint.tenant, {})[endpoint.id] = EventFilter(endpoint.events)
        self._tenant_of[endpoint.id] = endpoint.tenant

    def _forget(self, endpoint: UUID) -> None:
        tenant = self._tenant_of.pop(endpoint, None)
        if tenant is not None:
            of_tenant = self._tenants[tenant]
            del of_tenant[endpoint]
            if not of_tenant:
                del self._tenants[tenant]

    def wanting(self, tenant: str, event_type: str) -> list[UUID]:
        """The endpoints of a tenant that get an event of this type. A removed one may be among them: nothing is
        written for it."""
        return [endpoint for endpoint, wants in self._tenants.get(tenant, {}).items() if wants(event_type)]
