"""Pause and resume: queues, and tasks in every queue.

No claim that begins after the pause committed takes such a job; claimed jobs finish. A paused queue's jobs stay
where they are. Jobs of a paused task are set aside, because a claim would have to pass all of them: the pause itself
moves those at the front, and the sweep moves those that reach the front later.
"""

import difflib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..db.faults import BadRow
from ..errors import ConfigurationError
from ..model.actor import Actor
from ..store import breaker, jobs, queue_load
from ..store import pause as store
from ..store.audit import audit, audit_begin
from ..store.breaker import BreakerSeen
from ..store.pause import Pause, Paused, PausedTask
from ..store.queue_load import Count
from ..store.statement import Flow, Statement
from ..store.wake import wake
from ..tasks.checks import task_name
from .procedure import Procedure, actor, run, settings
from .refusal import NoQueue

Tell = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class QueuePause:
    queue: str
    changed: bool  # False: it was already so
    pause: Pause  # its state now
    audit: int | None = None  # the entry, by which a pause is undone; None: nothing was changed


@dataclass(frozen=True, slots=True)
class TaskPause:
    task: str
    changed: bool
    pause: PausedTask | None  # None: it is not paused
    moved: int  # jobs set aside, or put back
    left: str | None = None  # why some of them could not be moved
    breaker_closed: bool = False
    audit: int | None = None  # of a pause: the entry, by which it is undone


@dataclass(frozen=True, slots=True)
class TaskLine:
    task: str
    workers: int  # live workers that know it
    pause: PausedTask | None  # by an operator
    held: Count | None  # how many jobs are set aside; only of a paused task
    breaker: BreakerSeen | None = None  # None: closed without a failure, or it has none


def pause_queue(name: str) -> Procedure[QueuePause]:
    """Keep the queue's jobs from being claimed. A queue that is paused already is no error: the result says since when."""
    who = yield from actor()
    return (yield from run(lambda: _turn_queue(name, store.pause_queue(name, who.name), "queue pause", who)))


def resume_queue(name: str) -> Procedure[QueuePause]:
    return (yield from undo_queue_pause(name, None))


def undo_queue_pause(name: str, only: Paused | None) -> Procedure[QueuePause]:
    """Resume it if this very act paused it; None: whichever did."""
    who = yield from actor()
    return (yield from run(lambda: _turn_queue(name, store.resume_queue(name, only), "queue resume", who)))


def _turn_queue(name: str, turn: Statement[bool], action: str, who: Actor) -> Flow[QueuePause]:
    changed = yield from turn
    entry = None
    if changed:
        entry = yield from audit_begin(who, action, {"queue": name}, *_turned(action), count=1)
        yield from wake([name])  # a paused queue wakes nobody
    pause = yield from store.queue_pause(name)
    if pause is None:
        raise NoQueue(name, (yield from jobs.queue_names()))
    return QueuePause(name, changed, pause, entry)


def pause_task(task: str, on_batch: Tell = lambda _: None) -> Procedure[TaskPause]:
    """Keep the task's jobs from being claimed, in every queue, and set aside those that are due."""
    task_name(task, "a task name", ConfigurationError)
    who = yield from actor()
    entry = yield from run(lambda: _turn_task(store.pause_task(task, who.name), task, "task pause", who))
    moved, left = yield from _move(store.queues_to_hold(), store.hold_paused, on_batch)
    paused = yield from run(store.paused_tasks)
    pause = next((p for p in paused if p.task == task and not p.by_breaker), None)
    return TaskPause(task, entry is not None, pause, moved, left, audit=entry)


def resume_task(task: str, on_batch: Tell = lambda _: None) -> Procedure[TaskPause]:
    """Let the task's jobs run again, also if a breaker paused it, and put back the jobs set aside. Closes its breaker."""
    task_name(task, "a task name", ConfigurationError)
    who = yield from actor()
    closed, changed = yield from run(lambda: _resume_task(task, who))
    moved, left = yield from _put_back(task, on_batch)
    return TaskPause(task, changed, None, moved, left, closed)


def undo_task_pause(task: str, only: Paused) -> Procedure[TaskPause]:
    """Resume it if this very act paused it. Its breaker stays as it is."""
    who = yield from actor()
    changed = yield from run(lambda: _lift_task(task, only, who))
    moved, left = (yield from _put_back(task, lambda _: None)) if changed else (0, None)
    paused = yield from run(store.paused_tasks)
    pause = next((p for p in paused if p.task == task and not p.by_breaker), None)
    return TaskPause(task, changed, pause, moved, left)


def _lift_task(task: str, only: Paused, who: Actor) -> Flow[bool]:
    entry = yield from _turn_task(store.resume_task(task, only), task, "task resume", who)
    if entry is not None:
        yield from wake((yield from jobs.queue_names()))
    return entry is not None


def _put_back(task: str, on_batch: Tell) -> Procedure[tuple[int, str | None]]:
    return (
        yield from _move(
            store.queues_with_held(task), lambda queue: store.release_paused(queue, task), on_batch
        )
    )


def _resume_task(task: str, who: Actor) -> Flow[tuple[bool, bool]]:
    closed = yield from breaker.close_breaker(task)  # first: every change of both locks the breaker first
    lifted = yield from store.resume_task(task)
    if closed or lifted:
        what = {"task": task, "breaker": "closed"} if closed else {"task": task}
        yield from audit(who, "task resume", what, 1, *_turned("task resume"))
        yield from wake((yield from jobs.queue_names()))
    return closed, closed or lifted


def _turn_task(turn: Statement[bool], task: str, action: str, who: Actor) -> Flow[int | None]:
    """Its entry in the audit; None: nothing was changed."""
    if not (yield from turn):
        return None
    return (yield from audit_begin(who, action, {"task": task}, *_turned(action), count=1))


def _turned(action: str) -> tuple[dict[str, object], dict[str, object]]:
    """Before and after, for the audit."""
    paused = action.endswith("pause")
    return {"paused": not paused}, {"paused": paused}


def _move(
    queues: Statement[list[str]],
    step: Callable[[str], Flow[int]],
    on_batch: Tell,
) -> Procedure[tuple[int, str | None]]:
    """Step through the queues in batches that commit one by one, until a batch finds little more."""
    moved = 0
    left = None
    for queue in (yield from run(lambda: queues)):
        count = store.HOLD_BATCH
        try:
            while count >= store.HOLD_BATCH // 4:
                count = yield from run(functools.partial(step, queue))
                moved += count
                on_batch(moved)
        except BadRow as error:  # the pause applies anyway: claims check it
            left = f"queue {queue}: {error}"
    return moved, left


def known_tasks() -> Procedure[list[str]]:
    """The tasks that live workers know."""
    return sorted((yield from _known()))


def _known() -> Procedure[dict[str, int]]:
    late_after = (yield from settings()).dead_after
    return (yield from run(lambda: store.known_tasks(late_after)))


def list_tasks(declared: Iterable[str] = ()) -> Procedure[list[TaskLine]]:
    """Every task that is paused, that a live worker knows, or that is in `declared`."""
    late_after = (yield from settings()).dead_after
    names = sorted(set(declared))
    return (yield from run(lambda: _task_lines(late_after, names)))


def _task_lines(late_after: float, declared: list[str]) -> Flow[list[TaskLine]]:
    yield from queue_load.prefer_indexes()
    known = yield from store.known_tasks(late_after)
    pauses = yield from store.paused_tasks()
    paused = {p.task: p for p in pauses if not p.by_breaker}
    breakers = {b.task: b for b in (yield from breaker.list_breakers())}
    aside = {p.task for p in pauses}
    lines = []
    for task in sorted({*known, *aside, *declared}):
        held = (yield from store.held_of_task(task)) if task in aside else None
        lines.append(TaskLine(task, known.get(task, 0), paused.get(task), held, breakers.get(task)))
    return lines


def doubt(task: str, declared: Iterable[str] = ()) -> Procedure[str | None]:
    """Why the name may be a mistake: no worker knows such a task. None: one does, or nobody can tell."""
    known = {*declared, *(yield from _known())}
    if not known or task in known:
        return None
    close = difflib.get_close_matches(task, sorted(known), 1)
    return f"no app or live worker here knows a task {task!r}." + (
        f" Did you mean {close[0]!r}?" if close else ""
    )
