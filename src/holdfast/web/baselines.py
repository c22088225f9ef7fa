"""How lists looked when their pages were sent. A page sends its mark back, so that a stream that begins later, in place of
one that ended or that a hidden tab closed, still counts from then."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.errors import ConfigurationError
from holdfast.web.zones import here

Lines = Mapping[str, Sequence[object]]  # by what names a line: what does not change in place
_MOST_LISTS = 300  # lists that are kept
_MARK = re.compile(r"([0-9a-f]{8})\.([0-9a-f]{16})\.([0-9]{1,11})")
RESTARTED = "The dashboard was restarted, show"


@dataclass(slots=True)
class Since:
    """What a reader compares with. Without a mark it is what the reader gets first."""

    mark: str = ""
    lines: Lines | None = None
    at: datetime | None = None


class Baselines:
    """Those of one process; others with the same secret make the same marks."""

    def __init__(self, sign: Callable[..., str]) -> None:
        self._sign = sign
        self._own = sign("baselines")[:8]
        self._kept: dict[str, Lines] = {}  # the oldest first

    def keep(self, lines: Lines, at: datetime) -> str:
        """The mark of these lines, for the page that shows them."""
        digest = self._digest(lines)
        self._kept.pop(digest, None)
        self._kept[digest] = lines
        while len(self._kept) > _MOST_LISTS:
            del self._kept[next(iter(self._kept))]
        return f"{self._own}.{digest}.{int(at.timestamp())}"

    def _digest(self, lines: Lines) -> str:
        """Keyed: lines are words of people."""
        return self._sign("lines", json.dumps(sorted((name, *line) for name, line in lines.items())))[:16]

    def said(
        self,
        since: Since,
        now: Lines,
        changes: Callable[[Lines, Lines], int],
        clock: datetime,
        *,
        counts: bool = True,
    ) -> str:
        """How many lines are others by now; empty: none. A mark of another process says only whether any is."""
        if since.lines is None or since.at is None:
            own, digest, at = _read(since.mark) if since.mark else (self._own, "", int(clock.timestamp()))
            if own != self._own:
                return RESTARTED  # no name on that page is one of ours
            since.at = datetime.fromtimestamp(at, UTC)
            since.lines = now if digest in ("", self._digest(now)) else self._kept.get(digest)
        count = None if since.lines is None else changes(since.lines, now)
        if count == 0:
            return ""
        many = "Changed" if count is None or not counts else f"{count:,} changed"
        return f"{many} since {here(since.at):%H:%M:%S}, show"


def check_mark(mark: str) -> str:
    """A mark as a page has it; empty: there is none."""
    if mark:
        _read(mark)
    return mark


def _read(mark: str) -> tuple[str, str, int]:
    found = _MARK.fullmatch(mark)
    if found is None:
        raise ConfigurationError(f"was={mark[:40]!r} is not what a page has sent")
    return found[1], found[2], int(found[3])
