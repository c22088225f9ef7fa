"""Questions of the doctor and the metrics about runs; operate.sql has the text. Each reads a bounded number of rows."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from ...store.doctor import CAP
from ...store.statement import Row, Statement, named

OLDEST = 10_000  # runs that are read


class ProblemRun(NamedTuple):
    id: UUID
    workflow: str
    key: str
    trouble: str  # lost, or what is wrong with it

    def __str__(self) -> str:
        what = "" if self.trouble == "lost" else f": {self.trouble}"
        return f"{self.workflow} {self.key!r} ({self.id}){what}"


class UnknownVersion(NamedTuple):
    """A version of open runs that no live worker has."""

    queue: str
    workflow: str
    version: int
    runs: int
    seconds: float  # since the oldest of them was started


class DivergedRuns(NamedTuple):
    """Runs of a version whose code diverged from their history."""

    workflow: str
    version: int
    runs: int
    first: list[UUID]  # some of them
    reason: str  # of the first


def _troubled(rows: Sequence[Row]) -> list[ProblemRun]:
    return [ProblemRun(*row) for row in rows]


def lost() -> Statement[list[ProblemRun]]:
    return named("workflow_lost_runs", (OLDEST,), _troubled)


def stuck() -> Statement[list[ProblemRun]]:
    return named("workflow_stuck", (OLDEST,), _troubled)


def orphans() -> Statement[list[ProblemRun]]:
    return named("workflow_orphans", (OLDEST,), _troubled)


def torn() -> Statement[list[ProblemRun]]:
    return named("workflow_torn", (OLDEST,), _troubled)


def unknown(dead_after: float) -> Statement[list[UnknownVersion]]:
    params = (OLDEST, dead_after)
    return named("workflow_unknown", params, lambda rows: [UnknownVersion(*row) for row in rows])


def parted() -> Statement[list[DivergedRuns]]:
    return named("workflow_parted", (CAP,), lambda rows: [DivergedRuns(*row) for row in rows])


def measured() -> Statement[dict[tuple[str, str], int]]:
    """Open runs by workflow and state, of the oldest."""

    def decode(rows: Sequence[Row]) -> dict[tuple[str, str], int]:
        return {(workflow, state): number for workflow, state, number in rows}

    return named("workflow_measured", (CAP,), decode)


def parted_for() -> Statement[float]:
    """Seconds for which the first run is set aside that diverged from its code; 0: none is."""
    return named("workflow_parted_for", (CAP,), lambda rows: float(rows[0][0] or 0.0))
