"""Limits: what a claim may take from a queue, and claiming no more than that."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from ..model.job import ClaimedJob
from ..sql import query, query_in
from .claim import Place, taking
from .statement import Flow, Row, Statement, count, ids, nothing
from .streams import Scan, decode_scan


class Allowance(NamedTuple):
    total: int
    keys: list[int]
    wait: float  # seconds until the rate allows one
    waits: list[float]  # the same for each key
    ahead: bool = False  # tokens were counted at a time that has not come yet


class Limited(NamedTuple):
    """What a claim within limits took."""

    jobs: list[ClaimedJob]
    cut: bool = False  # the limits of the whole queue were in the way: there may be more
    again_in: float | None = None  # when they allow one, where that is known
    busy: bool = False  # another worker claims at this moment


Take = Callable[[Allowance], "Flow[list[ClaimedJob]] | Statement[list[ClaimedJob]]"]


def within(queue: str, keys: Sequence[str], take: Take) -> Flow[Limited]:
    """Claim under the lock of the queue's limits. `take` is told what is allowed, and takes no more."""
    locked = yield from Statement("lock_limit", query("lock_limit"), (queue,), ids)
    if not locked:
        return Limited([], cut=True, busy=True)
    allowed = yield from allowance(queue, keys)
    if allowed.ahead:
        yield from Statement("mend_limits", query_in("mend_limits", queue), (queue, list(keys)), nothing)
        allowed = yield from allowance(queue, keys)
    if allowed.total <= 0:
        return Limited([], cut=True, again_in=allowed.wait or None)
    jobs = yield from take(allowed)
    if jobs:
        spent = Counter(job.partition_key for job in jobs if job.partition_key is not None)
        params = (queue, len(jobs), sorted(spent), [spent[key] for key in sorted(spent)])
        yield from Statement("spend", query("spend"), params, nothing)
    return Limited(jobs, cut=len(jobs) >= allowed.total)


def allowance(queue: str, keys: Sequence[str]) -> Statement[Allowance]:
    def decode(rows: Sequence[Row]) -> Allowance:
        if not rows:  # the queue is no more
            return Allowance(0, [], 0.0, [])
        total, keys, wait, waits, ahead = rows[0]
        return Allowance(total, list(keys), wait, list(waits), bool(ahead))

    return Statement("allowance", query_in("allowance", queue), (queue, list(keys)), decode)


class LimitUse(NamedTuple):
    running: int
    tokens: float | None  # left of the rate
    next_in: float  # seconds until the rate allows one
    keys_full: int  # keys that run as many as they may


def limit_use(queue: str) -> Statement[LimitUse]:
    def decode(rows: Sequence[Row]) -> LimitUse:
        return LimitUse(*rows[0]) if rows else LimitUse(0, None, 0.0, 0)

    return Statement("limit_use", query("limit_use"), (queue,), decode)


def lock_queue(queue: str) -> Statement[bool]:
    """Nobody else changes its rules until the commit. Answers whether it was made to be claimed key by key."""
    return Statement("lock_queue", query("lock_queue"), (queue,), lambda rows: bool(rows and rows[0][0]))


def claim_shares(
    queue: str,
    worker: str,
    token: UUID,
    *,
    lease: float,
    shares: Sequence[tuple[str, int]],
    limit: int,
    suspects: bool = False,
    limited: int = 0,
) -> Statement[list[ClaimedJob]]:
    """Due jobs of some keys, so many of each, `limit` in all."""
    keys, takes = [key for key, _ in shares], [take for _, take in shares]
    params = (queue, worker, token, lease, keys, takes, limit, suspects, limited)
    return taking("claim_shares", params, queue, token)


def scan_shares(
    queue: str, buckets: Sequence[int] | None, after: tuple[int, str] | None, keys: int
) -> Statement[Scan]:
    """Step from key to key through the buckets (None: all), whatever is due and however deep each key is."""
    wanted = None if buckets is None else sorted(buckets)
    params = (queue, wanted, *(after or (None, None)), keys)
    return Statement("scan_shares", query_in("scan_shares", queue), params, decode_scan)


def suspect_shares(queue: str, limit: int) -> Statement[list[str]]:
    return Statement("suspect_shares", query_in("suspect_shares", queue), (queue, limit), ids)


def share_head(queue: str, key: str, *, suspects: bool = False) -> Statement[UUID | None]:
    """The first job of the key that a claim would take."""
    params = (queue, key, suspects)
    return Statement(
        "share_head", query_in("share_head", queue), params, lambda rows: rows[0][0] if rows else None
    )


def oldest_of_each(queue: str, marks: Sequence[Place]) -> Statement[dict[int, float]]:
    """Priority -> seconds that its first due job waits."""
    params = (queue, [priority for priority, _ in marks], [mark and mark.at for _, mark in marks])
    return Statement(
        "oldest_of_each", query_in("oldest_of_each", queue), params, lambda rows: {r[0]: r[1] for r in rows}
    )


def prune_key_limits(limit: int) -> Statement[int]:
    return Statement("prune_key_limits", query("prune_key_limits"), (limit,), count)
