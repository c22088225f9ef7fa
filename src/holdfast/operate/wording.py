"""Times and lists in the sentences that operators read."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ..model.text import printable

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """`3 min`: one number that a person takes in at once."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(seconds, 0):.1f} s"


def moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def some(names: Iterable[str], most: int = 5) -> str:
    """`a, b, c and 4 more`."""
    known = list(names)
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")


def several(number: int, noun: str, nouns: str | None = None) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def cut(text: str | None, width: int = 160) -> str:
    """One printable line."""
    flat = printable(" ".join((text or "").split()))
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def listed(items: Sequence[str], most: int = 20) -> list[str]:
    """As lines, the rest counted."""
    left = len(items) - most
    return [*items[:most], *([f"and {left:,} more"] if left > 0 else [])]


def command(*words: str) -> str:
    """A line for a shell, whatever is in the words."""
    return printable(shlex.join(words))


def key_command(verb: str, queue: str, *keys: str, options: Sequence[str] = ()) -> str:
    """A line of `holdfast keys`, also for keys that look like an option."""
    dashes = ["--"] if any(key.startswith("-") for key in keys) else []
    return command("holdfast", "keys", verb, *options, *dashes, queue, *keys)


@dataclass(frozen=True, slots=True)
class AppName:
    """How the application is named in commands that start a worker, and whether it can run a task, as far as is known."""

    name: str = "MODULE:APP"
    knows: Callable[[str, int], bool] = lambda task, version: True

    def worker(self, queue: str, able: bool = True) -> str:
        """A worker of this app; of another one, for the reader to name, when this app is not able."""
        return command("holdfast", "worker", self.name if able else "MODULE:APP", "--queue", queue)
