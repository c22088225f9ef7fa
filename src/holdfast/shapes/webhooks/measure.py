"""Prometheus metrics of webhooks."""

from collections.abc import Iterator

from ...shape import Counted, Gauge, Measures
from ...store.statement import Flow
from .store import Seen, health

STATUSES = ("active", "paused", "disabled")


def look(dead_after: float) -> Flow[Seen]:
    return (yield from health())


def gauges(seen: Seen) -> Iterator[Gauge]:
    yield Gauge(
        "webhook_deliveries_pending",
        "Deliveries that have not ended, up to 10000.",
        (),
        [((), seen.pending)],
    )
    yield Gauge(
        "webhook_oldest_pending_seconds", "Age of the oldest of them.", (), [((), seen.oldest_seconds)]
    )
    yield Gauge(
        "webhook_endpoints",
        "Endpoints of this status, up to 10000.",
        ("status",),
        [((status,), seen.statuses.get(status, 0)) for status in STATUSES],
    )
    yield Gauge(
        "webhook_endpoints_failing",
        "Endpoints that have done nothing but fail since their last success, up to 10000.",
        (),
        [((), seen.failing)],
    )


MEASURES = Measures(
    look,
    gauges,
    {
        "webhook.attempted": Counted(
            "webhook_attempts", "Requests of this worker by their result.", ("result",)
        ),
        "webhook.opened": Counted("webhook_breakers_opened", "Breakers of endpoints that opened."),
        "webhook.disabled": Counted(
            "webhook_endpoints_disabled", "Endpoints that were disabled.", ("reason",)
        ),
    },
)
