"""Times, sizes and lists in sentences for operators."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from ..model.text import printable

SUSPENDED = "It waits for something that its handler asked for, and is not due until that happens."
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """`3 min`: one number, easy to read."""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(seconds, 0):.1f} s"


def moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(count: int) -> str:
    """`12 kB`, `3.4 MB`: as PostgreSQL counts, by 1024."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit in ("B", "kB") else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"


def some(names: Iterable[str], most: int = 5) -> str:
    """`a, b, c and 4 more`."""
    known = list(names)
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")


def several(number: int, noun: str, nouns: str | None = None) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def them(items: Sequence[object]) -> str:
    return "it" if len(items) == 1 else "them"


def cut(text: str | None, width: int = 160) -> str:
    """One printable line."""
    flat = printable(" ".join((text or "").split()))
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def listed(items: Sequence[str], most: int = 20) -> list[str]:
    """As lines, the rest counted."""
    left = len(items) - most
    return [*items[:most], *([f"and {left:,} more"] if left > 0 else [])]
