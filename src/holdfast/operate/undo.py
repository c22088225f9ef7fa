"""Undo an act, by its entry in the audit: a redrive, for jobs that have not started; a cancel of waiting jobs; a pause.

It is an act with a separate entry. Jobs that have changed since the act stay as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from ..model.state import CANCELLED
from ..store import acts, dead
from ..store.acts import Locked
from ..store.audit import AuditLine
from ..store.operations import OPEN, Operation
from ..store.pause import Paused
from ..store.queue_load import Count
from ..store.statement import Flow
from ..store.wake import wake
from .audit import list_audit
from .bulk import Done, Results
from .dead import NOT_STARTED, bury_verb, put_back
from .job_acts import Verb, act_on, act_on_all, no_queue
from .operations import begin_selected, find_operation
from .pauses import undo_queue_pause, undo_task_pause
from .procedure import Procedure, run
from .refusal import Refused, Why, some, why

STARTED = why("started", "started since, or changed")
UNPARKED = why("unparked", "their keys were parked for them, and have gone on")


def undo(entry: int) -> Procedure[Done]:
    """Refuses an act that cannot be undone, and one with nothing left to undo."""
    line = yield from _line(entry)
    undo_it = _UNDO.get(line.action)
    if undo_it is None:
        text = f"entry {entry} is {line.action}, which has no undo (these have: {', '.join(_UNDO)})"
        raise Refused("no_undo", text, entry=entry)
    done = yield from undo_it(line)
    if not done.count:
        why_not = "; ".join(f"{count:,} {reason.text}" for reason, count in done.left.items())
        raise Refused(
            "nothing_left", f"nothing is left to undo of entry {entry}: {why_not or 'it was undone'}"
        )
    return done


def _line(entry: int) -> Procedure[AuditLine]:
    found = yield from list_audit(before=entry + 1, limit=1)
    if not found.entries or found.entries[0].id != entry:
        raise Refused(
            "no_entry", f"there is no entry {entry} in the audit, or it is no longer kept", entry=entry
        )
    return found.entries[0]


# A redrive ----------------------------------------------------------------------------------------------------------


def _undo_redrive(line: AuditLine) -> Procedure[Done]:
    act = yield from _act_of(line)
    done = yield from act_on_all(bury_verb(act), put_back(act, line.id))
    started, parked = yield from run(lambda: dead.redriven_left(act))
    left: dict[Why, int] = {reason: n for reason, n in ((STARTED, started), (UNPARKED, parked)) if n}
    return replace(done, left=left)


def _act_of(line: AuditLine) -> Procedure[UUID]:
    """The key under which a redrive recorded its jobs. Refused while it is in progress."""
    if line.operation is not None:
        operation = yield from find_operation(line.operation)
        if operation.state in OPEN:
            text = f"operation {operation.id} still puts them back"
            raise Refused("under_way", text, id=operation.id)
    said = line.selection.get("act")
    if said is None:
        raise Refused("no_undo", f"entry {line.id} was made by a release that did not keep what it put back")
    return UUID(said)


def begin_undo(entry: int) -> Procedure[Operation]:
    """The undo of a redrive as an operation, for many: workers do it. Returns at once."""
    line = yield from _line(entry)
    if line.action != "dead redrive":
        text = f"entry {entry} is {line.action}, and only the undo of a dead redrive runs in the background"
        raise Refused("no_undo", text, entry=entry)
    act = yield from _act_of(line)
    selection = put_back(act, entry)
    found, _ = yield from selection.next(None, 1)
    if not found:
        raise Refused(
            "nothing_left", f"nothing is left to undo of entry {entry}: all have started or are dead"
        )
    verb = replace(bury_verb(act), more={"act": str(act), "of_entry": entry})
    return (yield from begin_selected(verb, selection.given, (), Count(line.count)))


# A cancel -----------------------------------------------------------------------------------------------------------


def _undo_cancel(line: AuditLine) -> Procedure[Done]:
    named = line.selection.get("ids")
    if not named:
        raise Refused(
            "no_undo",
            f"entry {line.id} cancelled more than 1,000 jobs, or in several steps: they do not come back",
        )
    suspects = _suspects(line)
    return (yield from act_on(_uncancel(line, suspects), [UUID(one) for one in named]))


def _suspects(line: AuditLine) -> list[UUID]:
    """Which of them ran apart from others. Refused: those that did not wait, and those whose state is unknown."""
    was = line.before or {}
    try:
        states = dict(was["states"])
        suspects = [UUID(one) for one in was.get("suspects", ())]
    except (KeyError, ValueError):  # an older release, or too many to be kept
        text = f"entry {line.id} does not have the states of its jobs before the cancel"
        raise Refused("no_undo", text) from None
    if others := [f"{n:,} {state}" for state, n in states.items() if state not in NOT_STARTED]:
        text = f"only jobs that waited come back: of those of entry {line.id}, {', '.join(others)}"
        raise Refused("did_not_wait", text)
    return suspects


def _uncancel(line: AuditLine, suspects: Sequence[UUID]) -> Verb:
    def refuse(job: Locked) -> Why | None:
        if job.state != CANCELLED:
            return why("not_cancelled", f"is not cancelled: it is {job.state}")
        return no_queue(job)

    def apply(locked: Sequence[Locked], done: int) -> Flow[Results]:
        if counted := (yield from acts.counted_ends(locked)):
            gone_on = some([f"the group of job {one} has counted its cancel, or is over" for one in counted])
            raise Refused("counted", f"nothing was undone: {gone_on}")
        count = yield from acts.revive(locked, line.at, suspects)
        if count < len(locked):  # all or none: finished batches are taken back with the error
            raise Refused(
                "nothing_left", "nothing was undone: it ran when it was cancelled, or was cancelled again"
            )
        yield from wake(sorted({job.queue for job in locked}))
        return {"revived": count}

    more = {"entry": line.id, "undone": line.action}
    return Verb("undo", "undone", (CANCELLED,), (), refuse, apply, more)


# A pause ------------------------------------------------------------------------------------------------------------


def _undo_queue_pause(line: AuditLine) -> Procedure[Done]:
    done = yield from undo_queue_pause(line.selection["queue"], Paused(line.at, line.actor))
    if not done.changed and done.pause.at is not None:
        raise _paused_again(line, done.pause.by)
    return Done("queue resume", int(done.changed), {"resumed": int(done.changed)}, {}, None)


def _undo_task_pause(line: AuditLine) -> Procedure[Done]:
    done = yield from undo_task_pause(line.selection["task"], Paused(line.at, line.actor))
    if not done.changed and done.pause is not None:
        raise _paused_again(line, done.pause.paused_by)
    return Done("task resume", int(done.changed), {"resumed": int(done.changed)}, {}, None)


def _paused_again(line: AuditLine, by: str | None) -> Refused:
    return Refused("paused_again", f"entry {line.id} is not undone: it was paused again since, by {by}")


_UNDO: Mapping[str, Callable[[AuditLine], Procedure[Done]]] = {
    "dead redrive": _undo_redrive,
    "jobs cancel": _undo_cancel,
    "queue pause": _undo_queue_pause,
    "task pause": _undo_task_pause,
}
