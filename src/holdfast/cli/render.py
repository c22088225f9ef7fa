"""Tables, ages and JSON. A terminal gets colours, a pipe whole lines."""

import contextlib
import dataclasses
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, TextIO
from uuid import UUID

import typer

from holdfast.model import exact
from holdfast.model.state import BLOCKED, COMPLETED, DEAD_LETTER, HELD, PARKED, PROCESSING, QUARANTINED
from holdfast.model.text import printable
from holdfast.operate import wording
from holdfast.store.queue_load import Count

_COLOURED = re.compile("\x1b\\[[0-9;]*m")
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def age(seconds: float | None) -> str:
    """`3 min`: one number that a person takes in at once."""
    if seconds is None:
        return "-"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def since(seconds: float | None, by: str | None) -> str:
    """`3 min, by ann@host`: for how long something is paused; `-`: it is not."""
    return "-" if seconds is None else f"{age(seconds)}, by {one_line(by) or 'somebody'}"


def seconds(value: float | None) -> str:
    """A short time with the digits that count: `3 ms`, `1.2 s`, `4 min`."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 60 else age(value)


def number(count: Count) -> str:
    return f"{count.count:,}{'+' if count.capped else ''}"


def moment(at: datetime | None) -> str:
    return "-" if at is None else wording.moment(at)


def one_line(text: str | None, width: int = 80) -> str:
    flat = " ".join((text or "").split())
    return printable(flat if len(flat) <= width else flat[: width - 1] + "…")


def line(text: str) -> str:
    """The text on one line: line breaks are shown, so that no text can imitate a line of Holdfast's."""
    return printable(text.replace("\n", "\\n").replace("\t", "\\t"))


def pretty_json(value: Any) -> str:
    return printable(exact.dumps(value, indent=2, ensure_ascii=False))


def print_json(value: Any) -> None:
    """One JSON document. Everything beyond ASCII is escaped, so that no text in it can drive a terminal."""
    plain = (
        dataclasses.asdict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type)
        else value
    )
    typer.echo(exact.dumps(plain, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, date):  # a datetime too
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def colourful(stream: TextIO) -> bool:
    """At a terminal that has colours, unless NO_COLOR asks for none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, colour: str | None, stream: TextIO | None = None) -> str:
    return typer.style(text, fg=colour) if colour and colourful(stream or sys.stdout) else text


def columns(stream: TextIO) -> int:
    """How wide the terminal is: COLUMNS, what it says of itself, or 80."""
    if not os.environ.get("COLUMNS"):
        with contextlib.suppress(OSError, ValueError):  # a picture of it has no file
            if found := os.get_terminal_size(stream.fileno()).columns:
                return found
    return shutil.get_terminal_size().columns


def folded(text: str, indent: int, stream: TextIO | None = None) -> str:
    """One line of words, in lines that fit the terminal: it would break them in the middle of a word. What follows the
    first is indented. For programs and files it stays one line."""
    out: TextIO = stream or sys.stdout
    if not out.isatty() or _shown(text) <= (width := columns(out)):
        return text
    lines = [""]
    for word in re.findall(r" *[^ ]+", text):
        if _shown(lines[-1] + word) > width and lines[-1].strip():
            lines.append(" " * min(indent, width // 2) + word.lstrip(" "))
        else:
            lines[-1] += word
    return "\n".join(lines)


def _shown(text: str) -> int:
    """Columns, without what only colours."""
    return wide(_COLOURED.sub("", text))


class Cell(str):
    """A cell that has a shorter form, for a terminal that is too narrow for the whole one."""

    __slots__ = ("short",)
    short: str

    def __new__(cls, whole: str, short: str) -> "Cell":
        made = super().__new__(cls, whole)
        made.short = short
        return made


def job_id(value: UUID | None) -> str:
    """An id; in short what tells it from others, to the quarter of a microsecond in which it was made."""
    return "-" if value is None else Cell(str(value), str(value)[:_SHORT_ID])


def ago(at: datetime | None) -> str:
    """A moment; in short how long ago it was, or in how long it comes."""
    if at is None:
        return "-"
    passed = (datetime.now(UTC) - at).total_seconds()
    return Cell(moment(at), f"{age(passed)} ago" if passed >= 0 else f"in {age(-passed)}")


def joined(cell: str, more: str) -> str:
    """A cell with more text behind it, in its short form too."""
    return Cell(cell + more, cell.short + more) if isinstance(cell, Cell) else cell + more


def print_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> None:
    """`right` names the columns of numbers. Cells are printed as they are: no markup, no control characters. At a terminal
    that is too narrow, cells become short, and columns go: those of `drop` in its order, then from the right."""
    if sys.stdout.isatty():
        _print_rich(heads, rows, right, drop)
        return
    cells = [[_flat(cell) for cell in row] for row in rows]
    widths = _widths(heads, cells)
    for row in [list(heads), *cells]:
        padded = [
            f"{' ' * (width - wide(cell))}{cell}" if head in right else f"{cell}{' ' * (width - wide(cell))}"
            for cell, width, head in zip(row, widths, heads, strict=True)
        ]
        typer.echo("  ".join(padded).rstrip())


def wide(text: str) -> int:
    """How many columns of a terminal it takes: two for each character of Chinese, Japanese and Korean."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text)


def _flat(text: str) -> str:
    return printable(text).replace("\n", " ")


def _widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(wide(head), *(wide(row[i]) for row in rows), 0) for i, head in enumerate(heads)]


def _least_width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width that the table needs when its last column is cut."""
    widths = _widths(heads, rows)
    return sum(widths[:-1]) + 2 * len(widths[:-1]) + min(widths[-1], _LAST)


def fitted(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, drop: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """The table as far as it fits: first with short cells, then without the columns that count least."""
    cells = [[_flat(cell) for cell in row] for row in rows]
    kept = list(heads)
    if _least_width(kept, cells) > width:
        cells = [[_flat(cell.short if isinstance(cell, Cell) else cell) for cell in row] for row in rows]
    named = [head for head in drop if head in heads]
    order = [*named, *(head for head in reversed(heads[1:]) if head not in named)]
    while _least_width(kept, cells) > width and order:
        gone = kept.index(order.pop(0))
        kept.pop(gone)
        cells = [[*row[:gone], *row[gone + 1 :]] for row in cells]
    return kept, cells


def _print_rich(
    heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], drop: Sequence[str]
) -> None:
    """Only the last column may be cut to fit the terminal: ids and names are there to be copied."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)  # it honours NO_COLOR itself
    heads, rows = fitted(heads, rows, console.width, drop)
    widths = _widths(heads, rows)
    others = sum(widths[:-1]) + 2 * len(widths[:-1])
    # Said here, because a table that is too wide takes from every column, down to nothing.
    widths[-1] = min(widths[-1], max(_LAST, console.width - others))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head, width in zip(heads, widths, strict=True):
        justify: Any = "right" if head in right else "left"
        table.add_column(head, justify=justify, no_wrap=True, width=width)
    for row in rows:
        table.add_row(*(Text(cell, style=_style(head, cell)) for head, cell in zip(heads, row, strict=True)))
    console.width = max(console.width, others + widths[-1])
    console.print(table)


def _style(head: str, cell: str) -> str:
    """Colours for what is wrong."""
    if head in _WRONG and cell not in ("-", "", "0"):
        return _WRONG[head]
    return _STYLES.get(cell, "")


_LAST = 24  # the least room for the last column
_SHORT_ID = 18  # characters: time to a quarter of a microsecond
_WRONG = {
    "paused": "yellow",
    "problem": "red",
    "error": "red",
    "last error": "red",
    HELD: "yellow",
    QUARANTINED: "red",
    BLOCKED: "red",
    PARKED: "red",
}
_STYLES = {
    COMPLETED: "green",
    "alive": "green",
    PROCESSING: "cyan",
    "draining": "yellow",
    HELD: "yellow",
    QUARANTINED: "red",
    BLOCKED: "red",
    PARKED: "red",
    DEAD_LETTER: "red",
    "gone": "dim",
}


def print_more(place: object, cut: bool) -> None:
    """How to get the next page, when there may be one."""
    if place is not None:
        why = "The search stopped here; there may be more" if cut else "There may be more"
        typer.echo(f"{why}: --after {place}" + (", or search for longer: --patience 5m" if cut else ""))
