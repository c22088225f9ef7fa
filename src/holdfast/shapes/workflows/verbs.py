"""Operators' acts on runs, once for the command line, Python and other surfaces."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from ...errors import ConfigurationError
from ...model.state import PROCESSING
from ...model.text import storable
from ...operate.procedure import Method, Procedure, Runner, actor, run
from ...operate.refusal import Refused
from ...store.audit import audit
from ...store.queue_load import prefer_indexes
from ...store.show import Progress, show_progress
from ...store.statement import Flow, Statement
from ...tasks import checks
from ...tasks.payload import dump
from . import forks, runs, store
from .finding import Act, ended_already, find_one, named_in_audit
from .forks import Forked
from .messages import unfit
from .retries import accept, drop_signal, retry
from .runs import RunFilter, RunView
from .states import STATES
from .timeline import Entry, Sent, messages, recorded, timeline

MOST_RUNS = 1000
PATIENCE = 2.0  # seconds of a search


@dataclass(frozen=True, slots=True)
class Shown:
    """A run with everything that is known about it."""

    run: RunView
    entries: list[Entry]
    signals: list[Sent]
    at_work: Progress | None = None  # the last heartbeats of its steps; None: none, or it has no owner


@dataclass(frozen=True, slots=True)
class Page:
    runs: list[RunView]
    next: UUID | None  # where the next page begins; None: there are no more
    cut: bool  # the search stopped before it had found enough


# Looking ------------------------------------------------------------------------------------------------------------


def get(given: str, workflow: str | None = None) -> Procedure[RunView]:
    return (yield from run(lambda: find_one(given, workflow)))


def show(given: str, workflow: str | None = None) -> Procedure[Shown]:
    def flow() -> Flow[Shown]:
        yield from prefer_indexes()
        found = yield from find_one(given, workflow)
        entries = yield from timeline(found.run_id)
        sent, said = (yield from messages(found.run_id)), (yield from show_progress(found.run_id))
        current = said is not None and said.generation == found.generation and found.job_status == PROCESSING
        return Shown(found, entries, sent, said if current else None)

    return (yield from run(flow))


def list_runs(
    wanted: RunFilter | None = None,
    *,
    after: UUID | None = None,
    limit: int = 50,
    patience: float = PATIENCE,
) -> Procedure[Page]:
    """The newest first. A search for few among many stops after `patience` seconds, and returns where to continue."""
    wanted = wanted or RunFilter()
    if not 1 <= limit <= MOST_RUNS:
        raise Refused(
            "limit", f"the limit must be between 1 and {MOST_RUNS}, not {limit}", most=MOST_RUNS, limit=limit
        )
    for state in wanted.states or ():
        if state not in STATES:
            raise ConfigurationError(f"there is no state {state!r} of runs (known: {', '.join(STATES)})")
    found: list[RunView] = []
    deadline = time.monotonic() + patience
    while True:
        part = yield from run(functools.partial(_list_step, wanted, after, limit - len(found)))
        found += part.runs
        if not part.cut or time.monotonic() > deadline:
            return Page(found, part.next, part.cut)
        after = part.next


def _list_step(wanted: RunFilter, after: UUID | None, limit: int) -> Flow[Page]:
    yield from prefer_indexes()
    found = yield from runs.listed(wanted, after, limit)
    if len(found) == limit:
        return Page(found, found[-1].run_id, False)
    end = yield from runs.listed_to(wanted, after)
    return Page(found, end, end is not None)


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
    """Request its end: its compensations run. Not changed: that was requested before."""
    said = storable(reason)

    def act(found: RunView) -> Statement[str]:
        return store.cancel(found.workflow, found.id, said)

    return (yield from _act("cancel", given, workflow, act, "requested", _because(said)))


def pause(given: str, *, workflow: str | None = None) -> Procedure[Act]:
    """It stops at its next step or wait. Not changed: it was paused."""
    return (yield from _act("pause", given, workflow, _acting("pause"), "paused", {}))


def resume(given: str, *, workflow: str | None = None) -> Procedure[Act]:
    """Not changed: it was not paused."""
    return (yield from _act("resume", given, workflow, _acting("resume"), "resumed", {}))


def terminate(
    given: str, reason: str = "", *, workflow: str | None = None, dry_run: bool = False
) -> Procedure[Act]:
    """End it without its code. The compensations that do not run are in `about`."""
    said = storable(reason)
    who = yield from actor()

    def flow() -> Flow[Act]:
        found = yield from _open(given, workflow)
        left = undone((yield from timeline(found.run_id)), found.era)
        if dry_run:
            return Act(found, False, tuple(left))
        yield from store.act("terminate", found.workflow, found.id, said)
        more = {**_because(said), "undone": left or None}
        yield from audit(who, "workflow terminate", {**named_in_audit(found), **more}, 1)
        return Act(found, True, tuple(left))

    return (yield from run(flow))


def fork(
    given: str,
    step: str,
    *,
    new_id: str | None = None,
    version: int | None = None,
    workflow: str | None = None,
) -> Procedure[Forked]:
    """Another run with the records of this one before a step, named by its key or number; its code continues from there.
    The run itself is left as it is."""
    who = yield from actor()
    if new_id is not None:
        checks.key(new_id, "the new run's id", ConfigurationError, empty=False)
    if version is not None:
        checks.integer(version, "the version", 1, 2**31 - 1, ConfigurationError)

    def flow() -> Flow[Forked]:
        found = yield from find_one(given, workflow)
        yield from runs.hold(found.run_id)
        first, before = forks.kept(found, (yield from recorded(found.run_id)), step)
        keys = [entry.key for entry in before]
        if children := (yield from runs.open_children(found.run_id, keys)):
            raise forks.still_open(found, "children that it started", children)
        made, conflict = yield from runs.fork(found.run_id, keys, first.key, new_id, version)
        if made is None or conflict is not None:
            raise _not_forked(found, conflict, new_id)
        bad = unfit(found.hold_reason) if found.state == "diverged" else None
        left_out = (yield from runs.leave_out(made, found.run_id, *bad)) if bad else None
        more = {"from": first.key, "new": made, "version": version, "left_out_signal": left_out}
        yield from audit(who, "workflow fork", {**named_in_audit(found), **more}, 1)
        return Forked(found, first.key, tuple(keys), made, new_id or str(made), left_out)

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
    accept = Method(accept)
    drop_signal = Method(drop_signal)
    fork = Method(fork)


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
    """`done`: the result of the statement if it changed something."""
    who = yield from actor()

    def flow() -> Flow[Act]:
        found = yield from _open(given, workflow)
        changed = (yield from act(found)) == done
        if changed:
            yield from audit(who, f"workflow {verb}", {**named_in_audit(found), **more}, 1)
        return Act(found, changed)

    return (yield from run(flow))


def _open(given: str, workflow: str | None) -> Flow[RunView]:
    """The run is locked: so this one is changed, and not the next of the same id."""
    found = yield from find_one(given, workflow)
    ended = yield from runs.hold(found.run_id)
    if ended is not None:
        raise ended_already(found, ended)
    return found


def _not_forked(found: RunView, conflict: str | None, new_id: str | None) -> Refused:
    if conflict == "exists":
        return Refused("run_exists", f"{found.workflow} has a run {new_id!r} already", id=new_id)
    if conflict == "queue":
        return Refused("no_queue", f"there is no queue {found.queue!r}", queue=found.queue)
    return Refused("no_input", f"the input of run {found.id!r} of {found.workflow} is no longer kept")


def _because(reason: str) -> dict[str, object]:
    return {"reason": reason or None}
