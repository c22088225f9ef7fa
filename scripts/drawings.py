"""Draw the pictures of docs/concepts.md into docs/concepts/*.svg. `--check` only compares.

A picture is a time line from left to right, or boxes with arrows. All share one style, which follows light and dark.
"""

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "concepts"
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #171c19 }
.s { font-size: 11.5px; fill: #606a63 } .h { font-weight: 650 }
.m { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px }
.ground { fill: #fffffe } .n { fill: #f0f0ea; stroke: #a3aaa4 } .w { fill: #f9efd8; stroke: #8d5b00 }
.a { fill: #e2efeb; stroke: #17695a } .b { fill: #e5eef8; stroke: #1d5fa8 } .d { fill: #fbe8e5; stroke: #b3291f }
.l { stroke: #4b5650; fill: none } .t { stroke: #a3aaa4; stroke-dasharray: 3 4 }
@media (prefers-color-scheme: dark) {
text { fill: #e6ece8 } .s { fill: #8e9a93 } .ground { fill: #141a17 } .n { fill: #1a211e; stroke: #56615b }
.a { fill: #12302a; stroke: #4fc3a7 } .b { fill: #12263a; stroke: #74b3f3 } .d { fill: #3a1814; stroke: #f58778 }
.w { fill: #30260f; stroke: #e0b04f } .l { stroke: #aab5ae } .t { stroke: #56615b } }
"""
MARKER = (
    '<defs><marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
    '<path class="l" d="M0 0 L7 4 L0 8"/></marker></defs>'
)


class Picture:
    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        style = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text x="{x}" y="{y}"{style} text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x: float, y: float, w: float, h: float, words: str = "", kind: str = "n") -> None:
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="5"/>')
        lines = words.split("\n") if words else []
        for n, line in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 4.5 + (n - (len(lines) - 1) / 2) * 16, line, "", "middle")

    def arrow(self, x1: float, y1: float, x2: float, y2: float, words: str = "") -> None:
        self._parts.append(f'<line class="l" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" marker-end="url(#to)"/>')
        if words:
            self.text((x1 + x2) / 2, min(y1, y2) + abs(y2 - y1) / 2 - 6, words, "s", "middle")

    def moment(self, x: float, y1: float, y2: float, words: str) -> None:
        self._parts.append(f'<line class="t" x1="{x}" y1="{y1}" x2="{x}" y2="{y2}"/>')
        self.text(x, y1 - 6, words, "s", "middle")

    def svg(self) -> str:
        width, height = self._size
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        title = f"<title>{escape(self._title)}</title><style>{STYLE}</style>"
        ground = f'<rect class="ground" width="{width}" height="{height}"/>'
        return "\n".join([head, title, MARKER, ground, *self._parts, "</svg>", ""])


def lease() -> Picture:
    p = Picture(
        860,
        300,
        "Lease and fence: worker A falls silent, B takes the job over, and what A writes later changes nothing.",
    )
    for y, name in ((70, "worker A"), (150, "worker B"), (230, "the row")):
        p.text(16, y + 22, name, "h")
    p.box(110, 70, 250, 34, "handler runs, generation 1", "a")
    p.box(360, 70, 270, 34, "frozen: no heartbeat", "n")
    p.box(630, 70, 190, 34, "wakes, settles: 0 rows", "d")
    p.box(500, 150, 240, 34, "handler runs, generation 2", "b")
    p.box(110, 230, 370, 34, "processing, token t1, generation 1", "a")
    p.box(480, 230, 260, 34, "processing, token t2, generation 2", "b")
    p.box(740, 230, 100, 34, "archive", "n")
    p.moment(110, 46, 264, "A claims")
    p.moment(360, 46, 264, "last heartbeat")
    p.moment(480, 46, 264, "fenced, swept")
    p.moment(740, 46, 264, "B completes")
    p.text(
        110, 288, "Only id + generation + token + processing may write. Expiry alone takes nothing away.", "s"
    )
    return p


def order() -> Picture:
    p = Picture(860, 270, "Order by key: one job of a key at a time, in commit order, keys side by side.")
    rows = (
        ("order:17", "a", ("paid", "packed", "sent")),
        ("order:18", "b", ("paid", "packed")),
        ("order:19", "w", ("paid", "refunded")),
    )
    for n, (key, kind, jobs) in enumerate(rows):
        y = 54 + n * 62
        p.text(16, y + 22, key, "m")
        x = 110.0
        for place, job in enumerate(jobs):
            late = key == "order:18" and place == 0
            p.box(x, y, 190 if late else 130, 34, f"{job}{', failed, retried' if late else ''}", kind)
            if place + 1 < len(jobs):
                p.arrow(x + (190 if late else 130), y + 17, x + (190 if late else 130) + 36, y + 17)
            x += (190 if late else 130) + 38
    p.text(110, 32, "time: each key waits for itself, and for nobody else", "s")
    p.text(
        110,
        246,
        "A retry keeps its place: order:18 is packed after its payment has gone through, however long that takes.",
        "s",
    )
    return p


def ring() -> Picture:
    p = Picture(
        860, 260, "The ring: 1024 buckets shared by seats; who joins takes its share evenly from all others."
    )
    colours = ("a", "b", "w", "d")
    for row, (title, seats) in enumerate((("three workers", 3), ("a fourth joins", 4))):
        y = 50 + row * 84
        p.text(16, y + 20, title, "h")
        for bucket in range(24):
            seat = bucket % 3 if seats == 3 or bucket % 4 != 3 else 3
            p.box(140 + bucket * 28, y, 24, 30, "", colours[seat])
        p.text(
            140,
            y + 48,
            "24 of 1024 buckets; a colour is a worker"
            if row == 0
            else "a quarter moved, evenly from all; the others kept theirs",
            "s",
        )
    p.text(140, 30, "key  →  first 16 bits of SHA-256  →  bucket  →  seat  →  worker", "m")
    p.text(
        140,
        236,
        "Affinity only: a claim does not read it. A bucket that its worker does not serve may be taken by any other.",
        "s",
    )
    return p


def log() -> Picture:
    p = Picture(
        860,
        290,
        "The log: transactions commit in any order, pages give positions without gaps, each subscription has a cursor.",
    )
    p.text(16, 66, "commits", "h")
    for n, (words, kind) in enumerate(
        (("A: 1 2", "a"), ("B: 3", "b"), ("C: 4, still open", "d"), ("D: 5 6", "w"))
    ):
        p.box(120 + n * 160, 46, 145, 32, words, kind)
    p.text(16, 146, "pages", "h")
    p.box(120, 126, 305, 32, "page 1: 1 2 3", "n")
    p.box(440, 126, 145, 32, "page 2: 5 6", "n")
    p.box(600, 126, 145, 32, "page 3: 4", "n")
    p.text(16, 206, "positions", "h")
    for n in range(6):
        p.box(120 + n * 104, 190, 96, 26, str(n + 1), "n")
    p.text(16, 258, "cursors", "h")
    p.arrow(272, 262, 272, 220)
    p.text(280, 264, "totals: position 2", "s")
    p.arrow(584, 262, 584, 220)
    p.text(592, 264, "send_receipt: position 5", "s")
    p.text(120, 30, "an open transaction delays nobody else's events; C gets its page when it commits", "s")
    return p


def replay() -> Picture:
    p = Picture(
        860,
        300,
        "Replay: after a crash another worker calls the same function; recorded steps return at once.",
    )
    p.text(16, 72, "worker A", "h")
    p.text(16, 222, "worker B", "h")
    p.text(16, 147, "records", "h")
    for n, step in enumerate(("charge", "reserve", "ship")):
        x = 120 + n * 170
        p.box(x, 50, 140, 34, step if n < 2 else "ship: killed", "a" if n < 2 else "d")
        if n < 2:
            p.arrow(x + 70, 84, x + 70, 124)
            p.box(x, 126, 140, 32, f"{step} = ok", "n")
            p.arrow(x + 70, 158, x + 70, 198)
        p.box(x, 200, 140, 34, f"{step}: returned" if n < 2 else "ship: runs", "n" if n < 2 else "b")
    p.arrow(530, 200, 530, 160)
    p.box(460, 126, 140, 32, "ship = ok", "n")
    p.box(640, 200, 180, 34, "sleep 2 days: no worker", "w")
    p.text(120, 30, "the same function is called again from its first line", "s")
    p.text(
        120,
        270,
        "A step that was recorded is not run again; one that was cut off is, under the same key.",
        "s",
    )
    return p


DRAWINGS: dict[str, Callable[[], Picture]] = {
    "lease": lease,
    "order": order,
    "ring": ring,
    "log": log,
    "replay": replay,
}


def main() -> int:
    stale = []
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        file, text = FOLDER / f"{name}.svg", draw().svg()
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(file.name)
            if "--check" not in sys.argv:
                file.write_text(text, encoding="utf-8")
    if stale:
        print(("out of date, run make docs: " if "--check" in sys.argv else "drawn: ") + ", ".join(stale))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
