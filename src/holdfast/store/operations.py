"""Operations: acts over many jobs that continue without the process that began them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ..model.actor import Actor
from .audit import audit_begin
from .queue_load import Count
from .statement import Flow, Row, Statement, count, ids, named, nothing

WAITS = "operation_waits"  # the question of the pulse
OPEN = ("waiting", "running")
STATES = (*OPEN, "done", "stopped", "failed")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why some were not changed, and how many."""

    code: str
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Operation:
    id: UUID
    verb: str
    state: str  # waiting, running, done, stopped or failed
    selection: dict[str, Any]
    options: dict[str, Any]
    actor: str
    surface: str
    address: str | None
    reason: str | None
    role: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    stopped_by: str | None
    total: Count  # that matched when it began
    done: int  # jobs changed
    looked_at: int  # jobs that matched, changed or not
    results: dict[str, int]  # how, and how many
    left: list[LeftOut]
    runner: str | None  # its current runner
    runs: int  # how often a worker took it up
    fault: str | None  # why the last runner could not continue, or why it failed
    audit: int
    age_seconds: float  # since it was begun
    seconds: float | None  # since a worker first took it up, or until it ended
    per_second: float | None  # jobs read


class Claimed(NamedTuple):
    """What its runner needs to know."""

    id: UUID
    verb: str
    selection: dict[str, Any]
    options: dict[str, Any]
    bounds: list[Any]
    place: Any


class Held(NamedTuple):
    """Its progress, read under its lock."""

    results: dict[str, int]
    left: list[LeftOut]
    ahead: float  # seconds that the jobs it moved at a rate reach ahead


class OperationCursor(NamedTuple):
    at: datetime
    id: UUID


def begin_operation(
    operation: UUID,
    verb: str,
    given: Mapping[str, object],
    options: Mapping[str, object],
    bounds: Sequence[object],
    actor: Actor,
    total: Count,
) -> Flow[None]:
    """Start it, with its entry in the audit, which counts the jobs that workers change for it."""
    selection = given or {"all": True}
    entry = yield from audit_begin(actor.within(operation), verb, {**selection, **options})
    said = (actor.name, actor.surface, actor.address, actor.reason)
    texts = [json.dumps(value, default=str) for value in (given, options, bounds)]
    params = (operation, verb, *texts, *said, total.count, total.capped, entry)
    yield from named("begin_operation", params, nothing)


def claim_operation(
    runner: str,
    token: UUID,
    silence: float,
    operation: UUID | None,
    verbs: Sequence[str] = (),
    left: UUID | None = None,
) -> Statement[Claimed | None]:
    """This one, or the first with one of those verbs. `left`: a token of the same runner, which may have left one."""

    def decode(rows: Sequence[Row]) -> Claimed | None:
        if not rows:
            return None
        values = [None if text is None else json.loads(text) for text in rows[0][2:]]
        return Claimed(*[*rows[0][:2], *values])

    return named("claim_operation", (runner, token, silence, operation, list(verbs), left), decode)


def hold_operation(operation: UUID, token: UUID) -> Statement[Held | None]:
    """None: it was stopped, or another worker runs it."""

    def decode(rows: Sequence[Row]) -> Held | None:
        return Held(json.loads(rows[0][0]), _left(rows[0][1]), rows[0][2]) if rows else None

    return named("hold_operation", (operation, token), decode)


def move_operation(
    operation: UUID,
    token: UUID,
    place: object,
    changed: int,
    looked_at: int,
    results: Mapping[str, int],
    left: Sequence[LeftOut],
    ahead: float,
) -> Statement[bool]:
    texts = json.dumps(results), json.dumps([[one.code, one.text, one.count] for one in left])
    where = None if place is None else json.dumps(place, default=str)
    params = (operation, token, where, changed, looked_at, *texts, ahead)
    return named("move_operation", params, lambda rows: bool(rows and rows[0][0]))


def end_operation(operation: UUID, token: UUID, state: str, fault: str | None = None) -> Statement[bool]:
    return named("end_operation", (operation, token, state, fault), bool)


def release_operation(token: UUID, fault: str | None = None, seconds: float = 0.0) -> Statement[bool]:
    return named("release_operation", (token, fault, seconds), bool)


def stop_operation(operation: UUID, who: str) -> Statement[bool]:
    """False: it had ended."""
    return named("stop_operation", (operation, who), bool)


def show_operation(operation: UUID) -> Statement[Operation | None]:
    def decode(rows: Sequence[Row]) -> Operation | None:
        return _operation(rows[0]) if rows else None

    return named("show_operation", (operation,), decode)


def list_operations(
    before: OperationCursor | None, states: Sequence[str] | None, limit: int
) -> Statement[list[Operation]]:
    params = (*(before or (None, None)), None if states is None else list(states), limit)
    return named("list_operations", params, lambda rows: [_operation(r) for r in rows])


def operation_ids_between(lowest: UUID, highest: UUID, limit: int) -> Statement[list[UUID]]:
    return named("operation_ids_between", (lowest, highest, limit), ids)


def count_operations() -> Statement[dict[str, tuple[int, int]]]:
    """Counts by state of those that have not ended, and how many of them cannot continue."""
    return named("count_operations", (), lambda rows: {r[0]: (r[1], r[2]) for r in rows})


def prune_operations(days: int, limit: int) -> Statement[int]:
    return named("prune_operations", (days, limit), count)


def _operation(r: Row) -> Operation:
    *head, total, capped, done, looked_at, results, left, runner, runs, fault, audit, age, seconds = r
    head[3:5] = json.loads(head[3]), json.loads(head[4])
    counts = [Count(total, capped), done, looked_at, json.loads(results), _left(left)]
    took = None if seconds is None else round(seconds, 3)
    rate = None if seconds is None else round(looked_at / seconds, 3)
    return Operation(*[*head, *counts, runner, runs, fault, audit, round(age, 3), took, rate])


def _left(text: str) -> list[LeftOut]:
    return [LeftOut(*one) for one in json.loads(text)]
