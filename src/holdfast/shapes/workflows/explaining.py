"""Reasons of `holdfast explain` for a job that is a run."""

from collections.abc import Iterator, Sequence
from uuid import UUID

from ...model.state import PENDING
from ...operate.advice import Advice, advise
from ...operate.reason import Meaning, Reason
from ...operate.wording import cut, moment, span
from ...store.statement import Flow
from . import runs
from .bars import FAR, waits_for
from .messages import unfit
from .runs import Retrying, RunView

_WAITING = frozenset({"suspended", "snoozed", "scheduled", "waits"})
_HELD = frozenset({"held", "misfit"})
_ENDED = frozenset({"cancelled"})


def means(job_id: UUID) -> Flow[Meaning | None]:
    run = next((found for found in (yield from runs.find(str(job_id), None)) if found.run_id == job_id), None)
    if run is None:
        return None
    trying = (yield from runs.retrying(run.run_id)) if run.state == "suspended" else []
    instead = (
        _WAITING if run.job_status == PENDING else _ENDED if run.ended_at is not None else frozenset[str]()
    )
    if run.state == "diverged":
        instead |= _HELD
    return Meaning(list(_reasons(run, trying)), instead)


def _reasons(run: RunView, trying: Sequence[Retrying]) -> Iterator[Reason]:
    show = _do(run, "show")
    the = f"Run {cut(run.id)} of {run.workflow}"
    if run.ended_at is not None:
        if run.state in ("cancelled", "terminated"):
            why = f": {cut(run.cancel_reason or run.error or '')}" if run.cancel_reason or run.error else "."
            yield Reason(f"run_{run.state}", f"{the} was {run.state} at {moment(run.ended_at)}{why}", [show])
        return
    if run.state == "diverged":
        if unfit(run.hold_reason):
            advice = [advise("drop_signal", id=run.run_id)]
        else:
            advice = [_do(run, "retry"), advise("accept_run", id=run.run_id)]
        yield Reason("run_diverged", f"{the} is set aside: {cut(run.hold_reason, 400)}", advice)
    if run.paused_at is not None:
        yield Reason("run_paused", f"{the} is paused since {moment(run.paused_at)}.", [_do(run, "resume")])
    if run.cancel_requested_at is not None:
        why = f": {cut(run.cancel_reason)}" if run.cancel_reason else "."
        said = (
            f"{the} ends at its next call, its compensations first, as was asked for at "
            f"{moment(run.cancel_requested_at)}{why}"
        )
        yield Reason("run_cancel", said, [show])
    yield from _waiting(run, the, trying)


def _waiting(run: RunView, the: str, trying: Sequence[Retrying]) -> Iterator[Reason]:
    """Empty once the awaited event has come: then it waits its turn, as every job does."""
    if run.job_status != PENDING or run.due_at is None or run.due_at <= run.now:
        return
    advice = [_do(run, "show")]
    if run.waits:
        signals = [name for name in run.waits if ":" not in name]
        advice += [advise("signal_run", id=run.run_id, signal=name) for name in signals[:1]]
        yield Reason("run_waits", f"{the} waits for {waits_for(run)}.", advice)
    elif run.due_at.year < FAR:
        until = f"until {moment(run.due_at)} (in {span((run.due_at - run.now).total_seconds())})"
        if trying:
            yield Reason("run_retries", f"{the} waits {until}: {'; '.join(map(_again, trying))}", advice)
        elif run.state == "suspended":
            yield Reason("run_sleeps", f"{the} sleeps {until}.", advice)
        elif run.generation == 0:
            yield Reason("run_delayed", f"{the} was started to begin later: it waits {until}.", advice)


def _do(run: RunView, verb: str) -> Advice:
    return advise("run", verb=verb, id=run.run_id)


def _again(step: Retrying) -> str:
    if step.error is not None and step.error.partition(":")[0] == "Snooze":
        return f"step {step.key} asked for a pause."
    return f"step {step.key} is tried again after {step.failed} failed: {cut(step.error or '')}"
