"""Sweep: take back jobs whose owner is gone. Revoke first, then the jobs, then the claim row."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from ..model.outcome import Settled
from ..sql import query
from .chains import follow
from .statement import Flow, Row, Statement, ids
from .wake import wake


@dataclass(frozen=True, slots=True)
class RevokedClaim:
    token: UUID
    queue: str
    worker: str
    unsettled: int | None  # jobs a dead process left behind; None: its process did not die
    job_ids: list[UUID]


def sweep_begin(interval: float, gap: float, grace: float) -> Statement[bool | None]:
    """May sweep now? None: somebody holds the engine's row for longer than `gap`."""
    return Statement(
        "sweep_begin", query("sweep_begin"), (interval, gap, grace), lambda rows: rows[0][0] if rows else None
    )


def fence_workers(after: float) -> Statement[list[str]]:
    return Statement("fence_workers", query("fence_workers"), (after,), ids)


def revoke_expired(limit: int) -> Statement[list[UUID]]:
    return Statement("revoke_expired", query("revoke_expired"), (limit,), ids)


def disown(worker: str, tokens: Sequence[UUID]) -> Statement[list[UUID]]:
    return Statement("disown", query("disown"), (worker, list(tokens)), ids)


def revoked_claims(limit: int) -> Statement[list[RevokedClaim]]:
    def decode(rows: Sequence[Row]) -> list[RevokedClaim]:
        return [RevokedClaim(*r) for r in rows]

    return Statement("revoked_claims", query("revoked_claims"), (limit,), decode)


def return_disowned(token: UUID, max_crashes: int) -> Flow[None]:
    """Put the jobs of a disowned claim back now, instead of with the next sweep."""

    def decode(rows: Sequence[Row]) -> list[RevokedClaim]:
        return [RevokedClaim(*r) for r in rows]

    claims = yield from Statement("disowned_claim", query("disowned_claim"), (token,), decode)
    for claim in claims:
        yield from take_back(claim, claim.job_ids, max_crashes)
        yield from sweep_finish(token)


def sweep_take(claim: RevokedClaim, job_ids: Sequence[UUID], max_crashes: int) -> Statement[list[Settled]]:
    return Statement(
        "sweep_take",
        query("sweep_take"),
        (claim.queue, claim.token, list(job_ids), claim.unsettled, max_crashes),
        lambda rows: [Settled(r[0], r[1], group=r[2]) for r in rows],
    )


def take_back(claim: RevokedClaim, job_ids: Sequence[UUID], max_crashes: int) -> Flow[list[Settled]]:
    """sweep_take, what follows for the groups of those it buries, and whoever sleeps is told."""
    taken = yield from sweep_take(claim, job_ids, max_crashes)
    yield from follow(taken, patient=False)
    if any(settled.state == "pending" for settled in taken):
        yield from wake([claim.queue])
    return taken


def sweep_finish(token: UUID) -> Statement[bool]:
    return Statement("sweep_finish", query("sweep_finish"), (token,), bool)
