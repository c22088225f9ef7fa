"""The statements that end runs, also those whose job is gone; queries.sql has the text."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from ...model.job import Owned
from ...model.outcome import Cancelled, Completed, DeadLettered, Ended, Failed, Misfit
from ...model.state import CANCELLED, COMPLETED, DEAD, HELD
from ...store.arrays import plain_array, text_array, uuid_array
from ...store.statement import Flow, Row, Statement, count, named
from .journal import Decided

End = tuple[str, str | None, str | None]  # state, result and error


def _end(ended: Ended) -> End | None:
    """How a run ends whose job ended this way; None: it does not."""
    outcome = ended.outcome
    if ended.state == COMPLETED and isinstance(outcome, Completed):
        return "completed", outcome.result, None
    if ended.state == CANCELLED:
        reason = outcome.reason if isinstance(outcome, Cancelled) else ""
        return "cancelled", None, _error("WorkflowCancelled", reason)
    if ended.state in DEAD and isinstance(outcome, Failed | DeadLettered):
        return "failed", None, _error(outcome.error.kind, outcome.error.message)
    return None


def _error(kind: str, message: str) -> str:
    return json.dumps({"kind": kind, "message": message})


def end_runs(jobs: Sequence[Ended], rows: Sequence[str]) -> Flow[None]:
    """The recorder: a run ends in the transaction that ends its job. A held run has diverged from its history. Records that
    are still to be written go in the same statement."""
    ends: Mapping[str, End]
    ends = {job.grant.id_text: end for job in jobs if (end := _end(job)) is not None}
    parted = {
        job.grant.id_text: _error("Diverged", job.outcome.reason)
        for job in jobs
        if job.state == HELD and isinstance(job.outcome, Misfit) and job.outcome.reason.startswith("diverged")
    }
    last = [(job.grant, row) for job, row in zip(jobs, rows, strict=True) if row != "{}"]
    if ends or last:
        yield from end_statement(ends, last)
    if parted:
        marked = (uuid_array(list(parted)), text_array(list(parted.values())))
        yield from named("workflow_mark", marked, lambda _: None)


def end_statement(ends: Mapping[str, End], last: Sequence[tuple[Owned, str]]) -> Statement[int]:
    """Runs that end, by id, and records that go with the end of their job: an object with `rows` for each, as JSON text."""
    states, results, errors = zip(*ends.values(), strict=True) if ends else ((), (), ())
    params = (uuid_array(list(ends)), plain_array(states), text_array(results), text_array(errors))
    if not last:
        return named("workflow_end", params, count)
    written = (
        uuid_array([grant.id_text for grant, _ in last]),
        plain_array([str(grant.generation) for grant, _ in last]),
        text_array([row for _, row in last]),
    )
    return named("workflow_last", (*params, *written), count)


def child_end(run: UUID, name: str) -> Statement[tuple[Decided, str | None, str | None] | None]:
    """Of a message that was taken."""

    def decode(rows: Sequence[Row]) -> tuple[Decided, str | None, str | None] | None:
        return (rows[0][0], rows[0][1], rows[0][2]) if rows else None

    return named("workflow_child_end", (run, name), decode)


class Lost(NamedTuple):
    ended: int
    looked: int  # rows that were read; 0: it was not this worker's turn


def settle_lost(most: int, every: float) -> Statement[Lost]:
    """End runs whose job is gone, at most every `every` seconds."""
    return named("workflow_lost", (most, every), lambda rows: Lost(*rows[0]))


def seen(types: Sequence[tuple[str, int, str, str | None]]) -> Statement[None]:
    """The workflows of a worker: name, version, queue, input."""
    columns = tuple(list(column) for column in zip(*types, strict=True))
    return named("workflow_seen", columns, lambda _: None)


def prune(days: int, most: int) -> Statement[int]:
    return named("empty_workflow_slots", (most,), count)
