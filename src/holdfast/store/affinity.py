"""Affinity: take jobs of a worker's own buckets, or those of other workers that nobody takes."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from ..model.job import ClaimedJob
from .claim import CLAIM_BYTES, Mark, PriorityMark, taking
from .statement import Row, Statement

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Passed(NamedTuple):
    """What a claim reports that found less than it was asked for."""

    now: datetime  # by the database's clock
    found: int  # jobs of these buckets; those that others had or changed at that moment were not taken
    bounds: dict[int, Mark]  # of each priority that had too many jobs for one statement: where to continue


def claim_mine(
    queue: str,
    worker: str,
    token: UUID,
    *,
    lease: float,
    limit: int,
    marks: Sequence[PriorityMark],
    buckets: bytes | None,
    rows: int,
    keyless: bool = True,
    late: float = 0.0,
    until: Sequence[datetime | None] = (),
    limited: int = 0,
    most_bytes: int = CLAIM_BYTES,
    tell: Callable[[Passed], None] = lambda passed: None,
) -> Statement[list[ClaimedJob]]:
    """Like `claim`, from these buckets (a bit for each; None: all); at most `rows` jobs are passed in each priority.

    `keyless`: those without a key too, whatever their bucket. A job has to be due for `late` seconds, and since `until` of
    its priority, where that says something. `tell` is called if less than `limit` were found."""
    priorities = [p for p, _ in marks]
    at = [None if mark is None else mark.at for _, mark in marks]
    seqs = [0 if mark is None else mark.seq for _, mark in marks]
    ends = list(until) or [None] * len(marks)
    params = (queue, worker, token, lease, limit, priorities, at, limited, seqs, most_bytes, buckets, rows)
    claimed = taking("claim_mine", (*params, late, ends, keyless), queue, token)

    def decode(found: Sequence[Row]) -> list[ClaimedJob]:
        if (said := found[0][-1]) is not None:
            tell(_passed(said))
        return claimed.decode([row[:-1] for row in found if row[0] is not None])

    return Statement(claimed.name, claimed.text, claimed.params, decode, binary=True)


def _passed(text: str) -> Passed:
    whole, _, places = text.partition(";")
    now, found = whole.split()
    bounds = {}
    for priority, at, seq in (place.split() for place in places.split(",") if place):
        bounds[int(priority)] = Mark(_moment(at), int(seq) + 1)
    return Passed(_moment(now), int(found), bounds)


def _moment(microseconds: str) -> datetime:
    return _EPOCH + timedelta(microseconds=int(microseconds))


def bit_of_each(buckets: Sequence[int], count: int) -> bytes:
    """As get_bit() reads it."""
    bits = bytearray(count // 8)
    for number in buckets:
        bits[number // 8] |= 1 << number % 8
    return bytes(bits)
