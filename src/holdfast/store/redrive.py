"""Dead letters, as an operator lists them, and their way back into work."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ..sql import query
from .operate import CAP, LOOK, Count, capped
from .statement import Flow, Row, Statement, ids


@dataclass(frozen=True, slots=True)
class DeadLine:
    """One dead letter in a list."""

    id: UUID
    queue: str
    task: str
    attempts: int
    max_attempts: int
    crashes: int
    generation: int
    created_at: datetime
    died_at: datetime
    age_seconds: float
    last_error: str | None


class Died(NamedTuple):
    """A place in the order in which jobs died."""

    at: datetime
    id: UUID


@dataclass(frozen=True, slots=True)
class Locked:
    """A dead letter locked for its redrive."""

    id: UUID
    queue: str
    has_queue: bool


def list_dead(
    queue: str | None, task: str | None, before: Died | None, limit: int
) -> Flow[tuple[list[DeadLine], Died | None]]:
    """The lines, and where to go on (None: there is no more)."""
    at, job_id = before or (None, None)
    params = (at, job_id, LOOK, queue, task, limit)
    found = yield from Statement(
        "list_dead", query("list_dead"), params, lambda rows: [DeadLine(*r) for r in rows]
    )
    if len(found) == limit:
        return found, Died(found[-1].died_at, found[-1].id)
    reach = yield from Statement(
        "reach_list_dead",
        query("reach_list_dead"),
        (at, job_id, LOOK),
        lambda rows: Died(*rows[0]) if rows else None,
    )
    return found, reach


def count_dead(task: str | None) -> Statement[Count]:
    return Statement("count_dead", query("count_dead"), (task, CAP + 1), lambda rows: capped(rows[0][0]))


def redrive_begin() -> Statement[datetime]:
    def decode(rows: Sequence[Row]) -> datetime:
        at: datetime = rows[0][0]
        return at

    return Statement("redrive_begin", query("redrive_begin"), (), decode)


def lock_dead(job_ids: Sequence[UUID]) -> Statement[list[Locked]]:
    return Statement(
        "lock_dead", query("lock_dead"), (list(job_ids),), lambda rows: [Locked(*r) for r in rows]
    )


def lock_dead_batch(
    task: str | None, until: datetime, after: Died | None, limit: int
) -> Statement[tuple[list[Locked], Died | None]]:
    """The next ones in the order in which they died, and the place of the last."""

    def decode(rows: Sequence[Row]) -> tuple[list[Locked], Died | None]:
        return [Locked(*r[:3]) for r in rows], Died(rows[-1][3], rows[-1][0]) if rows else None

    at, job_id = after or (None, None)
    return Statement("lock_dead_batch", query("lock_dead_batch"), (task, until, at, job_id, limit), decode)


def redrive(job_ids: Sequence[UUID]) -> Statement[list[UUID]]:
    """Put them back to waiting; lock them first in the same transaction."""
    return Statement("redrive", query("redrive"), (list(job_ids),), ids)
