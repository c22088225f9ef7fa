"""Explain: everything that decides whether one job runs, read in one snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ..model.state import HELD, PENDING
from .limits import AHEAD as BEFORE_ITS_TOKEN
from .queue_load import prefer_indexes
from .statement import Flow, Row, Statement, count, named, nothing

AHEAD = 1000  # jobs ahead are counted so far
WORKERS = 1000
ENTRIES = 10_000  # of the audit


@dataclass(frozen=True, slots=True)
class Subject:
    """The job that is explained."""

    state: str  # as in holdfast.jobs
    status: str | None  # of the live row
    queue: str
    task: str
    version: int
    priority: int
    attempts: int
    max_attempts: int
    suspect: int
    generation: int
    sequence: int
    available_at: datetime
    finished_at: datetime | None
    result: str | None
    last_error: str | None
    hold_reason: str | None
    cancel_requested_at: datetime | None
    claimed: bool  # a claim row holds it
    worker: str | None
    lease_expires_at: datetime | None
    revoked: bool
    now: datetime
    gives_up_at: datetime | None  # its deadline by age, once an attempt has failed


@dataclass(frozen=True, slots=True)
class Rules:
    has_queue: bool
    queue_paused_at: datetime | None
    queue_paused_by: str | None
    task_paused_at: datetime | None
    task_paused_by: str | None
    grace_until: datetime | None
    breaker: str | None = None  # open or half_open; None: closed, or there is none
    breaker_opened_at: datetime | None = None
    breaker_retry_at: datetime | None = None
    breaker_error: str | None = None


@dataclass(frozen=True, slots=True)
class LastError:
    attempt: int
    generation: int
    at: datetime


@dataclass(frozen=True, slots=True)
class StreamSeen:
    """The stream that the job is in, where its queue is ordered by key."""

    key: str
    parked_at: datetime | None
    parked_for: UUID | None  # the dead letter
    before: int  # jobs of the key before this one, up to AHEAD
    first: UUID
    state: str  # of the first one, and so on
    due_at: datetime
    since: datetime
    hold_reason: str | None
    last_error: str | None
    worker: str | None


@dataclass(frozen=True, slots=True)
class HoldSeen:
    """The hold on the key of the job."""

    key: str
    until: datetime  # the year 9999: until it is lifted
    since: datetime
    reason: str | None
    over: bool  # it waits for its trial, or for a decision after it
    trial: bool
    trial_job: UUID | None
    trial_state: str | None  # running, returned or over


@dataclass(frozen=True, slots=True)
class AffinitySeen:
    """Which worker owns the key of the job, in a queue with affinity."""

    key: str
    bucket: int
    seats: list[tuple[int, str]]  # of the queue's ring, with the workers that have them


@dataclass(frozen=True, slots=True)
class LimitsSeen:
    """The limits of the job's queue and key, where there are any, and what is used of them."""

    concurrency: int | None
    running: int
    rate: float | None  # starts per second
    next_in: float  # seconds until the rate allows one
    key: str | None
    key_concurrency: int | None
    key_running: int
    key_rate: float | None
    key_next_in: float
    key_own: bool  # the number is of this key alone


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    id: str
    status: str
    silent: float  # seconds since it was heard of
    queues: list[str]
    knows: bool  # the task, in some version
    tasks: list[str]  # the first few
    task_count: int
    concurrency: int
    release: str
    running: int
    signature: str | None = (
        None  # of the task in the job's version; None: it does not take it, or does not say
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """A signature that the payload does not fit."""

    signature: str
    ago: float  # seconds
    reason: str
    newer: bool = False  # only newer code can take it


@dataclass(frozen=True, slots=True)
class Seen:
    job: Subject
    rules: Rules
    error: LastError | None
    moved: bool  # an operator changed when it runs, at some time
    workers: list[WorkerSeen]
    ahead: int
    stream: StreamSeen | None = None
    limits: LimitsSeen | None = None
    refusals: Sequence[Refusal] = ()  # the last one first
    hold: HoldSeen | None = None
    affinity: AffinitySeen | None = None


def one_snapshot() -> Statement[None]:
    return named("one_snapshot", (), nothing)


def explain(job_id: UUID) -> Flow[Seen | None]:
    """None: there is no such job, or it is finished and no longer kept."""
    yield from one_snapshot()
    yield from prefer_indexes()
    job = yield from _job(job_id)
    if job is None:
        return None
    rules = yield from named("explain_rules", (job.queue, job.task), lambda rows: Rules(*rows[0]))
    error = yield from _error(job_id)
    moved = yield from named("explain_moved", (job_id, ENTRIES), count)
    workers = yield from _workers(job.task, job.version)
    ahead = (yield from _ahead(job)) if job.state == PENDING else 0
    stream = (yield from _stream(job.queue, job_id)) if job.status else None
    limits = (yield from _limits(job.queue, job_id)) if job.state == PENDING else None
    refusals = (yield from _refusals(job.queue, job_id)) if job.status == HELD else []
    hold = (yield from _hold(job.queue, job_id)) if job.status else None
    affinity = (yield from _affinity(job.queue, job_id)) if job.state == PENDING else None
    return Seen(job, rules, error, moved > 0, workers, ahead, stream, limits, refusals, hold, affinity)


def _job(job_id: UUID) -> Statement[Subject | None]:
    def decode(rows: Sequence[Row]) -> Subject | None:
        return Subject(*rows[0]) if rows else None

    return named("explain_job", (job_id,), decode)


def _stream(queue: str, job_id: UUID) -> Statement[StreamSeen | None]:
    def decode(rows: Sequence[Row]) -> StreamSeen | None:
        return StreamSeen(*rows[0]) if rows else None

    return named("explain_stream", (queue, job_id, AHEAD), decode)


def _affinity(queue: str, job_id: UUID) -> Statement[AffinitySeen | None]:
    def decode(rows: Sequence[Row]) -> AffinitySeen | None:
        if not rows:
            return None
        key, bucket, seats, workers = rows[0]
        return AffinitySeen(key, bucket, list(zip(seats, workers, strict=True)))

    return named("explain_affinity", (queue, job_id), decode)


def _limits(queue: str, job_id: UUID) -> Statement[LimitsSeen | None]:
    def decode(rows: Sequence[Row]) -> LimitsSeen | None:
        return LimitsSeen(*rows[0]) if rows else None

    return named("explain_limits", (queue, job_id, BEFORE_ITS_TOKEN), decode)


def _hold(queue: str, job_id: UUID) -> Statement[HoldSeen | None]:
    def decode(rows: Sequence[Row]) -> HoldSeen | None:
        return HoldSeen(*rows[0]) if rows else None

    return named("explain_hold", (queue, job_id), decode)


def _refusals(queue: str, job_id: UUID) -> Statement[list[Refusal]]:
    def decode(rows: Sequence[Row]) -> list[Refusal]:
        return [Refusal(*r) for r in rows]

    return named("explain_misfits", (queue, job_id), decode)


def _error(job_id: UUID) -> Statement[LastError | None]:
    def decode(rows: Sequence[Row]) -> LastError | None:
        return LastError(*rows[0]) if rows else None

    return named("explain_error", (job_id,), decode)


def _workers(task: str, version: int) -> Statement[list[WorkerSeen]]:
    return named(
        "explain_workers",
        (task, WORKERS, version),
        lambda rows: [WorkerSeen(*r) for r in rows],
    )


def _ahead(job: Subject) -> Statement[int]:
    place = (job.queue, job.priority, job.available_at, job.sequence, AHEAD)
    return named("explain_ahead", place, count)
