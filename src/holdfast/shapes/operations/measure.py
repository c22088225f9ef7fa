"""Prometheus metrics of operations."""

from collections.abc import Iterator, Mapping

from ...shape import Gauge, Measures
from ...store.operations import OPEN, count_operations
from ...store.statement import Flow

Seen = Mapping[str, tuple[int, int]]


def look(dead_after: float) -> Flow[Seen]:
    return (yield from count_operations())


def gauges(seen: Seen) -> Iterator[Gauge]:
    counts = [((state,), seen.get(state, (0, 0))[0]) for state in OPEN]
    yield Gauge("operations", "Acts over many that have not ended, by state.", ("state",), counts)
    stuck = sum(faults for _, faults in seen.values())
    yield Gauge("operations_stuck", "Of them, those that could not continue.", (), [((), stuck)])


MEASURES = Measures(look, gauges)
