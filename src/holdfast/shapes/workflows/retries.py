"""Continue a run that failed, or diverged from its code."""

import asyncio
from collections.abc import Sequence

from ...operate.procedure import Procedure, actor, block, run
from ...operate.refusal import Refused
from ...store import acts, dead
from ...store.audit import audit
from ...store.statement import Flow
from ...store.wake import wake
from ...tasks.taskset import TaskSet
from . import runs, store
from .checking import Divergence, displaced
from .declare import KIND
from .drive import Code
from .finding import Act, ended_already, find_one, named_in_audit
from .journal import History
from .messages import unfit
from .runs import RunView
from .timeline import timeline


def retry(given: str, *, workflow: str | None = None) -> Procedure[Act]:
    """Retry a run that was set aside, or has failed: the failed steps at the end of its history are made again."""
    who = yield from actor()

    def flow() -> Flow[Act]:
        found = yield from find_one(given, workflow)
        ended = yield from runs.hold(found.run_id)
        steps = (yield from _failed(found)) if ended == "failed" else (yield from _set_aside(found, ended))
        yield from wake([found.queue])
        yield from audit(who, "workflow retry", {**named_in_audit(found), "steps": list(steps) or None}, 1)
        return Act(found, True, tuple(steps))

    return (yield from run(flow))


def accept(
    given: str, tasks: TaskSet, *, workflow: str | None = None, dry_run: bool = False
) -> Procedure[Act]:
    """A run that diverged from its code continues with the code of `tasks`: records that this code does not ask for lose
    their place, and their keys are in `about`. A record that it asks for later is still found: no body runs twice."""
    who = yield from actor()

    def look() -> Flow[tuple[RunView, History, str]]:
        found = yield from find_one(given, workflow)
        _check_set_aside(found)
        past = (yield from store.histories([str(found.run_id)])).get(str(found.run_id))
        payload = yield from runs.payload(found)
        if past is None or payload is None:
            raise _moved(found)
        return found, past[0], payload

    found, history, payload = yield from run(look)
    code = _code(found, tasks)
    parted = yield from block(lambda _: asyncio.run(displaced(code, history, payload)))
    keys = _displaced(found, history, parted)

    def flow() -> Flow[Act]:
        yield from runs.hold(found.run_id)
        if not (yield from runs.take_up(found, keys)):
            raise _moved(found)
        yield from wake([found.queue])
        more = {"accept": True, "displaced": list(keys) or None}
        yield from audit(who, "workflow retry", {**named_in_audit(found), **more}, 1)
        return Act(found, True, keys)

    return Act(found, False, keys) if dry_run else (yield from run(flow))


def drop_signal(given: str, *, workflow: str | None = None) -> Procedure[Act]:
    """A run that was set aside for a signal that its code cannot take continues without it: it waits for the next one. The
    name of the signal is in `about`."""
    who = yield from actor()

    def flow() -> Flow[Act]:
        found = yield from find_one(given, workflow)
        yield from runs.hold(found.run_id)
        _check_set_aside(found)
        bad = unfit(found.hold_reason)
        if bad is None:
            raise Refused(
                "no_bad_signal",
                f"run {found.id!r} of {found.workflow} was not set aside for a signal: {found.hold_reason}",
            )
        yield from _check_last(found, bad[0])
        if not (yield from runs.take_up(found)):
            raise _moved(found)
        name = yield from runs.drop_signal(found.run_id, *bad)
        if name is None:
            raise _moved(found)
        yield from wake([found.queue])
        more = {"dropped_signal": name, "taken_by": bad[0]}
        yield from audit(who, "workflow retry", {**named_in_audit(found), **more}, 1)
        return Act(found, True, (name,))

    return (yield from run(flow))


def _check_last(found: RunView, key: str) -> Flow[None]:
    """Code that has continued with a signal depends on it."""
    era = [entry for entry in (yield from timeline(found.run_id)) if entry.era == found.era]
    for taken in (entry for entry in era if entry.key == key and entry.ordinal is not None):
        later = [e.key for e in era if e.scope == taken.scope and (e.ordinal or 0) > (taken.ordinal or 0)]
        if later:
            raise Refused(
                "signal_used",
                f"run {found.id!r} of {found.workflow} continued with that signal: {', '.join(later)} came after it. Let "
                "the code take what was sent, or fork the run from that call",
            )


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
        raise ended_already(found, ended)
    _check_set_aside(found)
    if not (yield from runs.take_up(found)):
        raise _moved(found)
    return []


def _check_set_aside(found: RunView) -> None:
    if found.ended_at is not None:
        raise ended_already(found, found.state)
    if found.state != "diverged":
        why = f"is {found.state}"
        if found.job_status == "held":
            why = f"waits for a worker: {found.hold_reason}"
        raise Refused(
            "not_set_aside", f"run {found.id!r} of {found.workflow} {why}: there is nothing to retry"
        )


def _moved(found: RunView) -> Refused:
    return Refused(
        "run_moved", f"a worker has taken up run {found.id!r} of {found.workflow} meanwhile: look again"
    )


def _code(found: RunView, tasks: TaskSet) -> Code:
    for one in tasks.declared(KIND).values():
        if (one.name, one.version) == (found.workflow, found.version):
            code: Code = one.code
            return code
    raise Refused("no_code", f"the app has no version {found.version} of the workflow {found.workflow}")


def _displaced(found: RunView, history: History, parted: Sequence[Divergence]) -> tuple[str, ...]:
    if parted and not parted[-1].unasked:
        raise Refused(
            "not_accepted",
            f"run {found.id!r} of {found.workflow} does not continue with this code: {parted[-1].message}. Only records "
            "that the code does not ask for can be left out. Change the code, or fork the run from an earlier step",
        )
    keys = tuple(key for one in parted for key in one.unasked)
    calling = [
        row.record.key for row in history.rows if row.record.outcome == "calling" and row.record.key in keys
    ]
    if calling:
        raise Refused(
            "accept_open",
            f"run {found.id!r} of {found.workflow} has called jobs that have not ended, and this code does not ask for "
            f"them: {', '.join(calling)}. Try again when they have ended",
        )
    return keys
