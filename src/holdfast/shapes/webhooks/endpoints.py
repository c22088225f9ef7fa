"""The endpoints of tenants from Python: create, get, list, update, delete, rotate. Each is an act, sync and async alike.

With `conn` a change is part of the caller's transaction. An endpoint of another tenant does not exist.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar
from uuid import UUID

from ...db.database import Database
from ...db.guests import async_guest, sync_guest
from ...model.duration import Duration
from ...model.queue import Rate
from ...settings import default_actor
from .acts import Act, Acts
from .checking import Scheme
from .model import Endpoint, EndpointStatus, Secret
from .spec import Spec

T = TypeVar("T")
OVERLAP = 86400.0
_Found = list[Endpoint]


class Endpoints:
    """`hooks.endpoints.create(tenant="acme", url="https://acme.example/hooks", events=["order.*"])`.

    Each method has an async form with the prefix `a`."""

    def __init__(self, spec: Spec, database: Callable[[], Database]) -> None:
        self._spec = spec
        self._database = database

    @property
    def _acts(self) -> Acts:
        return Acts(self._spec, default_actor())

    def _run(self, act: Act[T], conn: object, verb: str) -> T:
        if conn is None:
            return self._database().run(act)
        return sync_guest(conn, verb, f"a{verb}").run(act())

    async def _arun(self, act: Act[T], conn: object, verb: str) -> T:
        if conn is None:
            return await self._database().arun(act)
        return await async_guest(conn, f"a{verb}", verb).arun(act())

    # Create ----------------------------------------------------------------------------------------------------------

    def create(
        self,
        *,
        tenant: str,
        url: str,
        events: Sequence[str] = ("*",),
        ordered: bool = False,
        scheme: Scheme = "v1",
        rate: Rate | None = None,
        concurrency: int | None = None,
        headers: Mapping[str, str] | None = None,
        description: str = "",
        conn: object = None,
    ) -> Endpoint:
        """Create an endpoint, with its secret: show it to the tenant now, it is never shown again.

        `events`: the types that it gets, where * matches anything. `ordered`: events of one key arrive in commit order, and
        one that fails holds up those behind it. `rate`: requests over all workers. `concurrency`: concurrent requests, over
        all workers. `headers`: sent with each request, and stored like secrets.
        """
        act = self._acts.create(
            tenant, scheme, ordered, {"url": url, "events": events, "rate": rate, "concurrency": concurrency,
                                      "headers": headers, "description": description},
        )  # fmt: skip
        return self._run(act, conn, "create")

    async def acreate(
        self,
        *,
        tenant: str,
        url: str,
        events: Sequence[str] = ("*",),
        ordered: bool = False,
        scheme: Scheme = "v1",
        rate: Rate | None = None,
        concurrency: int | None = None,
        headers: Mapping[str, str] | None = None,
        description: str = "",
        conn: object = None,
    ) -> Endpoint:
        """`await hooks.endpoints.acreate(...)`: see create()."""
        act = self._acts.create(
            tenant, scheme, ordered, {"url": url, "events": events, "rate": rate, "concurrency": concurrency,
                                      "headers": headers, "description": description},
        )  # fmt: skip
        return await self._arun(act, conn, "create")

    # Look ------------------------------------------------------------------------------------------------------------

    def get(self, endpoint: UUID, *, tenant: str) -> Endpoint:
        """One of them; UnknownEndpoint where the tenant has none of this id."""
        return self._run(self._acts.get(endpoint, tenant), None, "get")

    async def aget(self, endpoint: UUID, *, tenant: str) -> Endpoint:
        return await self._arun(self._acts.get(endpoint, tenant), None, "get")

    def list(self, *, tenant: str, after: UUID | None = None, limit: int = 100) -> _Found:
        """The endpoints of a tenant, in the order of their creation."""
        return self._run(self._acts.listed(tenant, after, limit), None, "list")

    async def alist(self, *, tenant: str, after: UUID | None = None, limit: int = 100) -> _Found:
        return await self._arun(self._acts.listed(tenant, after, limit), None, "list")

    # Change ----------------------------------------------------------------------------------------------------------

    def update(
        self,
        endpoint: UUID,
        *,
        tenant: str,
        url: str | None = None,
        events: Sequence[str] | None = None,
        status: EndpointStatus | None = None,
        rate: Rate | Literal["none"] | None = None,
        concurrency: int | None = None,
        headers: Mapping[str, str] | None = None,
        description: str | None = None,
        conn: object = None,
    ) -> Endpoint:
        """Change the given options; `rate="none"` removes the rate. "paused": what is pending waits, and new events make no
        deliveries. "disabled": what is pending is cancelled. "active" after "disabled": one delivery is tried before the
        others."""
        act = self._acts.update(
            endpoint, tenant, url=url, events=events, status=status, rate=rate, concurrency=concurrency,
            headers=headers, description=description,
        )  # fmt: skip
        return self._run(act, conn, "update")

    async def aupdate(
        self,
        endpoint: UUID,
        *,
        tenant: str,
        url: str | None = None,
        events: Sequence[str] | None = None,
        status: EndpointStatus | None = None,
        rate: Rate | Literal["none"] | None = None,
        concurrency: int | None = None,
        headers: Mapping[str, str] | None = None,
        description: str | None = None,
        conn: object = None,
    ) -> Endpoint:
        """`await hooks.endpoints.aupdate(...)`: see update()."""
        act = self._acts.update(
            endpoint, tenant, url=url, events=events, status=status, rate=rate, concurrency=concurrency,
            headers=headers, description=description,
        )  # fmt: skip
        return await self._arun(act, conn, "update")

    def delete(self, endpoint: UUID, *, tenant: str, conn: object = None) -> None:
        """Remove it. Pending deliveries are cancelled; past deliveries can still be inspected."""
        self._run(self._acts.delete(endpoint, tenant), conn, "delete")

    async def adelete(self, endpoint: UUID, *, tenant: str, conn: object = None) -> None:
        await self._arun(self._acts.delete(endpoint, tenant), conn, "delete")

    def rotate(
        self, endpoint: UUID, *, tenant: str, overlap: Duration = OVERLAP, conn: object = None
    ) -> Secret:
        """Create a new secret. Earlier ones sign beside it for `overlap`; with 0, after a leak, they stop signing at
        once."""
        return self._run(self._acts.rotate(endpoint, tenant, overlap), conn, "rotate")

    async def arotate(
        self, endpoint: UUID, *, tenant: str, overlap: Duration = OVERLAP, conn: object = None
    ) -> Secret:
        return await self._arun(self._acts.rotate(endpoint, tenant, overlap), conn, "rotate")
