"""Misfits: jobs whose payload does not fit the signature of a worker, and which signatures refused them."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from ..model.job import Grant
from ..model.outcome import DeadLettered, ErrorText, Settlement
from ..sql import query, query_in
from .settle import settle_batch
from .statement import Flow, Row, Statement, ids, nothing


class Buried(NamedTuple):
    job_id: UUID
    generation: int
    task: str
    error: str


def queues_with_misfits(wait: float) -> Statement[list[str]]:
    return Statement("queues_with_misfits", query("queues_with_misfits"), (wait,), ids)


def bury_misfits(
    queue: str, token: UUID, worker: str, *, wait: float, dead_after: float, limit: int
) -> Flow[list[Buried]]:
    """Dead letters of jobs that every live signature refused, the last of them `wait` seconds ago."""

    def decode(rows: Sequence[Row]) -> list[Buried]:
        return [Buried(r[0], r[1], r[2], f"tried against every live signature: {r[3]}") for r in rows]

    params = (queue, wait, dead_after, token, limit)
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
    """Any worker that knows the task takes them back."""
    return Statement("forget_misfits", query("forget_misfits"), (list(job_ids),), nothing)
