"""Acts on endpoints and deliveries, each once: behind `hooks`, the portal and the command line.

An act is checked when it is called, and is one flow: it runs sync, async or in the caller's transaction, and writes its
row of the audit in the same one. An endpoint or a delivery of another tenant does not exist.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar, get_args
from uuid import UUID

from ...errors import ConfigurationError, EventsGone, UnknownEndpoint, UnknownQueue
from ...model.actor import Actor, actor_of
from ...model.duration import Duration
from ...model.queue import Rate
from ...model.sealing import key_ring
from ...operate.refusal import Refused
from ...store.audit import audit
from ...store.statement import Flow
from ...tasks import checks
from ...tasks.payload import shown
from . import checking, store, store_acts
from .model import Delivery, DeliveryStatus, Endpoint, Secret, delivery_of, endpoint_of
from .spec import Spec

T = TypeVar("T")
Act = Callable[[], Flow[T]]
Only = Literal["failed", "missing", "all"]
MOST_LISTED = 1000
RESEALED = 100  # endpoints in one transaction


@dataclass(frozen=True, slots=True)
class Ranged:
    """A range that is delivered again, or would be."""

    count: int  # deliveries
    after: int  # positions of the log
    until: int
    begun: bool


class Acts:
    """The acts of one actor."""

    def __init__(self, spec: Spec, actor: str | Actor) -> None:
        self._spec = spec
        self._actor = actor_of(actor)

    def _noted(self, verb: str, which: Mapping[str, object], count: int = 1) -> Flow[None]:
        yield from audit(self._actor, f"webhook {verb}", which, count)

    # Endpoints -------------------------------------------------------------------------------------------------------

    def create(
        self, tenant: str, scheme: str, ordered: bool, given: Mapping[str, Any], *, most: int | None = None
    ) -> Act[Endpoint]:
        """`most`: how many endpoints the tenant may have."""
        spec, secret, made = checking.new_endpoint(self._spec, tenant, scheme, ordered, given)

        def flow() -> Flow[Endpoint]:
            if most is not None and (has := (yield from store_acts.count_endpoints(tenant))) >= most:
                raise Refused(
                    "endpoints", f"the tenant has {has} endpoints, and may have {most}. Delete one first"
                )
            found = yield from store.create(spec, secret)
            yield from self._noted("create", {"tenant": tenant, "endpoint": found["id"]})
            return endpoint_of(found, made)

        return flow

    def get(self, endpoint: UUID, tenant: str) -> Act[Endpoint]:
        def flow() -> Flow[Endpoint]:
            return _known((yield from store.get(tenant, endpoint)), endpoint)

        return flow

    def listed(self, tenant: str, after: UUID | None, limit: int) -> Act[list[Endpoint]]:
        most = checks.integer(limit, "limit", 1, MOST_LISTED, ConfigurationError)

        def flow() -> Flow[list[Endpoint]]:
            found = yield from store.list_endpoints(tenant, after, most)
            return [endpoint_of(one) for one in found]

        return flow

    def update(self, endpoint: UUID, tenant: str, **given: Any) -> Act[Endpoint]:
        """None keeps a value."""
        changes = checking.changes(self._spec, endpoint, given)
        named = sorted(name for name, value in given.items() if value is not None)
        verb = {"active": "enable", "paused": "pause", "disabled": "disable"}.get(given.get("status") or "")
        if not named:
            return self.get(endpoint, tenant)

        def flow() -> Flow[Endpoint]:
            found = _known((yield from store.update(tenant, endpoint, changes)), endpoint)
            which = {"tenant": tenant, "endpoint": str(endpoint), "changed": named}
            yield from self._noted(verb if verb is not None and named == ["status"] else "update", which)
            return found

        return flow

    def delete(self, endpoint: UUID, tenant: str) -> Act[None]:
        def flow() -> Flow[None]:
            if not (yield from store.delete(tenant, endpoint)):
                raise unknown(endpoint)
            yield from self._noted("delete", {"tenant": tenant, "endpoint": str(endpoint)})

        return flow

    def rotate(self, endpoint: UUID, tenant: str, overlap: Duration) -> Act[Secret]:
        lasts = checking.overlap(overlap)

        def flow() -> Flow[Secret]:
            scheme = _known((yield from store.get(tenant, endpoint)), endpoint).scheme
            row, made = checking.new_secret_of(endpoint, scheme)
            outcome = yield from store.rotate(tenant, endpoint, row, lasts)
            if outcome == "unknown":
                raise unknown(endpoint)
            if outcome == "many":
                raise Refused(
                    "secrets",
                    f"endpoint {endpoint} has 5 secrets in use, the most there can be. "
                    "Wait until one expires, or rotate with overlap=0",
                )
            which = {"tenant": tenant, "endpoint": str(endpoint), "secret": str(made.id), "overlap": lasts}
            yield from self._noted("rotate", which)
            return made

        return flow

    def details(self, endpoint: UUID, tenant: str) -> Act[dict[str, Any]]:
        """Health, secrets without their values, ranges in progress, how many deliveries wait."""

        def flow() -> Flow[dict[str, Any]]:
            found = yield from store_acts.details(tenant, endpoint)
            if found is None:
                raise unknown(endpoint)
            return found

        return flow

    # Deliveries ------------------------------------------------------------------------------------------------------

    def deliveries(
        self,
        tenant: str,
        endpoint: UUID | None,
        status: str | None,
        before: UUID | None,
        limit: int,
        *,
        tried: bool = False,
    ) -> Act[list[Delivery]]:
        """`tried`: with their attempts."""
        if status is not None and status not in get_args(DeliveryStatus):
            raise ConfigurationError(
                f"status must be one of {', '.join(get_args(DeliveryStatus))}, not {shown(status)}"
            )
        most = checks.integer(limit, "limit", 1, MOST_LISTED, ConfigurationError)

        def flow() -> Flow[list[Delivery]]:
            found = yield from store_acts.deliveries(tenant, endpoint, status, before, most, tried=tried)
            return [delivery_of(one) for one in found]

        return flow

    def delivery(self, delivery: UUID, tenant: str) -> Act[Delivery]:
        """One, with its attempts."""

        def flow() -> Flow[Delivery]:
            return (yield from _delivery(tenant, delivery))

        return flow

    def ping(self, endpoint: UUID, tenant: str) -> Act[Delivery]:
        def flow() -> Flow[Delivery]:
            found = yield from store_acts.ping(tenant, endpoint)
            if found["outcome"] == "no_queue":
                raise _no_queue(found["queue"])
            if found["outcome"] == "unknown":
                raise unknown(endpoint)
            made = UUID(found["delivery"])
            which = {"tenant": tenant, "endpoint": str(endpoint), "delivery": str(made)}
            yield from self._noted("ping", which)
            return (yield from _delivery(tenant, made))

        return flow

    def redeliver(self, delivery: UUID, tenant: str) -> Act[Delivery]:
        attempts, ordered = self._spec.attempts, len(self._spec.ordered_schedule) + 1

        def flow() -> Flow[Delivery]:
            found = yield from store_acts.redeliver(tenant, delivery, attempts, ordered)
            if found["outcome"] != "made":
                raise _not_redelivered(delivery, found)
            made = UUID(found["delivery"])
            which = {"tenant": tenant, "delivery": str(delivery), "made": str(made)}
            yield from self._noted("redeliver", which)
            return (yield from _delivery(tenant, made))

        return flow

    def redeliver_range(
        self,
        endpoint: UUID,
        tenant: str,
        since: datetime | int,
        until: datetime | int | None,
        only: Only,
        rate: Rate | None,
        *,
        dry_run: bool,
        most: int | None = None,
    ) -> Act[Ranged]:
        """`most`: how many ranges of the tenant may be in progress at once."""
        checking.check_range(since, until, only, rate)
        header = self._spec.tenant if isinstance(self._spec.tenant, str) else None
        if header is None and only != "failed":
            raise Refused(
                "tenant_function",
                f'only="{only}" needs a header that says whose an event is, and tenant= is a function here. '
                'Use only="failed", or hooks.replay(since, until): it asks the function, and sends each endpoint what it '
                "wants and was not sent",
            )
        place = store_acts.Range(
            endpoint, only, header, since, until, None if rate is None else rate.per_second
        )

        def flow() -> Flow[Ranged]:
            found = yield from store_acts.begin_range(tenant, place, most, dry_run=dry_run)
            if found["outcome"] not in ("begun", "counted"):
                raise _no_range(endpoint, found)
            made = Ranged(found["count"], found["after"], found["until"], found["outcome"] == "begun")
            if made.begun:
                which = {"tenant": tenant, "endpoint": str(endpoint), "only": only, "after": made.after}
                yield from self._noted("redeliver_range", {**which, "until": made.until}, made.count)
            return made

        return flow

    # Keys ------------------------------------------------------------------------------------------------------------

    def reseal(self) -> Act[int]:
        """One transaction of it: how many secrets and headers were sealed again; 0: all of them are by the first key."""
        ring = key_ring()
        key = ring.sealing
        if key is None:
            raise ConfigurationError(
                "there is no key to seal with. Set HOLDFAST_SECRET_KEYS=id:base64, "
                "with a key of: openssl rand -base64 32"
            )

        def flow() -> Flow[int]:
            found = yield from store_acts.unsealed(key, RESEALED)
            for one in found:
                yield from store_acts.resealed(one, checking.sealed_anew(ring, one))
            if found:
                yield from self._noted("reseal", {"key": key}, len(found))
            return len(found)

        return flow


def _delivery(tenant: str, delivery: UUID) -> Flow[Delivery]:
    found = yield from store_acts.delivery(tenant, delivery)
    if found is None:
        raise unknown_delivery(delivery)
    return delivery_of(found)


def _known(found: Any, endpoint: UUID) -> Endpoint:
    if found is None:
        raise unknown(endpoint)
    if found == "soon":
        raise Refused(
            "soon",
            f"endpoint {endpoint} was enabled less than 5 minutes ago, and disabled again since. "
            "Repair what is behind it, then try again",
        )
    return endpoint_of(found)


def unknown(endpoint: UUID, whose: str = "the tenant has") -> UnknownEndpoint:
    return UnknownEndpoint(f"{whose} no endpoint {endpoint}")


def unknown_delivery(delivery: UUID, whose: str = "the tenant has") -> UnknownEndpoint:
    return UnknownEndpoint(f"{whose} no delivery {delivery}, or it is no longer kept")


def _no_queue(queue: str) -> UnknownQueue:
    return UnknownQueue(
        f"queue {queue!r} does not exist yet. Make the queues of webhooks: holdfast queue sync"
    )


def _inactive(found: Mapping[str, Any]) -> Refused:
    text = f"endpoint {found['endpoint']} is {found['status']}. Make it active first"
    return Refused("inactive", text, endpoint=found["endpoint"])


def _not_redelivered(delivery: UUID, found: Mapping[str, Any]) -> Exception:
    match found["outcome"]:
        case "unknown":
            return unknown_delivery(delivery)
        case "ping":
            return Refused("ping", f"delivery {delivery} is a ping. Ping the endpoint again instead")
        case "no_endpoint":
            return Refused("no_endpoint", f"the endpoint of delivery {delivery} was deleted")
        case "inactive":
            return _inactive(found)
        case "waits":
            other = found["delivery"]
            which = "it" if other == str(delivery) else f"delivery {other}"
            return Refused("waits", f"the event is about to be delivered already: {which} is pending")
        case _:
            return EventsGone(
                f"the log no longer has the event of delivery {delivery}, at position {found['position']}: "
                f"it begins after position {found['start']}"
            )


def _no_range(endpoint: UUID, found: Mapping[str, Any]) -> Exception:
    match found["outcome"]:
        case "unknown":
            return unknown(endpoint)
        case "inactive":
            return _inactive(found)
        case "many":
            return Refused(
                "ranges", f"{found['most']} ranges are being redelivered already. Wait until one has ended"
            )
        case _:
            asked = "" if found.get("after") is None else f", and events after {found['after']} are gone"
            begins = "" if found["first"] is None else f" ({found['first']})"
            return EventsGone(f"the log begins after position {found['start']}{begins}{asked}")
