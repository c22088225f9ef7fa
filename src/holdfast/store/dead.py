"""Dead letters as an operator sees them, one at a time or by error, and their way back into work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from ..model.state import DEAD_LETTER
from .queue_load import CAP
from .search import ERRORS, LOOK, MASKED, Found, containing, names_for, shown_texts
from .statement import Flow, Row, Statement, count, ids, named, nothing

HOURS = 24
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead letters. The same for a list and for an act over many; None does not restrict."""

    group: str | None = None  # the name of a group, as group_dead gives it
    queue: str | None = None
    task: str | None = None
    error: str | None = None  # contained in the last error, in capitals or not
    key: str | None = None
    tag: str | None = None
    older_than: float | None = None  # seconds since it died
    newer_than: float | None = None
    masked: tuple[str, ...] | None = None  # as in a JobFilter
    salted: bool | None = (
        None  # beside a group: a release that named groups otherwise does not mistake it for its own
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "salted", True if self.group is not None else None)
        object.__setattr__(self, "masked", names_for(self.error, self.masked))

    def rows(self) -> int:
        """How many a step reads."""
        return LOOK if self.masked is None else MASKED

    def given(self) -> dict[str, object]:
        """The filter as the audit records it."""
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
    """Dead letters of one task with the same error, apart from what differs from job to job."""

    id: str
    task: str
    queues: list[str]
    count: int
    first_died_at: datetime
    last_died_at: datetime
    error: str | None  # of the last one
    job_id: UUID  # of the last one
    by_hour: Sequence[int] = ()  # how many died in each of the last 24 hours, the oldest first


@dataclass(frozen=True, slots=True)
class Facet:
    """How many dead letters of a group have one key, tag or queue."""

    kind: str  # "key", "tag" or "queue"
    value: str
    count: int
    different: int  # values of this kind
    whole: int  # dead letters that were counted


class Died(NamedTuple):
    """A place in the order in which jobs died."""

    at: datetime
    id: UUID


def dead_times(older_than: float | None, newer_than: float | None) -> Statement[tuple[datetime, DeadWindow]]:
    """Now, and the times between which to read."""

    def decode(rows: Sequence[Row]) -> tuple[datetime, DeadWindow]:
        now, until, since = rows[0]
        return now, DeadWindow(until, since)

    return named("dead_times", (older_than, newer_than), decode)


def _filters(f: DeadFilter) -> tuple[Any, ...]:
    return f.queue, f.task, None if f.error is None else containing(f.error, f.masked), f.key, f.tag


def _place(rows: Sequence[Row]) -> Died | None:
    return Died(*rows[0]) if rows else None


def list_dead(
    f: DeadFilter, window: DeadWindow, before: Died | None, limit: int
) -> Flow[tuple[list[DeadLine], Died | None]]:
    """The last to die first; the lines, and where to continue (None: there are no more)."""

    def look(place: Died | None, limit: int) -> Statement[list[_Seen[DeadLine]]]:
        def decode(rows: Sequence[Row]) -> list[_Seen[DeadLine]]:
            lines = [DeadLine(*r) for r in rows]
            return [_Seen(Died(line.died_at, line.id), line, line.last_error) for line in lines]

        params = (*(place or (None, None)), f.rows(), limit, *window, *_filters(f), f.group)
        return named("list_dead", params, decode)

    return (yield from _walk(f, look, reach_list(before, window, f.rows()), before, limit, is_down=True))


def reach_list(before: Died | None, window: DeadWindow, rows: int = LOOK) -> Statement[Died | None]:
    """Where a listing has stopped reading; None: it has read them all."""
    params = (*(before or (None, None)), rows, *window)
    return named("reach_list_dead", params, _place)


def next_dead(
    f: DeadFilter, window: DeadWindow, after: Died | None, limit: int
) -> Flow[tuple[list[Found], Died | None]]:
    """The first to die first; their keys, and where to continue (None: there are no more)."""

    def look(place: Died | None, limit: int) -> Statement[list[_Seen[Found]]]:
        def decode(rows: Sequence[Row]) -> list[_Seen[Found]]:
            return [_Seen(Died(r[2], r[0]), Found(r[0], r[1], DEAD_LETTER), r[3]) for r in rows]

        params = (*(place or (None, None)), f.rows(), limit, *window, *_filters(f), f.group)
        return named("next_dead", params, decode)

    looked = (*(after or (None, None)), f.rows(), *window)
    reach = named("reach_next_dead", looked, _place)
    return (yield from _walk(f, look, reach, after, limit, is_down=False))


class _Seen(NamedTuple, Generic[T]):
    """One dead letter of a step, with its error where that was asked for."""

    place: Died
    item: T
    error: str | None


def _walk(
    f: DeadFilter,
    look: Callable[[Died | None, int], Statement[list[_Seen[T]]]],
    reach: Statement[Died | None],
    place: Died | None,
    limit: int,
    *,
    is_down: bool,
) -> Flow[tuple[list[T], Died | None]]:
    """As in a search for jobs: where it stops reveals nothing about masked text."""
    if f.masked is None:
        seen = yield from look(place, limit)
        return [one.item for one in seen], seen[-1].place if len(seen) == limit else (yield from reach)
    end = yield from reach
    shown: list[_Seen[T]] = []
    fits = shown_texts(f.error, f.masked)
    while True:
        seen = yield from look(place, ERRORS)
        within = [one for one in seen if end is None or (one.place >= end if is_down else one.place <= end)]
        shown += [one for one in within if fits(one.error)]
        if len(shown) >= limit:
            return [one.item for one in shown[:limit]], shown[limit - 1].place
        if len(within) < ERRORS:
            return [one.item for one in shown], end
        place = within[-1].place


def group_dead(f: DeadFilter, window: DeadWindow, limit: int) -> Flow[tuple[list[DeadGroup], int]]:
    """The groups, the largest first, and how many dead letters were counted: at most CAP, the newest."""
    job_ids: list[UUID] | None = None
    if f.masked is not None:
        job_ids = [line.id for line in (yield from list_dead(f, window, None, CAP))[0]]

    def decode(rows: Sequence[Row]) -> tuple[list[DeadGroup], int]:
        return [DeadGroup(*[*r[:8], _by_hour(r[8])]) for r in rows], rows[0][9] if rows else 0

    params = (f.rows(), CAP, limit, *window, *_filters(f), job_ids)
    return (yield from named("group_dead", params, decode))


def _by_hour(hours: Sequence[int] | None) -> tuple[int, ...]:
    counts = [0] * HOURS
    for ago in hours or ():
        counts[HOURS - 1 - min(ago, HOURS - 1)] += 1
    return tuple(counts)


def dead_facets(group: str, task: str, limit: int) -> Statement[list[Facet]]:
    """Among the newest CAP dead letters; the most frequent of each kind first."""
    return named("dead_facets", (CAP, group, task, limit), lambda rows: [Facet(*r) for r in rows])


def redrive(job_ids: Sequence[UUID], delays: Sequence[float], act: UUID | None = None) -> Flow[list[UUID]]:
    """Put them back to waiting; lock them first in the same transaction. By its `act` it may be undone."""
    yield from named("lock_dead_streams", (list(job_ids),), nothing)
    done = yield from named("redrive", (list(job_ids), list(delays), act), ids)
    return done


def redriven_of(act: UUID, after: UUID | None, limit: int) -> Statement[list[Found]]:
    """Jobs that an act put back and that have not started since."""
    return named("redriven_of", (act, after, limit), lambda rows: [Found(*r) for r in rows])


def redriven_left(act: UUID) -> Statement[tuple[int, int]]:
    """How many have moved on since, and how many were released from a parked key."""
    return named("redriven_left", (act,), lambda rows: (rows[0][0], rows[0][1]))


def bury_again(queue: str, job_ids: Sequence[UUID], act: UUID) -> Statement[list[UUID]]:
    """Jobs that an act put back are dead letters again; lock them first in the same transaction."""
    return named("bury_again", (queue, list(job_ids), act), ids)


def prune_redriven(days: int, limit: int) -> Statement[int]:
    return named("prune_redriven", (limit,), count)


class DeadPayload(NamedTuple):
    id: UUID
    task: str
    version: int
    payload: str  # JSON


def dead_sizes(job_ids: Sequence[UUID]) -> Statement[list[tuple[UUID, int]]]:
    """How many bytes of JSON each has."""
    return named("dead_sizes", (list(job_ids),), lambda rows: [(r[0], r[1]) for r in rows])


def portions(sizes: Sequence[tuple[UUID, int]], most: int) -> list[list[UUID]]:
    """Payloads that are read together: at most `most` bytes, or a single larger one."""
    found: list[list[UUID]] = []
    room = 0
    for job_id, size in sizes:
        if not found or size > room:
            found.append([])
            room = most
        found[-1].append(job_id)
        room -= size
    return found


def dead_payloads(job_ids: Sequence[UUID]) -> Statement[list[DeadPayload]]:
    return named("dead_payloads", (list(job_ids),), lambda rows: [DeadPayload(*r) for r in rows])


def patch_dead(changes: Sequence[tuple[UUID, str]]) -> Statement[list[UUID]]:
    """Replace payloads; lock the jobs first in the same transaction."""
    return named("patch_dead", ([i for i, _ in changes], [text for _, text in changes]), ids)
