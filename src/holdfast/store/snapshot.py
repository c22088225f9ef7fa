"""What a worker's metrics report about the whole system, besides the loads of the queues."""

from collections.abc import Sequence
from typing import NamedTuple

from .queue_load import CAP
from .statement import Row, Statement, count, named


class Fleet(NamedTuple):
    workers: int
    concurrency: int  # jobs they may run at once


class Staff(NamedTuple):
    """The workers of a queue."""

    paused: bool
    workers: int  # alive ones that take jobs from it


def fleet(late_after: float) -> Statement[dict[str, Fleet]]:
    """By status, workers that have not left."""

    def decode(rows: Sequence[Row]) -> dict[str, Fleet]:
        return {status: Fleet(workers, concurrency) for status, workers, concurrency in rows}

    return named("fleet", (late_after, CAP), decode)


def queue_staff(late_after: float) -> Statement[dict[str, Staff]]:
    def decode(rows: Sequence[Row]) -> dict[str, Staff]:
        return {name: Staff(paused, workers) for name, paused, workers in rows}

    return named("queue_staff", (late_after, CAP), decode)


def count_paused_tasks() -> Statement[int]:
    return named("count_paused_tasks", (CAP,), count)


def count_expired() -> Statement[int]:
    """Claims past their lease that still have jobs."""
    return named("count_expired", (CAP,), count)
