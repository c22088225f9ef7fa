"""Another run with the first part of a run's records: which part, and whether that is possible."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from ...operate.refusal import Refused
from .runs import RunView
from .timeline import Entry


@dataclass(frozen=True, slots=True)
class Forked:
    """A run that continues from a step of another."""

    run: RunView  # the one that was forked
    step: str  # the first of its records that the new one makes again
    kept: tuple[str, ...]  # the keys of those that it was given
    run_id: UUID
    id: str
    left_out: str | None = None  # the signal for which the old one was set aside


def kept(run: RunView, entries: Sequence[Entry], step: str) -> tuple[Entry, list[Entry]]:
    """The named record, and those before it in the order in which they were written.

    A run that had lost its owner at that moment would have had exactly those, so code can continue from there. A push of
    a compensation is written with the record behind it, and belongs to that one."""
    era = [entry for entry in entries if entry.era == run.era]
    found = _meant(run, era, entries, step)
    before = era[: era.index(found)]
    while before and before[-1].ordinal is None and not before[-1].key.startswith("undo/"):
        if before[-1].kind != "compensation":
            break
        before.pop()
    _check(run, era, before)
    return found, before


def _meant(run: RunView, era: Sequence[Entry], entries: Sequence[Entry], step: str) -> Entry:
    for entry in era:
        if entry.ordinal is not None and step == entry.key:
            return entry
    if step.isdecimal() and int(step) < len(entries):
        entry = entries[int(step)]
        if entry in era and entry.ordinal is not None:
            return entry
        what = f"is of era {entry.era}, and the input of that is gone" if entry not in era else "has no place"
        raise _unknown(run, f"record {step} of run {run.id!r} of {run.workflow} {what}")
    raise _unknown(run, f"run {run.id!r} of {run.workflow} has not recorded {step!r}")


def _unknown(run: RunView, text: str) -> Refused:
    return Refused("no_step", text, id=run.run_id)


def _check(run: RunView, era: Sequence[Entry], before: Sequence[Entry]) -> None:
    keys = {entry.key for entry in before}
    undone = [e.key.removeprefix("undo/") for e in era if e.key.startswith("undo/") and e.key not in keys]
    if gone := [key for key in undone if f"saga/{key}" in keys]:
        raise Refused(
            "fork_undone",
            f"run {run.id!r} of {run.workflow} has undone what is before that step: {', '.join(gone)} ran. Fork it from the "
            "step that was undone first, or an earlier one",
        )
    if calling := [entry.key for entry in before if entry.outcome == "running"]:
        raise still_open(run, "jobs that it called", calling)


def still_open(run: RunView, what: str, keys: Sequence[str]) -> Refused:
    """Their end reaches only the run that started them."""
    return Refused(
        "fork_open",
        f"{what} before that step have not ended: {', '.join(keys)}. Only run {run.id!r} of {run.workflow} would hear of "
        "their end. Fork it when they have ended, or from an earlier step",
    )
