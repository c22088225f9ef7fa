"""Prometheus metrics of the log and its subscriptions."""

from collections.abc import Iterator
from typing import NamedTuple

from ...shape import Counted, Gauge, Measures
from ...store.statement import Flow
from .store.health import Health, last_position, subscription_health

STATUSES = ("active", "paused", "building", "expired")


class Seen(NamedTuple):
    last_position: int
    subscriptions: list[Health]


def look(dead_after: float) -> Flow[Seen]:
    """No page is turned: events without a number are no lag yet."""
    last = yield from last_position()
    found = yield from subscription_health(dead_after)
    return Seen(
        last, [h for h in found if h.replay_of is None]
    )  # replays come and go, and would leave series behind


def gauges(seen: Seen) -> Iterator[Gauge]:
    each = [((h.name, str(h.shard)), h) for h in seen.subscriptions]
    names = list(dict.fromkeys(h.name for h in seen.subscriptions))
    counted = {(name, status): 0 for name in names for status in STATUSES}
    for h in seen.subscriptions:
        counted[h.name, h.status] += 1
    which = ("subscription", "shard")
    yield Gauge("events_last_position", "The last position of the log.", (), [((), seen.last_position)])
    yield Gauge(
        "subscription_lag_events",
        "Events that it has not read yet.",
        which,
        [(key, h.lag_events) for key, h in each],
    )
    yield Gauge(
        "subscription_lag_seconds",
        "For how long the oldest event that it has not read waits.",
        which,
        [(key, h.lag_seconds) for key, h in each],
    )
    yield Gauge(
        "subscription_owned",
        "1: a live worker has it.",
        which,
        [(key, h.owner is not None) for key, h in each],
    )
    yield Gauge(
        "subscription_status",
        "How many of its shards have this status.",
        ("subscription", "status"),
        list(counted.items()),
    )
    yield Gauge(
        "subscription_missed_events",
        "Events that were removed before it read them.",
        which,
        [(key, h.missed or 0) for key, h in each],
    )
    yield Gauge(
        "subscription_failures",
        "Events that it skipped or parked, up to 10000.",
        which,
        [(key, h.failures) for key, h in each],
    )


MEASURES = Measures(
    look,
    gauges,
    {
        "events.published": Counted(
            "events_published", "Events published by this process, committed or not.", amount="events"
        ),
        "events.delivered": Counted(
            "events_delivered",
            "Events that took effect here: they became jobs, or a projection applied them.",
            ("subscription",),
            "events",
        ),
        "subscription.failed": Counted(
            "subscription_tries_failed", "Batches that failed here and are tried again.", ("subscription",)
        ),
    },
)
