"""Keys of ordered queues as an operator sees them: which do not move and why, which are hot, and how to release them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ..model.outcome import Settled
from ..model.state import BLOCKED, DEAD_LETTER, PARKED
from .acts import Locked, by_queue
from .chains import follow
from .queue_load import Count, archive_tails
from .statement import Flow, Row, Statement, ids, named

LOOK = 10_000  # jobs of each kind that a question about a queue reads, at most
BEHIND = 1000  # jobs of a key are counted so far
DEPTH = 10_000  # or so far, if the question is about one key
FRONT = 1000  # jobs of a key among which a blocked one is looked for
MOST_KEYS = 100_000  # keys that one act is about


@dataclass(frozen=True, slots=True)
class StuckKey:
    """A key that does not move, and the job that blocks it."""

    queue: str
    key: str
    why: str  # blocked, parked, held, quarantined, scheduled or backing off
    job_id: UUID
    task: str | None  # None: the job is gone
    since: datetime
    until: datetime | None  # when it moves by itself; None: when somebody acts
    note: str | None  # the error, or the reason to hold
    behind: Count  # jobs that wait for it


@dataclass(frozen=True, slots=True)
class KeyLine:
    key: str
    jobs: Count
    job_id: UUID  # the first one
    task: str
    state: str
    due_at: datetime
    note: str | None
    parked_at: datetime | None
    held_until: datetime | None  # the year 9999: until it is lifted


@dataclass(frozen=True, slots=True)
class StreamJob:
    id: UUID
    sequence: int
    task: str
    state: str
    attempts: int
    max_attempts: int
    due_at: datetime
    created_at: datetime
    worker: str | None
    note: str | None


class Hot(NamedTuple):
    key: str
    seen: int  # jobs of it among those that were read
    looked_at: int
    jobs: Count | None  # None: no index knows


class Finished(NamedTuple):
    """What finished in the last minute."""

    jobs: int
    of: int  # in the whole queue


class Target(NamedTuple):
    """What blocks a key: a blocked job, or the dead letter for which it is parked."""

    why: str  # blocked or parked
    queue: str
    key: str
    job_id: UUID


def _count(number: int, cap: int) -> Count:
    return Count(min(number, cap), number > cap)


def _stuck(rows: Sequence[Row]) -> list[StuckKey]:
    return [StuckKey(*[*r[:8], _count(r[8], BEHIND)]) for r in rows]


# Questions ------------------------------------------------------------------------------------------------------------


def ordered_queues() -> Statement[list[str]]:
    return named("ordered_queues", (), ids)


def aside_heads(queue: str | None, limit: int) -> Statement[list[StuckKey]]:
    return named("aside_heads", (queue, LOOK, limit, BEHIND + 1), _stuck)


def aside_more(queue: str | None) -> Statement[bool]:
    return named("aside_more", (queue, LOOK), lambda rows: bool(rows[0][0]))


def parked_heads(queue: str | None, limit: int, key: str | None = None) -> Statement[list[StuckKey]]:
    return named("parked_heads", (queue, limit, BEHIND + 1, key), _stuck)


def quarantined_heads(queue: str | None, limit: int) -> Statement[list[StuckKey]]:
    params = (queue, limit, BEHIND + 1)
    return named("quarantined_heads", params, _stuck)


def waiting_heads(queue: str, later: float, limit: int) -> Statement[list[StuckKey]]:
    params = (queue, LOOK, limit, BEHIND + 1, later)
    return named("waiting_heads", params, _stuck)


def list_keys(queue: str, after: str | None, limit: int) -> Statement[list[KeyLine]]:
    def decode(rows: Sequence[Row]) -> list[KeyLine]:
        return [KeyLine(r[0], _count(r[1], BEHIND), *r[2:]) for r in rows]

    return named("list_keys", (queue, after, limit, BEHIND + 1), decode)


def stream_depth(queue: str, key: str) -> Statement[Count]:
    params = (queue, key, DEPTH + 1)
    return named("stream_depth", params, lambda rows: _count(rows[0][0], DEPTH))


def stream_front(queue: str, key: str, limit: int) -> Statement[list[StreamJob]]:
    return named("stream_front", (queue, key, limit), lambda rows: [StreamJob(*r) for r in rows])


def hot_keys(queue: str, limit: int) -> Statement[list[Hot]]:
    def decode(rows: Sequence[Row]) -> list[Hot]:
        return [Hot(*[*r[:3], None if r[3] is None else _count(r[3], DEPTH)]) for r in rows]

    return named("hot_keys", (queue, LOOK, limit, DEPTH + 1), decode)


def finished_keys(limit: int) -> Flow[dict[tuple[str, str | None], Finished]]:
    """By queue and key, of what the end of the archive holds."""
    found: dict[tuple[str, str | None], Finished] = {}
    for slot, first in (yield from archive_tails()):
        for queue, key, jobs, of in (yield from _recent(slot, first, limit)):
            had = found.get((queue, key), Finished(0, 0))
            found[queue, key] = Finished(had.jobs + jobs, had.of + of)
    return found


def _recent(slot: int, first: int, limit: int) -> Statement[list[Row]]:
    return named("recent_keys", (slot, first, limit), list)


# Release ----------------------------------------------------------------------------------------------------------


def all_parked(queue: str | None) -> Statement[list[Target]]:
    params = (queue, MOST_KEYS)
    return named("all_parked", params, lambda rows: [Target(PARKED, *r) for r in rows])


def all_blocked(queue: str | None) -> Statement[list[Target]]:
    params = (queue, MOST_KEYS)
    return named("all_blocked", params, lambda rows: [Target(BLOCKED, *r) for r in rows])


def blocked_of(queue: str, keys: Sequence[str]) -> Statement[list[Target]]:
    def decode(rows: Sequence[Row]) -> list[Target]:
        return [Target(BLOCKED, queue, key, job_id) for key, job_id in rows]

    return named("blocked_of", (queue, list(keys), FRONT), decode)


def lock_parked(keys: Sequence[tuple[str, str]]) -> Statement[list[Target]]:
    """Those of the keys that are parked, locked until the commit."""
    params = ([queue for queue, _ in keys], [key for _, key in keys])
    return named("lock_parked", params, lambda rows: [Target(PARKED, *r) for r in rows])


def unpark(targets: Sequence[Target]) -> Statement[list[UUID]]:
    params = ([t.queue for t in targets], [t.key for t in targets], [t.job_id for t in targets])
    return named("unpark", params, ids)


def unblock(locked: Sequence[Locked]) -> Flow[int]:
    """Blocked jobs back to waiting, in their place; lock them first."""
    count = 0
    for queue, job_ids in by_queue(locked):
        count += len((yield from named("unblock", (queue, job_ids), ids)))
    return count


def bury(locked: Sequence[Locked]) -> Flow[int]:
    """Remove blocked jobs from their keys, and count them in their groups; lock them first."""

    def decode(rows: Sequence[Row]) -> list[Settled]:
        return [Settled(r[0], DEAD_LETTER, group=r[1]) for r in rows]

    buried: list[Settled] = []
    for queue, job_ids in by_queue(locked):
        buried += yield from named("bury_blocked", (queue, job_ids), decode)
    yield from follow(buried)
    return len(buried)


# Rules ------------------------------------------------------------------------------------------------------------


def set_on_dead_letter(queue: str, policy: str) -> Statement[bool]:
    """False: it is like that already, or the queue is not ordered."""
    return named("set_on_dead_letter", (queue, policy), bool)


def order_queue(queue: str, ordering: str, policy: str) -> Statement[str | None]:
    """What prevents it: 'queue', 'jobs' or 'workers'; None: it is done."""
    params = (queue, ordering, policy)
    return named("order_queue", params, lambda rows: rows[0][0])
