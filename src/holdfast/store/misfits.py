"""Misfits: jobs whose payload does not fit the signature of a worker, and which signatures refused them."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ..model.job import Grant
from ..model.outcome import DeadLettered, ErrorText, Settlement
from ..sql import query_in
from .settle import settle_batch
from .statement import Flow, Row, Statement, ids, named, nothing


class Buried(NamedTuple):
    job_id: UUID
    generation: int
    task: str
    error: str


def misfits_begin(lease: float) -> Statement[bool]:
    """Whether this worker may search now. Then no other may for `lease` seconds, or until misfits_done()."""
    return named("misfits_begin", (lease,), lambda rows: bool(rows[0][0]))


def misfits_done(pause: float) -> Statement[None]:
    return named("misfits_done", (pause,), nothing)


def queues_with_misfits(wait: float) -> Statement[list[str]]:
    return named("queues_with_misfits", (wait,), ids)


class RefusalCursor(NamedTuple):
    """The place of a refusal, in the order of time."""

    job_id: UUID
    at: datetime


def old_misfits(
    queue: str, wait: float, after: RefusalCursor | None, limit: int
) -> Statement[list[RefusalCursor]]:
    """Refusals that are older than `wait` seconds, from a place on."""

    def decode(rows: Sequence[Row]) -> list[RefusalCursor]:
        return [RefusalCursor(*row) for row in rows]

    at, job_id = (after.at, after.job_id) if after else (None, None)
    return named("old_misfits", (queue, wait, at, job_id, limit), decode)


def bury_misfits(
    queue: str, job_ids: Sequence[UUID], token: UUID, worker: str, *, wait: float, dead_after: float
) -> Flow[list[Buried]]:
    """Make dead letters of those that every live signature refused, the last of them `wait` seconds ago."""

    def decode(rows: Sequence[Row]) -> list[Buried]:
        return [Buried(r[0], r[1], r[2], f"tried against every live signature: {r[3]}") for r in rows]

    params = (queue, wait, dead_after, token, list(job_ids))
    found = yield from Statement("take_misfits", query_in("take_misfits", queue), params, decode)
    if found:
        ends = [
            Settlement(
                Grant(queue, b.job_id, b.generation, token), DeadLettered(ErrorText("PayloadError", b.error))
            )
            for b in found
        ]
        yield from settle_batch(ends, worker)
        yield from forget_misfits([b.job_id for b in found])
    return found


def forget_misfits(job_ids: Sequence[UUID]) -> Statement[None]:
    """These refusals are over: their jobs are not misfits any more."""
    return named("forget_misfits", (list(job_ids),), nothing)
