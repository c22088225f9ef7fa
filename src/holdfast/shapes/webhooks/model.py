"""What users see of endpoints and deliveries: values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from ...model.queue import Rate
from ...model.sealing import Hidden
from ...store.statement import Row

EndpointStatus = Literal["active", "paused", "disabled"]
DeliveryStatus = Literal["pending", "delivered", "failed", "cancelled"]
Cause = Literal["event", "redelivery", "ping"]


@dataclass(frozen=True, slots=True)
class Secret:
    """A new secret. Its value is in this object alone: show it to the tenant now, it is never shown again."""

    id: UUID
    value: str  # whsec_..., or whpk_... of an ed25519 pair; its repr is <hidden>
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a tenant's events go."""

    id: UUID
    tenant: str
    url: str
    events: tuple[str, ...]
    status: EndpointStatus
    disabled_reason: str | None
    ordered: bool
    scheme: str
    rate: Rate | None
    concurrency: int
    description: str
    created_at: datetime
    updated_at: datetime
    version: int  # rises with every change
    secret: Secret | None = None  # on create alone


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request, and what came back."""

    n: int
    at: datetime  # when it ended
    url: str
    address: str | None  # the vetted address that was dialled; for operators
    status: int | None
    error: str | None  # dns, refused_address, connect, tls, timeout, protocol, too_large, redirect or unknown
    took: timedelta
    request_headers: Mapping[str, str] = field(default_factory=dict)
    response_headers: Mapping[str, str] = field(default_factory=dict)
    response_body: str | None = None
    detail: str | None = None  # for operators


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event for one endpoint."""

    id: UUID
    endpoint_id: UUID
    event_id: UUID
    event_type: str
    cause: Cause
    status: DeliveryStatus
    reason: str | None  # why it failed for good, or was cancelled
    next_attempt_at: datetime | None
    created_at: datetime
    attempts: list[Attempt] = field(default_factory=list)


def endpoint_of(found: dict[str, Any], secret: Secret | None = None) -> Endpoint:
    return Endpoint(
        UUID(found["id"]),
        found["tenant"],
        found["url"],
        tuple(found["events"]),
        found["status"],
        found["disabled_reason"],
        found["ordered"],
        found["scheme"],
        Rate.of(found["rate"], found["burst"]),
        found["concurrency"],
        found["description"],
        datetime.fromisoformat(found["created_at"]),
        datetime.fromisoformat(found["updated_at"]),
        found["version"],
        secret,
    )


def deliveries_of(rows: Sequence[Row], attempts: Sequence[Row]) -> list[Delivery]:
    by_delivery: dict[UUID, list[Attempt]] = {}
    for delivery, n, at, url, address, status, error, detail, ms, sent, came, body in attempts:
        took = timedelta(milliseconds=ms or 0)
        attempt = Attempt(n, at, url, address, status, error, took, sent or {}, came or {}, body, detail)
        by_delivery.setdefault(delivery, []).append(attempt)
    return [Delivery(*[*row, by_delivery.get(row[0], [])]) for row in rows]


__all__ = ["Attempt", "Delivery", "Endpoint", "Hidden", "Secret", "deliveries_of", "endpoint_of"]
