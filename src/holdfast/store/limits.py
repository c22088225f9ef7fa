"""Limits: how much a claim may take from a queue, and claims that take no more."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from ..model.job import ClaimedJob
from ..sql import query_in
from .arrays import int_array
from .claim import PriorityMark, taking
from .statement import Flow, Row, Statement, count, ids, named, nothing
from .streams import Scan, decode_scan

AHEAD = 0.25  # seconds: a job is claimed before the token for its start is there, and starts when it is


class Bucket(NamedTuple):
    """Tokens at some moment, and how many come in a second."""

    tokens: float
    rate: float

    def wait(self, start: int) -> float:
        """Seconds until there is a token for the n-th start from then on."""
        return max(0.0, (start - self.tokens) / self.rate)


class Allowance(NamedTuple):
    total: int
    keys: list[int]
    wait: float  # seconds until the rate allows one
    waits: list[float]  # the same for each key
    ahead: bool = False  # tokens were counted at a time that is still in the future
    spare: int = 0  # of the total: what may be claimed to wait for a slot
    now: datetime = datetime.min.replace(tzinfo=UTC)
    bucket: Bucket | None = None
    buckets: Sequence[Bucket] = ()  # of the keys, where they have a rate

    @property
    def rated(self) -> bool:
        return self.bucket is not None or bool(self.buckets)


class Limited(NamedTuple):
    """The result of a claim within limits."""

    jobs: list[ClaimedJob]
    cut: bool = False  # the limits of the whole queue were in the way: there may be more
    again_in: float | None = None  # when they allow one, where that is known
    busy: bool = False  # another worker claims at this moment
    starts: Sequence[
        float
    ] = ()  # of each job, where there is a rate: when its token is there, by the database's clock
    allowed: Allowance | None = None  # what the claim was made with; None: no claim was made


class Asked(NamedTuple):
    """Which worker claims, and how many jobs for a free slot."""

    worker: str = ""
    want: int | None = None  # None: whatever is allowed
    free: int | None = None  # slots; None: it does not matter
    ahead: float = AHEAD


ANYBODY = Asked()
Take = Callable[[Allowance], "Flow[list[ClaimedJob]] | Statement[list[ClaimedJob]]"]


def within(queue: str, keys: Sequence[str], take: Take, asked: Asked = ANYBODY) -> Flow[Limited]:
    """Claim under the lock of the queue's limits. `take` gets what is allowed, and takes no more."""
    ask = allowance(queue, keys, asked)
    locked = yield from named("lock_limit", (queue,), ids)
    if not locked:
        return Limited([], cut=True, busy=True)
    allowed = yield from ask
    if allowed.ahead:
        yield from Statement("mend_limits", query_in("mend_limits", queue), (queue, list(keys)), nothing)
        allowed = yield from ask
    if asked.free is not None:  # beyond the slots only what can be spared
        allowed = allowed._replace(total=min(allowed.total, max(asked.free, allowed.spare)))
    if allowed.total <= 0:
        return Limited([], cut=True, again_in=allowed.wait or None)
    jobs = yield from take(allowed)
    cut = len(jobs) >= allowed.total
    if not jobs or not allowed.rated:
        return Limited(jobs, cut, allowed=allowed)
    starts = yield from _spend(queue, dict(zip(keys, allowed.buckets, strict=False)), allowed, jobs)
    bucket = allowed.bucket
    again_in = bucket.wait(len(jobs) + 1) - asked.ahead / 2 if bucket and cut else 0.0
    return Limited(jobs, cut, again_in if again_in > 0 else None, starts=starts, allowed=allowed)


def _spend(
    queue: str, buckets: dict[str, Bucket], allowed: Allowance, jobs: Sequence[ClaimedJob]
) -> Flow[list[float]]:
    """A token for each job, of the queue and of its key; returns when each is there."""
    taken: Counter[str] = Counter()
    now, starts = allowed.now.timestamp(), []
    for n, job in enumerate(jobs, 1):
        wait = allowed.bucket.wait(n) if allowed.bucket else 0.0
        if (bucket := buckets.get(job.partition_key or "")) is not None:
            taken[job.partition_key or ""] += 1
            wait = max(wait, bucket.wait(taken[job.partition_key or ""]))
        starts.append(now + wait)
    left = allowed.bucket.tokens - len(jobs) if allowed.bucket else None
    spent = sorted(taken)
    params = (queue, left, allowed.now, spent, [buckets[key].tokens - taken[key] for key in spent])
    yield from named("spend", params, nothing)
    return starts


def allowance(queue: str, keys: Sequence[str], asked: Asked = ANYBODY) -> Statement[Allowance]:
    """What may be claimed. It may be less than allowed, as long as it allows twice what is wanted."""

    def decode(rows: Sequence[Row]) -> Allowance:
        if not rows:  # the queue is gone
            return Allowance(0, [], 0.0, [])
        total, keys, wait, waits, back, spare, now, tokens, rate, of_keys, key_rate = rows[0]
        bucket = None if rate is None else Bucket(tokens, rate)
        buckets = [] if key_rate is None else [Bucket(left, key_rate) for left in of_keys]
        return Allowance(total, list(keys), wait, list(waits), bool(back), spare, now, bucket, buckets)

    enough = None if asked.want is None else 2 * asked.want
    params = (queue, enough, AHEAD, list(keys), asked.ahead, asked.worker)
    return Statement("allowance", query_in("allowance", queue), params, decode)


def trim_claims(queue: str, tokens: Sequence[UUID]) -> Statement[None]:
    """Jobs that are over leave these claims of the queue, and a claim without jobs goes."""
    return Statement("trim_claims", query_in("trim_claims", queue), (list(tokens),), nothing)


class LimitUse(NamedTuple):
    running: int
    tokens: float | None  # left of the rate
    next_in: float  # seconds until the rate allows one
    keys_full: int  # keys that run as many as they may


def limit_use(queue: str) -> Statement[LimitUse]:
    def decode(rows: Sequence[Row]) -> LimitUse:
        return LimitUse(*rows[0]) if rows else LimitUse(0, None, 0.0, 0)

    return named("limit_use", (queue, None, AHEAD), decode)


def lock_queue(queue: str) -> Statement[bool]:
    """Nobody else changes its rules until the commit. Returns whether it was made to be claimed key by key."""
    return named("lock_queue", (queue,), lambda rows: bool(rows and rows[0][0]))


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
    trial: bool = False,
) -> Statement[list[ClaimedJob]]:
    """Due jobs of some keys, at most that many of each, `limit` in all. `trial`: of keys whose holds are locked for it."""
    keys, takes = [key for key, _ in shares], [take for _, take in shares]
    params = (queue, worker, token, lease, keys, takes, limit, suspects, limited, trial)
    return taking("claim_shares", params, queue, token)


def scan_shares(
    queue: str, buckets: Sequence[int] | None, after: tuple[int, str] | None, keys: int
) -> Statement[Scan]:
    """Step from key to key through the buckets (None: all), whatever is due and however deep each key is."""
    wanted = None if buckets is None else int_array(sorted(buckets))
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


def oldest_of_each(queue: str, marks: Sequence[PriorityMark]) -> Statement[dict[int, float]]:
    """Priority -> seconds that its first due job waits."""
    params = (queue, [priority for priority, _ in marks], [mark and mark.at for _, mark in marks])
    return Statement(
        "oldest_of_each", query_in("oldest_of_each", queue), params, lambda rows: {r[0]: r[1] for r in rows}
    )


def prune_key_limits(limit: int) -> Statement[int]:
    return named("prune_key_limits", (limit,), count)
