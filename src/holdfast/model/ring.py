"""The ring: which of the live workers owns which buckets.

A worker has a seat: the lowest number that is free. Seat n takes its share evenly from the seats before it, one
bucket (a virtual node) at a time. So seats without a hole between them have equally many buckets, and a join or a
leave moves the buckets of that one worker and nothing else. Those of an empty seat go to all the others by hash, and
return to the next worker that takes the seat: a restarted worker owns what it owned before. Workers move up when the
last seats leave holes behind (runtime/ring.py).

The ring is affinity only. Two workers that see different members propose the same keys, and the database gives the jobs
to one of them.
"""

import functools
import hashlib
import struct
import threading
from collections.abc import Collection

from .bucket import BUCKETS

_taken: list[list[int]] = [[0] for _ in range(BUCKETS)]  # for each bucket: the seats that took it, in order
_seats = [1]  # how many seats have taken their share so far
_growing = threading.Lock()


@functools.lru_cache(maxsize=2 * BUCKETS)
def _scores(kind: str, seat: int) -> tuple[int, ...]:
    """How much a seat wants each bucket, to take or to inherit: the same in every process and every release.

    Two kinds, because a seat wants the buckets it did not take less than others do, and would hardly ever inherit.
    """
    return struct.unpack(f">{BUCKETS}Q", hashlib.shake_128(f"{kind} {seat}".encode()).digest(8 * BUCKETS))


def _grow(seats: int) -> None:
    for new in range(_seats[0], min(seats, BUCKETS)):
        held: list[list[int]] = [[] for _ in range(new)]
        for bucket, history in enumerate(_taken):
            held[history[-1]].append(bucket)
        for buckets in held:
            buckets.sort(key=_scores("take", new).__getitem__)
        for _ in range(BUCKETS // (new + 1)):
            largest = max(held, key=len)
            _taken[largest.pop()].append(new)
        _seats[0] = new + 1


@functools.lru_cache(maxsize=64)
def _owners(seats: frozenset[int]) -> tuple[int, ...]:
    last = max(seats)
    with _growing:
        _grow(last + 1)
    present = sorted(seats)
    found = []
    for bucket, history in enumerate(_taken):
        seat = next(s for s in reversed(history) if s <= last)
        found.append(seat if seat in seats else max(present, key=lambda s: _scores("inherit", s)[bucket]))
    return tuple(found)


def owners(seats: Collection[int]) -> tuple[int, ...]:
    """The seat that owns each bucket; at least one seat is taken. From the 1025th on a seat owns nothing."""
    return _owners(frozenset(seats))


def buckets_of(seat: int, seats: Collection[int]) -> list[int]:
    """The buckets of one seat."""
    return [bucket for bucket, owner in enumerate(owners(seats)) if owner == seat]
