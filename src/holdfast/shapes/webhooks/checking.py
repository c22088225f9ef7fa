"""Arguments for an endpoint, checked, and as they are stored: secrets and headers sealed."""

import base64
import json
import secrets as random
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

from ...egress import NotAllowed, check_headers, parse
from ...errors import ConfigurationError, SecretUnreadable
from ...model.duration import Duration, seconds
from ...model.queue import Rate
from ...model.sealing import KeyRing, Sealed, bound_to, key_ring
from ...model.signing import new_secret, public_key
from ...model.text import storable
from ...tasks import checks
from ...tasks.payload import shown
from .model import EndpointStatus, Secret
from .spec import Spec
from .store_acts import Unsealed

CONCURRENCY = 10
MOST_HEADERS = 20
LONGEST_HEADER = 4096
SLOWEST, QUICKEST = 1 / (30 * 86400.0), 1_000_000.0  # requests in a second
LONGEST_OVERLAP = 30 * 86400.0
NONE = "none"  # removes a rate
Scheme = Literal["v1", "v1a"]
_OWN = ("host", "connection", "transfer-encoding", "user-agent")


def uuid7() -> UUID:
    """Made here: a secret is sealed for the endpoint that it belongs to."""
    stamp = time.time_ns() // 1_000_000
    value = (stamp << 80) | (7 << 76) | (random.randbits(12) << 64) | (2 << 62) | random.randbits(62)
    return UUID(int=value)


def new_endpoint(
    spec: Spec, tenant: str, scheme: str, ordered: bool, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], Secret]:
    """The endpoint and its secret as they are stored, and the secret as it is shown."""
    if scheme not in get_args(Scheme):
        raise ConfigurationError(f"scheme must be v1 or v1a, not {shown(scheme)}")
    if not isinstance(ordered, bool):
        raise ConfigurationError(f"ordered must be True or False, not {shown(ordered)}")
    if given["url"] is None:
        raise ConfigurationError("url is missing: it says where requests go")
    endpoint = uuid7()
    wanted = {**given, "concurrency": CONCURRENCY if given["concurrency"] is None else given["concurrency"]}
    found = {
        "id": str(endpoint),
        "tenant": _tenant(tenant),
        "ordered": ordered,
        "scheme": scheme,
        **changes(spec, endpoint, wanted),
    }
    return found, *new_secret_of(endpoint, scheme)


def changes(spec: Spec, endpoint: UUID, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given arguments, checked; None keeps a value."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            found |= _CHECKED[name](spec, endpoint, value)
    return found


def new_secret_of(endpoint: UUID, scheme: str) -> tuple[dict[str, Any], Secret]:
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


def sealed_anew(ring: KeyRing, one: Unsealed) -> Sealed:
    """By the first key of the ring. SecretUnreadable names the endpoint."""
    where = (
        bound_to("headers", one.endpoint)
        if one.secret is None
        else bound_to("secret", one.endpoint, one.secret)
    )
    try:
        return ring.seal(ring.open(Sealed(one.key_id, bytes(one.sealed)), where), where)
    except SecretUnreadable as error:
        raise SecretUnreadable(f"endpoint {one.endpoint}: {error}") from None


def overlap(value: Duration) -> float:
    try:
        found = seconds(value, "overlap")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from None
    if found > LONGEST_OVERLAP:
        raise ConfigurationError(f"overlap must be at most 30 days, not {found:g} seconds")
    return found


def check_range(since: object, until: object, only: object, rate: object) -> None:
    for name, value in (("since", since), ("until", until)):
        if name == "until" and value is None:
            continue
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise ConfigurationError(f"{name} must have a time zone, and {value.isoformat()} has none")
        elif not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
            raise ConfigurationError(f"{name} must be a time or a position of the log, not {shown(value)}")
    if only not in ("failed", "missing", "all"):
        raise ConfigurationError(f"only must be failed, missing or all, not {shown(only)}")
    if rate is not None:
        checked_rate(rate)


def checked_rate(rate: object) -> Rate:
    """A number that every sum of the database can hold."""
    if not isinstance(rate, Rate):
        raise ConfigurationError(f"rate must be a Rate, such as Rate(5, per=1), not {shown(rate)}")
    try:
        good = SLOWEST <= rate.per_second <= QUICKEST and rate.size <= QUICKEST
    except OverflowError:
        good = False
    if not good:
        raise ConfigurationError(
            "rate must be between one request in 30 days and a million in a second, "
            f"with a burst of at most a million, and {rate!r:.80} is not"
        )
    return rate


def _tenant(tenant: object) -> str:
    text = checks.key(tenant, "tenant", ConfigurationError, empty=False)
    if len(text.encode()) > 200:
        raise ConfigurationError(f"tenant must be 1 to 200 bytes, not {len(text.encode())}")
    return text


def _url(spec: Spec, _: UUID, url: object) -> dict[str, Any]:
    if not isinstance(url, str) or len(url.encode("utf-8", "replace")) > 2048:
        raise ConfigurationError(f"url must be text of at most 2048 bytes, not {shown(url)}")
    try:
        parse(url, spec.egress)
    except NotAllowed as error:
        raise ConfigurationError(f"url {shown(url)} cannot be called: {error}") from None
    return {"url": url}


def _events(_: Spec, __: UUID, events: object) -> dict[str, Any]:
    if isinstance(events, str) or not isinstance(events, Sequence) or not 1 <= len(events) <= 100:
        raise ConfigurationError(
            f'events must be a list of 1 to 100 types, such as ["order.*"], not {shown(events)}'
        )
    for one in events:
        text = one.replace("*", "x") if isinstance(one, str) else one
        checks.task_name(text, "an event type of an endpoint", ConfigurationError)
    return {"events": list(dict.fromkeys(events))}


def _status(_: Spec, __: UUID, status: object) -> dict[str, Any]:
    if status not in get_args(EndpointStatus):
        raise ConfigurationError(f"status must be active, paused or disabled, not {shown(status)}")
    return {"status": status}


def _rate(_: Spec, __: UUID, rate: object) -> dict[str, Any]:
    if rate == NONE:
        return {"rate": None, "burst": None}
    found = checked_rate(rate)
    return {"rate": found.per_second, "burst": found.size}


def _concurrency(_: Spec, __: UUID, value: object) -> dict[str, Any]:
    return {"concurrency": checks.integer(value, "concurrency", 1, 1000, ConfigurationError)}


def _headers(_: Spec, endpoint: UUID, headers: object) -> dict[str, Any]:
    if not isinstance(headers, Mapping) or len(headers) > MOST_HEADERS:
        raise ConfigurationError(f"headers must map at most {MOST_HEADERS} names to texts")
    check_headers(headers)
    for name, value in headers.items():
        if len(name) + len(value) > LONGEST_HEADER:
            raise ConfigurationError(f"the header {name[:60]} has more than {LONGEST_HEADER} characters")
        if name.lower().startswith(("content-", "webhook-")) or name.lower() in _OWN:
            raise ConfigurationError(f"the header {name} is not yours to set: choose another one")
    sealed = key_ring().seal(json.dumps(dict(headers)), bound_to("headers", endpoint))
    return {"headers": _base64(sealed.data), "headers_key_id": sealed.key_id}


def _description(_: Spec, __: UUID, text: object) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > 1000 or storable(text) != text:
        raise ConfigurationError(
            "description must be text of at most 1000 characters, without NUL and halves of characters, "
            f"not {shown(text)}"
        )
    return {"description": text}


_CHECKED = {
    "url": _url,
    "events": _events,
    "status": _status,
    "rate": _rate,
    "concurrency": _concurrency,
    "headers": _headers,
    "description": _description,
}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
