"""What operators do with runs, once for the command line, Python and other surfaces."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from ...errors import ConfigurationError
from ...model.state import PROCESSING
from ...model.text import storable
from ...operate.procedure import Method, Procedure, Runner, actor, run
from ...operate.refusal import Refused
from ...store import acts, dead
from ...store.audit import audit
from ...store.show import Progress, show_progress
from ...store.statement import Flow, Statement
from ...store.wake import wake
from ...tasks import checks
from ...tasks.payload import dump
from . import runs, store
from .runs import RunView
from .timeline import Entry, Sent, messages, timeline

MOST = 1000
_HOW = {
    "completed": "it completed",
    "failed": "it failed",
    "cancelled": "it was cancelled",
    "terminated": "it was terminated",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A run with all that is known of it."""

    run: RunView
    entries: list[Entry]
    signals: list[Sent]
    at_work: Progress | None = None  # what its steps said last; None: nothing, or nobody has it


@dataclass(frozen=True, slots=True)
class Page:
    runs: list[RunView]
    next: UUID | None  # where the next page begins; None: there are no more
    cut: bool  # the search stopped before it had found enough


@dataclass(frozen=True, slots=True)
class Act:
    """What was done to a run."""

    run: RunView  # as it stood before
    changed: bool
    about: tuple[str, ...] = ()  # terminate: compensations that are not run; retry: steps that are made again


# Looking ------------------------------------------------------------------------------------------------------------


def get(given: str, workflow: str | None = None) -> Procedure[RunView]:
    return (yield from run(lambda: find_one(given, workflow)))


def show(given: str, workflow: str | None = None) -> Procedure[Shown]:
    def flow() -> Flow[Shown]:
        found = yield from find_one(given, workflow)
        entries = yield from timeline(found.run_id)
        sent, said = (yield from messages(found.run_id)), (yield from show_progress(found.run_id))
        current = said is not None and said.generation == found.generation and found.job_status == PROCESSING
        return Shown(found, entries, sent, said if current else None)

    return (yield from run(flow))


def list_runs(
    workflow: str | None = None,
    states: Sequence[str] | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> Procedure[Page]:
    """The newest first. With many runs a search for few of them stops now and then, and says where to go on."""
    if not 1 <= limit <= MOST:
        raise Refused("limit", f"the limit must be between 1 and {MOST}, not {limit}", most=MOST, limit=limit)
    for state in states or ():
        if state not in runs.STATES:
            raise ConfigurationError(f"there is no state {state!r} of runs (known: {', '.join(runs.STATES)})")

    def flow() -> Flow[Page]:
        found = yield from runs.listed(workflow, states or None, before, limit)
        if len(found) == limit:
            return Page(found, found[-1].run_id, False)
        end = yield from runs.listed_to(before)
        return Page(found, end, end is not None)

    return (yield from run(flow))


# Acts ---------------------------------------------------------------------------------------------------------------


def signal(
    given: str, name: str, payload: Any = None, *, key: str | None = None, workflow: str | None = None
) -> Procedure[Act]:
    """Not changed: a signal with this key was there."""
    checks.task_name(name, "the signal's name", ConfigurationError)
    text = dump(payload, "payload")
    if key is not None:
        checks.key(key, "the idempotency key", ConfigurationError, empty=False)

    def act(found: RunView) -> Statement[str]:
        return store.signal(found.workflow, found.id, name, text, key)

    return (yield from _act("signal", given, workflow, act, "sent", {"signal": name, "key": key}))


def cancel(given: str, reason: str = "", *, workflow: str | None = None) -> Procedure[Act]:
    """Ask it to end: its compensations run. Not changed: that was asked for before."""
    said = storable(reason)

    def act(found: RunView) -> Statement[str]:
        return store.cancel(found.workflow, found.id, said)

    return (yield from _act("cancel", given, workflow, act, "requested", _because(said)))


def pause(given: str, *, workflow: str | None = None) -> Procedure[Act]:
    """It rests from its next wait on. Not changed: it was paused."""
    return (yield from _act("pause", given, workflow, _acting("pause"), "paused", {}))


def resume(given: str, *, workflow: str | None = None) -> Procedure[Act]:
    """Not changed: it was not paused."""
    return (yield from _act("resume", given, workflow, _acting("resume"), "resumed", {}))


def terminate(
    given: str, reason: str = "", *, workflow: str | None = None, dry_run: bool = False
) -> Procedure[Act]:
    """End it without its code. The compensations that it leaves undone are in `about`."""
    said = storable(reason)
    who = yield from actor()

    def flow() -> Flow[Act]:
        found = yield from _open(given, workflow)
        left = undone((yield from timeline(found.run_id)), found.era)
        if dry_run:
            return Act(found, False, tuple(left))
        yield from store.act("terminate", found.workflow, found.id, said)
        more = {**_because(said), "undone": left or None}
        yield from audit(who, "workflow terminate", {**_named(found), **more}, 1)
        return Act(found, True, tuple(left))

    return (yield from run(flow))


def retry(given: str, *, workflow: str | None = None) -> Procedure[Act]:
    """Try again what was set aside, or has failed: the failed steps that its history ends with are made again."""
    who = yield from actor()

    def flow() -> Flow[Act]:
        found = yield from find_one(given, workflow)
        ended = yield from runs.hold(found.run_id)
        steps = (yield from _failed(found)) if ended == "failed" else (yield from _set_aside(found, ended))
        yield from wake([found.queue])
        yield from audit(who, "workflow retry", {**_named(found), "steps": list(steps) or None}, 1)
        return Act(found, True, tuple(steps))

    return (yield from run(flow))


class WorkflowVerbs(Runner):
    """For surfaces: `WorkflowVerbs(database, actor).cancel("order:9182")`; on an event loop `await ....cancel.arun(...)`."""

    get = Method(get)
    show = Method(show)
    list_runs = Method(list_runs)
    signal = Method(signal)
    cancel = Method(cancel)
    pause = Method(pause)
    resume = Method(resume)
    retry = Method(retry)
    terminate = Method(terminate)


def find_one(given: str, workflow: str | None) -> Flow[RunView]:
    found = yield from runs.find(given, workflow)
    if not found:
        of = f" of {workflow}" if workflow else ""
        raise Refused("no_run", f"there is no run {given!r}{of}, or it ended longer ago than runs are kept")
    if len(found) > 1:
        names = ", ".join(sorted({one.workflow for one in found}))
        raise Refused("several_runs", f"several workflows have a run {given!r}: {names}. Say which", id=given)
    return found[0]


def undone(entries: Sequence[Entry], era: int) -> list[str]:
    """The compensations of a run that have not run, in the order in which they would."""
    rows = {e.key: e for e in entries if e.kind == "compensation" and e.era == era}
    pushed = [key.removeprefix("saga/") for key in rows if key.startswith("saga/")]
    done = {key for key, e in rows.items() if e.outcome == "done"}
    return [key for key in reversed(pushed) if f"undo/{key}" not in done]


def _acting(which: Literal["pause", "resume"]) -> Callable[[RunView], Statement[str]]:
    return lambda found: store.act(which, found.workflow, found.id)


def _act(
    verb: str,
    given: str,
    workflow: str | None,
    act: Callable[[RunView], Statement[str]],
    done: str,
    more: Mapping[str, object],
) -> Procedure[Act]:
    """`done`: what the statement returns if it changed something."""
    who = yield from actor()

    def flow() -> Flow[Act]:
        found = yield from _open(given, workflow)
        changed = (yield from act(found)) == done
        if changed:
            yield from audit(who, f"workflow {verb}", {**_named(found), **more}, 1)
        return Act(found, changed)

    return (yield from run(flow))


def _open(given: str, workflow: str | None) -> Flow[RunView]:
    """The run is locked: so it is this one that is changed, and not the next of the same id."""
    found = yield from find_one(given, workflow)
    ended = yield from runs.hold(found.run_id)
    if ended is not None:
        raise _ended(found, ended)
    return found


def _failed(found: RunView) -> Flow[list[str]]:
    entries = yield from timeline(found.run_id)
    if any(e.key.startswith("undo/") and e.kind == "compensation" for e in entries):
        raise Refused(
            "compensated",
            f"run {found.id!r} of {found.workflow} failed and its compensations have run: what it did is undone. Start "
            "a new one, with if_exists='restart_ended'",
        )
    places = yield from acts.locate_jobs([found.run_id])
    locked = yield from acts.lock(places)
    buried = [job.id for job in locked if job.table == "dead_letters"]
    if not (yield from dead.redrive(buried, [0.0] * len(buried))):
        raise Refused(
            "no_dead_letter",
            f"the job of run {found.id!r} of {found.workflow} is no longer among the dead letters: it was discarded, or "
            "somebody redrives it now. Start a new one, with if_exists='restart_ended'",
        )
    yield from runs.reopen(found.run_id)
    return (yield from runs.forget_failures(found.run_id))


def _set_aside(found: RunView, ended: str | None) -> Flow[list[str]]:
    if ended is not None:
        raise _ended(found, ended)
    if found.state != "diverged":
        why = f"is {found.state}"
        if found.job_status == "held":
            why = f"waits for a worker: {found.hold_reason}"
        raise Refused(
            "not_set_aside", f"run {found.id!r} of {found.workflow} {why}: there is nothing to retry"
        )
    yield from runs.take_up(found)
    return []


def _ended(found: RunView, state: str) -> Refused:
    how = _HOW.get(state, "it was removed")
    return Refused("run_ended", f"run {found.id!r} of {found.workflow} has ended: {how}", id=found.run_id)


def _named(found: RunView) -> dict[str, object]:
    return {"run": found.run_id, "workflow": found.workflow, "id": found.id}


def _because(reason: str) -> dict[str, object]:
    return {"reason": reason or None}
