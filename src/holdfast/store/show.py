"""One job, or a line of a list: everything that is known about it, whatever its state."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ..model import exact
from ..model.fence import fence
from ..model.state import PROCESSING
from .statement import Flow, Row, Statement, ids, named


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job in a list. `state` is the status that the view holdfast.jobs gives it."""

    id: UUID
    queue: str
    task: str
    state: str
    priority: int
    attempts: int
    max_attempts: int
    created_at: datetime
    available_at: datetime
    claimed_by: str | None
    lease_expires_at: datetime | None
    finished_at: datetime | None
    last_error: str | None
    hold_reason: str | None


@dataclass(frozen=True, slots=True)
class JobDetail(JobLine):
    version: int
    crashes: int
    generation: int
    sequence: int
    partition_key: str | None
    partition_bucket: int
    payload: Any
    result: Any
    claimed_at: datetime | None
    cancel_requested_at: datetime | None
    tags: list[str]
    metadata: Any
    lease_left_seconds: float | None
    fence: str | None  # of the attempt that runs now
    parent_id: UUID | None
    group_id: UUID | None
    follow_ups: Any  # to be enqueued when it completes
    gives_up_at: datetime | None  # its deadline by age, once an attempt has failed


def summarize_jobs(job_ids: Sequence[UUID]) -> Statement[list[JobLine]]:
    def decode(rows: Sequence[Row]) -> list[JobLine]:
        return [JobLine(*r) for r in rows]

    return named("summarize_jobs", (list(job_ids),), decode)


def show_job(job_id: UUID) -> Statement[JobDetail | None]:
    def decode(rows: Sequence[Row]) -> JobDetail | None:
        if not rows:
            return None
        (
            *plain,
            payload,
            result,
            claimed_at,
            cancel,
            tags,
            metadata,
            left,
            timeline,
            parent,
            group,
            then,
            until,
        ) = rows[0]
        state, generation, sequence = plain[3], plain[16], plain[17]
        own_fence = None
        if state == PROCESSING and timeline is not None:
            own_fence = fence(int(timeline, 16), sequence, generation)
        facts = [
            _json(payload),
            _json(result),
            claimed_at,
            cancel,
            list(tags or ()),
            _json(metadata),
            left,
            own_fence,
            parent,
            group,
            _json(then),
            until,
        ]
        return JobDetail(*[*plain, *facts])

    return named("show_job", (job_id,), decode)


def _json(text: str | None) -> Any:
    return None if text is None else exact.loads(text)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One failed attempt, or one that lost its owner."""

    attempt: int
    generation: int
    at: datetime
    worker: str | None
    kind: str
    message: str
    trace: str

    @property
    def what(self) -> str:
        """What happened: `attempt 2 failed`. The loss of an owner spends none."""
        return _LOST.get(self.kind) or f"attempt {self.attempt} failed"


_LOST = {"WorkerSilent": "owner lost", "LeaseLost": "owner lost", "ProcessDied": "process died"}


@dataclass(frozen=True, slots=True)
class Progress:
    fraction: float
    message: str
    at: datetime
    generation: int


@dataclass(frozen=True, slots=True)
class Step:
    """What job.once() recorded."""

    name: str
    at: datetime


def show_errors(job_id: UUID, limit: int = 100) -> Statement[list[Attempt]]:
    return named("show_errors", (job_id, limit), lambda rows: [Attempt(*r) for r in rows])


def show_progress(job_id: UUID) -> Statement[Progress | None]:
    return named("show_progress", (job_id,), lambda rows: Progress(*rows[0]) if rows else None)


def show_steps(job_id: UUID, limit: int = 100) -> Statement[list[Step]]:
    return named("show_steps", (job_id, limit), lambda rows: [Step(*r) for r in rows])


def ids_between(lowest: UUID, highest: UUID, limit: int) -> Statement[list[UUID]]:
    return named("ids_between", (lowest, highest, limit), ids)


@dataclass(frozen=True, slots=True)
class Look:
    """One job as its producer sees it."""

    id: UUID
    task: str
    queue: str
    state: str
    attempts: int
    created_at: datetime
    finished_at: datetime | None
    result: str | None  # JSON text
    error: str | None
    progress: Progress | None
    errors: list[Attempt]


def look_job(job_id: UUID) -> Flow[Look | None]:
    """None: there is no such job, or it is finished and no longer kept."""
    rows = yield from named("look_job", (job_id,), list)
    if not rows:
        return None
    errors = yield from show_errors(job_id)
    progress = yield from show_progress(job_id)
    return Look(*[*rows[0], progress, errors])
