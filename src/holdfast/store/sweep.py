"""Sweep: take back jobs whose owner is gone. Revoke first, then the jobs, then the claim row."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from ..model.outcome import Settled
from ..model.state import PENDING
from ..sql import query_in
from .chains import follow
from .dead import redrive
from .statement import Flow, Row, Statement, ids, named, nothing
from .wake import wake


@dataclass(frozen=True, slots=True)
class Revoked:
    """The revoked claims of a worker in a queue."""

    worker: str
    queue: str
    tokens: list[UUID]
    job_ids: list[UUID]  # still to be taken back


def sweep_begin(interval: float, gap: float, grace: float) -> Statement[bool | None]:
    """Whether to sweep now. None: another session has locked the engine's row for longer than `gap`."""
    return named("sweep_begin", (interval, gap, grace), lambda rows: rows[0][0] if rows else None)


def fence_workers(after: float) -> Statement[list[str]]:
    return named("fence_workers", (after,), ids)


def revoke_expired(limit: int) -> Statement[list[UUID]]:
    return named("revoke_expired", (limit,), ids)


def disown(worker: str, tokens: Sequence[UUID]) -> Statement[list[UUID]]:
    return named("disown", (worker, list(tokens)), ids)


def revoked_claims(limit: int) -> Statement[list[Revoked]]:
    def decode(rows: Sequence[Row]) -> list[Revoked]:
        return [Revoked(*r) for r in rows]

    return named("revoked_claims", (limit,), decode)


def return_disowned(token: UUID, max_crashes: int) -> Flow[None]:
    """Put the jobs of a disowned claim back now, not with the next sweep."""

    def decode(rows: Sequence[Row]) -> list[Revoked]:
        return [Revoked(*r) for r in rows]

    claims = yield from named("disowned_claim", (token,), decode)
    for claim in claims:
        yield from take_back(claim, claim.job_ids, max_crashes)
        yield from sweep_finish([token])


def sweep_take(revoked: Revoked, job_ids: Sequence[UUID], max_crashes: int) -> Statement[list[Settled]]:
    return named(
        "sweep_take",
        (revoked.queue, revoked.tokens, list(job_ids), revoked.worker, max_crashes),
        lambda rows: [Settled(r[0], r[1], group=r[2]) for r in rows],
    )


def take_back(revoked: Revoked, job_ids: Sequence[UUID], max_crashes: int) -> Flow[list[Settled]]:
    """sweep_take, then the groups of jobs it made dead letters; sleeping workers are woken."""
    taken = yield from sweep_take(revoked, job_ids, max_crashes)
    yield from follow(taken, patient=False)
    if any(settled.state == PENDING for settled in taken):
        yield from wake([revoked.queue])
    return taken


def sweep_finish(tokens: Sequence[UUID]) -> Statement[list[UUID]]:
    """Drop these claim rows; returns those that are gone."""
    return named("sweep_finish", (list(tokens),), ids)


def take_back_blame(worker: str) -> Flow[list[UUID]]:
    """The worker is alive: its silence counts against none of its jobs. Returns the dead letters that wait again for it."""
    blamed: dict[str, list[UUID]] = {}
    buried: list[UUID] = []
    for queue, job_id, by_silence in (yield from named("take_back_blame", (worker,), list)):
        blamed.setdefault(queue, []).append(job_id)
        buried += [job_id] * by_silence
    for queue in sorted(blamed):
        params = (queue, blamed[queue])
        yield from Statement("clear_blamed", query_in("clear_blamed", queue), params, nothing)
    redriven = (yield from redrive(buried, [0.0] * len(buried))) if buried else []
    if blamed:
        yield from wake(sorted(blamed))
    return redriven
