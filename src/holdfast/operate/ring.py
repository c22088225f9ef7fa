"""The ring of a queue with order or affinity: which worker owns which buckets, and how often keys stay with one worker."""

from collections import Counter
from dataclasses import dataclass

from ..errors import ConfigurationError
from ..model.bucket import BUCKETS, bucket
from ..model.ring import owners
from ..model.text import storable
from ..store import ring as store
from ..store.ring import Affinity
from ..store.statement import Flow
from ..store.workers import Seat, ring_seats
from .procedure import Procedure, run, settings
from .refusal import NoQueue, Refused

LAST = 300.0
LONGEST = 7 * 86400.0
_LOOK = 100_000
_WORST = 10


@dataclass(frozen=True, slots=True)
class RingWorker:
    worker: str
    host: str
    pid: int
    seat: int
    buckets: int
    share: float
    ranges: list[tuple[int, int]]  # first and last


@dataclass(frozen=True, slots=True)
class RingKey:
    key: str
    bucket: int
    worker: str | None  # None: the first worker to claim it


@dataclass(frozen=True, slots=True)
class RingReport:
    queue: str
    buckets: int
    workers: list[RingWorker]  # by seat
    unserved: int  # buckets that no worker owns: all, if the ring is empty
    empty_seats: list[int]  # below the last one
    key: RingKey | None


def rings(queue: str | None = None, *, key: str | None = None) -> Procedure[list[RingReport]]:
    """Of one queue with order or affinity by key, or of all of them; with `key`, which worker owns that key."""
    dead_after = (yield from settings()).dead_after
    if key is not None and storable(key) != key:
        raise ConfigurationError(
            f"no key can be {key!r}: it is not text that UTF-8 can write, or has a zero in it"
        )
    return (yield from run(lambda: _rings(queue, key, dead_after)))


def affinities(queue: str | None = None, *, last: float = LAST) -> Procedure[dict[str, Affinity]]:
    """By queue: the share of the jobs of the last seconds that ran where most of their key's jobs ran.

    It reads at most the newest 100,000 finished jobs.
    """
    if not 0 < last <= LONGEST:
        raise Refused("last", f"last must be more than 0 s and at most 7 d, not {last:g} s", last=last)
    return (yield from run(lambda: _affinities(queue, last)))


def _rings(queue: str | None, key: str | None, dead_after: float) -> Flow[list[RingReport]]:
    names = yield from _names(queue)
    seats = yield from ring_seats(names, dead_after)
    return [_report(name, [seat for seat in seats if seat.queue == name], key) for name in names]


def _affinities(queue: str | None, last: float) -> Flow[dict[str, Affinity]]:
    names = yield from _names(queue)
    found = {}
    for name in names:
        found[name] = yield from store.affinity(name, last, _LOOK, _WORST)
    return found


def _names(queue: str | None) -> Flow[list[str]]:
    known = yield from store.ring_queues()
    if queue is None:
        return [name for name, has_ring in known.items() if has_ring]
    if queue not in known:
        raise NoQueue(queue, list(known))
    if not known[queue]:
        text = f"queue {queue!r} has no ring: it has neither order nor affinity by key, so every worker takes from all of it"
        raise Refused("no_ring", text, queue=queue)
    return [queue]


def _report(queue: str, seats: list[Seat], key: str | None) -> RingReport:
    held = owners([seat.seat for seat in seats]) if seats else ()
    count = Counter(held)
    workers = [
        RingWorker(
            s.worker, s.host, s.pid, s.seat, count[s.seat], count[s.seat] / BUCKETS, _ranges(held, s.seat)
        )
        for s in seats
    ]
    taken = {seat.seat for seat in seats}
    return RingReport(
        queue,
        BUCKETS,
        workers,
        BUCKETS - len(held),
        [n for n in range(max(taken, default=0)) if n not in taken],
        None if key is None else _key(key, held, seats),
    )


def _key(key: str, held: tuple[int, ...], seats: list[Seat]) -> RingKey:
    number = bucket(key)
    worker = next((seat.worker for seat in seats if seat.seat == held[number]), None)
    return RingKey(key, number, worker)


def _ranges(held: tuple[int, ...], seat: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number, owner in enumerate(held):
        if owner != seat:
            continue
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
