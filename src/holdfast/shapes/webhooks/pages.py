"""Webhooks on the dashboard: which endpoint fails, and the requests to it."""

from datetime import datetime
from typing import Any

from ...errors import ConfigurationError
from ...operate.procedure import Procedure, run
from ...operate.wording import moment, several
from ...pages import (
    Alert,
    Code,
    Facts,
    Filter,
    Link,
    Offer,
    Page,
    PageRequest,
    Pages,
    Problem,
    Row,
    State,
    Table,
    Tone,
    View,
)
from . import store_acts as statements
from .acts import Acts
from .model import Delivery, Endpoint, endpoint_of
from .page_acts import ACTS, coded_acts, read_id, tenant_of
from .spec import Spec

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


def _state(word: str, note: str | None = None) -> State:
    return State(word, _TONES.get(word, "due"), Problem(note) if note else "")


def _list(asked: PageRequest) -> Procedure[View]:
    after = asked.query.get("after") or None
    found = yield from run(lambda: statements.list_all(None if after is None else read_id(after), LINES))
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
    return [
        turn,
        *(Offer(f"webhook {verb}", given) for verb in ("ping", "redeliver-range", "rotate", "disable")),
    ]


def _one(asked: PageRequest) -> Procedure[View]:
    endpoint = read_id(asked.path["endpoint"])
    tenant = yield from tenant_of(endpoint)
    acts = Acts(Spec(), "web")
    found: Endpoint = yield from run(acts.get(endpoint, tenant))
    more: dict[str, Any] = yield from run(acts.details(endpoint, tenant))
    status = asked.query.get("status") or None
    after = asked.query.get("after") or None
    sent: list[Delivery] = yield from run(
        acts.deliveries(tenant, endpoint, status, None if after is None else read_id(after), LINES)
    )
    health = more["health"] or {}
    blocks: list[Any] = []
    if health.get("failing_since"):
        since = moment(datetime.fromisoformat(health["failing_since"]))
        blocks.append(Alert(f"Every attempt failed since {since}.", "dead", "This endpoint fails"))
        blocks.append(Table(("Last error~",), [Row((Problem(str(health.get("last_error") or "")),))]))
    rows = [
        Row(
            (Link(f"…{d.id.hex[-12:]}", f"webhooks/deliveries/{d.id}", code=True), d.created_at, Code(d.event_type), d.cause,
             _state(d.status), d.tries, d.last_status, Problem(d.reason or d.last_error)),
            (Offer("webhook redeliver", {"delivery": str(d.id)}),) if d.status in ("failed", "delivered") else (), str(d.id),
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
    wanted = read_id(asked.path["delivery"])
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
    heads = ("No.#", "When", "HTTP#", "What happened~", "Took", "Address")
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


def _in_use() -> Procedure[bool]:
    return bool((yield from run(lambda: statements.list_all(None, 1))))


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
            live=5,
        ),
        Page("webhooks/deliveries/{delivery}", "Delivery", _delivery),
        Page(
            "webhooks/{endpoint}",
            "Endpoint",
            _one,
            filters=(Filter("status", "State", ("pending", "delivered", "failed", "cancelled")),),
            takes=("after",),
            live=5,
        ),
    ],
    ACTS,
    coded_acts,
)
