"""What is done to jobs: retry, cancel, discard. To named ones, all or none; or to all that fit, in batches.

A batch locks what it changes and takes nothing that somebody else holds, looks again at how each job stands, and commits
together with its count in the audit. So an act may run beside workers and other operators, and one that is interrupted has
done and counted what it did. What is created after it began is not touched.
"""

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

from .. import telemetry
from ..db.faults import BadRow, LockTimeout
from ..errors import ConfigurationError
from ..model.text import storable
from ..store import acts as store
from ..store import dead, keys
from ..store.acts import Locked, Place
from ..store.audit import audit_add, audit_begin
from ..store.operate import prefer_indexes
from ..store.search import FINISHED, LIVE, Found, JobFilter
from ..store.statement import Flow
from ..store.wake import wake
from .jobs import no_such_job
from .procedure import Procedure, actor, run, wait
from .search import begin, check_filter, check_queue, find

BATCH = 1000
WAIT = 5.0  # seconds to wait for named jobs that somebody else holds
_PAUSE = 0.05
T = TypeVar("T")

Results = dict[str, int]
Tell = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Verb:
    """One act: what it is called, which jobs it can be asked for, why not this one, and what it does."""

    action: str  # noun and verb, as on the command line
    done: str  # 'cancelled', for messages
    states: tuple[str, ...]  # that it can change
    usual: tuple[str, ...]  # of those, which are meant when many are asked for; empty: a state must be named
    refuse: Callable[[Locked], str | None]  # how this job stands, when that is in the way
    apply: Callable[[Sequence[Locked], int], Flow[Results]]  # the int: how many were done before
    more: Mapping[str, object] = field(default_factory=dict)  # for the audit


@dataclass(frozen=True, slots=True)
class Done:
    """What an act did."""

    action: str
    count: int  # jobs changed
    results: dict[str, int]  # how, and how many
    left: dict[str, int]  # why not, and how many
    audit: int | None  # the entry in the audit; None: nothing was changed


# Verbs ------------------------------------------------------------------------------------------------------------


def no_queue(job: Locked) -> str | None:
    if job.table != "work" and not job.has_queue:
        return f"belongs to queue {job.queue}, which does not exist. Create it: holdfast queue create {job.queue}"
    return None


def stranded(job: Locked) -> str | None:
    if job.stranded:
        return (
            "says that it runs, but no claim holds it. Put it back to waiting: holdfast doctor --fix stranded"
        )
    return None


def _no_retry(job: Locked) -> str | None:
    if job.stranded:
        return stranded(job)
    if job.running:
        return "is running"
    if job.state == "held":
        return f"is held: {job.hold_reason}. It runs by itself when that is over"
    if job.state == "completed":
        return f"completed. To run it again enqueue a new one: holdfast enqueue {job.task}"
    return no_queue(job)


def _retry(locked: Sequence[Locked], done: int) -> Flow[Results]:
    by: dict[str, list[Locked]] = {}
    for job in locked:
        by.setdefault(job.state, []).append(job)
    results = Counter[str](unchanged=len(by.get("pending", ())))
    if waiting := by.get("scheduled"):
        results["due_now"] = yield from store.make_due(waiting)
        results["unchanged"] += len(waiting) - results["due_now"]
    if quarantined := by.get("quarantined"):
        yield from store.free(quarantined)
        results["freed"] = len(quarantined)
    if buried := [job.id for job in by.get("dead_letter", ())]:
        results["redriven"] = len((yield from dead.redrive(buried, [0.0] * len(buried))))
    if blocked := by.get("blocked"):
        results["unblocked"] = yield from keys.unblock(blocked)
    if cancelled := by.get("cancelled"):
        results["revived"] = yield from store.revive(cancelled)
    yield from wake(sorted({job.queue for job in locked}))
    return results


RETRY = Verb(
    "jobs retry",
    "retried",
    ("scheduled", "quarantined", "blocked", "dead_letter", "cancelled"),
    # What somebody cancelled stays so unless it is asked for.
    ("scheduled", "quarantined", "blocked", "dead_letter"),
    _no_retry,
    _retry,
)


def cancel_verb(reason: str = "") -> Verb:
    reason = storable(reason)

    def refuse(job: Locked) -> str | None:
        if job.table == "work":
            return stranded(job)
        if job.state == "dead_letter":
            return "is a dead letter: it does not run. To delete it: holdfast dead discard"
        return f"is finished: it {'was cancelled' if job.state == 'cancelled' else 'completed'}"

    def apply(locked: Sequence[Locked], done: int) -> Flow[Results]:
        yield from store.free([job for job in locked if not job.running])
        ended, asked = yield from store.cancel(locked, reason)
        before = sum(job.running for job in locked) - asked
        return {"cancelled": ended, "asked_to_stop": asked, "asked_before": before}

    more = {"reason": reason} if reason else {}
    return Verb("jobs cancel", "cancelled", LIVE, LIVE, refuse, apply, more)


def _no_discard(job: Locked) -> str | None:
    return stranded(job) or ("is running: cancel it first" if job.running else None)


def _discard(locked: Sequence[Locked], done: int) -> Flow[Results]:
    yield from store.free(locked)
    return {"discarded": (yield from store.discard(locked))}


_AT_REST = ("pending", "scheduled", "held", "blocked", "quarantined", *FINISHED, "dead_letter")
DISCARD = Verb("jobs discard", "discarded", _AT_REST, (), _no_discard, _discard)


# Named jobs -------------------------------------------------------------------------------------------------------


class Busy(Exception):
    """Somebody else holds these jobs at this moment."""

    def __init__(self, job_ids: Sequence[UUID]) -> None:
        self.job_ids = job_ids


def act_on(verb: Verb, job_ids: Iterable[UUID]) -> Procedure[Done]:
    """All of them or, with an error that says why, none."""
    wanted = sorted(set(job_ids))
    who = yield from actor()
    done = yield from patiently(lambda: _act_on(verb, wanted, who))
    _tell(done, who)
    return done


def patiently(make: Callable[[], Flow[T]]) -> Procedure[T]:
    """Wait for jobs that somebody else holds, and start over."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            return (yield from run(make))
        except Busy as busy:
            if time.monotonic() > deadline:
                names = some([str(i) for i in busy.job_ids])
                raise LockTimeout(
                    f"nothing was changed: another session holds {names} for more than {WAIT:g} s"
                ) from None
            yield from wait(_PAUSE)


def _act_on(verb: Verb, wanted: Sequence[UUID], who: str) -> Flow[Done]:
    able = yield from able_ones(verb, wanted)
    results = yield from verb.apply(able, 0)
    count = _changed(results)
    entry = None
    if count:
        entry = yield from audit_begin(who, verb.action, {"ids": [str(i) for i in wanted], **verb.more})
        yield from audit_add(entry, count)
    return Done(verb.action, count, _some_of(results), {}, entry)


def able_ones(verb: Verb, wanted: Sequence[UUID]) -> Flow[list[Locked]]:
    """Lock all of them; refuse with every reason there is."""
    yield from prefer_indexes()
    places = yield from store.locate_jobs(wanted)
    missing = [i for i in wanted if i not in {place.id for place in places}]
    faults = [no_such_job(i) for i in missing]
    locked = yield from store.lock(places)
    if busy := sorted({place.id for place in places} - {job.id for job in locked}):
        raise Busy(busy)
    faults += [f"job {job.id} {why}" for job in locked if (why := verb.refuse(job))]
    if faults:
        raise ConfigurationError(f"nothing was {verb.done}: {some(faults)}")
    return locked


def some(names: Sequence[str]) -> str:
    return "; ".join(names[:5]) + (f"; and {len(names) - 5} more" if len(names) > 5 else "")


# All that fit -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """Many jobs: how they are found, a batch at a time from a place on, and in which states they still count."""

    states: Sequence[str]
    next: Callable[
        [Any], Procedure[tuple[list[Found], Any]]
    ]  # from the place that it returned last; None: the start, or the end
    given: Mapping[str, object]  # for the audit


def select(verb: Verb, wanted: JobFilter) -> Procedure[Selection]:
    wanted = yield from asked_for(verb, wanted)
    window = yield from begin(wanted)

    def batch(place: UUID | None) -> Procedure[tuple[list[Found], UUID | None]]:
        finding = yield from find(wanted, after=place, limit=BATCH, window=window, patience=0)
        return finding.found, finding.next

    return Selection(wanted.states or (), batch, wanted.given())


def asked_for(verb: Verb, wanted: JobFilter) -> Procedure[JobFilter]:
    check_filter(wanted)
    if not wanted.given():
        raise ConfigurationError("say which jobs: their ids, or filters such as --state, --queue or --task")
    for state in wanted.states or ():
        if state not in verb.states:
            raise ConfigurationError(
                f"{verb.action} cannot change jobs that are {state} (it can: {', '.join(verb.states)})"
            )
    if not wanted.states and not verb.usual:
        raise ConfigurationError(
            f"say which states: --state {', '.join(verb.states[:-1])} or {verb.states[-1]}"
            f" ({verb.action.split()[1]} deletes for good)"
        )
    yield from check_queue(wanted.queue)
    return wanted if wanted.states else replace(wanted, states=verb.usual)


def act_on_all(verb: Verb, selection: Selection, on_batch: Tell = lambda _: None) -> Procedure[Done]:
    """Batch by batch, each with its count in the audit. `on_batch` is told how many were changed so far."""
    work = _Run(verb, selection.states, selection.given, (yield from actor()))
    place = None
    while True:
        found, place = yield from selection.next(place)
        if found:
            yield from work.batch(found)
            on_batch(work.count)
        if place is None:
            break
    done = Done(verb.action, work.count, _some_of(work.results), dict(work.left), work.entry)
    _tell(done, work.who)
    return done


@dataclass(slots=True)
class _Run:
    verb: Verb
    states: Sequence[str]
    given: Mapping[str, object]
    who: str
    entry: int | None = None
    results: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return _changed(self.results)

    def batch(self, found: Sequence[Found]) -> Procedure[None]:
        """A row that the database refuses to change is found by halving, and left; the others are done."""
        try:
            results, left, self.entry = yield from run(functools.partial(self._flow, found))
        except BadRow as error:
            if len(found) == 1:
                self.left[f"refused by the database: {error}"] += 1
                return
            yield from self.batch(found[: len(found) // 2])
            yield from self.batch(found[len(found) // 2 :])
            return
        self.results.update(results)
        self.left.update(left)

    def _flow(self, found: Sequence[Found]) -> Flow[tuple[Results, Counter[str], int | None]]:
        yield from prefer_indexes()
        locked = {job.id: job for job in (yield from store.lock(_places(found)))}
        left = Counter[str]()
        able: list[Locked] = []
        for job in (locked.get(f.id) for f in found):
            if job is None or job.state not in self.states:
                left["in use by somebody else, or changed meanwhile"] += 1
            elif why := self.verb.refuse(job):
                left[why] += 1
            else:
                able.append(job)
        results = (yield from self.verb.apply(able, self.count)) if able else {}
        entry = self.entry
        if changed := _changed(results):
            if entry is None:
                entry = yield from audit_begin(self.who, self.verb.action, {**self.given, **self.verb.more})
            yield from audit_add(entry, changed)
        return results, left, entry


def _places(found: Sequence[Found]) -> list[Place]:
    return [Place(job.id, job.queue, _table(job.state)) for job in found]


def _table(state: str) -> str:
    if state in LIVE:
        return "work"
    return "archive" if state in FINISHED else "dead_letters"


def _changed(results: Mapping[str, int]) -> int:
    return sum(count for name, count in results.items() if name not in ("unchanged", "asked_before"))


def _some_of(results: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in results.items() if count}


def _tell(done: Done, who: str) -> None:
    telemetry.emit(
        "operator.acted", action=done.action, actor=who, count=done.count, left=sum(done.left.values())
    )
