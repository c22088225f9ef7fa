"""A ring and the readers of a log, as shapes with coordinates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.pages import Owned, Pinned, Reach, Reader, Ring

SIZE, RADIUS = 360.0, 116.0


class Pin(NamedTuple):
    x1: float
    y1: float
    x2: float
    y2: float
    text_x: float
    text_y: float
    anchor: str  # of the text: "end", or nothing
    pinned: Pinned


@dataclass(frozen=True, slots=True)
class RingChart:
    dashes: Sequence[tuple[Owned, str]]  # of a circle that is as long as there are buckets
    pins: Sequence[Pin]
    sentence: str


def ring_chart(ring: Ring) -> RingChart:
    dashes = [(one, _dashes(one.ranges, ring.buckets)) for one in ring.owned if one.ranges]
    said = ", ".join(f"{one.label} owns {_size(one)}" for one in ring.owned) or "nobody owns a bucket"
    pinned = "".join(f"; {one.label} in bucket {one.bucket}" for one in ring.pinned)
    return RingChart(
        dashes, [_pin(one, ring.buckets) for one in ring.pinned], f"{ring.buckets} buckets: {said}{pinned}."
    )


def _size(one: Owned) -> int:
    return sum(last - first + 1 for first, last in one.ranges)


def _dashes(ranges: Sequence[tuple[int, int]], buckets: int) -> str:
    """Lengths by turns drawn and left out, from the first bucket on."""
    lengths, place = [0], 0
    for first, last in sorted(ranges):
        lengths += [first - place, last - first + 1]
        place = last + 1
    # The last stretch that is left out closes the circle; an even number of lengths, or they would change places.
    return " ".join(map(str, [*lengths, buckets - place]))


def _pin(one: Pinned, buckets: int) -> Pin:
    angle = 2 * math.pi * (one.bucket + 0.5) / buckets - math.pi / 2
    cos, sin = math.cos(angle), math.sin(angle)
    middle = SIZE / 2
    near, far, word = RADIUS + 12, RADIUS + 30, RADIUS + 35
    x1, y1, x2, y2, x, y = (round(middle + r * part, 1) for r in (near, far, word) for part in (cos, sin))
    return Pin(x1, y1, x2, y2, x, y, "end" if cos < 0 else "", one)


# The log ------------------------------------------------------------------------------------------------------------

WIDE = 640.0


class Read(NamedTuple):
    reader: Reader
    x: float


def reach_chart(reach: Reach) -> list[Read]:
    whole = max(reach.last - reach.first, 1)
    return [
        Read(one, round(min(max((one.position - reach.first) / whole, 0.0), 1.0) * (WIDE - 12) + 6, 1))
        for one in reach.readers
    ]
