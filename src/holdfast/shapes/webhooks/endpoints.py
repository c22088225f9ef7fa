"""The endpoints of tenants: create, get, list, update, delete, rotate. Each verb is one flow, sync and async alike.

With `conn` a change is part of the caller's transaction. An endpoint of another tenant does not exist.
"""

import base64
import json
import secrets as random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args
from uuid import UUID

from ...db.database import Database
from ...db.guests import async_guest, sync_guest
from ...egress import NotAllowed, check_headers, parse
from ...errors import ConfigurationError, UnknownEndpoint
from ...model.duration import Duration, seconds
from ...model.queue import Rate
from ...model.sealing import bound_to, key_ring
from ...model.signing import new_secret, public_key
from ...store.statement import Statement
from ...tasks import checks
from ...tasks.payload import shown
from . import store
from .model import Endpoint, EndpointStatus, Secret, endpoint_of
from .spec import Spec

T = TypeVar("T")
OVERLAP = 86400.0
CONCURRENCY = 10
MOST_LISTED = 1000
Scheme = Literal["v1", "v1a"]
_Found = list[Endpoint]
_OWN = ("host", "connection", "transfer-encoding", "user-agent")


def uuid7() -> UUID:
    """Made here: a secret is sealed for the endpoint that it belongs to."""
    stamp = time.time_ns() // 1_000_000
    value = (stamp << 80) | (7 << 76) | (random.randbits(12) << 64) | (2 << 62) | random.randbits(62)
    return UUID(int=value)


class Endpoints:
    """`hooks.endpoints.create(tenant="acme", url="https://acme.example/hooks", events=["order.*"])`.

    Each method has an async form with the prefix `a`."""

    def __init__(self, spec: Spec, database: Callable[[], Database]) -> None:
        self._spec = spec
        self._database = database

    def _run(self, statement: Callable[[], Statement[T]], conn: object, verb: str) -> T:
        if conn is None:
            return self._database().run(statement)
        return sync_guest(conn, verb, f"a{verb}").run(statement())

    async def _arun(self, statement: Callable[[], Statement[T]], conn: object, verb: str) -> T:
        if conn is None:
            return await self._database().arun(statement)
        return await async_guest(conn, f"a{verb}", verb).arun(statement())

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
        """A new endpoint, with its secret: show it to the tenant now, it is never shown again.

        `events`: the types that it gets, where * stands for anything. `ordered`: events of one key arrive in the order of
        their commits, and one that fails holds up those behind it. `rate`: requests over all workers. `concurrency`:
        requests at once, in each worker process. `headers`: sent with each request, and stored sealed."""
        spec, secret, made = self._new(
            tenant, url, events, ordered, scheme, rate, concurrency, headers, description
        )
        return endpoint_of(self._run(lambda: store.create(spec, secret), conn, "create"), made)

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
        spec, secret, made = self._new(
            tenant, url, events, ordered, scheme, rate, concurrency, headers, description
        )
        return endpoint_of(await self._arun(lambda: store.create(spec, secret), conn, "create"), made)

    def _new(
        self, tenant: str, url: str, events: Sequence[str], ordered: bool, scheme: str, rate: Rate | None,
        concurrency: int | None, headers: Mapping[str, str] | None, description: str,
    ) -> tuple[dict[str, Any], dict[str, Any], Secret]:  # fmt: skip
        if scheme not in get_args(Scheme):
            raise ConfigurationError(f"scheme must be v1 or v1a, not {shown(scheme)}")
        if not isinstance(ordered, bool):
            raise ConfigurationError(f"ordered must be True or False, not {shown(ordered)}")
        endpoint = uuid7()
        spec = {
            "id": str(endpoint),
            "tenant": _tenant(tenant),
            "ordered": ordered,
            "scheme": scheme,
            **self._changes(
                endpoint, url, events, None, rate, CONCURRENCY if concurrency is None else concurrency, headers,
                description,
            ),
        }  # fmt: skip
        secret, made = _secret(endpoint, scheme)
        return spec, secret, made

    def _changes(
        self, endpoint: UUID, url: str | None, events: Sequence[str] | None, status: str | None, rate: Rate | None,
        concurrency: int | None, headers: Mapping[str, str] | None, description: str | None,
    ) -> dict[str, Any]:  # fmt: skip
        """What is given, checked; the rest stays as it is."""
        found: dict[str, Any] = {}
        if url is not None:
            found["url"] = _url(url, self._spec)
        if events is not None:
            found["events"] = _events(events)
        if status is not None:
            if status not in get_args(EndpointStatus):
                raise ConfigurationError(f"status must be active, paused or disabled, not {shown(status)}")
            found["status"] = status
        if rate is not None:
            if not isinstance(rate, Rate):
                raise ConfigurationError(f"rate must be a Rate, such as Rate(5, per=1), not {shown(rate)}")
            found |= {"rate": rate.per_second, "burst": rate.size}
        if concurrency is not None:
            found["concurrency"] = checks.integer(concurrency, "concurrency", 1, 1000, ConfigurationError)
        if headers is not None:
            sealed = key_ring().seal(json.dumps(_headers(headers)), bound_to("headers", endpoint))
            found |= {"headers": _base64(sealed.data), "headers_key_id": sealed.key_id}
        if description is not None:
            found["description"] = _description(description)
        return found

    # Look ------------------------------------------------------------------------------------------------------------

    def get(self, endpoint: UUID, *, tenant: str) -> Endpoint:
        """One of them; UnknownEndpoint where the tenant has none of this id."""
        return _known(self._run(lambda: store.get(tenant, endpoint), None, "get"), endpoint)

    async def aget(self, endpoint: UUID, *, tenant: str) -> Endpoint:
        return _known(await self._arun(lambda: store.get(tenant, endpoint), None, "get"), endpoint)

    def list(self, *, tenant: str, after: UUID | None = None, limit: int = 100) -> _Found:
        """Those of a tenant, in the order in which they were made."""
        most = checks.integer(limit, "limit", 1, MOST_LISTED, ConfigurationError)
        return [
            endpoint_of(one)
            for one in self._run(lambda: store.list_endpoints(tenant, after, most), None, "list")
        ]

    async def alist(self, *, tenant: str, after: UUID | None = None, limit: int = 100) -> _Found:
        most = checks.integer(limit, "limit", 1, MOST_LISTED, ConfigurationError)
        found = await self._arun(lambda: store.list_endpoints(tenant, after, most), None, "list")
        return [endpoint_of(one) for one in found]

    # Change ----------------------------------------------------------------------------------------------------------

    def update(
        self,
        endpoint: UUID,
        *,
        tenant: str,
        url: str | None = None,
        events: Sequence[str] | None = None,
        status: EndpointStatus | None = None,
        rate: Rate | None = None,
        concurrency: int | None = None,
        headers: Mapping[str, str] | None = None,
        description: str | None = None,
        conn: object = None,
    ) -> Endpoint:
        """Change what is given. "paused": what is pending waits, and new events make no deliveries. "disabled": what is
        pending is cancelled. "active" after "disabled": one delivery is tried before the others."""
        changes = self._changes(endpoint, url, events, status, rate, concurrency, headers, description)
        return _known(self._run(lambda: store.update(tenant, endpoint, changes), conn, "update"), endpoint)

    async def aupdate(
        self,
        endpoint: UUID,
        *,
        tenant: str,
        url: str | None = None,
        events: Sequence[str] | None = None,
        status: EndpointStatus | None = None,
        rate: Rate | None = None,
        concurrency: int | None = None,
        headers: Mapping[str, str] | None = None,
        description: str | None = None,
        conn: object = None,
    ) -> Endpoint:
        """`await hooks.endpoints.aupdate(...)`: see update()."""
        changes = self._changes(endpoint, url, events, status, rate, concurrency, headers, description)
        found = await self._arun(lambda: store.update(tenant, endpoint, changes), conn, "update")
        return _known(found, endpoint)

    def delete(self, endpoint: UUID, *, tenant: str, conn: object = None) -> None:
        """Remove it. What is pending is cancelled; what was delivered stays to be looked at."""
        if not self._run(lambda: store.delete(tenant, endpoint), conn, "delete"):
            raise _unknown(endpoint)

    async def adelete(self, endpoint: UUID, *, tenant: str, conn: object = None) -> None:
        if not await self._arun(lambda: store.delete(tenant, endpoint), conn, "delete"):
            raise _unknown(endpoint)

    def rotate(
        self, endpoint: UUID, *, tenant: str, overlap: Duration = OVERLAP, conn: object = None
    ) -> Secret:
        """A new secret. Those before it sign beside it for `overlap`; 0 after a leak: from now on they sign nothing."""
        lasts = _overlap(overlap)
        found = _known(self._run(lambda: store.get(tenant, endpoint), conn, "rotate"), endpoint)
        row, made = _secret(endpoint, found.scheme)
        outcome = self._run(lambda: store.rotate(tenant, endpoint, row, lasts), conn, "rotate")
        return _rotated(outcome, endpoint, made)

    async def arotate(
        self, endpoint: UUID, *, tenant: str, overlap: Duration = OVERLAP, conn: object = None
    ) -> Secret:
        lasts = _overlap(overlap)
        found = _known(await self._arun(lambda: store.get(tenant, endpoint), conn, "rotate"), endpoint)
        row, made = _secret(endpoint, found.scheme)
        outcome = await self._arun(lambda: store.rotate(tenant, endpoint, row, lasts), conn, "rotate")
        return _rotated(outcome, endpoint, made)


def _secret(endpoint: UUID, scheme: str) -> tuple[dict[str, Any], Secret]:
    """A new one as it is stored, and as it is shown."""
    secret_id = uuid7()
    value = new_secret(scheme)
    public = public_key(value)
    sealed = key_ring().seal(value, bound_to("secret", endpoint, secret_id))
    row = {
        "id": str(secret_id),
        "scheme": scheme,
        "key_id": sealed.key_id,
        "sealed": _base64(sealed.data),
        "public_key": public,
    }
    return row, Secret(secret_id, value if public is None else public)


def _rotated(outcome: str, endpoint: UUID, made: Secret) -> Secret:
    if outcome == "unknown":
        raise _unknown(endpoint)
    if outcome == "many":
        raise ConfigurationError(
            f"endpoint {endpoint} has five secrets in use, the most there can be. "
            "Wait until one expires, or rotate with overlap=0"
        )
    return made


def _known(found: Any, endpoint: UUID) -> Endpoint:
    if found is None:
        raise _unknown(endpoint)
    if found == "soon":
        raise ConfigurationError(
            f"endpoint {endpoint} was enabled less than 5 minutes ago, and disabled again since. "
            "Repair what answers there, then try again"
        )
    return endpoint_of(found)


def _unknown(endpoint: UUID) -> UnknownEndpoint:
    return UnknownEndpoint(f"the tenant has no endpoint {endpoint}")


def _tenant(tenant: object) -> str:
    text = checks.key(tenant, "tenant", ConfigurationError, empty=False)
    if len(text.encode()) > 200:
        raise ConfigurationError(f"tenant must be 1 to 200 bytes, not {len(text.encode())}")
    return text


def _url(url: object, spec: Spec) -> str:
    if not isinstance(url, str) or len(url.encode()) > 2048:
        raise ConfigurationError(f"url must be text of at most 2048 bytes, not {shown(url)}")
    try:
        parse(url, spec.egress)
    except NotAllowed as error:
        raise ConfigurationError(f"url {shown(url)} cannot be called: {error}") from None
    return url


def _events(events: object) -> list[str]:
    if isinstance(events, str) or not isinstance(events, Sequence) or not 1 <= len(events) <= 100:
        raise ConfigurationError(
            f'events must be a list of 1 to 100 types, such as ["order.*"], not {shown(events)}'
        )
    for one in events:
        text = one.replace("*", "x") if isinstance(one, str) else one
        checks.task_name(text, "an event type of an endpoint", ConfigurationError)
    return list(dict.fromkeys(events))


def _headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping) or len(headers) > 20:
        raise ConfigurationError(f"headers must map at most 20 names to texts, not {shown(headers)}")
    check_headers(headers)
    for name in headers:
        if name.lower().startswith(("content-", "webhook-")) or name.lower() in _OWN:
            raise ConfigurationError(f"the header {name} is not yours to set: choose another one")
    return dict(headers)


def _description(text: object) -> str:
    if not isinstance(text, str) or len(text) > 1000 or "\0" in text:
        raise ConfigurationError(f"description must be text of at most 1000 characters, not {shown(text)}")
    return text


def _overlap(overlap: Duration) -> float:
    try:
        found = seconds(overlap, "overlap")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from None
    if found > 30 * 86400.0:
        raise ConfigurationError(f"overlap must be at most 30 days, not {found:g} seconds")
    return found


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
