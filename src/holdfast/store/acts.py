"""What an operator does to jobs, many at a time. Every changed row was locked before in the same transaction."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from ..model.outcome import Settled
from ..model.state import DISCARDED, PROCESSING, QUARANTINED
from . import jobs
from .chains import follow
from .statement import Flow, Row, Statement, ids, named, nothing


class JobLocation(NamedTuple):
    id: UUID
    queue: str
    table: str  # work, dead_letters or archive


@dataclass(frozen=True, slots=True)
class Locked:
    """A job that is locked until the commit, and its state."""

    id: UUID
    queue: str
    table: str
    task: str
    status: str
    state: str
    hold_reason: str | None
    token: UUID
    created_at: datetime
    slot: int
    has_queue: bool
    is_run: bool = False  # of a workflow: it has separate verbs
    suspect: int = 0  # not 0: it runs apart from others
    running: bool = False  # a worker owns it, or so its row says
    stranded: bool = False  # its row says that it runs, and no claim holds it


def locate_jobs(job_ids: Sequence[UUID]) -> Statement[list[JobLocation]]:
    return named("locate_jobs", (list(job_ids),), lambda rows: [JobLocation(*r) for r in rows])


def lock(places: Iterable[JobLocation]) -> Flow[list[Locked]]:
    """Lock those that nobody else holds and that still exist, always in the same order."""
    found: list[Locked] = []
    ordered = sorted(places, key=lambda p: (p.table, p.queue, p.id))
    for (table, queue), group in groupby(ordered, key=lambda p: (p.table, p.queue)):
        found += yield from _lock(table, queue, [p.id for p in group])
    doubtful = [job.token for job in found if job.state == QUARANTINED and job.status == PROCESSING]
    held = set((yield from _lock_claims(doubtful)) if doubtful else [])
    claimed = [job.token for job in found if job.status == PROCESSING]
    known = set((yield from _known_claims(claimed)) if claimed else [])
    return [_owned(job, held, known) for job in found]


def _lock(table: str, queue: str, job_ids: list[UUID]) -> Statement[list[Locked]]:
    match table:
        case "work":
            return named("lock_jobs", (queue, job_ids), _locked)
        case "dead_letters":
            return named("lock_dead", (job_ids,), _locked)
        case _:
            return named("lock_archived", (job_ids,), _locked)


def _locked(rows: Sequence[Row]) -> list[Locked]:
    return [Locked(*r) for r in rows]


def _lock_claims(tokens: list[UUID]) -> Statement[list[UUID]]:
    return named("lock_claims", (tokens,), ids)


def _known_claims(tokens: list[UUID]) -> Statement[list[UUID]]:
    return named("known_claims", (tokens,), ids)


def _owned(job: Locked, held: set[UUID], known: set[UUID]) -> Locked:
    """A quarantined job may say that it runs although its owner is gone."""
    if job.status != PROCESSING:
        return job
    if job.state == QUARANTINED:
        return replace(job, running=job.token in held)
    return replace(job, running=True, stranded=job.token not in known)


def by_queue(locked: Sequence[Locked]) -> list[tuple[str, list[UUID]]]:
    ordered = sorted(locked, key=lambda job: (job.queue, job.id))
    return [(queue, [j.id for j in group]) for queue, group in groupby(ordered, key=lambda j: j.queue)]


def take_back(locked: Sequence[Locked]) -> Flow[None]:
    """Quarantined jobs that nobody owns wait again."""
    for queue, job_ids in by_queue([j for j in locked if j.status == PROCESSING and not j.running]):
        yield from named("take_back", (queue, job_ids), nothing)


def free(locked: Sequence[Locked]) -> Flow[None]:
    """Out of the quarantine; jobs without an owner wait again."""
    quarantined = [job for job in locked if job.state == QUARANTINED]
    yield from take_back(quarantined)
    if quarantined:
        yield from named("forget_quarantine", ([job.id for job in quarantined],), nothing)


def make_due(locked: Sequence[Locked]) -> Flow[int]:
    count = 0
    for queue, job_ids in by_queue(locked):
        done = yield from named("make_due", (queue, job_ids), ids)
        count += len(done)
    return count


def revive(
    locked: Sequence[Locked], until: datetime | None = None, suspects: Sequence[UUID] = ()
) -> Flow[int]:
    """Cancelled jobs back to work. With `until`, as if jobs cancelled before then had not been."""
    yield from named("lock_archived_streams", _slots(locked), nothing)
    done = yield from named("revive", (*_slots(locked), until, list(suspects)), ids)
    return len(done)


def counted_ends(locked: Sequence[Locked]) -> Statement[list[UUID]]:
    """Of cancelled jobs those whose group has counted the cancel, or is over."""
    return named("counted_ends", _slots(locked), ids)


def cancel(locked: Sequence[Locked], reason: str) -> Flow[tuple[int, int]]:
    """(ended at once, asked to stop and not before)."""
    ended = asked = 0
    for queue, job_ids in by_queue([job for job in locked if not job.running]):
        ended += len((yield from jobs.cancel_waiting(queue, job_ids, reason)))
    for queue, job_ids in by_queue([job for job in locked if job.running]):
        asked += len((yield from jobs.request_cancel(queue, job_ids)))
    return ended, asked


def discard(locked: Sequence[Locked]) -> Flow[int]:
    """Delete jobs that are not running, with everything beside them."""
    gone: list[Settled] = []
    for queue, job_ids in by_queue([job for job in locked if job.table == "work"]):
        gone += yield from named("discard_live", (queue, job_ids), _discarded)
    if dead := [job.id for job in locked if job.table == "dead_letters"]:
        gone += yield from named("discard_dead", (dead,), _discarded_after)
    if archived := [job for job in locked if job.table == "archive"]:
        params = _slots(archived)
        gone += yield from named("discard_archived", params, _discarded_after)
    if gone:
        beside = ([job.id for job in gone], min(job.created_at for job in locked))
        yield from named("discard_beside", beside, nothing)
    yield from follow(gone)
    return len(gone)


def _discarded(rows: Sequence[Row]) -> list[Settled]:
    return [Settled(job_id, DISCARDED, group=group) for job_id, group in rows]


def _discarded_after(rows: Sequence[Row]) -> list[Settled]:
    """They had ended before: a group that accepts any end has counted them."""
    return [Settled(job_id, "discarded_after", group=group) for job_id, group in rows]


def _slots(locked: Sequence[Locked]) -> tuple[list[UUID], list[int]]:
    return [job.id for job in locked], sorted({job.slot for job in locked})


# Edit -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Editable:
    """A job as it is, and its payload as it will be."""

    task: str
    version: int
    priority: int
    max_attempts: int
    available_at: datetime
    tags: list[str]
    payload: str  # JSON
    edited: str  # JSON


@dataclass(frozen=True, slots=True)
class Copyable(Editable):
    """A job that is finished or dead, and the payload of a copy."""

    partition_key: str | None
    metadata: str | None  # JSON
    is_followed: bool
    is_run: bool  # of a workflow


class Edit(NamedTuple):
    """What to change; None: nothing."""

    payload: str | None = None  # the whole of it, as JSON
    priority: int | None = None
    max_attempts: int | None = None
    run_at: datetime | None = None
    delay: float | None = None
    tags: list[str] | None = None


def look_at_edit(job: Locked, unset: Sequence[str], values: Mapping[str, object]) -> Statement[Editable]:
    params = (job.queue, job.id, list(unset), json.dumps(values))
    return named("look_at_edit", params, lambda rows: Editable(*_with_tags(rows[0])))


def look_at_copy(job: Locked, unset: Sequence[str], values: Mapping[str, object]) -> Statement[Copyable]:
    params = (job.id, job.slot, list(unset), json.dumps(values))
    return named("look_at_copy", params, lambda rows: Copyable(*_with_tags(rows[0])))


def _with_tags(row: Row) -> list[Any]:
    return [*row[:5], list(row[5] or ()), *row[6:]]


def edit(job: Locked, change: Edit) -> Statement[list[UUID]]:
    if job.table == "work":
        return named("edit_live", (job.queue, job.id, *change), ids)
    payload, priority, max_attempts, _, _, tags = change
    return named("edit_dead", (job.id, payload, priority, max_attempts, tags), ids)
