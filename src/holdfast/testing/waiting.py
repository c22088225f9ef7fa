"""What a run waits for, in words: StillWaiting of the test kit."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import UUID

from ..db.database import Database
from ..shapes.workflows.bars import FAR
from ..shapes.workflows.runs import RunView, find

_DEEP = 10  # children of children that are named
_AGAIN = "and run it again"
_LINKED = "SELECT s.linked FROM holdfast.workflow_steps s WHERE s.run_id = %s AND s.key = %s"
_JOB = (
    "SELECT w.task, w.id, w.queue, w.status, w.hold_reason FROM holdfast.workflow_calls c"
    " JOIN holdfast.work w ON w.id = ANY (c.jobs) WHERE c.run_id = %s AND c.key = %s ORDER BY w.seq LIMIT 1"
)


class Desk(Protocol):
    database: Database

    def sql(self, query: str, params: Sequence[Any] | None = None) -> list[dict[str, Any]]: ...


def view(kit: Desk, run_id: UUID) -> RunView:
    (found,) = [one for one in kit.database.run(lambda: find(str(run_id), None)) if one.run_id == run_id]
    return found


def why(kit: Desk, run: RunView, served: Sequence[str], deep: int = 0) -> str:
    """`served`: the queues that workers of the kit run."""
    head = f"Run({run.workflow} {run.id!r}) is {run.state}"
    if run.state == "paused":
        return f"{head}. Resume it, {_AGAIN}"
    if run.hold_reason is not None:
        return f"{head}: {run.hold_reason}"
    if run.waits is None and run.wake_at is None:
        if run.queue not in served:
            return f"{head}, and no task or workflow of the app is in its queue {run.queue!r}"
        return f"{head}, and due at a time which does not pass by itself here. Let it: skip_time=True"
    return f"{head}, and waits for {_waits(kit, run, served, deep)}"


def _waits(kit: Desk, run: RunView, served: Sequence[str], deep: int) -> str:
    names = run.waits or []
    signals = [name for name in names if ":" not in name]
    if signals:
        return f"{', '.join(signals)}. Send it, {_AGAIN}"
    if run.wake_at is not None and run.wake_at.year < FAR:
        return "a time, which does not pass by itself here. Let it: skip_time=True"
    ends: dict[str, Callable[[str], str]] = {
        "child": lambda key: _child(kit, run, key, served, deep),
        "call": lambda key: _call(kit, run, key, served),
    }
    said = []
    for name in names:
        kind, _, key = name.partition(":")
        said.append(f"the end of {kind} {key}{ends[kind](key)}" if kind in ends else name)
    return "; ".join(said) or "nothing that is known"


def _child(kit: Desk, run: RunView, key: str, served: Sequence[str], deep: int) -> str:
    found = kit.sql(_LINKED, [run.run_id, key])
    if not found or found[0]["linked"] is None or deep >= _DEEP:
        return ""
    return f": {why(kit, view(kit, found[0]['linked']), served, deep + 1)}"


def _call(kit: Desk, run: RunView, key: str, served: Sequence[str]) -> str:
    found = kit.sql(_JOB, [run.run_id, key])
    if not found:
        return ""
    job = found[0]
    said = f": job {job['id']} of {job['task']} is {job['status']} in queue {job['queue']!r}"
    if job["queue"] not in served:
        return f"{said}, in which no task of the app is"
    return said + (f": {job['hold_reason']}" if job["hold_reason"] else "")
