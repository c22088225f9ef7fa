"""What an operator asks about the whole system: bounded questions about queues, dead letters and workers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..model.vitals import Vitals, read_vitals
from .statement import Flow, Row, Statement, named, nothing

CAP = 10_000  # a count stops here
_TAIL = 256  # blocks read from the end of the archive


@dataclass(frozen=True, slots=True)
class Count:
    """How many. `capped`: there are more, or may be."""

    count: int
    capped: bool = False


def capped(number: int, cap: int = CAP) -> Count:
    return Count(min(number, cap), number > cap)


@dataclass(frozen=True, slots=True)
class QueueLoad:
    name: str
    pending: Count
    scheduled: Count
    processing: Count
    held: Count
    quarantined: Count
    blocked: Count  # dead letters that block their keys
    parked: Count  # keys
    suspended: Count  # due at an event: runs that wait
    oldest_due_seconds: float | None
    ordering: str = "none"
    on_dead_letter: str = "skip"
    lease: float | None = None  # None: what the worker is set to
    paused_at: datetime | None = None
    paused_by: str | None = None
    paused_seconds: float | None = None


def queue_load(name: str, cap: int = CAP, later: int | None = None) -> Statement[QueueLoad | None]:
    """None: there is no such queue any more. `later`: the cap for those that are not due; None: the same."""
    limit = cap if later is None else later

    def decode(rows: Sequence[Row]) -> QueueLoad | None:
        if not rows:
            return None
        caps = (cap, limit, cap, limit, cap, cap, limit)
        pending, scheduled, processing, aside, quarantined, parked, suspended = (
            capped(n, most) for n, most in zip(rows[0][:7], caps, strict=True)
        )
        blocked = Count(min(rows[0][7], limit), aside.capped)  # of those that are set aside
        held = Count(aside.count - blocked.count, aside.capped)
        counts = (pending, scheduled, processing, held, quarantined, blocked, parked, suspended)
        return QueueLoad(name, *counts, *rows[0][8:])

    return named("queue_load", (name, cap + 1, limit + 1), decode)


def queue_leases() -> Statement[dict[str, float | None]]:
    return named("queue_leases", (), lambda rows: {r[0]: r[1] for r in rows})


def dead_load(cap: int = CAP) -> Statement[dict[str, int]]:
    """Dead letters per queue among the newest cap + 1."""
    return named("dead_load", (cap + 1,), lambda rows: {r[0]: r[1] for r in rows})


def worker_load(late_after: float) -> Statement[dict[str, int]]:
    params = (late_after, CAP + 1)
    return named("worker_load", params, lambda rows: {r[0]: r[1] for r in rows})


def finished_per_minute() -> Flow[tuple[int, bool]]:
    """Jobs finished in the last minute: (number, is it an estimate?). Reads the end of the archive and no more."""
    total, estimated = 0.0, False
    for slot, first in (yield from archive_tails()):
        found, span = yield from named(
            "recent_finished", (slot, first), lambda rows: (rows[0][0], rows[0][1])
        )
        if first and span is not None and span < 60:  # the rows that were read are not the whole minute
            total, estimated = total + found * 60 / max(span, 0.001), True
        else:
            total += found
    return round(total), estimated


def archive_tails() -> Statement[list[tuple[int, int]]]:
    """Where the jobs finished in the last minute are: slots, and the block from which to read each."""

    def decode(rows: Sequence[Row]) -> list[tuple[int, int]]:
        return [(slot, max(0, blocks - _TAIL)) for slot, blocks in rows]

    return named("archive_tail", (), decode)


def prefer_indexes() -> Statement[None]:
    return named("prefer_indexes", (), nothing)


def prefer_kept_plans() -> Statement[None]:
    return named("prefer_kept_plans", (), nothing)


def read_only() -> Statement[None]:
    return named("read_only", (), nothing)


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
    release: str  # of the application
    running: int
    load: float  # of its concurrency, how much is in use: 0 to 1
    holdfast: str | None  # the version of its Holdfast; None: it does not report one
    labels: dict[str, str]
    vitals: Vitals | None = None  # None: the release does not report it


def list_workers(with_gone: bool, limit: int, running: bool = True) -> Statement[list[WorkerLine]]:
    return named(
        "list_workers",
        (with_gone, limit, running),
        lambda rows: [WorkerLine(*[*r[:-2], json.loads(r[-2]), read_vitals(r[-1])]) for r in rows],
    )
