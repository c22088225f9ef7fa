"""Circuit breakers: counting how attempts end, and the one job that is tried while a breaker is not closed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from ..model.breaker import Breaker, BreakerChange, Watch
from ..model.job import ClaimedJob
from ..model.outcome import Completed, Failed, Outcome, Settled, Settlement
from ..model.queue import QueueRules
from ..model.state import UNSETTLED
from .claim import claim_these
from .limits import Asked, within
from .pause import hold_paused
from .queue_load import CAP
from .statement import Flow, Row, Statement, ids, named, nothing
from .streams import claim_streams, unhold

_LOOK = 1000
_watch: Callable[[Settlement], Watch | None] = itemgetter(2)


@dataclass(slots=True)
class Note:
    """What a breaker learns from ended attempts."""

    breaker: Breaker
    succeeded: bool = False
    failed: int = 0  # after the last success
    good: list[UUID] = field(default_factory=list)  # claims
    bad: list[UUID] = field(default_factory=list)
    error: str | None = None
    _calls: set[UUID] = field(default_factory=set)

    def add(self, watch: Watch, outcome: Outcome, token: UUID) -> None:
        """Completed is a success, Failed (also a timeout and Retry) a failure; other outcomes do not count."""
        if isinstance(outcome, Completed):
            self.succeeded, self.failed, self.error = True, 0, None
            self._calls.clear()
            self.good.append(token)
        elif isinstance(outcome, Failed):
            self.bad.append(token)
            self.error = outcome.error.summary
            if watch.call is None or watch.call not in self._calls:
                self.failed += 1
            if watch.call is not None:
                self._calls.add(watch.call)


def note_ends(batch: Sequence[Settlement], exceptions: Mapping[int, Settled]) -> Flow[list[BreakerChange]]:
    """Run by a settle in its transaction: count the ends of watched attempts in their breakers. `exceptions`: the result of
    those that did not plainly complete, by their place in the batch."""
    if not any(map(_watch, batch)):
        return []
    notes: dict[str, Note] = {}
    for place, (grant, outcome, watch, _) in enumerate(batch):
        if watch is None:
            continue
        answer = exceptions.get(place)
        if answer is None or not (answer.already or answer.state in UNSETTLED):
            notes.setdefault(watch.task, Note(watch.breaker)).add(watch, outcome, UUID(grant.token_text))
    changes = []
    for task in sorted(notes):  # in a fixed order, so that two settlers cannot deadlock
        change = yield from count_ends(task, notes[task])
        changes.append(change)
    return [change for change in changes if change is not None]


def count_ends(task: str, note: Note) -> Flow[BreakerChange | None]:
    if not (note.good or note.bad):
        return None
    rule = note.breaker
    told = (task, note.succeeded, note.failed, note.good, note.bad, note.error)
    change: str | None = yield from named(
        "note_breaker",
        (*told, rule.failures, rule.within, rule.cooldown, rule.cap),
        lambda rows: rows[0][0],
    )
    return None if change is None else BreakerChange(task, change, note.error)


def close_breaker(task: str) -> Statement[bool]:
    """False: it was closed, or there is none."""
    return named("close_breaker", (task,), lambda rows: bool(rows[0][0]))


def close_unwatched(tasks: Sequence[str]) -> Statement[list[str]]:
    return named("close_unwatched", (list(tasks),), ids)


def breakers_due(tasks: Sequence[str]) -> Statement[list[str]]:
    return named("breakers_due", (list(tasks),), ids)


class Trial(NamedTuple):
    job_id: UUID
    key: str | None


def find_trial(
    queue: str, task: str, versions: Sequence[int], *, suspects: bool, ordered: bool
) -> Flow[Trial | None]:
    """A job to try. Jobs that reached the front of the queue since the last sweep are set aside first."""

    def decode(rows: Sequence[Row]) -> list[Trial]:
        return [Trial(*r) for r in rows]

    params = (queue, task, list(versions), suspects, ordered)
    what = named("find_trial", params, decode)
    found = yield from what
    if not found and (yield from hold_paused(queue, _LOOK)):
        found = yield from what
    return found[0] if found else None


def claim_trial(
    queue: str, worker: str, token: UUID, *, lease: float, task: str, trial: Trial, rules: QueueRules
) -> Flow[list[ClaimedJob]]:
    """Take the job for a trial, unless one runs. The lock on the breaker makes it one in the whole fleet.

    The order and the limits of its queue hold for it too."""
    locked = yield from named("lock_breaker", (task,), ids)
    if not locked or (yield from named("trial_runs", (task,), ids)):
        return []
    yield from named("lift_breaker", (task,), nothing)

    def take() -> Flow[list[ClaimedJob]]:
        if not rules.ordered or trial.key is None:
            return (
                yield from claim_these(
                    queue, worker, token, lease=lease, job_ids=[trial.job_id], limited=rules.limited
                )
            )
        yield from unhold(queue, [trial.job_id])
        return (
            yield from claim_streams(
                queue,
                worker,
                token,
                lease=lease,
                keys=[trial.key],
                run=1,
                suspects=True,
                limited=rules.limited,
            )
        )

    if rules.limited:
        keys = [trial.key] if rules.keyed and trial.key is not None else []
        known = Asked(worker, 1, ahead=0.0)
        done = yield from within(queue, keys, lambda some: take() if all(some.keys) else _nothing(), known)
        jobs = done.jobs
    else:
        jobs = yield from take()
    taken = (queue, jobs[0].id, token) if jobs else (None, None, None)
    yield from named("begin_trial", (task, *taken), nothing)
    return jobs


def _nothing() -> Flow[list[ClaimedJob]]:
    yield from ()
    return []


def breakers_to_put_back() -> Statement[list[str]]:
    return named("breakers_to_put_back", (), ids)


def breaker_put_back(task: str) -> Statement[None]:
    return named("breaker_put_back", (task,), nothing)


@dataclass(frozen=True, slots=True)
class BreakerSeen:
    task: str
    state: str
    failures: int  # counted while closed
    opened_at: datetime | None
    retry_at: datetime | None
    open_seconds: float | None
    trial_in_seconds: float | None  # below 0: due
    trials: int  # that failed
    trial_job: UUID | None
    last_error: str | None


def list_breakers() -> Statement[list[BreakerSeen]]:
    return named("list_breakers", (CAP,), lambda rows: [BreakerSeen(*r) for r in rows])
