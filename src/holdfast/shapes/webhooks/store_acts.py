"""The statements of redelivery, the portal and the command line; queries.sql has the text."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from ...model.sealing import Sealed
from ...store.statement import Flow, Row, Statement, count, ids, named, nothing

UNHURRIED = 2e6  # deliveries in a second: no rate. Of NULL a piece of a range would be a single delivery
KEPT = timedelta(days=1)  # requests of a tenant with an idempotency key


def _json(rows: Sequence[Row]) -> Any:
    text = rows[0][0]
    return None if text is None else json.loads(text)


def _several(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [json.loads(row[0]) for row in rows]


def list_all(after: UUID | None, limit: int) -> Statement[list[dict[str, Any]]]:
    return named("webhook_all", (after, limit), _several)


def details(tenant: str, endpoint: UUID) -> Statement[dict[str, Any] | None]:
    return named("webhook_details", (tenant, endpoint), _details)


def _details(rows: Sequence[Row]) -> dict[str, Any] | None:
    found: dict[str, Any] | None = _json(rows)
    for one in found["ranges"] if found is not None else ():
        one["rate"] = None if one["rate"] == UNHURRIED else one["rate"]
    return found


def endpoint_ids_between(lowest: UUID, highest: UUID, limit: int) -> Statement[list[UUID]]:
    return named("webhook_ids_between", (lowest, highest, limit), ids)


def delivery_ids_between(lowest: UUID, highest: UUID, limit: int) -> Statement[list[UUID]]:
    return named("webhook_delivery_ids_between", (lowest, highest, limit), ids)


def tenant_of(endpoint: UUID) -> Statement[str | None]:
    return named("webhook_tenant_of", (endpoint,), lambda rows: rows[0][0])


def tenant_of_delivery(delivery: UUID) -> Statement[str | None]:
    return named("webhook_tenant_of_delivery", (delivery,), lambda rows: rows[0][0])


def deliveries(
    tenant: str, endpoint: UUID | None, status: str | None, before: UUID | None, limit: int, *, tried: bool
) -> Statement[list[dict[str, Any]]]:
    return named("webhook_deliveries_of", (tenant, endpoint, status, before, limit, tried), _several)


def delivery(tenant: str, wanted: UUID) -> Statement[dict[str, Any] | None]:
    return named("webhook_delivery", (tenant, wanted), _json)


def ping(tenant: str, endpoint: UUID) -> Statement[dict[str, Any]]:
    return named("webhook_ping", (tenant, endpoint), _json)


def redeliver(tenant: str, wanted: UUID, attempts: int, ordered_attempts: int) -> Statement[dict[str, Any]]:
    return named("webhook_redeliver", (tenant, wanted, attempts, ordered_attempts), _json)


class Range(NamedTuple):
    """A range of the log for one endpoint: positions, or times."""

    endpoint: UUID
    only: str
    header: str | None  # the header that names the tenant
    since: datetime | int
    until: datetime | int | None
    rate: float | None  # in a second


def begin_range(tenant: str, asked: Range, most: int | None, *, dry_run: bool) -> Statement[dict[str, Any]]:
    since = (asked.since, None) if isinstance(asked.since, int) else (None, asked.since)
    until = (asked.until, None) if isinstance(asked.until, int) else (None, asked.until)
    rate = UNHURRIED if asked.rate is None else asked.rate
    params = (tenant, asked.endpoint, asked.only, asked.header, *since, *until, rate, most, dry_run)
    return named("webhook_range_begin", params, _json)


class Stepped(NamedTuple):
    """A piece of a range."""

    range: UUID
    endpoint: UUID
    made: int
    ended: bool
    gone: int  # events that the log no longer has


def step_range(attempts: int, ordered_attempts: int, most: int) -> Statement[Stepped | None]:
    """None: no range is due."""
    params = (attempts, ordered_attempts, most)
    return named("webhook_range_step", params, lambda rows: Stepped(*rows[0]) if rows else None)


def next_range() -> Statement[float | None]:
    """Seconds until a range is due; None: there is none."""
    return named("webhook_range_next", (), lambda rows: rows[0][0])


# The portal ----------------------------------------------------------------------------------------------------------


def count_endpoints(tenant: str) -> Statement[int]:
    return named("webhook_count", (tenant,), count)


def request(tenant: str, key: str, digest: bytes) -> Statement[dict[str, Any] | None]:
    return named("webhook_request", (tenant, key, digest, KEPT), _json)


def replied(tenant: str, key: str, digest: bytes, status: int, reply: Sealed) -> Statement[None]:
    params = (tenant, key, digest, status, reply.key_id, reply.data)
    return named("webhook_replied", params, nothing)


def take_write(tenant: str, most: int, key: str | None) -> Statement[float]:
    """Seconds until the tenant may write again; 0: it may."""
    return named("webhook_write", (tenant, most, key), lambda rows: float(rows[0][0]))


def event_types() -> Flow[list[dict[str, Any]]]:
    """The event types that webhooks send, with the schema of the newest version."""
    return (yield from named("webhook_event_types", (), _several))


def prune(days: int, most: int) -> Statement[int]:
    return named("prune_webhook_requests", (KEPT, most), count)


# Keys ----------------------------------------------------------------------------------------------------------------


class Unsealed(NamedTuple):
    """A secret, or the headers of an endpoint, that another key sealed than the first, or none."""

    endpoint: UUID
    secret: UUID | None  # None: headers
    key_id: str | None
    sealed: bytes


def unsealed(key: str, most: int) -> Statement[list[Unsealed]]:
    return named("webhook_unsealed", (key, most), lambda rows: [Unsealed(*row) for row in rows])


def resealed(one: Unsealed, made: Sealed) -> Statement[None]:
    return named("webhook_sealed", (one.endpoint, one.secret, made.key_id, made.data), nothing)
