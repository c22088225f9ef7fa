"""Claim: take jobs for a worker, and find jobs that a plain claim leaves out."""

import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast
from uuid import UUID

from ..model.job import ClaimedJob
from ..sql import query_in
from .statement import Row, Statement, count, ids, named, nothing


class Mark(NamedTuple):
    """A place in claim order: everything up to it was seen."""

    at: datetime
    seq: int


CLAIM_BYTES = 4 * 2**20  # of payload in one claim, unless the caller says otherwise
PriorityMark = tuple[int, Mark | None]  # a priority, and where to begin

_new = cast("Callable[[Row], ClaimedJob]", functools.partial(tuple.__new__, ClaimedJob))


def taking(name: str, params: tuple[Any, ...], queue: str, token: UUID) -> Statement[list[ClaimedJob]]:
    """A statement whose rows have the fields of a job, and in the last column those of the whole claim."""

    def decode(rows: Sequence[Row]) -> list[ClaimedJob]:
        if not rows:
            return []
        of_claim: str = rows[0][-1]  # timeline: 8 hexadecimal digits; microseconds since 1970; rows locked
        now, _, locked = of_claim[8:].partition(" ")
        claim = (queue, str(token), int(now) / 1e6, int(of_claim[:8], 16), int(locked))
        return [_new(row[:-1] + claim) for row in rows]

    return Statement(name, query_in(name, queue), params, decode, binary=True)


def claim(
    queue: str,
    worker: str,
    token: UUID,
    *,
    lease: float,
    limit: int,
    marks: Sequence[PriorityMark],
    limited: int = 0,
    most_bytes: int = CLAIM_BYTES,
) -> Statement[list[ClaimedJob]]:
    """The first due jobs, each priority from its mark. `marks` go from high priority to low.

    `limited` is what the caller knows about the queue (QueueRules.limited): where it has more limits, nothing is taken.
    Once the payloads reach `most_bytes`, no further job is taken; at least one is."""
    priorities = [p for p, _ in marks]
    at = [None if mark is None else mark.at for _, mark in marks]
    seqs = [0 if mark is None else mark.seq for _, mark in marks]
    params = (queue, worker, token, lease, limit, priorities, at, limited, seqs, most_bytes)
    return taking("claim", params, queue, token)


def claim_these(
    queue: str,
    worker: str,
    token: UUID,
    *,
    lease: float,
    job_ids: Sequence[UUID],
    limited: int = 0,
    most_bytes: int = CLAIM_BYTES,
) -> Statement[list[ClaimedJob]]:
    """The named jobs, waiting or held, as far as they are due and free."""
    params = (queue, worker, token, lease, list(job_ids), limited, most_bytes)
    return taking("claim_these", params, queue, token)


def scan_priorities(queue: str) -> Statement[list[tuple[int, Mark]]]:
    """Each priority, with the mark to set once everything due at it has been taken."""
    return Statement(
        "scan_priorities",
        query_in("scan_priorities", queue),
        (queue,),
        lambda rows: [(r[0], Mark(r[1], -1)) for r in rows],
    )


def claim_candidates(queue: str, limit: int) -> Statement[list[UUID]]:
    return Statement("claim_candidates", query_in("claim_candidates", queue), (queue, limit), ids)


def find_suspects(queue: str, limit: int) -> Statement[list[UUID]]:
    return Statement("find_suspects", query_in("find_suspects", queue), (queue, limit), ids)


def find_held(
    queue: str,
    known: Sequence[tuple[str, int]],
    limit: int,
    signatures: Sequence[str] = (),
    *,
    ordered: bool = False,
) -> Statement[list[UUID]]:
    """`signatures`: of each known task, in the same order. Jobs that one of them has refused are left out."""
    tasks = [t for t, _ in known]
    versions = [v for _, v in known]
    params = (queue, tasks, versions, limit, list(signatures), ordered)
    return Statement("find_held", query_in("find_held", queue), params, ids)


def hold_unknown(queue: str, known: Sequence[tuple[str, int]], look: int) -> Statement[int]:
    names = [f"{t}/{v}" for t, v in known]
    return Statement("hold_unknown", query_in("hold_unknown", queue), (queue, names, look), count)


def quarantine(job_id: UUID, queue: str, reason: str) -> Statement[None]:
    return named("quarantine", (job_id, queue, reason), nothing)
