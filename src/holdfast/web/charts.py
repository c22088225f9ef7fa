"""Pictures of numbers, as shapes with coordinates: the template writes them as SVG. Nothing here is a style."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import NamedTuple

from holdfast.pages import Bars, Counted
from holdfast.web.shown import clock, span

WIDTH, HEIGHT = 640.0, 168.0
_BAR = {"": "line", "due": "line"}  # what only waits is grey
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 6.0, 10.0, 22.0


class Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    tone: str
    title: str = ""


class Mark(NamedTuple):
    """A line of the grid with its label."""

    at: float
    label: str


class Column(NamedTuple):
    """What stands on top of each other, with one title."""

    title: str
    rects: Sequence[Rect]


@dataclass(frozen=True, slots=True)
class Chart:
    columns: Sequence[Column]
    across: Sequence[Mark]
    along: Sequence[Mark]
    sentence: str


def nice_top(value: float) -> int:
    """The next of 1, 2, 5, 10, 20, ...: the scale changes seldom."""
    if value <= 1:
        return 1
    size = 10 ** math.floor(math.log10(value))
    return int(next(step * size for step in (1, 2, 5, 10) if step * size >= value))


def short(value: float) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def counted_chart(counted: Counted) -> Chart:
    """Stacked, the first of the names below."""
    points = counted.points
    top = nice_top(max((sum(counts) for _, counts in points), default=0))
    high, floor = HEIGHT - _TOP - _BOTTOM, HEIGHT - _BOTTOM
    step = (WIDTH - _LEFT - _RIGHT) / max(len(points), 1)
    whole = points[-1][0] - points[0][0] if points else timedelta()
    clock_of = "%H:%M" if whole <= timedelta(days=1) else "%d %b %H:%M"
    columns: list[Column] = []
    for n, (at, counts) in enumerate(points):
        y, rects = floor, []
        said = ", ".join(f"{count:,} {name}" for (name, _), count in zip(counted.names, counts, strict=True))
        for (_, tone), count in zip(counted.names, counts, strict=True):
            tall = max(count / top * high, 1.0) if count else 0.0
            y -= tall
            if tall:
                rects.append(Rect(_LEFT + n * step + 0.5, y, max(step - 1, 0.5), tall, tone))
        if rects:
            columns.append(Column(f"{at.astimezone(UTC):{clock_of}}: {said}", rects))
    across = [Mark(floor - part * high, short(top * part)) for part in (0.0, 0.5, 1.0)]
    every = range(0, len(points), max(1, (len(points) - 1) // 4))
    along = [Mark(_LEFT + n * step, f"{points[n][0].astimezone(UTC):{clock_of}}") for n in every]
    return Chart(columns, across, along, _sentence(counted))


def _sentence(counted: Counted) -> str:
    most = [max((counts[n] for _, counts in counted.points), default=0) for n in range(len(counted.names))]
    said = ", ".join(f"{count:,} {name}" for (name, _), count in zip(counted.names, most, strict=True))
    return f"{counted.title}, {counted.note}: at most {said}."


@dataclass(frozen=True, slots=True)
class BarRow:
    label: str
    depth: int
    tone: str
    took: str
    note: str
    rect: Rect


@dataclass(frozen=True, slots=True)
class BarChart:
    rows: Sequence[BarRow]
    along: Sequence[Mark]
    width: float


def bars_chart(bars: Bars, width: float = 640.0) -> BarChart:
    """Each bar at its time, wide enough to be seen."""
    if not bars.bars:
        return BarChart((), (), width)
    start = min(bar.began for bar in bars.bars)
    # One may have begun since the page was asked for.
    ends = [max(bar.ended or bars.now, bar.began) for bar in bars.bars]
    end = max(ends)
    whole = max((end - start).total_seconds(), 1e-3)
    rows = []
    for bar, until in zip(bars.bars, ends, strict=True):
        x = (bar.began - start).total_seconds() / whole * (width - 4)
        wide = max((until - bar.began).total_seconds() / whole * (width - 4), 3.0)
        took = span((until - bar.began).total_seconds())
        title = f"{clock(bar.began, bars.now)} to {clock(until, bars.now) if bar.ended else 'now'}, {took}"
        rect = Rect(x, 9, min(wide, width - x), 16, _BAR.get(bar.tone, bar.tone), title)
        rows.append(BarRow(bar.label, bar.depth, bar.tone, took, bar.note, rect))
    along = [Mark(part * (width - 4), span(whole * part)) for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return BarChart(rows, along, width)
