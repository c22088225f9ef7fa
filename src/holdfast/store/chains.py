"""Chains: jobs that follow a job's end, and groups. All of it happens in the transaction that ends the job."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ..model.job import Enqueued, NewRow
from ..model.outcome import Settled
from ..model.state import COMPLETED
from .statement import Flow, Row, Statement, ids, named, nothing

_BRIEF = "50ms"
_KEYED = '"partition_key"'  # in the text of a follow-up that goes to a stream, and of few others
_MOST_TRIED = 128  # jobs whose follow-ups have keys: each key is a lock


class GroupBusy(Exception):
    """Another session counts in the groups of these jobs at this moment, or holds a key that their follow-ups go to."""

    def __init__(self, job_ids: set[UUID]) -> None:
        super().__init__(f"the groups of {len(job_ids)} jobs, or the keys of what follows them, are locked")
        self.job_ids = job_ids


def follow(done: Sequence[Settled], *, patient: bool = True) -> Flow[None]:
    """Enqueue what follows these jobs and count them in their groups. Jobs that have neither cost no statement.

    `patient`, inside a user's transaction: groups are counted when it commits, and every lock is waited for. Otherwise a
    group that another session holds raises GroupBusy: a settle of many jobs must not wait for one open transaction.
    The same for a group that ends here while its callback's key is held, and for a job whose follow-up goes to
    a held key. An idempotency or replace key of a follow-up is waited for briefly. Keys come before
    groups.
    """
    linked = [d for d in done if d.group is not None or d.then is not None]
    if not linked:
        return
    if patient:
        columns = _columns(linked)
        yield from named("jobs_ended_at_commit", columns, nothing)
        return
    yield from named("brief_locks", (_BRIEF,), nothing)
    if any(d.then for d in linked):
        if busy := (yield from _busy_follow_ups(linked)):
            raise GroupBusy(busy)
        yield from _ended(_columns(linked, groups=False))
    if members := [d for d in linked if d.group]:
        if busy := set((yield from _busy_groups(members))):
            raise GroupBusy({d.id for d in members if d.group in busy})
        yield from _ended(_columns(members, follow_ups=False))


def _ended(columns: tuple[list[Any], ...]) -> Statement[None]:
    return named("jobs_ended", columns, nothing)


def _columns(
    linked: Sequence[Settled], *, groups: bool = True, follow_ups: bool = True
) -> tuple[list[Any], ...]:
    return (
        [d.id for d in linked],
        [d.state for d in linked],
        [d.group if groups else None for d in linked],
        [d.then if follow_ups else None for d in linked],
    )


def _busy_follow_ups(linked: Sequence[Settled]) -> Flow[set[UUID]]:
    keyed = [d for d in linked if d.then and _KEYED in d.then and d.state == COMPLETED]
    if not 0 < len(keyed) <= _MOST_TRIED:
        return set()
    params = ([d.id for d in keyed], [d.then for d in keyed])
    return set((yield from named("busy_follow_ups", params, ids)))


def _busy_groups(linked: Sequence[Settled]) -> Statement[list[UUID]]:
    completed = [d.group for d in linked if d.group and d.state == COMPLETED]
    otherwise = [d.group for d in linked if d.group and d.state != COMPLETED]
    return named("busy_groups", (completed, otherwise), ids)


# Jobs as JSON -----------------------------------------------------------------------------------------------------


def specs(rows: Sequence[NewRow]) -> str | None:
    """Jobs to enqueue later, as the database keeps them; None for none. Payloads are kept exactly, to the last digit."""
    return f"[{','.join(map(_spec, rows))}]" if rows else None


def _spec(row: NewRow) -> str:
    plain: dict[str, Any] = {
        "task": row.task,
        "queue": row.queue,
        "version": row.version,
        "priority": row.priority,
        "max_attempts": row.max_attempts,
        "partition_key": row.partition_key,
        "run_at": row.run_at.isoformat() if row.run_at else None,
        "delay": row.delay or None,
        "idempotency_key": row.idempotency_key,
        "idempotency_lifetime": "forever"
        if row.idempotency_lifetime == math.inf
        else row.idempotency_lifetime,
        "replace_key": row.replace_key,
        "tags": list(row.tags) or None,
    }
    parts = {k: json.dumps(v, ensure_ascii=False) for k, v in plain.items() if v is not None}
    parts["payload"] = row.payload
    if row.metadata is not None:
        parts["metadata"] = row.metadata
    if (then := specs(row.follow_ups)) is not None:
        parts["then"] = then
    return "{" + ",".join(f'"{name}":{text}' for name, text in parts.items()) + "}"


# Groups -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The status of a group. A dead letter counts as open in a group whose members must all complete."""

    id: UUID
    when: str  # completed or finished
    total: int
    open: int
    discarded: int  # members that an operator deleted before they completed
    created_at: datetime
    finished_at: datetime | None  # when the callback was enqueued
    callback_ids: list[UUID]
    fault: str | None  # why the callback could not be enqueued yet

    @property
    def state(self) -> str:
        """open, finished, stuck (its callback cannot be enqueued) or broken (it wants members that were discarded)."""
        if self.finished_at is not None:
            return "finished"
        if self.fault is not None:
            return "stuck"
        return "broken" if self.when == COMPLETED and self.discarded else "open"


def _status(row: Row) -> GroupStatus:
    return GroupStatus(*[*row[:7], list(row[7] or ()), row[8]])


def enqueue_group(
    members: Sequence[NewRow], callback: Sequence[NewRow], wanted: str
) -> Statement[list[Enqueued]]:
    """The group's own status, then one for each member; all of them or none."""

    def decode(rows: Sequence[Row]) -> list[Enqueued]:
        return [Enqueued(text or None, created == "true", conflict) for text, created, conflict in ids(rows)]

    params = ([specs(members) or "[]"], [specs(callback)], [wanted])
    return named("enqueue_group", params, decode)


def group_status(group_id: UUID) -> Statement[GroupStatus | None]:
    return named("group_status", (group_id,), lambda rows: _status(rows[0]) if rows else None)


def list_groups(*, only_open: bool, limit: int) -> Statement[list[GroupStatus]]:
    return named("list_groups", (only_open, limit), lambda rows: [_status(r) for r in rows])


def group_ids_between(lowest: UUID, highest: UUID, limit: int) -> Statement[list[UUID]]:
    return named("group_ids_between", (lowest, highest, limit), ids)


def group_members(group_id: UUID) -> Statement[dict[str, int]]:
    return named("group_members", (group_id,), lambda rows: {r[0]: r[1] for r in rows})


def retry_groups(limit: int) -> Statement[list[tuple[UUID, bool]]]:
    """Groups whose callback could not be enqueued, and whether it could be now."""
    return named("retry_groups", (limit,), lambda rows: [(r[0], r[1]) for r in rows])


@dataclass(frozen=True, slots=True)
class Child:
    """A job that came from another one."""

    id: UUID
    task: str
    queue: str
    state: str


def show_children(parent: UUID, limit: int = 20) -> Statement[list[Child]]:
    return named("show_children", (parent, limit), lambda rows: [Child(*r) for r in rows])
