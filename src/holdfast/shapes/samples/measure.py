"""Prometheus metrics of the last sample."""

from collections.abc import Iterator, Sequence

from ...shape import Gauge, Measures
from ...store.samples import Latest, last_samples
from ...store.statement import Flow


def look(dead_after: float) -> Flow[Sequence[Latest]]:
    return (yield from last_samples())


def gauges(seen: Sequence[Latest]) -> Iterator[Gauge]:
    yield Gauge(
        "queue_oldest_able_seconds",
        "How long the oldest due job waits that could run, as of the last minute.",
        ("queue",),
        [((one.queue,), one.oldest or 0.0) for one in seen],
    )
    yield Gauge(
        "queue_behind",
        "Due jobs behind a job or a key that waits for something else, up to 10000.",
        ("queue",),
        [((one.queue,), one.behind) for one in seen],
    )


MEASURES = Measures(look, gauges)
