"""Charts as SVG text, with nothing but the standard library. The same data makes the same bytes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 48, 52
INK, MUTED, GRID, PAPER = "#1f2430", "#667085", "#e4e7ec", "#ffffff"
COLOURS = ("#2563a8", "#c2571a", "#3f7d3a", "#7a4fa3")
FONT = "font-family='system-ui, sans-serif'"

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    label: str
    least: float
    most: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """The place of a value on the axis, 0 to 1."""
        if self.log:
            return math.log(value / self.least) / math.log(self.most / self.least)
        return (value - self.least) / (self.most - self.least)


def linear(label: str, values: Sequence[float], parts: int = 5) -> Axis:
    """From 0 to a round number not below the largest."""
    most = max([*values, 1e-9])
    raw = most / parts
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw - 1e-12)
    count = math.ceil(most / step - 1e-9)
    return Axis(label, 0.0, step * count, [step * n for n in range(count + 1)])


def logarithmic(label: str, values: Sequence[float]) -> Axis:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) - 1e-9)
    high = max(high, low + 1)
    return Axis(label, 10.0**low, 10.0**high, [10.0**n for n in range(low, high + 1)], log=True)


def number(value: float) -> str:
    """For a tick: 1M, 20k, 12.5."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    colour: str = MUTED,
    anchor: str = "start",
    extra: str = "",
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {FONT} font-size='{size}' fill='{colour}' text-anchor='{anchor}'{extra}>"
        f"{escape(words)}</text>"
    )


@dataclass
class Chart:
    """Lines over two axes."""

    title: str
    x: Axis
    y: Axis
    parts: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def place(self, point: Point) -> Point:
        return (
            LEFT + self.x.share(point[0]) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - self.y.share(point[1]) * (HEIGHT - TOP - BOTTOM),
        )

    def line(self, name: str, points: Sequence[Point], *, dots: bool = False) -> None:
        colour = COLOURS[len(self.names) % len(COLOURS)]
        self.names.append(name)
        placed = [self.place(p) for p in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        self.parts.append(
            f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2' stroke-linejoin='round'/>"
        )
        if dots:
            self.parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'/>" for x, y in placed]

    def _axes(self) -> list[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        drawn = []
        for tick in self.y.ticks:
            _, y = self.place((self.x.least, tick))
            drawn.append(f"<line x1='{LEFT}' y1='{y:.1f}' x2='{right}' y2='{y:.1f}' stroke='{GRID}'/>")
            drawn.append(text(LEFT - 8, y + 4, number(tick), anchor="end"))
        for tick in self.x.ticks:
            x, _ = self.place((tick, self.y.least))
            drawn.append(
                f"<line x1='{x:.1f}' y1='{bottom}' x2='{x:.1f}' y2='{bottom + 5}' stroke='{MUTED}'/>"
            )
            drawn.append(text(x, bottom + 19, number(tick), anchor="middle"))
        drawn.append(f"<line x1='{LEFT}' y1='{bottom}' x2='{right}' y2='{bottom}' stroke='{MUTED}'/>")
        drawn.append(text((LEFT + right) / 2, HEIGHT - 12, self.x.label, anchor="middle"))
        turned = f" transform='rotate(-90 18 {(TOP + bottom) / 2:.1f})'"
        drawn.append(text(18, (TOP + bottom) / 2, self.y.label, anchor="middle", extra=turned))
        return drawn

    def _legend(self) -> list[str]:
        if len(self.names) < 2:
            return []
        drawn, x = [], float(LEFT)
        for place, name in enumerate(self.names):
            colour = COLOURS[place % len(COLOURS)]
            drawn.append(f"<rect x='{x:.1f}' y='{TOP - 14}' width='14' height='3' fill='{colour}'/>")
            drawn.append(text(x + 20, TOP - 8, name))
            x += 36 + 7 * len(name)
        return drawn

    def svg(self) -> str:
        return document(self.title, [*self._axes(), *self.parts, *self._legend()])


def document(title: str, parts: Sequence[str], height: int = HEIGHT) -> str:
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' "
        f"role='img' aria-label='{escape(title, quote=True)}'>"
    )
    paper = f"<rect width='{WIDTH}' height='{height}' fill='{PAPER}'/>"
    name = text(16, 24, title, size=14, colour=INK, extra=" font-weight='600'")
    return "\n".join([head, paper, name, *parts, "</svg>", ""])


def bars(title: str, unit: str, values: Sequence[tuple[str, float]], strong: str) -> str:
    """Horizontal bars, the longest first; the one that is ours in colour."""
    rows = sorted(values, key=lambda v: (-v[1], v[0]))
    left, top, step = 150, 44, 28
    most = max([v for _, v in rows] + [1e-9])
    room = WIDTH - left - 96
    parts = []
    for place, (name, value) in enumerate(rows):
        y, colour = top + place * step, COLOURS[0] if name.startswith(strong) else "#aab4c3"
        length = max(1.0, room * value / most)
        parts.append(text(left - 10, y + 15, name, colour=INK, anchor="end"))
        parts.append(f"<rect x='{left}' y='{y}' width='{length:.1f}' height='20' rx='2' fill='{colour}'/>")
        parts.append(text(left + length + 8, y + 15, f"{value:,.0f}", colour=INK))
    height = top + len(rows) * step + 28
    parts.append(text(left, height - 10, unit))
    return document(title, parts, height)
