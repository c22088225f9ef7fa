"""Values as people read them: numbers, times, JSON. What could drive a page or a terminal is made visible."""

import itertools
import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

from holdfast.model import exact
from holdfast.model.text import printable
from holdfast.store.queue_load import Count
from holdfast.web.zones import here, zone_name

MOST_CHARACTERS = 64 * 1024  # characters of a value that a page shows
_COLOURED = 16 * 1024  # of those: with colours
_UNSEEN = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200d\u2060-\u2064\u3164\ufeff\uffa0]|[\U000e0000-\U000e007f]"
)
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|(-?[0-9][0-9.eE+-]*)|\b(true|false|null)\b')
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class Piece(NamedTuple):
    """Text with the class that colours it."""

    text: str
    css: str = ""


def visible(text: object) -> str:
    """Control characters, marks of direction and letters without width are written out."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", printable(str(text)))


def cut(text: object, width: int = MOST_CHARACTERS) -> str:
    flat = str(text)
    return visible(flat if len(flat) <= width else flat[: width - 1] + "…")


def one_line(text: object, width: int = 160) -> str:
    return cut(" ".join(str(text)[: 8 * width].split()), width)


def number(value: Count | int | float | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, Count):
        return f"{value.count:,}{'+' if value.capped else ''}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def span(seconds: float | None) -> str:
    """`4 min 12 s`: two numbers at most."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for (size, unit), (below, other) in itertools.pairwise(_UNITS):
        if seconds >= size:
            rest = int(seconds % size // below)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {other}" if rest else "")
    return f"{int(seconds)} s"


def clock(at: datetime | None, now: datetime | None = None) -> str:
    """The time of today, else with the day."""
    if at is None:
        return "–"
    if at.year >= 9999 or at.astimezone(UTC).year >= 9999:
        return "not by itself"
    at, today = here(at), here(now or datetime.now(UTC))
    if at.date() == today.date():
        return at.strftime("%H:%M:%S")
    return at.strftime("%d %b %H:%M" if at.year == today.year else "%Y-%m-%d %H:%M")


def exact_time(at: datetime) -> str:
    return here(at).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + f" {zone_name(at)}"


def as_json(value: Any) -> str:
    return exact.dumps(value, indent=2, ensure_ascii=False, default=str)


def json_pieces(value: Any) -> list[Piece]:
    """JSON with colours, as pieces of plain text. No more than a page can show."""
    text = as_json(value)
    left = len(text) - MOST_CHARACTERS
    text = visible(text[:MOST_CHARACTERS])
    pieces = _coloured(text[:_COLOURED]) + ([Piece(text[_COLOURED:])] if len(text) > _COLOURED else [])
    return [*pieces, Piece(f"\n… and {left:,} characters more", "c")] if left > 0 else pieces


def _coloured(text: str) -> list[Piece]:
    pieces: list[Piece] = []
    end = 0
    for found in _TOKEN.finditer(text):
        pieces.append(Piece(text[end : found.start()]))
        quoted, colon, digits, _ = found.groups()
        if quoted is not None:
            css = "mask" if "••••" in quoted else "k" if colon else "s"
            pieces += [Piece(quoted, css), Piece(colon or "")]
        else:
            pieces.append(Piece(found[0], "n" if digits is not None else "c"))
        end = found.end()
    return [piece for piece in [*pieces, Piece(text[end:])] if piece.text]


_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<name>.*))?$')
_LIBRARY = re.compile(
    r"/(site-packages|dist-packages|lib/python3[.\d]*)/|^<frozen |/holdfast/(runtime|tasks|app)"
)


def trace_pieces(trace: str) -> list[Piece]:
    """A traceback: frames of the user's code are clear, those of libraries are counted."""
    pieces: list[Piece] = []
    skipped, is_own = 0, True
    for line in visible(trace[:MOST_CHARACTERS]).rstrip().splitlines():
        found = _FRAME.match(line)
        if found:
            is_own = not _LIBRARY.search(found["file"])
            skipped += not is_own
        if (found or line.startswith("    ")) and not is_own:
            continue
        if skipped:
            pieces.append(Piece(f"  {skipped} frame{'s' if skipped > 1 else ''} of libraries\n", "c"))
            skipped = 0
        is_own = True
        css = "" if found else "own" if line.startswith("    ") else "e" if _is_error(line) else "c"
        pieces.append(Piece(line + "\n", css))
    if skipped:
        pieces.append(Piece(f"  {skipped} frame{'s' if skipped > 1 else ''} of libraries\n", "c"))
    return pieces


def _is_error(line: str) -> bool:
    return bool(re.match(r"[A-Za-z_][\w.]*(:|$)", line)) and not line.startswith("Traceback")
