"""Seals of previews: the confirmed act is the one that was shown, to this person, a moment ago, and it is confirmed once."""

import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.web.guard import Csrf

GOOD_FOR = 600  # seconds that a preview may be confirmed


@dataclass(frozen=True, slots=True)
class Shown:
    """The content of a preview, for one person."""

    act: str
    who: str
    given: Mapping[str, str]  # what it is about
    count: int | None  # None: it is about one thing
    capped: bool


class Seals:
    """Those of one process. One that was used is remembered until it would be too old anyway."""

    def __init__(self, csrf: "Csrf") -> None:
        self._csrf = csrf
        self._used: dict[str, float] = {}  # in the order of their use

    def make(self, shown: Shown) -> str:
        return self._seal(shown, int(time.time()), secrets.token_hex(8))

    def _seal(self, shown: Shown, at: int, mark: str) -> str:
        what = json.dumps(dict(shown.given), sort_keys=True)
        head = f"{at}.{'' if shown.count is None else shown.count}.{int(shown.capped)}.{mark}"
        return f"{head}.{self._csrf.sign('preview', shown.act, what, shown.who, head)}"

    def read(self, seal: str, act: str, who: str, given: Mapping[str, str]) -> Shown | None:
        """The content that was shown; None: it was not shown, or too long ago."""
        parts = seal.split(".")
        if len(parts) != 5:
            return None
        at, count, capped, mark = (*map(_whole, parts[:3]), parts[3])
        if at is None or capped is None or not 0 <= time.time() - at <= GOOD_FOR:
            return None
        shown = Shown(act, who, given, count, bool(capped))
        same = hmac.compare_digest(seal.encode(), self._seal(shown, at, mark).encode())
        return shown if same else None

    def use(self, seal: str) -> bool:
        """False: it was used before."""
        now = time.monotonic()
        while self._used and now - next(iter(self._used.values())) > GOOD_FOR:
            del self._used[next(iter(self._used))]
        if seal in self._used:
            return False
        self._used[seal] = now
        return True


def _whole(word: str) -> int | None:
    return int(word) if word.isascii() and word.isdigit() and len(word) < 15 else None
