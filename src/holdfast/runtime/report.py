"""What a worker says of each job: that it started, and how it ended."""

import logging
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from .. import telemetry
from ..model.outcome import DeadLettered, Failed, Held, Misfit, Outcome, Settlement
from .inflight import Running
from .tally import Tally


def started(running: Running, worker: str) -> None:
    claimed = running.claimed
    telemetry.emit(
        "job.started",
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
    """Tell the world and count it."""
    now = time.monotonic()
    heard = telemetry.audible(logging.INFO)
    if not heard and states.count("completed") == len(states):
        tally.completed(held, now)
        return
    for settlement, state, running in zip(settlements, states, held, strict=True):
        run = wait = 0.0
        if running is not None:
            claimed, began = running.claimed, running.started_at
            if began:
                run, wait = now - began, claimed.waited + began - running.claimed_at
            tally.settled(claimed.queue, claimed.task, settlement.outcome, state, run, wait)
        if heard or state != "completed":
            _tell(settlement, state, running, worker, run, wait)


def _tell(
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
    """What to tell the world about a settled job: event name, fields, level."""
    match state, outcome:
        case "completed", _:
            return "job.completed", {}, logging.INFO
        case "lost", _:
            return "job.lost", {}, logging.WARNING
        case "dead_letter" | "blocked" | "parked", Failed(error=error) | DeadLettered(error=error):
            return "job.dead_letter", {"error": error.summary, "trace": error.trace}, logging.ERROR
        case "held", Held(reason=reason) | Misfit(reason=reason):
            return "job.held", {"reason": reason}, logging.WARNING
        case "pending", Failed(error=error, delay=delay):
            fields = {"error": error.summary, "retry_in": round(delay, 2), "trace": error.trace}
            return "job.retry", fields, logging.WARNING
        case _:
            return f"job.{type(outcome).__name__.lower()}", {"state": state}, logging.INFO
