"""What a worker says of each job: that it started, and how it ended."""

import logging
import time
from typing import Any

from .. import telemetry
from ..model.outcome import DeadLettered, Failed, Held, Outcome, Settlement
from .inflight import Running
from .tally import Tally


def started(running: Running, worker: str) -> None:
    claimed = running.claimed
    telemetry.emit(
        "job.started",
        level=logging.DEBUG,
        job=claimed.id,
        task=claimed.task,
        generation=claimed.grant.generation,
        worker=worker,
    )


def ended(settlement: Settlement, state: str, running: Running | None, worker: str, tally: Tally) -> None:
    """Tell the world and count it."""
    name, fields, level = event_of(settlement.outcome, state)
    grant = settlement.grant
    fields |= {"job": grant.id, "queue": grant.queue, "generation": grant.generation}
    if running is not None:
        fields |= {"task": running.claimed.task, "attempt": running.claimed.attempt}
        if running.started_at is not None:
            fields["seconds"] = round(time.monotonic() - running.started_at, 4)
            fields["waited"] = round(running.claimed.waited + running.started_at - running.claimed_at, 4)
        times = fields.get("seconds", 0.0), fields.get("waited", 0.0)
        tally.settled(grant.queue, running.claimed.task, settlement.outcome, state, *times)
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
        case "held", Held(reason=reason):
            return "job.held", {"reason": reason}, logging.WARNING
        case "pending", Failed(error=error, delay=delay):
            fields = {"error": error.summary, "retry_in": round(delay, 2), "trace": error.trace}
            return "job.retry", fields, logging.WARNING
        case _:
            return f"job.{type(outcome).__name__.lower()}", {"state": state}, logging.INFO
