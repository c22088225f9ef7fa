"""Why a verb is refused: a code, a plain sentence, and its data. A surface adds the way out, in its own words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError, DatabaseError, UnknownQueue
from ..tasks.writer import missing_queue


@dataclass(frozen=True, slots=True)
class Why:
    """Why one of several items is not touched."""

    code: str
    text: str
    about: tuple[tuple[str, Any], ...] = ()

    @property
    def data(self) -> dict[str, Any]:
        return dict(self.about)


def why(code: str, text: str, **about: Any) -> Why:
    return Why(code, text, tuple(about.items()))


class Coded:
    code: str
    data: dict[str, Any]
    faults: Sequence[Why] = ()  # of several, each with its own reason


class Refused(Coded, ConfigurationError):
    """The verb cannot do what was requested."""

    def __init__(self, code: str, text: str, **about: Any) -> None:
        super().__init__(text)
        self.code = code
        self.data = about


class NothingDone(Refused):
    """Named items are done all or none: these prevent it."""

    def __init__(self, done: str, faults: Sequence[Why]) -> None:
        super().__init__("nothing_done", f"nothing was {done}: {some([f.text for f in faults])}", done=done)
        self.faults = faults


class Unanswered(Coded, DatabaseError):
    """The database did not reply in time."""

    def __init__(self, code: str, text: str, **about: Any) -> None:
        super().__init__(text)
        self.code = code
        self.data = about


class NoQueue(Coded, UnknownQueue):
    def __init__(self, name: str, existing: Sequence[str]) -> None:
        super().__init__(missing_queue(name, existing))
        self.code = "unknown_queue"
        self.data = {"queue": name}


def some(names: Sequence[str]) -> str:
    return "; ".join(names[:5]) + (f"; and {len(names) - 5} more" if len(names) > 5 else "")
