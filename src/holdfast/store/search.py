"""Searches for jobs by filters: down the ids, from the newest back, reading a bounded number of rows at a time."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ..model.masking import masked_text
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
SHORT = 10_000  # the same for interactive searches
MASKED = 2_000  # the same where errors are searched as they are shown: each is masked first
ERRORS = (
    100  # of them whose errors are read at a time: to mask one of 8 KiB takes 2.5 ms, and others wait for it
)
PAYLOADS = 1_000  # the same where payloads are read: they may be large
_HIDDEN = re.compile("•+")
FEW = 10_000  # at most this many ids are looked up singly; for more, the whole queue is read


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs. The same for a list and for an act over many; None does not restrict."""

    states: tuple[str, ...] | None = None  # `dead` is taken for dead_letter
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    tag: str | None = None
    error: str | None = None  # contained in the last error, in capitals or not
    older_than: float | None = None  # seconds since it was created
    newer_than: float | None = None
    backing_off: bool | None = None  # scheduled ones that failed and wait for their next attempt
    worker: str | None = None  # that runs it, or ran it last
    min_attempts: int | None = None  # that it has spent
    field: str | None = None  # of the payload: `customer.id=17`, by names from the outside in
    masked: tuple[str, ...] | None = None  # `error` is searched in the text without secrets, these names' too

    def __post_init__(self) -> None:
        object.__setattr__(self, "masked", names_for(self.error, self.masked))
        if self.backing_off is not None:
            object.__setattr__(self, "backing_off", self.backing_off or None)
            if self.backing_off and self.states is None:
                object.__setattr__(self, "states", (SCHEDULED,))
        if self.states is not None:  # each once, by the word that the database has
            object.__setattr__(self, "states", tuple(dict.fromkeys(map(state_named, self.states))))

    def given(self) -> dict[str, object]:
        """The filter as the audit records it."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class Window(NamedTuple):
    """Where an age falls in the order of ids. An id is never far from its time, so created_at is compared too."""

    created_before: datetime | None = None
    created_since: datetime | None = None
    below: UUID | None = None
    floor: UUID | None = None
    now: UUID | None = None  # all earlier rows have smaller ids


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
        pattern = None if f.error is None else containing(f.error, f.masked)
        window = (self.window.created_before, self.window.created_since)
        path, value = (None, None) if f.field is None else read_field(f.field)
        return (states, f.queue, f.task, f.key, f.tag, pattern, *window, f.min_attempts, path, value)


Step = tuple[
    list[Found], UUID | None
]  # the matches, and the id down to which everything was read (None: to the end)
Searcher = Callable[[Search], Flow[Step]]


def containing(text: str, masked: Sequence[str] | None = None) -> str:
    """A LIKE pattern for texts that contain this one as it stands, or may do so once they are masked."""
    plain = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{plain if masked is None else _HIDDEN.sub('%', plain)}%"


def names_for(error: str | None, masked: Sequence[str] | None) -> tuple[str, ...] | None:
    """As a filter keeps them: each once, and only where an error is searched."""
    return None if error is None or masked is None else tuple(sorted(set(masked)))


def shown_texts(error: str | None, masked: Sequence[str] | None) -> Callable[[str | None], bool]:
    """Whether a reader of a text without its secrets finds `error` in it. Else a secret could be guessed letter by letter.
    Most jobs fail for one reason: each text is masked once."""
    known: dict[str, bool] = {}

    def fits(text: str | None) -> bool:
        if error is None or masked is None:
            return True
        if text is None:
            return False
        if text not in known:
            known[text] = error.lower() in masked_text(text, names=masked).lower()
        return known[text]

    return fits


def read_field(said: str) -> tuple[list[str], str]:
    """Where in the payload, and the value there."""
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


def _rows(rows: Sequence[Row]) -> list[Row]:
    return list(rows)


def _first(rows: Sequence[Row]) -> UUID | None:
    return rows[0][0] if rows else None


def _search_live(s: Search) -> Flow[Step]:
    if s.wanted.worker is not None:  # a worker holds few, and only what runs has one
        job_ids = yield from named("ids_of_worker", (s.wanted.worker, s.wanted.queue, LOOK), ids)
        return (yield from _look_at(s, job_ids))
    looked = (*s.bounds(), s.rows, s.wanted.queue)
    return (yield from _walk(s, _live, named("reach_live", looked, _first)))


def _live(s: Search) -> Statement[list[Row]]:
    return named("search_live", (*s.bounds(), s.rows, s.limit, *s.filters(), s.wanted.backing_off), _rows)


def _search_archive(s: Search) -> Flow[Step]:
    return (yield from _walk(s, _archive, named("reach_archive", (*s.bounds(), s.rows), _first)))


def _archive(s: Search) -> Statement[list[Row]]:
    return named("search_archive", (*s.bounds(), s.rows, s.limit, *s.filters(), s.wanted.worker), _rows)


def _search_dead(s: Search) -> Flow[Step]:
    return (yield from _walk(s, _dead, named("reach_dead", (*s.bounds(), s.rows), _first)))


def _dead(s: Search) -> Statement[list[Row]]:
    return named("search_dead", (*s.bounds(), s.rows, s.limit, *s.filters(), s.wanted.worker), _rows)


# Few of many: found by a separate table or index, unless they are many themselves.


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
    """As many of the named jobs as a step may read, from the newest back."""
    below, floor = s.bounds()
    there = {i for i in job_ids if (below is None or i < below) and (floor is None or i >= floor)}
    first = sorted(there, reverse=True)[: s.rows]

    def these(s: Search) -> Statement[list[Row]]:
        return named("search_these", (*s.bounds(), first, s.limit, *s.filters()), _rows)

    return (yield from _walk(s, these, first[-1] if len(there) > len(first) else None))


def _walk(
    s: Search, look: Callable[[Search], Statement[list[Row]]], reach: Statement[UUID | None] | UUID | None
) -> Flow[Step]:
    """The matches that are shown, and down to where that is all of them. Where it stops reveals nothing about masked text:
    a step continues past errors that match only unmasked, down to the same row as if there were none."""
    if s.wanted.masked is None:
        found = [Found(*r[:3]) for r in (yield from look(s))]
        return found, found[-1].id if len(found) == s.limit else (yield from _reached(reach))
    end = yield from _reached(reach)
    window = s.window if end is None else s.window._replace(floor=end)
    part = s._replace(window=window, limit=ERRORS)
    shown: list[Found] = []
    fits = shown_texts(s.wanted.error, s.wanted.masked)
    while True:
        rows = yield from look(part)
        shown += [Found(*r[:3]) for r in rows if fits(r[3])]
        if len(shown) >= s.limit:
            return shown[: s.limit], shown[s.limit - 1].id
        if len(rows) < part.limit:
            return shown, end
        part = part._replace(below=rows[-1][0])


def _reached(place: Statement[UUID | None] | UUID | None) -> Flow[UUID | None]:
    return (yield from place) if isinstance(place, Statement) else place


_RARE: dict[str, Searcher] = {
    PROCESSING: _search_running,
    HELD: _search_held,
    BLOCKED: _search_held,  # set aside too
    QUARANTINED: _search_quarantined,
}
