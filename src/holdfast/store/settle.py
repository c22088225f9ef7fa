"""Settle: end attempts. settle_batch() ends any outcomes in one flow. settle_done() is its quick way: one statement
for jobs that completed without a result and on which nothing hangs."""

import json
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeVar
from uuid import UUID

from ..model.breaker import Watch
from ..model.job import ClaimedJob, Owned
from ..model.outcome import (
    NOTHING,
    Cancelled,
    Completed,
    DeadLettered,
    ErrorText,
    Failed,
    Held,
    Misfit,
    Outcome,
    Released,
    Settled,
    Settlement,
    Snoozed,
)
from ..model.state import ARCHIVED, BUSY, HELD, LOST, PENDING
from ..sql import query_in
from .arrays import plain_array, repeated_uuids, text_array, uuid_array
from .chains import follow
from .checked import check, columns, lock_owned
from .statement import Flow, Row, Statement, ids, named, nothing
from .wake import wake

ASIDE = "its payload does not fit the signature here, and waits for a worker whose signature differs"
Places = list[int]  # in the batch
_grant: Callable[[Settlement], Owned] = itemgetter(0)
_outcome: Callable[[Settlement], Outcome] = itemgetter(1)
_watch: Callable[[Settlement], Watch | None] = itemgetter(2)
_keep: Callable[[Settlement], bool | None] = itemgetter(3)
_queue, _id, _generation, _token, _rest = map(
    attrgetter, ("queue", "id_text", "generation", "token_text", "rest")
)
Exceptions = dict[int, Settled]  # by place
T = TypeVar("T")
Hook = Callable[[Sequence[Settlement], Exceptions], Flow[T]]


def settle(batch: Sequence[Settlement], worker: str, *, patient: bool = False) -> Flow[list[Settled]]:
    """End every attempt of the batch; returns one result each, in order. Follow-ups commit together with it."""
    exceptions = yield from settle_batch(batch, worker, patient=patient)
    return [exceptions.get(place) or plainly(settlement) for place, settlement in enumerate(batch)]


def plainly(settlement: Settlement) -> Settled:
    """The result of a job that settle_batch() does not mention."""
    return Settled(UUID(settlement.grant.id_text), ARCHIVED[type(settlement.outcome)])


def settle_batch(batch: Sequence[Settlement], worker: str, *, patient: bool = False) -> Flow[Exceptions]:
    """The same, but returns only exceptions: nothing for a job that completed or was cancelled normally, without follow-ups
    or a group. A worker ends tens of thousands a second: that case costs no more than its id in an array."""
    exceptions: Exceptions = {}
    finished, others = _parted(batch)
    for queue, places in finished.items():
        yield from _finish(queue, places, batch, worker, exceptions)
    for (queue, name), places in others.items():
        yield from _settle_others(queue, name, places, batch, worker, exceptions)
    yield from follow(list(exceptions.values()), patient=patient)
    if back := _back(batch, exceptions):
        yield from wake(list(back), list(back.values()))
    return exceptions


def is_plain(batch: Sequence[Settlement]) -> bool:
    """Whether all of them may take the quick way together. A guess: the statement leaves out jobs that do not qualify."""
    grants = list(map(_grant, batch))
    return (
        list(map(_outcome, batch)).count(NOTHING) == len(batch)
        and set(map(type, grants)) == {ClaimedJob}
        and len(set(map(_queue, grants))) == 1
        and not any(map(_rest, grants))
        and not any(map(_watch, batch))
        and len(set(map(_keep, batch))) == 1
    )


def by_attempt(batch: list[Settlement]) -> tuple[list[Settlement], list[Settlement]]:
    """Jobs in their first attempt, and the others: an earlier attempt may have left steps or progress, which only the usual
    way removes."""
    if set(map(_generation, map(_grant, batch))) == {1}:
        return batch, []
    first = [settlement for settlement in batch if settlement.grant.generation == 1]
    return first, [settlement for settlement in batch if settlement.grant.generation != 1]


def settle_done(batch: Sequence[Settlement], worker: str) -> Statement[set[tuple[str, int]] | None]:
    """End the attempts of a plain batch. Returns id and generation of those that it ended; None: all. Raises
    LockNotAvailable, with nothing done, if another session has locked one of them."""
    grants = list(map(_grant, batch))
    queue = grants[0].queue

    def decode(rows: Sequence[Row]) -> set[tuple[str, int]] | None:
        ((count, done),) = rows
        return None if count == len(grants) else {(job, at) for job, at in json.loads(done or "[]")}

    owned = (
        queue,
        uuid_array(list(map(_id, grants))),
        plain_array(map(str, map(_generation, grants))),
        repeated_uuids(list(map(_token, grants))),
    )
    if (keep := batch[0].keep) is False:
        return Statement("settle_dropped", query_in("settle_dropped", queue), (*owned, len(grants)), decode)
    params = (*owned, worker, len(grants), keep)
    return Statement("settle_done", query_in("settle_done", queue), params, decode)


def settle_and(batch: Sequence[Settlement], worker: str, hook: Hook[T]) -> Flow[tuple[Exceptions, T]]:
    """Settle a batch, and run the hook with the results, in the same transaction."""
    exceptions = yield from settle_batch(batch, worker)
    return exceptions, (yield from hook(batch, exceptions))


def _parted(
    batch: Sequence[Settlement],
) -> tuple[dict[str, Sequence[int]], dict[tuple[str, str], Places]]:
    """Places by queue and statement."""
    queues = set(map(_queue, map(_grant, batch)))
    if len(queues) == 1 and set(map(type, map(_outcome, batch))) <= ARCHIVED.keys():
        return {queues.pop(): range(len(batch))}, {}
    finished: dict[str, Places] = {}
    others: dict[tuple[str, str], Places] = {}
    for place, (grant, outcome, *_) in enumerate(batch):
        queue = grant.queue
        if type(outcome) in ARCHIVED:
            finished.setdefault(queue, []).append(place)
        else:
            others.setdefault((queue, _row(outcome)[0]), []).append(place)
    return {**finished}, others


def _finish(
    queue: str, places: Sequence[int], batch: Sequence[Settlement], worker: str, exceptions: Exceptions
) -> Flow[None]:
    parts = batch if len(places) == len(batch) else [batch[place] for place in places]
    grants = list(map(_grant, parts))
    outcomes = list(map(_outcome, parts))
    answer: list[str | None] = yield from Statement(
        "settle_finish",
        query_in("settle_finish", queue),
        (queue, *_grants(grants), *_ends(outcomes), worker, len(parts), _kept(parts)),
        lambda rows: rows[0][0],
    )
    count, which, linked = answer
    missed = set() if which is None and int(count or 0) == len(parts) else set(range(len(parts)))
    missed -= {n - 1 for n in json.loads(which or "[]")}
    if linked is not None:
        at = {part.grant.id_text: n for n, part in enumerate(parts) if n not in missed}
        for job_id, group, then in json.loads(linked):
            n, group_id = at[job_id], UUID(group) if group else None
            state = ARCHIVED[type(outcomes[n])]
            exceptions[places[n]] = Settled(UUID(job_id), state, group=group_id, then=then)
    yield from forget([part for n, part in enumerate(parts) if n not in missed])
    if missed:
        yield from check(queue, [places[n] for n in sorted(missed)], batch, exceptions)


def forget(ended: Sequence[Settlement]) -> Flow[None]:
    """Remove the steps and progress of these jobs, in the transaction that ends them. Most have none: it is their first
    attempt, and it recorded nothing. A cancelled job keeps its steps, because an operator may retry it."""
    completed, cancelled = [], []
    for grant, outcome, *_ in ended:
        if isinstance(outcome, Cancelled):
            cancelled.append(UUID(grant.id_text))
        elif grant.generation > 1 or (isinstance(outcome, Completed) and outcome.beside):
            completed.append(UUID(grant.id_text))
    if completed or cancelled:
        yield from named("settle_forget", (completed, cancelled), nothing)


def _ends(outcomes: Sequence[Outcome]) -> tuple[str | None, str | None, str | None]:
    """Statuses, results and errors, each None if all have the usual value."""
    if outcomes.count(NOTHING) == len(outcomes):
        return None, None, None
    results = [outcome.result if isinstance(outcome, Completed) else None for outcome in outcomes]
    if all(isinstance(outcome, Completed) for outcome in outcomes):
        return None, text_array(results), None
    statuses = [ARCHIVED[type(outcome)] for outcome in outcomes]
    errors = [(o.reason or None) if isinstance(o, Cancelled) else None for o in outcomes]
    return plain_array(statuses), text_array(results), text_array(errors)


def _kept(parts: Sequence[Settlement]) -> str | None:
    """Whether each is kept if it completed. A job that leaves rows beside it is kept, so that those can be traced to it."""
    said = [True if outcome.rows else keep for _, outcome, _, keep in parts]
    if said.count(None) == len(said):
        return None
    return "{" + ",".join("NULL" if keep is None else str(keep).lower() for keep in said) + "}"


def _settle_others(
    queue: str, name: str, places: Places, batch: Sequence[Settlement], worker: str, exceptions: Exceptions
) -> Flow[None]:
    """Failed, put back or held. In the order of their ids, so that two settlers cannot deadlock."""
    places = sorted(places, key=lambda place: batch[place].grant.id_text)
    more = [list(column) for column in zip(*(_row(batch[place].outcome)[1] for place in places), strict=True)]
    extra = (worker,) if name == "settle_fail" else ()
    params = (queue, *columns(batch[place].grant for place in places), *more, *extra)
    rows = yield from Statement(name, query_in(name, queue), params, ids)
    for n, state, group in rows:
        place = places[int(n) - 1]
        job_id = UUID(batch[place].grant.id_text)
        exceptions[place] = Settled(job_id, state, group=UUID(group) if group else None)
    if missed := [place for place in places if place not in exceptions]:
        yield from check(queue, missed, batch, exceptions)


def _row(outcome: Outcome) -> tuple[str, tuple[Any, ...]]:
    """Which statement ends this attempt, and the columns it takes beside the grant."""
    match outcome:
        case Failed(error, delay, deadline):
            return "settle_fail", (delay, False, *_error(error), deadline)
        case DeadLettered(error):
            return "settle_fail", (0.0, True, *_error(error), None)
        case Snoozed(delay):
            return "settle_back", (delay, None)
        case Released():
            return "settle_back", (None, None)
        case Held(reason):
            return "settle_back", (None, reason)
        case Misfit(reason, signature, newer):
            hold = f"needs a newer worker: {reason}" if newer else f"{ASIDE}: {reason}"
            return "settle_misfit", (hold, reason, signature, newer)
        case _:
            raise TypeError(f"{type(outcome).__name__} is nothing to settle")


def _error(error: ErrorText) -> tuple[str, str, str]:
    return error.kind, error.message, error.trace


def _grants(grants: Sequence[Owned]) -> tuple[str, str, str]:
    return (
        plain_array(map(_id, grants)),
        plain_array(map(str, map(_generation, grants))),
        plain_array(map(_token, grants)),
    )


def _back(batch: Sequence[Settlement], exceptions: Exceptions) -> dict[str, float]:
    """Queue -> seconds until the first job that went back to it is due. A misfit is for a worker of another signature."""
    back: dict[str, float] = {}
    for place, settled in exceptions.items():
        queue, outcome = batch[place].grant.queue, batch[place].outcome
        waits = settled.state == PENDING or (settled.state == HELD and isinstance(outcome, Misfit))
        if waits and not settled.already:
            delay = outcome.delay if isinstance(outcome, Failed | Snoozed) else 0.0
            back[queue] = min(delay, back.get(queue, delay))
    return back


def settle_in(settlement: Settlement, worker: str) -> Flow[bool]:
    """Settle one job inside the caller's transaction. False: this worker no longer owns it.

    A row that another session has locked for a moment is waited for, not skipped: the caller's own writes depend on it.
    """
    for _ in range(2):
        (answer,) = yield from settle([settlement], worker, patient=True)
        if answer.state != BUSY:
            return answer.state != LOST and not answer.already
        locked = yield from lock_owned(settlement.grant)
        if not locked:
            return False
    return False
