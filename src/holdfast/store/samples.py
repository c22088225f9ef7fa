"""Samples: the state of each queue in each minute."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from .statement import Statement, count, named

DUE = "sample_due"  # the question of the pulse


@dataclass(frozen=True, slots=True)
class Sample:
    """A queue in one step of time: the highest of each count, and the lowest of workers. Counts stop at 10,000."""

    at: datetime
    queue: str
    due: int
    behind: int  # of those due: behind a job or a key that waits for something else
    running: int
    held: int
    blocked: int
    oldest: float | None  # seconds that the oldest job waits that could run; None: there is none
    workers: int
    minutes: int  # of the step that have a sample


@dataclass(frozen=True, slots=True)
class Usual:
    """What a queue has at this time of day, and what it has now."""

    queue: str
    due: int | None  # the median; None: there is no day to compare with
    most_due: int | None  # in 95 of 100 minutes it is no more
    oldest: float | None
    most_oldest: float | None
    days: int  # that were compared
    due_now: int | None  # None: no sample of the last minutes
    behind_now: int | None
    oldest_now: float | None
    workers_now: int | None


@dataclass(frozen=True, slots=True)
class Latest:
    queue: str
    behind: int
    oldest: float | None


@dataclass(frozen=True, slots=True)
class Trend:
    """One minute of a queue, or with `queue` None of all of them together."""

    at: datetime
    queue: str | None
    due: int
    oldest: float | None


def sample_trend(queues: Sequence[str], seconds: float) -> Statement[list[Trend]]:
    return named("sample_trend", (list(queues), seconds), lambda rows: [Trend(*r) for r in rows])


def take_sample(late_after: float) -> Statement[bool]:
    """False: this minute has one, or another worker is writing it."""
    return named("take_sample", (late_after,), lambda rows: bool(rows[0][0]))


def samples(queue: str | None, seconds: float, step: int, limit: int) -> Statement[list[Sample]]:
    params = (queue, seconds, step, limit)
    return named("samples", params, lambda rows: [Sample(*r) for r in rows])


def usual_load() -> Statement[list[Usual]]:
    return named("usual_load", (), lambda rows: [Usual(*r) for r in rows])


def last_samples() -> Statement[list[Latest]]:
    return named("last_samples", (), lambda rows: [Latest(*r) for r in rows])


def prune_samples(days: int, limit: int) -> Statement[int]:
    return named("prune_samples", (days, limit), count)
