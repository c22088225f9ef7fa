"""Which parts of a page change in place while somebody looks at it, and which lines of it are another way by now."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.model.masking import masked_text
from holdfast.pages import Block, Cell, Code, Facts, Figures, Link, Span, State, Table, Use, View
from holdfast.web.baselines import Lines
from holdfast.web.shown import MOST_CHARACTERS, cut, number, span

_NUMBER = re.compile(r"\d[\d,]*\+?")


def swapped(cell: Cell, head: str = "") -> str | None:
    """The text of a cell that changes in place: a number. None: what it says is read when the page is."""
    match cell:
        case bool() | None:
            return None
        case int() | float():
            return number(cell)
        case Span():
            return span(cell.seconds)
        case Use():
            return number(cell.part)
        case Link() if _NUMBER.fullmatch(cell.text):
            return cell.text
        case str() if head.endswith("#") and cell:
            return cut(masked_text(cell, MOST_CHARACTERS))
    return None


def _held(cell: Cell) -> str:
    """What of a cell makes its line another one."""
    match cell:
        case State():
            return cell.word
        case Link() | Code():
            return cell.text
        case datetime():
            return cell.isoformat()
        case str():
            return cell
    return ""


class Names:
    """Names of the parts of a page, the same each time it is read. Keys of rows are words of people, so no name has them."""

    def __init__(self, sign: Callable[..., str]) -> None:
        self._sign = sign

    def at(self, cell: Cell, head: str, place: str, key: str, column: int) -> str:
        """The name of a cell that changes in place; empty: it does not."""
        return self.of(place, key, column) if place and swapped(cell, head) is not None else ""

    def of(self, place: str, key: str, column: int) -> str:
        return f"{place}.{self._sign('row', key)[:16]}.{column}" if key else ""


def _blocks(view: View) -> Iterator[tuple[str, Block]]:
    for side, blocks in (("b", view.blocks), ("a", view.aside)):
        yield from ((f"{side}{n}", block) for n, block in enumerate(blocks))


@dataclass(frozen=True, slots=True)
class Look:
    values: Mapping[str, str]
    lines: Lines  # of each row


def changes(before: Lines, now: Lines) -> int:
    """Lines that are another way, that came, and that went; one that was pushed off a full list by another is none."""
    other = sum(1 for key, line in now.items() if before.get(key, line) != line)
    return other + max(len(now.keys() - before.keys()), len(before.keys() - now.keys()))


def look_at(view: View, names: Names) -> Look:
    values: dict[str, str] = {}
    lines: dict[str, Sequence[str]] = {}
    for place, block in _blocks(view):
        for key, cells, heads in _rows(block):
            for n, (cell, head) in enumerate(zip(cells, heads, strict=True)):
                values.update(_texts(cell, head, names.of(place, key, n)))
            if isinstance(block, Table):
                texts = [
                    _held(cell)
                    for cell, head in zip(cells, heads, strict=True)
                    if swapped(cell, head) is None
                ]
            else:  # facts are sentences, and some of them say how long ago
                texts = [cell.word for cell in cells if isinstance(cell, State)]
            lines[f"{place} {key}"] = texts
    return Look(values, lines)


def _rows(block: Block) -> Iterator[tuple[str, Sequence[Cell], Sequence[str]]]:
    """Each with its key and the heads of its cells."""
    if isinstance(block, Table):
        yield from ((row.key, row.cells, block.heads) for row in block.rows if row.key)
    elif isinstance(block, Figures | Facts):
        yield from (
            (name, (cell,), ("#" if isinstance(block, Figures) else "",)) for name, cell in block.rows
        )


def _texts(cell: Cell, head: str, name: str) -> Iterator[tuple[str, str]]:
    text = swapped(cell, head)
    if text is not None:
        yield name, text
    if isinstance(cell, Use):
        yield f"{name}.w", f"{bar_of(cell):.1f}"


def bar_of(cell: Use, width: float = 60.0) -> float:
    return min(width * cell.part / cell.whole, width) if cell.whole else 0.0
