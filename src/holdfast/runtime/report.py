"""What a worker reports about each job: its start, its end, and the fields of its log lines."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from .. import telemetry
from ..model.job import ClaimedJob
from ..model.outcome import DeadLettered, Failed, Held, Misfit, Outcome, Settlement
from ..model.state import (
    COMPLETED,
    DEAD,
    GONE,
    HELD,
    JOB_COMPLETED,
    JOB_DEAD_LETTER,
    JOB_FAILED,
    JOB_GONE,
    JOB_HELD,
    JOB_LOST,
    JOB_RETRY,
    JOB_STARTED,
    LOST,
    PENDING,
    word_of,
)
from .inflight import Running
from .tally import Tally

_FAILURES: Final = (Failed, DeadLettered)
_ASIDE: Final = (Held, Misfit)


class JobFields(Mapping[str, Any]):
    """The fields of log lines of a running job. Built when a line is written, which most jobs never do."""

    __slots__ = ("_claimed", "_worker")

    def __init__(self, claimed: ClaimedJob, worker: Callable[[], str]) -> None:
        self._claimed = claimed
        self._worker = worker

    def _fields(self) -> dict[str, Any]:
        claimed = self._claimed
        return {
            "job": claimed.id_text,
            "task": claimed.task,
            "queue": claimed.queue,
            "attempt": claimed.attempt,
            "worker": self._worker(),
        }

    def __getitem__(self, name: str) -> Any:
        return self._fields()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields())

    def __len__(self) -> int:
        return 5


def started(running: Running, worker: str) -> None:
    claimed = running.claimed
    telemetry.emit(
        JOB_STARTED,
        level=logging.DEBUG,
        job=claimed.id,
        task=claimed.task,
        generation=claimed.generation,
        worker=worker,
    )


def ended(
    settlements: Sequence[Settlement],
    states: Sequence[str],
    held: Sequence[Running | None],
    worker: str,
    tally: Tally,
) -> None:
    """Emit the events of settled jobs, and count them."""
    now = time.monotonic()
    heard = telemetry.audible(logging.DEBUG)
    if not heard and states.count(COMPLETED) == len(states):
        tally.completed(held, now)
        return
    for settlement, state, running in zip(settlements, states, held, strict=True):
        run = wait = 0.0
        if running is not None:
            claimed, began = running.claimed, running.started_at
            if began:
                run, wait = now - began, claimed.waited + began - running.claimed_at
            tally.settled(claimed.queue, claimed.task, settlement.outcome, state, run, wait)
        if heard or state != COMPLETED:
            _emit_end(settlement, state, running, worker, run, wait)


def _emit_end(
    settlement: Settlement, state: str, running: Running | None, worker: str, run: float, wait: float
) -> None:
    name, fields, level = event_of(settlement.outcome, state)
    grant = settlement.grant
    fields |= {"job": UUID(grant.id_text), "queue": grant.queue, "generation": grant.generation}
    if running is not None:
        fields |= {"task": running.claimed.task, "attempt": running.claimed.attempt}
        if running.started_at:
            fields |= {"seconds": round(run, 4), "waited": round(wait, 4)}
    telemetry.emit(name, level=level, worker=worker, **fields)


def event_of(outcome: Outcome, state: str) -> tuple[str, dict[str, Any], int]:
    """The event of a settled job: name, fields, level."""
    if state == COMPLETED:
        return JOB_COMPLETED, {}, logging.DEBUG
    if state == LOST:
        return JOB_LOST, {}, logging.WARNING
    if state == GONE:
        return JOB_GONE, {}, logging.WARNING
    if state == PENDING and isinstance(outcome, Failed):
        error = outcome.error
        fields = {"error": error.summary, "retry_in": round(outcome.delay, 2), "trace": error.trace}
        return JOB_RETRY, fields, logging.WARNING
    if isinstance(outcome, _FAILURES):
        if state in DEAD:
            error = outcome.error
            return JOB_DEAD_LETTER, {"error": error.summary, "trace": error.trace}, logging.ERROR
        # Still no dead letter: cancelled meanwhile, or quarantined.
        return JOB_FAILED, {"state": state}, logging.INFO
    if state == HELD and isinstance(outcome, _ASIDE):
        return JOB_HELD, {"reason": outcome.reason}, logging.WARNING
    return word_of(outcome).event, {"state": state}, logging.DEBUG
