"""Steps that run for a while, recorded regularly for people who look at a run. Nothing in the run depends on it.

A quick step costs nothing here: it ends before the first record. A worker's record about a run counts as long as the
run's job is running under the same claim, and in the same era.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...model.job import Owned
from ...model.outcome import ErrorText
from ...model.text import storable
from ...store.arrays import int_array, text_array, uuid_array
from ...store.statement import Statement, named, nothing

LONG = 1.0  # seconds after which a step gets a row


class AtWork(NamedTuple):
    """A running body."""

    kind: str
    began: float  # its first attempt
    attempt: int
    ordinal: int | None


class StepProgress(NamedTuple):
    """The progress of a run."""

    run: str
    generation: int
    era: int
    steps: str | None  # JSON text; None: none runs for long


class ReportedProgress:
    """The progress that a worker has recorded for its runs, so that it writes only changes."""

    def __init__(self) -> None:
        self._said: dict[str, StepProgress] = {}

    def news(self, runs: Iterable[StepProgress]) -> list[StepProgress]:
        now = {said.run: said for said in runs if said.steps is not None}
        over = [old._replace(steps=None) for run, old in self._said.items() if run not in now]
        return [said for run, said in now.items() if self._said.get(run) != said] + over

    def keep(self, news: Iterable[StepProgress]) -> None:
        """They are written."""
        for said in news:
            if said.steps is None:
                self._said.pop(said.run, None)
            else:
                self._said[said.run] = said


def steps_text(steps: Iterable[tuple[str, AtWork]], before: float) -> str | None:
    """Those that began before a moment."""
    rows = [
        {"key": key, "kind": one.kind, "began": one.began, "attempts": one.attempt, "ordinal": one.ordinal}
        for key, one in steps
        if one.began <= before
    ]
    return json.dumps(rows) if rows else None


class FailedAttempt(NamedTuple):
    """An attempt of a step that failed, among the errors of the run's job."""

    grant: Owned
    key: str
    attempt: int
    error: ErrorText
    worker: str
    at: float  # seconds since 1970


def log_failed(found: Sequence[FailedAttempt]) -> Statement[None]:
    """Of runs that are still their owners'."""
    params = (
        uuid_array([one.grant.id_text for one in found]),
        [one.grant.queue for one in found],
        int_array([one.grant.generation for one in found]),
        uuid_array([one.grant.token_text for one in found]),
        int_array([one.attempt for one in found]),
        [one.at for one in found],
        [one.worker for one in found],
        [one.error.kind for one in found],
        [storable(f"{one.key}: {one.error.message}" if one.error.message else one.key) for one in found],
        [one.error.trace for one in found],
    )
    return named("workflow_failed", params, nothing)


def say(news: Sequence[StepProgress]) -> Statement[None]:
    params = (
        uuid_array([said.run for said in news]),
        int_array([said.generation for said in news]),
        int_array([said.era for said in news]),
        text_array([said.steps for said in news]),
    )
    return named("workflow_at_work", params, nothing)
