"""Why a settle touched no row: it was done before, the row is locked, the job is no longer ours, or no row is kept."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from ..model.job import Owned
from ..model.outcome import Failed, Outcome, Settled, Settlement
from ..model.state import COMPLETED, GONE
from ..sql import query_in
from .statement import Flow, Row, Statement, ids


def check(
    queue: str, places: Sequence[int], batch: Sequence[Settlement], exceptions: dict[int, Settled]
) -> Flow[None]:
    """Find it out for these, and note it in `exceptions`."""
    grants, _, _, keeps = zip(*(batch[place] for place in places), strict=True)
    found = yield from settle_check(queue, grants, keeps)
    for place, settled in zip(places, found, strict=True):
        exceptions[place] = settled
        if settled.state == GONE and _completed_itself(batch[place].outcome):
            exceptions[place] = replace(settled, state=COMPLETED)


def _completed_itself(outcome: Outcome) -> bool:
    """Its handler called job.complete(). The row is gone, so that was committed."""
    return isinstance(outcome, Failed) and outcome.completed_itself


def settle_check(
    queue: str, grants: Sequence[Owned], keeps: Sequence[bool | None] | None = None
) -> Statement[list[Settled]]:
    """What happened to grants whose settle touched no row: settled already, busy, lost, or gone where completed jobs are not
    kept. One result each."""

    def decode(rows: Sequence[Row]) -> list[Settled]:
        found = {int(n): (state, already == "true") for n, state, already in ids(rows)}
        return [Settled(UUID(g.id_text), *found[n]) for n, g in enumerate(grants, 1)]

    return Statement(
        "settle_check",
        query_in("settle_check", queue),
        (queue, *columns(grants), list(keeps or [None] * len(grants))),
        decode,
    )


def columns(grants: Iterable[Owned]) -> list[list[Any]]:
    parts = [(UUID(g.id_text), g.generation, UUID(g.token_text)) for g in grants]
    return [list(column) for column in zip(*parts, strict=True)]


def lock_owned(grant: Owned) -> Statement[list[UUID]]:
    return Statement(
        "lock_owned",
        query_in("lock_owned", grant.queue),
        (grant.queue, UUID(grant.id_text), grant.generation, UUID(grant.token_text)),
        lambda rows: [UUID(job_id) for (job_id,) in ids(rows)],
    )
