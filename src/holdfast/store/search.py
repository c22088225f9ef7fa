"""Searches for jobs by filters: down the ids, from the newest back, reading a bounded number of rows at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ..model.state import (
    BLOCKED,
    DEAD_LETTER,
    FINISHED,
    HELD,
    LIVE,
    PROCESSING,
    QUARANTINED,
    SCHEDULED,
    STATES,
    state_named,
)
from .statement import Flow, Row, Statement, ids, named

LOOK = 100_000  # rows that a step of a search reads at most
SHORT = 10_000  # the same for who has no time
PAYLOADS = 1_000  # the same where payloads are looked into: they may be large
FEW = 10_000  # at most that many ids are looked up one by one; of more, the whole queue is walked


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs. The same for a list and for an act over many; what is None does not matter."""

    states: tuple[str, ...] | None = None  # `dead` is taken for dead_letter
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    tag: str | None = None
    error: str | None = None  # contained in the last error, in capitals or not
    older_than: float | None = None  # seconds since it was created
    newer_than: float | None = None
    backing_off: bool | None = None  # scheduled ones that failed and wait for their next attempt
    worker: str | None = None  # that runs it, or had it last when it ended
    min_attempts: int | None = None  # that it has spent
    field: str | None = None  # of the payload: `customer.id=17`, by names from the outside in

    def __post_init__(self) -> None:
        if self.backing_off is not None:
            object.__setattr__(self, "backing_off", self.backing_off or None)
            if self.backing_off and self.states is None:
                object.__setattr__(self, "states", (SCHEDULED,))
        if self.states is not None:  # each once, by the word that the database has
            object.__setattr__(self, "states", tuple(dict.fromkeys(map(state_named, self.states))))

    def given(self) -> dict[str, object]:
        """What was asked for, for the audit."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class Window(NamedTuple):
    """Where an age lies in the order of ids. An id is never far from its time, so created_at is compared too."""

    created_before: datetime | None = None
    created_since: datetime | None = None
    below: UUID | None = None
    floor: UUID | None = None
    now: UUID | None = None  # everything that was there has a smaller id


class Found(NamedTuple):
    id: UUID
    queue: str
    state: str


class Search(NamedTuple):
    """One step of a search."""

    wanted: JobFilter
    window: Window
    below: UUID | None
    limit: int
    rows: int = LOOK  # that each table is read of

    def bounds(self) -> tuple[UUID | None, UUID | None]:
        return self.below, self.window.floor

    def filters(self) -> tuple[Any, ...]:
        f = self.wanted
        states = list(f.states) if f.states else None
        pattern = None if f.error is None else containing(f.error)
        window = (self.window.created_before, self.window.created_since)
        path, value = (None, None) if f.field is None else read_field(f.field)
        return (states, f.queue, f.task, f.key, f.tag, pattern, *window, f.min_attempts, path, value)


Step = tuple[
    list[Found], UUID | None
]  # what fits, and the id down to which all was looked at (None: to the end)
Searcher = Callable[[Search], Flow[Step]]


def containing(text: str) -> str:
    """A LIKE pattern for texts that contain this one as it stands."""
    plain = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{plain}%"


def read_field(said: str) -> tuple[list[str], str]:
    """Where in the payload, and what stands there."""
    name, _, value = said.partition("=")
    return name.split("."), value


def search_window(older_than: float | None, newer_than: float | None) -> Statement[Window]:
    return named(
        "search_window",
        (older_than, newer_than),
        lambda rows: Window(*rows[0]),
    )


def searchers(states: Sequence[str] | None) -> list[Searcher]:
    """The tables in which jobs of these states are."""
    wanted = set(states or STATES)
    live = wanted & set(LIVE)
    found: list[Searcher] = []
    if live:
        found.append(_RARE.get(next(iter(live)), _search_live) if len(live) == 1 else _search_live)
    if wanted & set(FINISHED):
        found.append(_search_archive)
    if DEAD_LETTER in wanted:
        found.append(_search_dead)
    return found


def _found(rows: Sequence[Row]) -> list[Found]:
    return [Found(*r) for r in rows]


def _first(rows: Sequence[Row]) -> UUID | None:
    return rows[0][0] if rows else None


def _search_live(s: Search) -> Flow[Step]:
    if s.wanted.worker is not None:  # a worker holds few, and only what runs has one
        job_ids = yield from named("ids_of_worker", (s.wanted.worker, s.wanted.queue, LOOK), ids)
        return (yield from _look_at(s, job_ids))
    params = (*s.bounds(), s.rows, s.limit, *s.filters(), s.wanted.backing_off)
    found = yield from named("search_live", params, _found)
    if len(found) == s.limit:
        return found, found[-1].id
    looked = (*s.bounds(), s.rows, s.wanted.queue)
    return found, (yield from named("reach_live", looked, _first))


def _search_archive(s: Search) -> Flow[Step]:
    params = (*s.bounds(), s.rows, s.limit, *s.filters(), s.wanted.worker)
    found = yield from named("search_archive", params, _found)
    if len(found) == s.limit:
        return found, found[-1].id
    looked = (*s.bounds(), s.rows)
    return found, (yield from named("reach_archive", looked, _first))


def _search_dead(s: Search) -> Flow[Step]:
    params = (*s.bounds(), s.rows, s.limit, *s.filters(), s.wanted.worker)
    found = yield from named("search_dead", params, _found)
    if len(found) == s.limit:
        return found, found[-1].id
    looked = (*s.bounds(), s.rows)
    return found, (yield from named("reach_dead", looked, _first))


# Few of many: found by a table or an index of their own, unless they are many themselves.


def _search_running(s: Search) -> Flow[Step]:
    if s.wanted.worker is not None:
        return (yield from _search_live(s))
    claimed = yield from named("running_ids", (s.wanted.queue, FEW + 1), ids)
    params = (s.wanted.queue, s.rows, FEW + 1)
    stranded = yield from named("unclaimed_ids", params, ids)
    return (yield from _search_these(s, [*claimed, *stranded]))


def _search_held(s: Search) -> Flow[Step]:
    params = (s.wanted.queue, s.wanted.task, FEW + 1)
    job_ids = yield from named("held_ids", params, ids)
    return (yield from _search_these(s, job_ids))


def _search_quarantined(s: Search) -> Flow[Step]:
    job_ids = yield from named("quarantined_ids", (s.wanted.queue, FEW + 1), ids)
    return (yield from _search_these(s, job_ids))


def _search_these(s: Search, job_ids: list[UUID]) -> Flow[Step]:
    if len(job_ids) > FEW or s.wanted.worker is not None:
        return (yield from _search_live(s))
    return (yield from _look_at(s, job_ids))


def _look_at(s: Search, job_ids: list[UUID]) -> Flow[Step]:
    """As many of the named as a step may read, from the newest back."""
    below, floor = s.bounds()
    there = {i for i in job_ids if (below is None or i < below) and (floor is None or i >= floor)}
    first = sorted(there, reverse=True)[: s.rows]
    params = (below, floor, first, s.limit, *s.filters())
    found = yield from named("search_these", params, _found)
    if len(found) == s.limit:
        return found, found[-1].id
    return found, first[-1] if len(there) > len(first) else None


_RARE: dict[str, Searcher] = {
    PROCESSING: _search_running,
    HELD: _search_held,
    BLOCKED: _search_held,  # set aside too
    QUARANTINED: _search_quarantined,
}
