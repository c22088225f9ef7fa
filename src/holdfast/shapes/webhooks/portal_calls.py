"""The calls of the portal: path, method, the parts of the request it reads, the act, and the shown fields of its result."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

from ...errors import InvalidMessage
from ...model.queue import Rate
from ...model.strict_json import parse_json
from ...tasks.payload import shown
from . import store_acts
from .acts import Act, Acts
from .checking import NONE, checked_rate
from .model import Attempt, Delivery, Endpoint, Secret

PAGE = 50
MOST_LISTED = 100
_ID = "[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}"
_CREATE = {"url", "events", "ordered", "scheme", "rate", "concurrency", "headers", "description"}
_UPDATE = {"url", "events", "status", "rate", "concurrency", "headers", "description"}
_EMPTY: Mapping[str, Any] = {"rate": NONE, "headers": {}, "description": ""}  # fields that null resets


@dataclass(frozen=True, slots=True)
class PortalLimits:
    """What one tenant may do."""

    endpoints: int = 20
    writes: int = 10  # in a minute
    ranges: int = 2  # redeliveries of ranges at once
    concurrency: int = 20  # requests at once to one endpoint, over all workers


class NotFound(Exception):
    """It does not exist, or belongs to another tenant: the caller cannot tell which."""


class Given:
    """The parts of a request."""

    def __init__(self, tenant: str, path: Mapping[str, str | None], query: bytes, body: bytes) -> None:
        self.tenant = tenant
        self._path = path
        self._query = query
        self._body = body

    @property
    def id(self) -> UUID:
        return UUID(self._path["id"] or "")

    def fields(self, known: set[str]) -> dict[str, Any]:
        """Of the JSON object in the body; no body is an empty object."""
        found = parse_json(self._body) if self._body else {}
        if not isinstance(found, dict):
            raise InvalidMessage(f"the body must be a JSON object, not {shown(found)}")
        if unknown := sorted(set(found) - known):
            raise InvalidMessage(
                f"there is no field {unknown[0]!a:.80} (known: {', '.join(sorted(known)) or 'none'})"
            )
        return found

    def query(self, known: set[str]) -> dict[str, str]:
        try:
            pairs = parse_qsl(self._query.decode("ascii"), True, True, errors="strict", max_num_fields=10)
        except ValueError as error:
            raise InvalidMessage(f"the query cannot be read: {error}") from None
        found = dict(pairs)
        if len(found) != len(pairs):
            raise InvalidMessage("a parameter is there twice")
        if unknown := sorted(set(found) - known):
            raise InvalidMessage(
                f"there is no parameter {unknown[0]!a:.80} (known: {', '.join(sorted(known))})"
            )
        return found

    def page(self, *more: str) -> tuple[dict[str, str], UUID | None, int]:
        """The parameters, after which row, and how many."""
        found = self.query({"after", "limit", *more})
        limit = found.get("limit", str(PAGE))
        if not re.fullmatch("[0-9]{1,9}", limit) or not 1 <= int(limit) <= MOST_LISTED:
            raise InvalidMessage(f"limit must be 1 to {MOST_LISTED}, not {shown(limit)}")
        after = found.get("after")
        if after is not None and not re.fullmatch(_ID, after):
            raise InvalidMessage(f"after must be the id that `next` gave, not {shown(after)}")
        return found, None if after is None else UUID(after), int(limit)


@dataclass(frozen=True)
class Call:
    method: str
    name: str
    act: Callable[[Acts, Given, PortalLimits], Act[Any]]
    show: Callable[[Any, Given], object]
    path: re.Pattern[str]
    status: int = 200

    @property
    def changes(self) -> bool:
        return self.method != "GET"


def _path(*words: str) -> re.Pattern[str]:
    """At the end of the path, wherever the portal is mounted."""
    inner = "/".join(f"(?P<id>{_ID})" if word == "ID" else re.escape(word) for word in words)
    return re.compile(
        rf"(?:/[^\0]*)?/{inner}/?|{inner}/?" if "ID" not in words else rf"(?:/[^\0]*)?/{inner}/?"
    )


# What is shown -------------------------------------------------------------------------------------------------------


def endpoint(found: Endpoint, _: Given) -> dict[str, Any]:
    made = {
        "id": found.id,
        "url": found.url,
        "events": list(found.events),
        "status": found.status,
        "disabled_reason": found.disabled_reason,
        "ordered": found.ordered,
        "scheme": found.scheme,
        "rate": None if found.rate is None else {"count": found.rate.count, "per": found.rate.per},
        "concurrency": found.concurrency,
        "description": found.description,
        "created_at": found.created_at,
        "updated_at": found.updated_at,
    }
    return made if found.secret is None else {**made, "secret": secret(found.secret, _)}


def secret(found: Secret, _: Given) -> dict[str, Any]:
    return {"id": found.id, "value": found.value}


def _endpoints(found: list[Endpoint], given: Given) -> dict[str, Any]:
    limit = given.page()[2]
    page = found[:limit]
    return {
        "data": [endpoint(one, given) for one in page],
        "next": page[-1].id if len(found) > limit else None,
    }


def _deliveries(found: list[Delivery], given: Given) -> dict[str, Any]:
    limit = given.page("status")[2]
    page = [_delivery(one) for one in found[:limit]]
    return {"data": page, "next": page[-1]["id"] if len(found) > limit else None}


def delivery(found: Delivery, _: Given) -> dict[str, Any]:
    return {**_delivery(found), "attempts": [_attempt(one) for one in found.attempts]}


def _delivery(found: Delivery) -> dict[str, Any]:
    return {
        "id": found.id,
        "endpoint_id": found.endpoint_id,
        "event_id": found.event_id,
        "event_type": found.event_type,
        "url": found.url,
        "cause": found.cause,
        "status": found.status,
        "reason": found.reason,
        "tries": found.tries,
        "last_status": found.last_status,
        "last_error": found.last_error,
        "next_attempt_at": found.next_attempt_at,
        "created_at": found.created_at,
        "settled_at": found.settled_at,
    }


def _attempt(found: Attempt) -> dict[str, Any]:
    """Without the dialled address and the detail of an error: they describe our network."""
    return {
        "n": found.n,
        "at": found.at,
        "url": found.url,
        "status": found.status,
        "error": found.error,
        "ms": round(found.took.total_seconds() * 1000),
        "response_headers": dict(found.response_headers),
        "response_body": found.response_body,
    }


# What is asked for ---------------------------------------------------------------------------------------------------


def _rate(value: object) -> Rate | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not set(value) <= {"count", "per"} or "count" not in value:
        raise InvalidMessage(f'rate must be an object such as {{"count": 5, "per": 1}}, not {shown(value)}')
    try:
        return checked_rate(Rate(value["count"], per=value.get("per", 1)))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(f"rate: {error}") from None


def _at_once(value: object, limits: PortalLimits) -> object:
    """Each request in progress takes a slot of a worker, which other tenants need too."""
    if isinstance(value, int) and value > limits.concurrency:
        raise InvalidMessage(f"concurrency must be 1 to {limits.concurrency}, not {shown(value)}")
    return value


def _create(acts: Acts, given: Given, limits: PortalLimits) -> Act[Any]:
    fields = given.fields(_CREATE)
    if "url" not in fields:
        raise InvalidMessage("url is missing")
    whole = {name: fields.get(name) for name in ("url", "events", "concurrency", "headers", "description")}
    whole["events"] = ["*"] if whole["events"] is None else whole["events"]
    whole["rate"] = _rate(fields.get("rate"))
    whole["concurrency"] = _at_once(whole["concurrency"], limits)
    ordered, scheme = fields.get("ordered", False), fields.get("scheme", "v1")
    return acts.create(given.tenant, scheme, ordered, whole, most=limits.endpoints)


def _update(acts: Acts, given: Given, limits: PortalLimits) -> Act[Any]:
    fields = given.fields(_UPDATE)
    _at_once(fields.get("concurrency"), limits)
    if "rate" in fields:
        fields["rate"] = _rate(fields["rate"])
    for name in [name for name, value in fields.items() if value is None]:
        if name not in _EMPTY:
            raise InvalidMessage(f"{name} must not be null")
        fields[name] = _EMPTY[name]
    return acts.update(given.id, given.tenant, **fields)


def _rotate(acts: Acts, given: Given, _: PortalLimits) -> Act[Any]:
    overlap = given.fields({"overlap"}).get("overlap", 86400)
    if not isinstance(overlap, int | float) or isinstance(overlap, bool):
        raise InvalidMessage(f"overlap must be a number of seconds, not {shown(overlap)}")
    return acts.rotate(given.id, given.tenant, overlap)


def _nothing(given: Given) -> None:
    given.fields(set())


def _ping(acts: Acts, given: Given, _: PortalLimits) -> Act[Any]:
    _nothing(given)
    return acts.ping(given.id, given.tenant)


def _redeliver(acts: Acts, given: Given, _: PortalLimits) -> Act[Any]:
    _nothing(given)
    return acts.redeliver(given.id, given.tenant)


def _moment(name: str, value: object) -> datetime:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidMessage(
            f"{name} must be a time with its zone, such as 2026-05-01T10:00:00Z, not {shown(value)}"
        )
    return found


def _range(acts: Acts, given: Given, limits: PortalLimits) -> Act[Any]:
    fields = given.fields({"since", "until", "only", "rate", "dry_run"})
    if "since" not in fields:
        raise InvalidMessage("since is missing")
    until = fields.get("until")
    dry_run = fields.get("dry_run", False)
    if not isinstance(dry_run, bool):
        raise InvalidMessage(f"dry_run must be true or false, not {shown(dry_run)}")
    return acts.redeliver_range(
        given.id,
        given.tenant,
        _moment("since", fields["since"]),
        None if until is None else _moment("until", until),
        fields.get("only", "failed"),
        _rate(fields.get("rate")) or Rate(10, per=1),
        dry_run=dry_run,
        most=limits.ranges,
    )


def _listed(acts: Acts, given: Given, _: PortalLimits) -> Act[Any]:
    after, limit = given.page()[1:]
    return acts.listed(given.tenant, after, limit + 1)


def _delivered(acts: Acts, given: Given, _: PortalLimits) -> Act[Any]:
    """An endpoint that is deleted still has deliveries."""
    found, after, limit = given.page("status")
    return acts.deliveries(given.tenant, given.id, found.get("status"), after, limit + 1)


def _types(acts: Acts, given: Given, _: PortalLimits) -> Act[Any]:
    given.query(set())
    return store_acts.event_types


def _one(act: Callable[[Acts, Given], Act[Any]]) -> Callable[[Acts, Given, PortalLimits], Act[Any]]:
    def made(acts: Acts, given: Given, _: PortalLimits) -> Act[Any]:
        given.query(set())
        return act(acts, given)

    return made


CALLS = (
    Call("GET", "list", _listed, _endpoints, _path("endpoints")),
    Call("POST", "create", _create, endpoint, _path("endpoints"), 201),
    Call("GET", "get", _one(lambda a, g: a.get(g.id, g.tenant)), endpoint, _path("endpoints", "ID")),
    Call("PATCH", "update", _update, endpoint, _path("endpoints", "ID")),
    Call(
        "DELETE",
        "delete",
        _one(lambda a, g: a.delete(g.id, g.tenant)),
        lambda *_: None,
        _path("endpoints", "ID"),
        204,
    ),
    Call("POST", "rotate", _rotate, secret, _path("endpoints", "ID", "rotate")),
    Call("POST", "ping", _ping, delivery, _path("endpoints", "ID", "ping"), 202),
    Call(
        "POST",
        "redeliver_range",
        _range,
        lambda found, _: asdict(found),
        _path("endpoints", "ID", "redeliver"),
        202,
    ),
    Call("GET", "deliveries", _delivered, _deliveries, _path("endpoints", "ID", "deliveries")),
    Call(
        "GET", "delivery", _one(lambda a, g: a.delivery(g.id, g.tenant)), delivery, _path("deliveries", "ID")
    ),
    Call("POST", "redeliver", _redeliver, delivery, _path("deliveries", "ID", "redeliver"), 202),
    Call("GET", "event_types", _types, lambda found, _: {"data": found}, _path("event-types")),
)
