"""Pause: keep a queue's or a task's jobs from being claimed, and set the task's jobs aside while it lasts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from .queue_load import CAP, Count, capped, prefer_indexes
from .statement import Flow, Row, Statement, count, ids, named
from .wake import wake

HOLD_BATCH = 10_000  # jobs read, or put back, in one statement


@dataclass(frozen=True, slots=True)
class Pause:
    """Since when it is paused and by whom; all None: it is not."""

    at: datetime | None = None
    by: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PausedTask:
    task: str
    paused_at: datetime
    paused_by: str | None
    paused_seconds: float
    by_breaker: bool = False


class Paused(NamedTuple):
    """One act of pausing: when it was recorded, and by whom."""

    at: datetime
    by: str


def pause_queue(name: str, who: str) -> Statement[bool]:
    """False: it is paused already, or there is no such queue."""
    return named("pause_queue", (name, who), bool)


def resume_queue(name: str, only: Paused | None = None) -> Statement[bool]:
    return named("resume_queue", (name, *(only or (None, None))), bool)


def queue_pause(name: str) -> Statement[Pause | None]:
    """None: there is no such queue."""
    return named("queue_pause", (name,), lambda rows: Pause(*rows[0]) if rows else None)


def pause_task(task: str, who: str) -> Statement[bool]:
    return named("pause_task", (task, who), bool)


def resume_task(task: str, only: Paused | None = None) -> Statement[bool]:
    return named("resume_task", (task, *(only or (None, None))), bool)


def paused_tasks() -> Statement[list[PausedTask]]:
    return named("paused_tasks", (), lambda rows: [PausedTask(*r) for r in rows])


def queues_to_hold() -> Statement[list[str]]:
    """Empty while no task is paused."""
    return named("queues_to_hold", (), ids)


def hold_paused(queue: str, look: int = HOLD_BATCH) -> Flow[int]:
    """Set aside due jobs of paused tasks among the first `look`; returns how many."""
    yield from prefer_indexes()  # stale statistics would have the priorities found by reading the queue
    return (yield from named("hold_paused", (queue, look), count))


def queues_with_held(task: str) -> Statement[list[str]]:
    return named("queues_with_held", (task,), ids)


def release_paused(queue: str, task: str, limit: int = HOLD_BATCH) -> Flow[int]:
    """Put back what a pause of the task set aside; returns how many."""
    yield from prefer_indexes()
    moved = yield from named("release_paused", (queue, task, limit), count)
    yield from wake([queue])
    return moved


def held_of_task(task: str) -> Statement[Count]:
    return named("held_of_task", (task, CAP + 1), lambda rows: capped(rows[0][0]))


def known_tasks(late_after: float) -> Statement[dict[str, int]]:
    """Task name -> how many live workers know it."""

    def decode(rows: Sequence[Row]) -> dict[str, int]:
        return {r[0]: r[1] for r in rows}

    return named("known_tasks", (late_after, CAP), decode)
