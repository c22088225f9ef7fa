"""What an operator asks: bounded looks at queues, jobs, dead letters and workers, and the redrive."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ..model.fence import fence
from ..sql import query
from .statement import Flow, Row, Statement, ids, nothing

CAP = 10_000  # a count stops here
LOOK = 100_000  # a search with filters reads so many rows and no more
_TAIL = 256  # blocks read from the end of the archive


@dataclass(frozen=True, slots=True)
class Count:
    """How many. `capped`: there are more, or may be."""

    count: int
    capped: bool = False


def capped(number: int) -> Count:
    return Count(min(number, CAP), number > CAP)


@dataclass(frozen=True, slots=True)
class QueueLoad:
    name: str
    pending: Count
    scheduled: Count
    processing: Count
    held: Count
    quarantined: Count
    oldest_due_seconds: float | None


def queue_load(name: str) -> Statement[QueueLoad]:
    def decode(rows: Sequence[Row]) -> QueueLoad:
        pending, scheduled, processing, held, quarantined = (capped(n) for n in rows[0][:5])
        return QueueLoad(name, pending, scheduled, processing, held, quarantined, rows[0][5])

    return Statement("queue_load", query("queue_load"), (name, CAP + 1), decode)


def queue_leases() -> Statement[dict[str, float | None]]:
    return Statement("queue_leases", query("queue_leases"), (), lambda rows: {r[0]: r[1] for r in rows})


def dead_load() -> Statement[dict[str, int]]:
    """Dead letters per queue among the newest CAP + 1."""
    return Statement("dead_load", query("dead_load"), (CAP + 1,), lambda rows: {r[0]: r[1] for r in rows})


def worker_load(late_after: float) -> Statement[dict[str, int]]:
    params = (late_after, CAP + 1)
    return Statement("worker_load", query("worker_load"), params, lambda rows: {r[0]: r[1] for r in rows})


def finished_per_minute() -> Flow[tuple[int, bool]]:
    """Jobs finished in the last minute: (number, is it an estimate?). Reads the end of the archive and no more."""
    total, estimated = 0.0, False
    tails = yield from Statement(
        "archive_tail", query("archive_tail"), (), lambda rows: [(r[0], r[1]) for r in rows]
    )
    for slot, blocks in tails:
        first = max(0, blocks - _TAIL)
        found, span = yield from Statement(
            "recent_finished", query("recent_finished"), (slot, first), lambda rows: (rows[0][0], rows[0][1])
        )
        if first and span is not None and span < 60:  # what was read is not the whole minute
            total, estimated = total + found * 60 / max(span, 0.001), True
        else:
            total += found
    return round(total), estimated


# Jobs -------------------------------------------------------------------------------------------------------------


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


class JobFilter(NamedTuple):
    queue: str | None = None
    task: str | None = None
    states: tuple[str, ...] | None = None
    before: UUID | None = None
    limit: int = 50


def prefer_indexes() -> Statement[None]:
    return Statement("prefer_indexes", query("prefer_indexes"), (), nothing)


def _first(rows: Sequence[Row]) -> Any:
    return rows[0][0] if rows else None


Found = tuple[
    list[UUID], UUID | None
]  # ids, and the id down to which everything was looked at (None: to the end)


def search_live(f: JobFilter) -> Flow[Found]:
    states = list(f.states) if f.states else None
    params = (f.before, LOOK, f.queue, f.task, states, f.limit)
    found = yield from Statement("search_live", query("search_live"), params, ids)
    if len(found) == f.limit:
        return found, found[-1]
    reach = yield from Statement("reach_live", query("reach_live"), (f.before, LOOK, f.queue), _first)
    return found, reach


def search_archive(f: JobFilter) -> Flow[Found]:
    states = list(f.states) if f.states else None
    params = (f.before, LOOK, f.queue, f.task, states, f.limit)
    found = yield from Statement("search_archive", query("search_archive"), params, ids)
    if len(found) == f.limit:
        return found, found[-1]
    reach = yield from Statement("reach_archive", query("reach_archive"), (f.before, LOOK), _first)
    return found, reach


def search_dead(f: JobFilter) -> Flow[Found]:
    params = (f.before, LOOK, f.queue, f.task, f.limit)
    found = yield from Statement("search_dead", query("search_dead"), params, ids)
    if len(found) == f.limit:
        return found, found[-1]
    reach = yield from Statement("reach_dead", query("reach_dead"), (f.before, LOOK), _first)
    return found, reach


def search_running(f: JobFilter) -> Flow[Found]:
    params = (f.before, f.queue, f.task, f.limit)
    found = yield from Statement("search_running", query("search_running"), params, ids)
    return found, _last_of(found, f.limit)


def search_held(f: JobFilter) -> Flow[Found]:
    params = (f.before, f.queue, f.task, f.limit, LOOK)
    found = yield from Statement("search_held", query("search_held"), params, ids)
    return found, _last_of(found, f.limit)


def search_quarantined(f: JobFilter) -> Flow[Found]:
    params = (f.before, f.queue, f.task, f.limit)
    found = yield from Statement("search_quarantined", query("search_quarantined"), params, ids)
    return found, _last_of(found, f.limit)


def _last_of(found: list[UUID], limit: int) -> UUID | None:
    return found[-1] if len(found) == limit else None


def summarize_jobs(job_ids: Sequence[UUID]) -> Statement[list[JobLine]]:
    def decode(rows: Sequence[Row]) -> list[JobLine]:
        return [JobLine(*r) for r in rows]

    return Statement("summarize_jobs", query("summarize_jobs"), (list(job_ids),), decode)


def show_job(job_id: UUID) -> Statement[JobDetail | None]:
    def decode(rows: Sequence[Row]) -> JobDetail | None:
        if not rows:
            return None
        *plain, payload, result, claimed_at, cancel, tags, metadata, left, timeline = rows[0]
        state, generation, sequence = plain[3], plain[16], plain[17]
        own_fence = None
        if state == "processing" and timeline is not None:
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
        ]
        return JobDetail(*[*plain, *facts])

    return Statement("show_job", query("show_job"), (job_id,), decode)


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One failed attempt."""

    attempt: int
    generation: int
    at: datetime
    worker: str | None
    kind: str
    message: str
    trace: str


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
    return Statement(
        "show_errors", query("show_errors"), (job_id, limit), lambda rows: [Attempt(*r) for r in rows]
    )


def show_progress(job_id: UUID) -> Statement[Progress | None]:
    return Statement(
        "show_progress", query("show_progress"), (job_id,), lambda rows: Progress(*rows[0]) if rows else None
    )


def show_steps(job_id: UUID, limit: int = 100) -> Statement[list[Step]]:
    return Statement(
        "show_steps", query("show_steps"), (job_id, limit), lambda rows: [Step(*r) for r in rows]
    )


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One worker in a list."""

    id: str
    host: str
    pid: int
    status: str
    last_seen_seconds: float
    started_at: datetime
    queues: list[str]
    concurrency: int
    release: str
    running: int


def list_workers(with_gone: bool, limit: int) -> Statement[list[WorkerLine]]:
    return Statement(
        "list_workers",
        query("list_workers"),
        (with_gone, limit),
        lambda rows: [WorkerLine(*r) for r in rows],
    )
