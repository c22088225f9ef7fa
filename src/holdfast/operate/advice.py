"""The next step that a finding suggests: a code and its data. A surface puts it into words, such as a command."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Knows = Callable[
    [str, int], bool
]  # whether the app can run a task of this version; one that was not named may


@dataclass(frozen=True, slots=True)
class Advice:
    code: str
    data: dict[str, Any]


def advise(code: str, **data: Any) -> Advice:
    return Advice(code, data)


def start_worker(queue: str | None = None, able: bool = True) -> Advice:
    """A worker of the app, of any queue or of this one; not `able`: of another one, for the reader to name."""
    return advise("start_worker", queue=queue, able=able)


def run_sql(*statements: str, note: str | None = None) -> Advice:
    """Each statement by itself. `note` says what they cost."""
    return advise("run_sql", statements=statements, note=note)


def once(advice: list[Advice]) -> list[Advice]:
    """Each of them once, in order."""
    return [one for n, one in enumerate(advice) if one not in advice[:n]]
