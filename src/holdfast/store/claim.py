"""Claim: take jobs for a worker, and find those that a plain claim leaves out."""

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from ..model.fence import fence
from ..model.job import ClaimedJob, Grant
from ..sql import query
from .statement import Row, Statement, count, ids, nothing


def claimed_jobs(queue: str, token: UUID) -> Callable[[Sequence[Row]], list[ClaimedJob]]:
    """How the answer of a claim is read."""

    def decode(rows: Sequence[Row]) -> list[ClaimedJob]:
        return [
            ClaimedJob(
                grant=Grant(queue, r[0], r[1], token),
                fence=fence(int(r[16], 16), r[2], r[1]),
                task=r[3],
                version=r[4],
                payload=r[5],
                partition_key=r[6],
                priority=r[7],
                attempts=r[8],
                max_attempts=r[9],
                crashes=r[10],
                available_at=r[11],
                created_at=r[12],
                metadata=r[13],
                cancel_requested=r[14],
                suspect=r[15],
                waited=r[17],
                seq=r[2],
                parent_id=r[18],
                group_id=r[19],
            )
            for r in rows
        ]

    return decode


def claim(
    queue: str,
    worker: str,
    token: UUID,
    *,
    lease: float,
    limit: int,
    marks: Sequence[tuple[int, datetime | None]],
    limited: int = 0,
) -> Statement[list[ClaimedJob]]:
    """The first due jobs, each priority from its mark. `marks` go from high priority to low.

    `limited` is what the caller knows of the queue (QueueRules.limited): where it has more limits, nothing is taken."""
    priorities = [p for p, _ in marks]
    return Statement(
        "claim",
        query("claim"),
        (queue, worker, token, lease, limit, priorities, [m for _, m in marks], limited),
        claimed_jobs(queue, token),
    )


def claim_these(
    queue: str, worker: str, token: UUID, *, lease: float, job_ids: Sequence[UUID], limited: int = 0
) -> Statement[list[ClaimedJob]]:
    """The named jobs, waiting or held, as far as they are due and free."""
    return Statement(
        "claim_these",
        query("claim_these"),
        (queue, worker, token, lease, list(job_ids), limited),
        claimed_jobs(queue, token),
    )


def scan_priorities(queue: str) -> Statement[list[tuple[int, datetime]]]:
    """Each priority, with the mark to set once everything due at it has been taken."""
    return Statement(
        "scan_priorities", query("scan_priorities"), (queue,), lambda rows: [(r[0], r[1]) for r in rows]
    )


def claim_candidates(queue: str, limit: int) -> Statement[list[UUID]]:
    return Statement("claim_candidates", query("claim_candidates"), (queue, limit), ids)


def find_suspects(queue: str, limit: int) -> Statement[list[tuple[UUID, int]]]:
    return Statement(
        "find_suspects", query("find_suspects"), (queue, limit), lambda rows: [(r[0], r[1]) for r in rows]
    )


def find_held(queue: str, known: Sequence[tuple[str, int]], limit: int) -> Statement[list[UUID]]:
    tasks = [t for t, _ in known]
    versions = [v for _, v in known]
    return Statement("find_held", query("find_held"), (queue, tasks, versions, limit), ids)


def hold_unknown(queue: str, known: Sequence[tuple[str, int]], look: int) -> Statement[int]:
    names = [f"{t}/{v}" for t, v in known]
    return Statement("hold_unknown", query("hold_unknown"), (queue, names, look), count)


def quarantine(job_id: UUID, queue: str, reason: str) -> Statement[None]:
    return Statement("quarantine", query("quarantine"), (job_id, queue, reason), nothing)
