"""Pictures of numbers, as shapes with coordinates: the template writes them as SVG. Nothing here is a style."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.pages import Bars, Counted
from holdfast.web.shown import clock, span
from holdfast.web.trends import WaitLines
from holdfast.web.zones import here

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
    marks: Sequence[Mark] = ()  # what happened, as lines


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
            columns.append(Column(f"{here(at):{clock_of}}: {said}", rects))
    across = [Mark(floor - part * high, short(top * part)) for part in (0.0, 0.5, 1.0)]
    every = range(0, len(points), max(1, (len(points) - 1) // 4))
    along = [Mark(_LEFT + n * step, f"{here(points[n][0]):{clock_of}}") for n in every]
    marks = []
    if len(points) > 1:
        each = (points[1][0] - points[0][0]).total_seconds()
        for at, said in counted.marks:
            steps = (at - points[0][0]).total_seconds() / each
            if 0 <= steps <= len(points):
                marks.append(Mark(_LEFT + steps * step, f"{here(at):{clock_of}} {said}"))
    return Chart(columns, across, along, _sentence(counted), marks)


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
    folds: Sequence[Rect] = ()  # waits that are drawn shorter than they were


_FOLD = 1.0  # seconds of a wait that may be folded
_FOLDED = 90.0  # width of one, or less where there are many


class _Time:
    """Moments along a line. Where nothing works for longer than all work took, time is folded."""

    def __init__(
        self, start: datetime, end: datetime, busy: Sequence[tuple[datetime, datetime]], width: float
    ) -> None:
        waits = [(a, b) for a, b in _gaps(start, end, busy) if (b - a).total_seconds() > _FOLD]
        whole = (end - start).total_seconds()
        works = whole - sum((b - a).total_seconds() for a, b in waits)
        self.folded = [(a, b) for a, b in waits if busy and (b - a).total_seconds() > works]
        left = whole - sum((b - a).total_seconds() for a, b in self.folded)
        narrow = min(_FOLDED, width / 2 / len(self.folded)) if self.folded else 0.0
        wide = width - narrow * len(self.folded)
        self._pieces: list[tuple[datetime, float, float, float]] = []  # until when, seconds, from x, to x
        at, x = start, 0.0
        for a, b in [*self.folded, (end, end)]:
            for until, room in (
                (a, wide * (a - at).total_seconds() / max(left, 1e-3)),
                (b, narrow if b > a else 0.0),
            ):
                self._pieces.append((until, (until - at).total_seconds(), x, x + room))
                at, x = until, x + room

    def x_of(self, moment: datetime) -> float:
        for until, seconds, x, to in self._pieces:
            if moment <= until:
                back = (until - moment).total_seconds() / seconds if seconds else 0.0
                return to - min(back, 1.0) * (to - x)
        return self._pieces[-1][3]

    def at(self, x: float) -> datetime:
        for until, seconds, begin, to in self._pieces:
            if x <= to and to > begin:
                return until - timedelta(seconds=(to - x) / (to - begin) * seconds)
        return self._pieces[-1][0]


def _gaps(
    start: datetime, end: datetime, busy: Sequence[tuple[datetime, datetime]]
) -> Iterator[tuple[datetime, datetime]]:
    """When nothing works."""
    at = start
    for began, ended in sorted(busy):
        if began > at:
            yield at, began
        at = max(at, ended)
    if end > at:
        yield at, end


def bars_chart(bars: Bars, width: float = 640.0) -> BarChart:
    """Each bar at its time, wide enough to be seen."""
    if not bars.bars:
        return BarChart((), (), width)
    start = min(bar.began for bar in bars.bars)
    # One may have begun since the page was asked for.
    ends = [max(bar.ended or bars.now, bar.began) for bar in bars.bars]
    end = max(ends)
    whole = max((end - start).total_seconds(), 1e-3)
    busy = [(bar.began, until) for bar, until in zip(bars.bars, ends, strict=True) if bar.tone != "sched"]
    time = _Time(start, end, busy, width - 4)
    rows = []
    for bar, until in zip(bars.bars, ends, strict=True):
        x = time.x_of(bar.began)
        wide = max(time.x_of(until) - x, 3.0)
        took = span((until - bar.began).total_seconds())
        title = f"{clock(bar.began, bars.now)} to {clock(until, bars.now) if bar.ended else 'now'}, {took}"
        rect = Rect(x, 9, min(wide, width - x), 16, _BAR.get(bar.tone, bar.tone), title)
        rows.append(BarRow(bar.label, bar.depth, bar.tone, took, bar.note, rect))
    along: list[Mark] = []
    seen = ""  # the last clock: one that has not moved says nothing
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = time.at(part * (width - 4))
        now = clock(at, bars.now)
        fine = part > 0 and (whole < 10 or now == seen)
        along.append(Mark(part * (width - 4), f"+{span((at - start).total_seconds())}" if fine else now))
        seen = now
    folds = [
        Rect(
            time.x_of(a),
            0,
            time.x_of(b) - time.x_of(a),
            34,
            "sunk",
            f"{span((b - a).total_seconds())}, folded",
        )
        for a, b in time.folded
    ]
    return BarChart(rows, along, width, folds)


# Lines --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spark:
    """A small line of how a number went, without axes."""

    points: str
    x: float
    y: float


def spark(values: Sequence[float], width: float = 62.0, height: float = 16.0) -> Spark | None:
    """From 0 on, so that a small change looks small. None: there is nothing to draw."""
    if len(values) < 2:
        return None
    top = max(*values, 1e-9)
    step = (width - 4) / (len(values) - 1)
    at = [(1 + n * step, height - 2 - value / top * (height - 5)) for n, value in enumerate(values)]
    return Spark(" ".join(f"{x:.1f},{y:.1f}" for x, y in at), *at[-1])


class Ended(NamedTuple):
    """A line with the words at its end."""

    pieces: Sequence[str]  # where nothing is known, it is interrupted
    label: str
    label_y: float
    tone: str
    leads: bool  # the one to look at


@dataclass(frozen=True, slots=True)
class LineChart:
    lines: Sequence[Ended]
    across: Sequence[Mark]
    along: Sequence[Mark]
    sentence: str
    table: Sequence[tuple[datetime, Sequence[float | None]]]
    names: Sequence[str]


_TONES = ("retry", "brand", "axis")
_WIDE, _TALL, _X0, _X1, _Y0, _Y1 = 446.0, 178.0, 44.0, 322.0, 14.0, 158.0
LEAST = 0.01  # seconds


def wait_chart(found: WaitLines) -> LineChart | None:
    """Seconds, on an axis on which each line is ten times the one below."""
    known = [value for line in found.lines for value in line.points if value is not None]
    if not known:
        return None
    low = math.log10(LEAST)
    top = max(math.ceil(math.log10(max(*known, LEAST))), 1)
    step = (_X1 - _X0) / max(len(found.times) - 1, 1)

    def y_of(value: float) -> float:
        part = (math.log10(max(value, LEAST)) - low) / (top - low)
        return _Y1 - part * (_Y1 - _Y0)

    lines = []
    for line, tone in zip(found.lines, _TONES, strict=False):
        last = next((value for value in reversed(line.points) if value is not None), None)
        if last is not None:
            label = f"{line.label} {span(last)}"
            lines.append(
                Ended(_pieces(line.points, step, y_of), label, y_of(last) + 3.5, tone, line is found.lines[0])
            )
    across = [
        Mark(y_of(10.0**n), f"{10**n:,} s" if n >= 0 else f"{10 ** (n + 3)} ms")
        for n in range(round(low), top + 1)
    ]
    along = [
        Mark(_X0 + n * step, f"{here(found.times[n]):%H:%M}")
        for n in range(0, len(found.times), max(1, (len(found.times) - 1) // 4))
    ]
    said = "; ".join(one.label for one in lines)
    table = [
        (at, [line.points[n] for line in found.lines])
        for n, at in enumerate(found.times)
        if any(line.points[n] is not None for line in found.lines)
    ]
    return LineChart(
        _apart(lines),
        across,
        along,
        f"Wait from due to start, log scale: {said}.",
        table,
        [line.label for line in found.lines],
    )


def _pieces(points: Sequence[float | None], step: float, y_of: Callable[[float], float]) -> list[str]:
    pieces: list[list[str]] = [[]]
    for n, value in enumerate(points):
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{_X0 + n * step:.1f},{y_of(value):.1f}")
    # One alone is a short line, or nobody would see it.
    return [" ".join(of if len(of) > 1 else [*of, _beside(of[0])]) for of in pieces if of]


def _beside(point: str) -> str:
    x, _, y = point.partition(",")
    return f"{float(x) + 2:.1f},{y}"


def _apart(lines: Sequence[Ended]) -> list[Ended]:
    """Words that do not stand on each other."""
    placed: list[Ended] = []
    for one in sorted(lines, key=lambda one: one.label_y):
        y = max(one.label_y, placed[-1].label_y + 13) if placed else one.label_y
        placed.append(one._replace(label_y=y))
    over = max((placed[-1].label_y - _Y1 - 4) if placed else 0.0, 0.0)
    return [one._replace(label_y=one.label_y - over) for one in placed]
