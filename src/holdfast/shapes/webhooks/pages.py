"""Webhooks on the dashboard: which endpoint fails, and the requests to it."""

from typing import Any
from uuid import UUID

from ...errors import ConfigurationError
from ...model.duration import parse_duration
from ...operate.procedure import Procedure, actor, run
from ...operate.wording import several
from ...pages import (
    Act,
    ActResult,
    Alert,
    Code,
    Facts,
    Field,
    Filter,
    Given,
    Link,
    Offer,
    Page,
    PageRequest,
    Pages,
    Preview,
    Problem,
    Row,
    State,
    Table,
    Tone,
    View,
)
from . import store_acts as statements
from .acts import Acts, unknown
from .model import Delivery, Endpoint, endpoint_of
from .model import Secret as NewSecret
from .spec import Spec

_ENDPOINT = Field("endpoint")
_TONES: dict[str, Tone] = {
    "active": "done",
    "paused": "held",
    "disabled": "dead",
    "delivered": "done",
    "failed": "dead",
    "pending": "due",
    "cancelled": "due",
}
LINES = 50


def _id(word: str) -> UUID:
    try:
        return UUID(word)
    except ValueError:
        raise ConfigurationError(f"{word[:60]!r} is not the id of an endpoint or a delivery") from None


def _state(word: str, note: str | None = None) -> State:
    return State(word, _TONES.get(word, "due"), Problem(note) if note else "")


def _list(asked: PageRequest) -> Procedure[View]:
    after = asked.query.get("after") or None
    found = yield from run(lambda: statements.list_all(None if after is None else _id(after), LINES))
    endpoints = [endpoint_of(one) for one in found]
    rows = [
        Row(
            (
                Link(e.url, f"webhooks/{e.id}"),
                e.tenant,
                _state(e.status, e.disabled_reason),
                ", ".join(e.events),
                "by key" if e.ordered else "",
            ),
            _offers(e)[:1],
            str(e.id),
        )
        for e in endpoints
    ]
    heads = ("Endpoint~", "Tenant", "State", "Events", "Order")
    more = {"after": str(endpoints[-1].id)} if len(endpoints) == LINES else None
    data = [_plain(e) for e in endpoints]
    return View(
        [Table(heads, rows, "Endpoints", "in the order in which they were made")],
        data,
        ("webhook", "list"),
        more=more,
    )


def _plain(e: Endpoint) -> dict[str, Any]:
    return {name: getattr(e, name) for name in e.__slots__ if name not in ("secret", "rate")}


def _offers(e: Endpoint) -> list[Offer]:
    given = {"endpoint": str(e.id)}
    turn = Offer("webhook pause", given) if e.status == "active" else Offer("webhook enable", given)
    return [turn, *(Offer(f"webhook {verb}", given) for verb in ("ping", "rotate", "disable"))]


def _one(asked: PageRequest) -> Procedure[View]:
    endpoint = _id(asked.path["endpoint"])
    tenant = yield from _tenant(endpoint)
    acts = Acts(Spec(), "web")
    found: Endpoint = yield from run(acts.get(endpoint, tenant))
    more: dict[str, Any] = yield from run(acts.details(endpoint, tenant))
    status = asked.query.get("status") or None
    after = asked.query.get("after") or None
    sent: list[Delivery] = yield from run(
        acts.deliveries(tenant, endpoint, status, None if after is None else _id(after), LINES)
    )
    health = more["health"] or {}
    blocks: list[Any] = []
    if health.get("failing_since"):
        blocks.append(Alert(f"It fails since {health['failing_since']}.", "dead", "This endpoint fails"))
        blocks.append(Table(("Last error~",), [Row((Problem(str(health.get("last_error") or "")),))]))
    rows = [
        Row(
            (Link(str(d.id), f"webhooks/deliveries/{d.id}", code=True), d.created_at, Code(d.event_type), d.cause,
             _state(d.status), d.tries, d.last_status, Problem(d.reason or d.last_error)),
            (Offer("webhook redeliver", {"delivery": str(d.id)}),) if d.status in ("failed", "delivered") else (),
        )
        for d in sent
    ]  # fmt: skip
    heads = ("Delivery", "When", "Type", "Cause", "State", "Attempts#", "HTTP#", "Last~")
    blocks.append(Table(heads, rows, "Deliveries", "the newest first", "Nothing was sent yet."))
    facts = Facts(
        [
            ("Tenant", found.tenant),
            ("Address", Code(found.url)),
            ("Events", ", ".join(found.events)),
            ("State", _state(found.status, found.disabled_reason)),
            ("Waiting", more["waiting"]),
            ("Secrets", several(len(more["secrets"]), "secret")),
            ("Description", found.description or None),
        ],
        "Endpoint",
    )
    crumbs = (Link("Webhooks", "webhooks"),)
    data = {"endpoint": _plain(found), "waiting": more["waiting"], "deliveries": sent}
    following = None
    if len(sent) == LINES:
        following = {"after": str(sent[-1].id), **({"status": status} if status else {})}
    words = ("webhook", "deliveries", str(endpoint), *(("--status", status) if status else ()))
    return View(blocks, data, words, found.url, crumbs, (facts,), _offers(found), following)


def _delivery(asked: PageRequest) -> Procedure[View]:
    wanted = _id(asked.path["delivery"])
    tenant: str | None = yield from run(lambda: statements.tenant_of_delivery(wanted))
    if tenant is None:
        raise ConfigurationError(f"there is no delivery {wanted}, or it is no longer kept")
    found: Delivery = yield from run(Acts(Spec(), "web").delivery(wanted, tenant))
    rows = [
        Row(
            (
                one.n,
                one.at,
                one.status,
                Problem(one.detail or one.error),
                f"{one.took.total_seconds():.2f} s",
                one.address or "",
            )
        )
        for one in found.attempts
    ]
    heads = ("#", "When", "HTTP#", "What happened~", "Took", "Address")
    facts = Facts(
        [
            ("Event", Code(str(found.event_id))),
            ("Type", Code(found.event_type)),
            ("Cause", found.cause),
            ("State", _state(found.status)),
            ("Next attempt", found.next_attempt_at),
        ],
        "Delivery",
    )
    crumbs = (Link("Webhooks", "webhooks"), Link(found.url, f"webhooks/{found.endpoint_id}"))
    offers = (Offer("webhook redeliver", {"delivery": str(wanted)}),)
    blocks = [Table(heads, rows, "Attempts", "", "None yet.")]
    return View(blocks, found, ("webhook", "delivery", str(wanted)), str(wanted), crumbs, (facts,), offers)


def _tenant(endpoint: UUID) -> Procedure[str]:
    found: str | None = yield from run(lambda: statements.tenant_of(endpoint))
    if found is None:
        raise unknown(endpoint, "there is")
    return found


def _in_use() -> Procedure[bool]:
    return bool((yield from run(lambda: statements.list_all(None, 1))))


# Acts ---------------------------------------------------------------------------------------------------------------


def _become(status: str, said: str) -> Any:
    def act(given: Given) -> Procedure[ActResult]:
        endpoint = _id(given["endpoint"])
        tenant = yield from _tenant(endpoint)
        who = yield from actor()
        yield from run(Acts(Spec(), who).update(endpoint, tenant, status=status))
        return ActResult(f"Endpoint {endpoint} is {said}.", None, f"webhooks/{endpoint}")

    return act


def _preview_disable(given: Given) -> Procedure[Preview]:
    endpoint = _id(given["endpoint"])
    tenant = yield from _tenant(endpoint)
    more: dict[str, Any] = yield from run(Acts(Spec(), "web").details(endpoint, tenant))
    return Preview(
        f"Nothing more would be sent to it, and {several(more['waiting'], 'delivery', 'deliveries')} cancelled."
    )


def _ping(given: Given) -> Procedure[ActResult]:
    endpoint = _id(given["endpoint"])
    tenant = yield from _tenant(endpoint)
    who = yield from actor()
    made: Delivery = yield from run(Acts(Spec(), who).ping(endpoint, tenant))
    return ActResult(f"Ping {made.id} is on its way.", {"id": made.id}, f"webhooks/deliveries/{made.id}")


def _redeliver(given: Given) -> Procedure[ActResult]:
    wanted = _id(given["delivery"])
    tenant: str | None = yield from run(lambda: statements.tenant_of_delivery(wanted))
    if tenant is None:
        raise ConfigurationError(f"there is no delivery {wanted}, or it is no longer kept")
    who = yield from actor()
    made: Delivery = yield from run(Acts(Spec(), who).redeliver(wanted, tenant))
    return ActResult(f"Delivery {made.id} is pending.", {"id": made.id}, f"webhooks/deliveries/{made.id}")


def _preview_rotate(given: Given) -> Procedure[Preview]:
    endpoint = _id(given["endpoint"])
    found: Endpoint = yield from run(Acts(Spec(), "web").get(endpoint, (yield from _tenant(endpoint))))
    return Preview(
        f"{found.url} of {found.tenant} would get a new secret, shown once. The old ones sign beside it for the time below."
    )


def _rotate(given: Given) -> Procedure[ActResult]:
    endpoint = _id(given["endpoint"])
    tenant = yield from _tenant(endpoint)
    who = yield from actor()
    made: NewSecret = yield from run(Acts(Spec(), who).rotate(endpoint, tenant, _overlap(given)))
    said = f"Endpoint {endpoint} has a new secret."
    return ActResult(said, {"endpoint": endpoint, "id": made.id}, f"webhooks/{endpoint}", str(made.value))


def _overlap(given: Given) -> float:
    said = given.get("overlap") or "24h"
    found = parse_duration(said)
    if found is None:
        raise ConfigurationError(f"overlap must be a span such as 24h, or 0, not {said[:40]!r}")
    return found


def _delete(given: Given) -> Procedure[ActResult]:
    endpoint = _id(given["endpoint"])
    tenant = yield from _tenant(endpoint)
    who = yield from actor()
    yield from run(Acts(Spec(), who).delete(endpoint, tenant))
    return ActResult(f"Endpoint {endpoint} is deleted.", None, "webhooks")


def _preview_delete(given: Given) -> Procedure[Preview]:
    endpoint = _id(given["endpoint"])
    tenant = yield from _tenant(endpoint)
    more: dict[str, Any] = yield from run(Acts(Spec(), "web").details(endpoint, tenant))
    waiting = several(more["waiting"], "delivery", "deliveries")
    return Preview(
        f"Endpoint {endpoint} of {tenant} would be deleted, with its secrets and {waiting} that wait.", 1
    )


def _words(verb: str, field: str = "endpoint") -> Any:
    return lambda given: (
        "webhook",
        verb,
        given[field],
        *(("--yes",) if verb in ("disable", "delete") else ()),
    )


PAGES = Pages(
    [
        Page(
            "webhooks",
            "Webhooks",
            _list,
            "Flow",
            "webhooks",
            "Webhooks send events to the addresses of your tenants, signed and tried again. "
            "Declare them: app.webhooks(...).",
            _in_use,
            takes=("after",),
        ),
        Page("webhooks/deliveries/{delivery}", "Delivery", _delivery),
        Page(
            "webhooks/{endpoint}",
            "Endpoint",
            _one,
            filters=(Filter("status", "State", ("pending", "delivered", "failed", "cancelled")),),
            takes=("after",),
        ),
    ],
    [
        Act(
            "webhook pause", "Pause", _become("paused", "paused"), (_ENDPOINT,), _words("pause"), at_once=True
        ),
        Act(
            "webhook enable",
            "Enable",
            _become("active", "active"),
            (_ENDPOINT,),
            _words("enable"),
            at_once=True,
        ),
        Act(
            "webhook disable",
            "Disable",
            _become("disabled", "disabled"),
            (_ENDPOINT,),
            _words("disable"),
            _preview_disable,
        ),
        Act(
            "webhook rotate",
            "New secret",
            _rotate,
            (_ENDPOINT, Field("overlap", "The old ones sign for", value="24h", hint="0 after a leak.")),
            lambda g: ("webhook", "rotate", g["endpoint"], "--overlap", g.get("overlap") or "24h"),
            _preview_rotate,
            "admin",
        ),
        Act(
            "webhook delete",
            "Delete",
            _delete,
            (_ENDPOINT,),
            _words("delete"),
            _preview_delete,
            "admin",
            deletes=True,
        ),
        Act("webhook ping", "Ping", _ping, (_ENDPOINT,), _words("ping")),
        Act(
            "webhook redeliver",
            "Redeliver",
            _redeliver,
            (Field("delivery"),),
            _words("redeliver", "delivery"),
        ),
    ],
)
