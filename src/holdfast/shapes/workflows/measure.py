"""Prometheus metrics of workflows."""

from collections.abc import Iterator
from typing import NamedTuple

from ...model.state import CANCELLED, COMPLETED, DEAD_LETTER
from ...shape import Counted, CountedEnds, Gauge, Measures
from ...store.queue_load import CAP
from ...store.statement import Flow
from .declare import KIND
from .health import measured, parted_for
from .states import OPEN


class Seen(NamedTuple):
    runs: dict[tuple[str, str], int]  # by workflow and state
    parted_for: float  # seconds; 0: no run is set aside


def look(dead_after: float) -> Flow[Seen]:
    runs = yield from measured()
    return Seen(runs, (yield from parted_for()))


def gauges(seen: Seen) -> Iterator[Gauge]:
    names = sorted({workflow for workflow, _ in seen.runs})
    yield Gauge(
        "workflow_runs",
        f"Open runs by how they stand, of the oldest {CAP} jobs of each queue.",
        ("workflow", "state"),
        [((name, state), seen.runs.get((name, state), 0)) for name in names for state in OPEN],
    )
    yield Gauge(
        "workflow_diverged_seconds",
        "For how long the first run is set aside that diverged from its code; 0: none is.",
        (),
        [((), seen.parted_for)],
    )


MEASURES = Measures(
    look,
    gauges,
    {
        "workflow.began": Counted(
            "workflow_runs_began", "Runs whose code began here for the first time.", ("workflow",)
        ),
        "workflow.ended_without_code": Counted(
            "workflow_runs_ended_without_code",
            "Runs that were ended here because their job was gone.",
            (),
            "runs",
        ),
    },
    CountedEnds(
        "workflow_runs_ended",
        "Runs that ended here, by outcome.",
        "workflow",
        {COMPLETED: "completed", DEAD_LETTER: "failed", CANCELLED: "cancelled"},
        lambda tasks: {one.name for one in tasks.declared(KIND).values()},
    ),
)
