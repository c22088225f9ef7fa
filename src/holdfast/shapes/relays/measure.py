"""Prometheus counters of relays. Their lag is that of every subscription."""

from collections.abc import Iterator

from ...shape import Counted, Gauge, Measures
from ...store.statement import Flow


def look(dead_after: float) -> Flow[None]:
    """No gauges of its own."""
    return
    yield  # a flow


def gauges(seen: None) -> Iterator[Gauge]:
    return iter(())


_WHICH = ("subscription",)
MEASURES = Measures(
    look,
    gauges,
    {
        "relay.sent": Counted("relay_sent", "Messages that the destination confirmed.", _WHICH, "events"),
        "relay.refused": Counted(
            "relay_refused", "Messages that the destination will never take as they are.", _WHICH
        ),
        "relay.away": Counted("relay_tries_failed", "Tries that found the destination away.", _WHICH),
        "relay.spilled": Counted(
            "relay_spilled", "Events set aside with a key that kept failing.", _WHICH, "events"
        ),
    },
)
