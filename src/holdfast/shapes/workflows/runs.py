"""Runs as operators see them, and the statements that find and change them; operate.sql has the text."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ...store.statement import Row, Statement, ids, named, nothing
from .states import WRONG
from .timeline import error_of, value

LOOKED_AT = 20_000  # rows of one step of a search


@dataclass(frozen=True, slots=True)
class RunView:
    """A run in its current state."""

    run_id: UUID
    workflow: str
    id: str  # the id it was started with
    version: int
    queue: str
    state: str
    era: int
    created_at: datetime
    ended_at: datetime | None
    deadline: datetime | None
    waits: list[str] | None  # the names of messages that it waits for; None: it is not suspended
    wake_at: datetime | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    paused_at: datetime | None
    parent_id: UUID | None
    parent_key: str | None
    tags: list[str] | None
    shown: Any  # the value that its code set
    result: Any
    error: str | None
    replaced_by: UUID | None  # the next run of the same id
    job_status: str | None  # None: it has ended
    hold_reason: str | None
    generation: int | None
    due_at: datetime | None
    worker: str | None  # that runs it now
    unread: int  # signals
    now: datetime
    forked_from: UUID | None  # the run whose records it was begun with,
    forked_key: str | None  # up to this one


_SHOWN, _WORKER = 18, 26  # places of columns


def _views(rows: Sequence[Row]) -> list[RunView]:
    return [_view(row) for row in rows]


def _view(row: Row) -> RunView:
    cells = list(row)
    cells[_SHOWN : _SHOWN + 3] = value(row[_SHOWN]), value(row[_SHOWN + 1]), error_of(row[_SHOWN + 2])
    cells[_WORKER] = None if row[_WORKER] is None else str(row[_WORKER])
    return RunView(*cells)


def find(given: str, workflow: str | None) -> Statement[list[RunView]]:
    """`given`: a run's own id, or the id it was started with."""
    try:
        own = UUID(given)
    except ValueError:
        own = None
    return named("workflow_find", (own, given, workflow), _views)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs. None: any."""

    workflow: str | None = None
    states: Sequence[str] | None = None
    tag: str | None = None
    since: float | None = None  # seconds since they were started, at most

    @property
    def is_wrong(self) -> bool:
        """Whether it matches only runs with an error, which have an index."""
        return bool(self.states) and WRONG.issuperset(self.states or ())


def listed(wanted: RunFilter, before: UUID | None, limit: int) -> Statement[list[RunView]]:
    """The newest first."""
    states = list(wanted.states) if wanted.states else None
    params = (before, wanted.since, LOOKED_AT, limit, wanted.workflow, states, wanted.tag)
    if wanted.is_wrong:
        return named("workflow_list_wrong", params, _views)
    return named("workflow_list", params, _views)


def listed_to(wanted: RunFilter, before: UUID | None) -> Statement[UUID | None]:
    """Where the rows that listed() reads end; None: it read all."""

    def decode(rows: Sequence[Row]) -> UUID | None:
        return rows[0][0] if rows else None

    params = (before, wanted.since, LOOKED_AT)
    if wanted.is_wrong:
        return named("workflow_list_wrong_end", params, decode)
    return named("workflow_list_end", params, decode)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that has not ended, with its input."""

    run_id: UUID
    workflow: str
    version: int
    id: str
    payload: str


def open_runs(workflow: str | None, after: UUID | None, limit: int) -> Statement[list[OpenRun]]:
    """In the order of their ids."""
    return named("workflow_open", (workflow, after, limit), lambda rows: [OpenRun(*row) for row in rows])


def hold(run_id: UUID) -> Statement[str | None]:
    """Lock it. The state in which it has ended; None: it is open."""

    def decode(rows: Sequence[Row]) -> str | None:
        return rows[0][0] if rows else "removed"

    return named("workflow_hold", (run_id,), decode)


def take_up(run: RunView, displaced: Sequence[str] = ()) -> Statement[bool]:
    """A run that was set aside is tried again. False: it was taken up since."""
    return named("workflow_take_up", (run.queue, run.run_id, run.generation, list(displaced)), bool)


def payload(run: RunView) -> Statement[str | None]:
    """The input of an open run."""

    def decode(rows: Sequence[Row]) -> str | None:
        return rows[0][0] if rows else None

    return named("workflow_input", (run.queue, run.run_id), decode)


def forget_failures(run_id: UUID) -> Statement[list[str]]:
    """The failed steps at the end of its history. Returns their keys."""
    return named("workflow_forget_failures", (run_id,), ids)


def reopen(run_id: UUID) -> Statement[None]:
    return named("workflow_reopen_now", (run_id,), nothing)


def drop_signal(run_id: UUID, key: str, number: int) -> Statement[str | None]:
    """The name of the removed signal; None: the call has taken fewer."""
    return named("workflow_drop_signal", (run_id, key, number), _name)


def leave_out(new: UUID, old: UUID, key: str, number: int) -> Statement[str | None]:
    return named("workflow_leave_out", (new, old, key, number), _name)


def _name(rows: Sequence[Row]) -> str | None:
    return str(rows[0][0]) if rows else None


class Retrying(NamedTuple):
    """A step that failed and is tried again."""

    key: str
    failed: int  # attempts
    error: str | None  # the last


def retrying(run_id: UUID) -> Statement[list[Retrying]]:
    def decode(rows: Sequence[Row]) -> list[Retrying]:
        return [Retrying(key, attempts, error_of(error)) for key, attempts, error in rows]

    return named("workflow_retrying", (run_id,), decode)


def open_children(run_id: UUID, keys: Sequence[str]) -> Statement[list[str]]:
    params = (run_id, list(keys))
    return named("workflow_open_children", params, lambda rows: [str(row[0]) for row in rows])


def fork(
    run_id: UUID, keys: Sequence[str], step: str, new_id: str | None, version: int | None
) -> Statement[tuple[UUID | None, str | None]]:
    """The new run, or why there is none: exists, queue, input."""

    def decode(rows: Sequence[Row]) -> tuple[UUID | None, str | None]:
        ((found, conflict),) = rows
        return found, conflict

    return named("workflow_fork", (run_id, list(keys), step, new_id, version), decode)
