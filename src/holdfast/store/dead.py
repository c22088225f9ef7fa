"""Dead letters as an operator looks at them, one by one or by error, and their way back into work."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ..model.state import DEAD_LETTER
from .queue_load import CAP
from .search import LOOK, Found, containing
from .statement import Flow, Row, Statement, ids, named, nothing

HOURS = 24


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead letters. The same for a list and for an act over many; what is None does not matter."""

    group: str | None = None  # the name of a group, as group_dead gives it
    queue: str | None = None
    task: str | None = None
    error: str | None = None  # contained in the last error, in capitals or not
    key: str | None = None
    tag: str | None = None
    older_than: float | None = None  # seconds since it died
    newer_than: float | None = None

    def given(self) -> dict[str, object]:
        """What was asked for, for the audit."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class DeadWindow(NamedTuple):
    until: datetime | None = None
    since: datetime | None = None


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
    group: str


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one task with the same error, but for what differs from job to job."""

    id: str
    task: str
    queues: list[str]
    count: int
    first_died_at: datetime
    last_died_at: datetime
    error: str | None  # of the last one, cut
    job_id: UUID  # of the last one
    by_hour: Sequence[int] = ()  # how many died in each of the last 24 hours, the oldest first


@dataclass(frozen=True, slots=True)
class Facet:
    """How many dead letters of a group have one key, tag or queue."""

    kind: str  # "key", "tag" or "queue"
    value: str
    count: int
    different: int  # values of this kind
    whole: int  # dead letters that were looked at


class Died(NamedTuple):
    """A place in the order in which jobs died."""

    at: datetime
    id: UUID


def dead_times(older_than: float | None, newer_than: float | None) -> Statement[tuple[datetime, DeadWindow]]:
    """Now, and between which moments to look."""

    def decode(rows: Sequence[Row]) -> tuple[datetime, DeadWindow]:
        now, until, since = rows[0]
        return now, DeadWindow(until, since)

    return named("dead_times", (older_than, newer_than), decode)


def _filters(f: DeadFilter) -> tuple[Any, ...]:
    return f.queue, f.task, None if f.error is None else containing(f.error), f.key, f.tag


def _place(rows: Sequence[Row]) -> Died | None:
    return Died(*rows[0]) if rows else None


def list_dead(
    f: DeadFilter, window: DeadWindow, before: Died | None, limit: int
) -> Flow[tuple[list[DeadLine], Died | None]]:
    """The last to die first; the lines, and where to go on (None: there is no more)."""
    place = before or (None, None)
    params = (*place, LOOK, limit, *window, *_filters(f), f.group)
    found = yield from named("list_dead", params, lambda rows: [DeadLine(*r) for r in rows])
    if len(found) == limit:
        return found, Died(found[-1].died_at, found[-1].id)
    return found, (yield from reach_list(before, window))


def reach_list(before: Died | None, window: DeadWindow) -> Statement[Died | None]:
    """Where a listing has stopped looking; None: it has seen them all."""
    params = (*(before or (None, None)), LOOK, *window)
    return named("reach_list_dead", params, _place)


def next_dead(
    f: DeadFilter, window: DeadWindow, after: Died | None, limit: int
) -> Flow[tuple[list[Found], Died | None]]:
    """The first to die first; which, and where to go on (None: there is no more)."""
    place = after or (None, None)
    params = (*place, LOOK, limit, *window, *_filters(f), f.group)
    rows = yield from named("next_dead", params, list)
    found = [Found(r[0], r[1], DEAD_LETTER) for r in rows]
    if len(found) == limit:
        return found, Died(rows[-1][2], rows[-1][0])
    looked = (*place, LOOK, *window)
    return found, (yield from named("reach_next_dead", looked, _place))


def group_dead(f: DeadFilter, window: DeadWindow, limit: int) -> Statement[tuple[list[DeadGroup], int]]:
    """The groups, the largest first, and how many dead letters were looked at: CAP of the newest at most."""

    def decode(rows: Sequence[Row]) -> tuple[list[DeadGroup], int]:
        return [DeadGroup(*[*r[:8], _by_hour(r[8])]) for r in rows], rows[0][9] if rows else 0

    params = (LOOK, CAP, limit, *window, *_filters(f))
    return named("group_dead", params, decode)


def _by_hour(hours: Sequence[int] | None) -> tuple[int, ...]:
    counts = [0] * HOURS
    for ago in hours or ():
        counts[HOURS - 1 - min(ago, HOURS - 1)] += 1
    return tuple(counts)


def dead_facets(group: str, task: str, limit: int) -> Statement[list[Facet]]:
    """Among the newest CAP dead letters; the most frequent of each kind first."""
    return named("dead_facets", (CAP, group, task, limit), lambda rows: [Facet(*r) for r in rows])


def redrive(job_ids: Sequence[UUID], delays: Sequence[float]) -> Flow[list[UUID]]:
    """Put them back to waiting; lock them first in the same transaction."""
    yield from named("lock_dead_streams", (list(job_ids),), nothing)
    done = yield from named("redrive", (list(job_ids), list(delays)), ids)
    return done
