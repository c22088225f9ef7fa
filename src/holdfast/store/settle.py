"""Settle: end attempts, in one flow for a whole batch of any outcomes."""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

from ..model.job import Grant
from ..model.outcome import (
    Cancelled,
    Completed,
    DeadLettered,
    ErrorText,
    Failed,
    Held,
    Outcome,
    Released,
    Settled,
    Settlement,
    Snoozed,
)
from ..sql import query
from .chains import follow
from .statement import Flow, Row, Statement, ids
from .wake import wake

_Columns = list[list[Any]]


def _settled(rows: Sequence[Row]) -> list[Settled]:
    return [
        Settled(UUID(job_id), state, group=UUID(group) if group else None, then=then)
        for job_id, state, group, then in ids(rows)
    ]


def _checked(rows: Sequence[Row]) -> list[Settled]:
    return [Settled(UUID(job_id), state, already == "true") for job_id, state, already in ids(rows)]


def _row(outcome: Outcome) -> tuple[str, tuple[Any, ...]]:
    """Which statement ends this attempt, and the columns it takes beside the grant."""
    match outcome:
        case Completed(result):
            return "settle_finish", ("completed", result, None)
        case Cancelled(reason):
            return "settle_finish", ("cancelled", None, reason or None)
        case Failed(error, delay):
            return "settle_fail", (delay, False, *_error(error))
        case DeadLettered(error):
            return "settle_fail", (0.0, True, *_error(error))
        case Snoozed(delay):
            return "settle_back", (delay, None)
        case Released():
            return "settle_back", (None, None)
        case Held(reason):
            return "settle_back", (None, reason)
        case _:
            raise TypeError(f"{type(outcome).__name__} is nothing to settle")


def _error(error: ErrorText) -> tuple[str, str, str]:
    return error.kind, error.message, error.trace


def _grants(grants: Sequence[Grant]) -> _Columns:
    return [[g.id for g in grants], [g.generation for g in grants], [g.token for g in grants]]


def settle(batch: Sequence[Settlement], worker: str, *, patient: bool = False) -> Flow[list[Settled]]:
    """End every attempt of the batch; one answer each, in no particular order. What follows them commits together with it.

    Rows are locked in the order of their ids, so that two settlers cannot wait for each other in a circle.
    """
    answers: list[Settled] = []
    rows = [(s.grant.queue, *_row(s.outcome), s.grant) for s in batch]
    rows.sort(key=lambda r: (r[0], r[1], r[3].id))
    for (queue, name), group in groupby(rows, key=lambda r: (r[0], r[1])):
        part = list(group)
        grants = [r[3] for r in part]
        columns = _grants(grants) + [list(c) for c in zip(*(r[2] for r in part), strict=True)]
        extra = () if name == "settle_back" else (worker,)
        done = yield from Statement(name, query(name), (queue, *columns, *extra), _settled)
        answers += done
        seen = {d.id for d in done}
        missed = [g for g in grants if g.id not in seen]
        if missed:
            answers += yield from settle_check(queue, missed)
    yield from follow(answers, patient=patient)
    if back := _back(batch, {a.id for a in answers if a.state == "pending" and not a.already}):
        yield from wake(list(back), list(back.values()))
    return answers


def _back(batch: Sequence[Settlement], waiting: Collection[UUID]) -> dict[str, float]:
    """Queue -> seconds until the first job that went back to it is due."""
    back: dict[str, float] = {}
    for s in batch:
        if s.grant.id in waiting:
            delay = s.outcome.delay if isinstance(s.outcome, Failed | Snoozed) else 0.0
            back[s.grant.queue] = min(delay, back.get(s.grant.queue, delay))
    return back


def settle_check(queue: str, grants: Sequence[Grant]) -> Statement[list[Settled]]:
    """What happened to grants whose settle touched no row: settled already, busy or lost."""
    return Statement("settle_check", query("settle_check"), (queue, *_grants(grants)), _checked)


def settle_in(settlement: Settlement, worker: str) -> Flow[bool]:
    """Settle one job inside the caller's transaction. False: it is no longer ours.

    A row that someone else holds for a moment is waited for, not skipped: the caller's own writes hang on it.
    """
    grant = settlement.grant
    for _ in range(2):
        (answer,) = yield from settle([settlement], worker, patient=True)
        if answer.state != "busy":
            return answer.state != "lost" and not answer.already
        locked = yield from lock_owned(grant)
        if not locked:
            return False
    return False


def lock_owned(grant: Grant) -> Statement[list[UUID]]:
    return Statement(
        "lock_owned",
        query("lock_owned"),
        (grant.queue, grant.id, grant.generation, grant.token),
        lambda rows: [UUID(job_id) for (job_id,) in ids(rows)],
    )
