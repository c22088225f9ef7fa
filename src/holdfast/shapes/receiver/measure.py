"""Prometheus metrics of received messages."""

from collections.abc import Iterator

from ...shape import Counted, Gauge, Measures
from ...store.statement import Flow
from .store import Health, source_health


def look(dead_after: float) -> Flow[list[Health]]:
    return (yield from source_health())


def gauges(seen: list[Health]) -> Iterator[Gauge]:
    brokers = [s for s in seen if s.broker]
    yield Gauge(
        "source_parked_messages",
        "Messages that did not fit, of the newest 10000 dead letters.",
        ("source",),
        [((s.name,), s.parked) for s in seen],
    )
    yield Gauge(
        "source_waiting_messages",
        "Messages that wait in the broker, where it says so.",
        ("source",),
        [((s.name,), s.waiting) for s in brokers if s.waiting is not None],
    )
    yield Gauge(
        "source_read_age_seconds",
        "Since the broker last replied to a worker.",
        ("source",),
        [((s.name,), s.unread) for s in brokers],
    )


MEASURES = Measures(
    look,
    gauges,
    {
        "received.counted": Counted(
            "received_messages",
            "Messages that were received here, by what became of them.",
            ("source", "outcome"),
            "messages",
        ),
    },
)
