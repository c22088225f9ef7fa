"""The run that an operator means, and the result of an act."""

from dataclasses import dataclass

from ...operate.refusal import Refused
from ...store.statement import Flow
from . import runs
from .runs import RunView

_HOW = {
    "completed": "it completed",
    "failed": "it failed",
    "cancelled": "it was cancelled",
    "terminated": "it was terminated",
}


@dataclass(frozen=True, slots=True)
class Act:
    """The result of an act on a run."""

    run: RunView  # as it was before
    changed: bool
    # terminate: compensations that are not run; retry: steps that are made again; accept: records without a place;
    # drop_signal: its name
    about: tuple[str, ...] = ()


def find_one(given: str, workflow: str | None) -> Flow[RunView]:
    found = yield from runs.find(given, workflow)
    if not found:
        of = f" of {workflow}" if workflow else ""
        raise Refused("no_run", f"there is no run {given!r}{of}, or it ended longer ago than runs are kept")
    if len(found) > 1:
        names = ", ".join(sorted({one.workflow for one in found}))
        raise Refused("several_runs", f"several workflows have a run {given!r}: {names}. Say which", id=given)
    return found[0]


def ended_already(found: RunView, state: str) -> Refused:
    how = _HOW.get(state, "it was removed")
    return Refused("run_ended", f"run {found.id!r} of {found.workflow} has ended: {how}", id=found.run_id)


def named_in_audit(found: RunView) -> dict[str, object]:
    return {"run": found.run_id, "workflow": found.workflow, "id": found.id}
