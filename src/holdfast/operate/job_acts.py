"""Acts on jobs: retry, cancel, discard. On named ones, all or none; or on all that match, in batches.

A batch locks the jobs it changes and takes none that another session holds, checks each job's state again, and commits
together with its count in the audit. So an act may run beside workers and other operators, and one that is interrupted has
done and counted its finished batches. Jobs created after it began are not touched.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from ..model.state import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    DEAD_LETTER,
    DISCARDED,
    FINISHED,
    HELD,
    LIVE,
    PENDING,
    PROCESSING,
    QUARANTINED,
    SCHEDULED,
)
from ..model.text import storable
from ..store import acts as store
from ..store import dead, keys
from ..store.acts import JobLocation, Locked
from ..store.queue_load import prefer_indexes
from ..store.search import Found, JobFilter, Window
from ..store.statement import Flow
from ..store.wake import wake
from .bulk import Apply, Busy, Done, Noted, Reasons, Results, Selection, Tell, do_named, do_selected
from .jobs import no_such_job
from .procedure import Procedure
from .refusal import NothingDone, Refused, Why, why
from .search import begin, check_filter, check_queue, find

MOVED_ON = why("moved_on", "in use by somebody else, or changed meanwhile")


@dataclass(frozen=True, slots=True)
class Verb:
    """One act: its name, the states it accepts, its reason to refuse a job, and its change."""

    action: str  # noun and verb, as on the command line
    done: str  # 'cancelled', for messages
    states: tuple[str, ...]  # that it can change
    usual: tuple[str, ...]  # the states that are meant when many are selected; empty: a state must be named
    refuse: Callable[[Locked], Why | None]  # the name of this job's state, when that prevents the act
    apply: Callable[[Sequence[Locked], int], Flow[Results]]  # the int: how many were done before
    more: Mapping[str, object] = field(default_factory=dict)  # for the audit
    before: Callable[[Sequence[Locked]], Mapping[str, object]] = lambda _: {}  # as they were, for the audit


# Verbs ------------------------------------------------------------------------------------------------------------


def no_queue(job: Locked) -> Why | None:
    if job.table != "work" and not job.has_queue:
        return why("no_queue", f"belongs to queue {job.queue}, which does not exist", queue=job.queue)
    return None


def stranded(job: Locked) -> Why | None:
    if job.stranded:
        return why("stranded", "says that it runs, but no claim holds it")
    return None


def of_workflow(job: Locked, verb: str) -> Why | None:
    """A run ends by its own code, which may have something to undo."""
    if job.is_run:
        return why("is_workflow", "is a run of a workflow", id=job.id, verb=verb)
    return None


def _no_retry(job: Locked) -> Why | None:
    if job.stranded:
        return stranded(job)
    if job.running:
        return why("running", "is running")
    if job.state == HELD:
        return why(HELD, f"is held: {job.hold_reason}. It runs by itself when that is over")
    if job.state == COMPLETED:
        return why(COMPLETED, "completed", id=job.id)
    return no_queue(job)


def _retry(locked: Sequence[Locked], done: int) -> Flow[Results]:
    by: dict[str, list[Locked]] = {}
    for job in locked:
        by.setdefault(job.state, []).append(job)
    results = Counter[str](unchanged=len(by.get(PENDING, ())))
    if waiting := by.get(SCHEDULED):
        results["due_now"] = yield from store.make_due(waiting)
        results["unchanged"] += len(waiting) - results["due_now"]
    if quarantined := by.get(QUARANTINED):
        yield from store.free(quarantined)
        results["freed"] = len(quarantined)
    if buried := [job.id for job in by.get(DEAD_LETTER, ())]:
        results["redriven"] = len((yield from dead.redrive(buried, [0.0] * len(buried))))
    if blocked := by.get(BLOCKED):
        results["unblocked"] = yield from keys.unblock(blocked)
    if cancelled := by.get(CANCELLED):
        results["revived"] = yield from store.revive(cancelled)
    yield from wake(sorted({job.queue for job in locked}))
    return results


RETRY = Verb(
    "jobs retry",
    "retried",
    (SCHEDULED, QUARANTINED, BLOCKED, DEAD_LETTER, CANCELLED),
    # A cancelled job stays cancelled unless it is asked for.
    (SCHEDULED, QUARANTINED, BLOCKED, DEAD_LETTER),
    _no_retry,
    _retry,
)


def cancel_verb(reason: str = "") -> Verb:
    reason = storable(reason)

    def refuse(job: Locked) -> Why | None:
        if job.table == "work":
            return of_workflow(job, "cancel") or stranded(job)
        if job.state == DEAD_LETTER:
            return why(DEAD_LETTER, "is a dead letter: it does not run")
        return why(
            "finished", f"is finished: it {'was cancelled' if job.state == CANCELLED else 'completed'}"
        )

    def apply(locked: Sequence[Locked], done: int) -> Flow[Results]:
        yield from store.free([job for job in locked if not job.running])
        ended, asked = yield from store.cancel(locked, reason)
        before = sum(job.running for job in locked) - asked
        return {CANCELLED: ended, "asked_to_stop": asked, "asked_before": before}

    more = {"reason": reason} if reason else {}
    return Verb("jobs cancel", CANCELLED, LIVE, LIVE, refuse, apply, more, _as_they_stood)


def _as_they_stood(locked: Sequence[Locked]) -> dict[str, object]:
    """What an undo needs to know and the archive does not have."""
    suspects = [str(job.id) for job in locked if job.suspect]
    states = dict(Counter(PROCESSING if job.running else job.state for job in locked))
    return {"states": states, "suspects": suspects} if suspects else {"states": states}


def _no_discard(job: Locked) -> Why | None:
    why_not = of_workflow(job, "terminate") or stranded(job)
    return why_not or (why("running", "is running: cancel it first") if job.running else None)


def _discard(locked: Sequence[Locked], done: int) -> Flow[Results]:
    yield from store.free(locked)
    return {DISCARDED: (yield from store.discard(locked))}


_AT_REST = (PENDING, SCHEDULED, HELD, BLOCKED, QUARANTINED, *FINISHED, DEAD_LETTER)
DISCARD = Verb("jobs discard", DISCARDED, _AT_REST, (), _no_discard, _discard)


# Named jobs -------------------------------------------------------------------------------------------------------


def act_on(verb: Verb, job_ids: Iterable[UUID]) -> Procedure[Done]:
    """All of them, or none with an error that says why."""
    wanted = sorted(set(job_ids))
    was: dict[str, object] = {}

    def apply() -> Flow[Results]:
        locked = yield from able_ones(verb, wanted)
        was.clear()
        was.update(verb.before(locked))
        return (yield from verb.apply(locked, 0))

    given = {"ids": [str(i) for i in wanted], **verb.more}
    return (yield from do_named(verb.action, given, apply, was))


def able_ones(verb: Verb, wanted: Sequence[UUID]) -> Flow[list[Locked]]:
    """Lock all of them; refuse with every reason."""
    yield from prefer_indexes()
    places = yield from store.locate_jobs(wanted)
    missing = [i for i in wanted if i not in {place.id for place in places}]
    faults = [why("no_job", no_such_job(i)) for i in missing]
    locked = yield from store.lock(places)
    if busy := sorted({place.id for place in places} - {job.id for job in locked}):
        raise Busy(busy)
    refusals = [(job, reason) for job in locked if (reason := verb.refuse(job))]
    faults += [replace(reason, text=f"job {job.id} {reason.text}") for job, reason in refusals]
    if faults:
        raise NothingDone(verb.done, faults)
    return locked


# All that match -----------------------------------------------------------------------------------------------------


def select(verb: Verb, wanted: JobFilter) -> Procedure[Selection[Found]]:
    wanted = yield from asked_for(verb, wanted)
    return within(wanted, (yield from begin(wanted)))


def within(wanted: JobFilter, window: Window) -> Selection[Found]:
    """Those that match and existed when the window was made."""

    def batch(place: UUID | None, limit: int) -> Procedure[tuple[list[Found], UUID | None]]:
        finding = yield from find(wanted, after=place, limit=limit, window=window, patience=0)
        return finding.found, finding.next

    return Selection(wanted.states or (), batch, wanted.given())


def asked_for(verb: Verb, wanted: JobFilter) -> Procedure[JobFilter]:
    check_filter(wanted)
    if not wanted.given():
        raise Refused("no_filter", "say which jobs: their ids, or filters such as state, queue or task")
    for state in wanted.states or ():
        if state not in verb.states:
            text = f"{verb.action} cannot change jobs that are {state} (it can: {', '.join(verb.states)})"
            raise Refused("wrong_state", text, state=state, states=verb.states)
    if not wanted.states and not verb.usual:
        text = f"say which states: {', '.join(verb.states[:-1])} or {verb.states[-1]}"
        raise Refused("no_states", text, states=verb.states, verb=verb.action.split()[1])
    yield from check_queue(wanted.queue)
    return wanted if wanted.states else replace(wanted, states=verb.usual)


def act_on_all(verb: Verb, selection: Selection[Found], on_batch: Tell = lambda _: None) -> Procedure[Done]:
    """Batch by batch, each with its count in the audit. `on_batch` gets the number of changes so far. The entry of an act
    that knows the states before names the jobs if they fit one batch, so that it can be undone."""
    noted = Noted()
    apply = apply_to(verb, selection.states, noted)
    return (yield from do_selected(verb.action, selection, apply, on_batch, verb.more, noted))


def apply_to(verb: Verb, states: Sequence[str], noted: Noted | None = None) -> Apply[Found]:
    """The act on one batch: lock the free jobs, check each state again, and change it."""

    def apply(found: Sequence[Found], done: int) -> Flow[tuple[Results, Reasons]]:
        locked = {job.id: job for job in (yield from store.lock(_places(found)))}
        left = Reasons()
        able: list[Locked] = []
        for job in (locked.get(f.id) for f in found):
            if job is None or job.state not in states:
                left[MOVED_ON] += 1
            elif reason := verb.refuse(job):
                left[reason] += 1
            else:
                able.append(job)
        if noted is not None and (was := verb.before(able)):
            noted.ids, noted.before = [str(job.id) for job in able], was
        return ((yield from verb.apply(able, done)) if able else {}), left

    return apply


def _places(found: Sequence[Found]) -> list[JobLocation]:
    return [JobLocation(job.id, job.queue, _table(job.state)) for job in found]


def _table(state: str) -> str:
    if state in LIVE:
        return "work"
    return "archive" if state in FINISHED else "dead_letters"
