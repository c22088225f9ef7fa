"""Times in buckets that double: bucket n counts times below 2 ** (n - 10) seconds, and at least half of that.
The first begins at 0, and the last has no end: 24 of them reach from a millisecond to two hours."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import frexp

BUCKETS = 24
_ONE = 10  # the bucket that ends at one second
_LAST = BUCKETS - 1


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds. Each is within its bucket, so it is at most twice or half of the truth."""

    p50: float
    p95: float
    p99: float


# By the exponent that frexp() returns; the negative ones count from the end. A lookup costs less than a calculation, and
# every job that ends makes two.
PLACES = tuple(min(max(power + _ONE, 0), _LAST) for power in (*range(1025), *range(-1074, 0)))


def bucket_of(seconds: float) -> int:
    return PLACES[frexp(seconds)[1]] if seconds > 0.0 else 0


def end_of(bucket: int) -> float:
    return float(2.0 ** (bucket - _ONE))


def percentiles(counts: Sequence[int], longest: float) -> Percentiles | None:
    """`longest` is the longest of all, which none exceeds. None: there are no values."""
    if not sum(counts):
        return None
    return Percentiles(*(round(_at(counts, share, longest), 6) for share in (0.5, 0.95, 0.99)))


def _at(counts: Sequence[int], share: float, longest: float) -> float:
    """Where that share of all has ended, if those of a bucket are spread evenly over it."""
    wanted = share * sum(counts)
    seen = 0
    for bucket, count in enumerate(counts):
        if count and seen + count >= wanted:
            begin = 0.0 if bucket == 0 else end_of(bucket - 1)
            end = max(longest, begin) if bucket == _LAST else min(end_of(bucket), max(longest, begin))
            return begin + (end - begin) * (wanted - seen) / count
        seen += count
    return longest
