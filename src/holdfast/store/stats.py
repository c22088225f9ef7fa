"""Statistics: the workers' sums by minute, and what takes the space. No job is counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ..model.histogram import Percentiles, percentiles
from .statement import Row, Statement, named


@dataclass(frozen=True, slots=True)
class Done:
    """What one task did, or with `task` None a whole queue. Times are seconds, means are over all attempts."""

    queue: str
    task: str | None
    completed: int
    failed: int  # attempts, retried or not
    dead: int
    cancelled: int
    mean_run: float | None
    max_run: float
    mean_wait: float | None
    max_wait: float
    completed_per_minute: float
    failed_per_minute: float
    run: Percentiles | None = None  # None: nothing ran, or workers of an older release alone
    wait: Percentiles | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    relation: str
    bytes: int
    about_rows: int
    dead_rows: int | None


@dataclass(frozen=True, slots=True)
class Window:
    since: datetime
    minutes: float


def stats_window(minutes: int) -> Statement[Window]:
    return named("stats_window", (minutes,), lambda rows: Window(*rows[0]))


def stats(window: Window, queue: str | None, task: str | None, limit: int) -> Statement[list[Done]]:
    """By task, the busiest first."""
    params = (window.since, queue, task, limit)
    return named("stats", params, lambda rows: _done(rows, window.minutes))


class Minute(NamedTuple):
    """The work of all queues in one minute."""

    at: datetime
    completed: int
    failed: int  # attempts
    dead: int


def stats_minutes(since: datetime) -> Statement[list[Minute]]:
    """The oldest first; minutes without work are left out."""
    return named("stats_minutes", (since,), lambda rows: [Minute(*r) for r in rows])


class Waited(NamedTuple):
    """How long attempts of a queue that began in one minute had waited: from due to started."""

    at: datetime
    queue: str
    longest: float
    counts: Sequence[int]  # by bucket, as model/histogram.py has them


def stats_waits(since: datetime) -> Statement[list[Waited]]:
    """The oldest first; minutes in which a queue began nothing are left out."""
    return named("stats_waits", (since,), lambda rows: [Waited(*r) for r in rows])


class Marked(NamedTuple):
    """An event that may explain a change."""

    at: datetime
    kind: str  # "release" or "breaker"
    name: str


def stats_marks(since: datetime, limit: int) -> Statement[list[Marked]]:
    """The newest first."""
    return named("stats_marks", (since, limit), lambda rows: [Marked(*r) for r in rows])


def stats_queues(window: Window, queue: str | None, task: str | None, limit: int) -> Statement[list[Done]]:
    params = (window.since, queue, task, limit)
    return named("stats_queues", params, lambda rows: _done(rows, window.minutes))


def _done(rows: Sequence[Row], minutes: float) -> list[Done]:
    return [_line(r, minutes) for r in rows]


def _line(r: Row, minutes: float) -> Done:
    *sums, runs, waits = r
    rates = [round(n / minutes, 3) for n in sums[2:4]]
    return Done(*[*sums, *rates, percentiles(runs or (), sums[7]), percentiles(waits or (), sums[9])])


def storage(limit: int) -> Statement[list[Relation]]:
    return named("storage", (limit,), lambda rows: [Relation(*r) for r in rows])


def archive_rows() -> Statement[tuple[int, int]]:
    return named("archive_rows", (), lambda rows: (rows[0][0], rows[0][1]))
