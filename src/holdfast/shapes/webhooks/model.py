"""Endpoints and deliveries as users see them: values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID

from ...model.queue import Rate
from ...model.sealing import Hidden

Json: TypeAlias = Mapping[str, Any]
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
    """One request, and its reply."""

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
    settled_at: datetime | None
    url: str  # of the endpoint, as it was then
    tries: int  # attempts so far
    last_status: int | None
    last_error: str | None
    attempts: list[Attempt] = field(default_factory=list)  # as long as they are kept


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


def delivery_of(found: Mapping[str, Any]) -> Delivery:
    next_at, settled_at = found["next_attempt_at"], found["settled_at"]
    return Delivery(
        UUID(found["id"]),
        UUID(found["endpoint_id"]),
        UUID(found["event_id"]),
        found["event_type"],
        found["cause"],
        found["status"],
        found["reason"],
        None if next_at is None else datetime.fromisoformat(next_at),
        datetime.fromisoformat(found["created_at"]),
        None if settled_at is None else datetime.fromisoformat(settled_at),
        found["url"],
        found["attempts"],
        found["last_status"],
        found["last_error"],
        [_attempt(one) for one in found["tried"] or ()],
    )


def _attempt(found: Mapping[str, Any]) -> Attempt:
    return Attempt(
        found["n"],
        datetime.fromisoformat(found["at"]),
        found["url"],
        found["address"],
        found["status"],
        found["error"],
        timedelta(milliseconds=found["ms"] or 0),
        found["request_head"] or {},
        found["response_head"] or {},
        found["response_body"],
        found["detail"],
    )


__all__ = ["Attempt", "Delivery", "Endpoint", "Hidden", "Secret", "delivery_of", "endpoint_of"]
