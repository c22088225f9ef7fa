"""A job for a child process and its progress, and how child processes are started."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...model.outcome import Outcome
from ...model.state import LOST
from ..handler import Handler
from ..inflight import Running
from .frames import Frame


@dataclass(frozen=True, slots=True)
class Launch:
    """How child processes are started, and the first message to each."""

    command: tuple[str, ...]
    hello: Frame
    jobs: int  # after this many a child is replaced


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The handler did not begin, and why. `again`: another child may succeed at once."""

    reason: str
    trace: str = ""
    again: bool = False


@dataclass(slots=True)
class Assignment:
    """A job for a child, and its progress."""

    running: Running
    handler: Handler
    frame: Frame  # what the child must know besides the job itself
    deliver: Callable[[Outcome | NotStarted], None]
    is_sent: bool = False
    has_begun: bool = False
    begin_by: float | None = None
    late_at: float | None = None  # its timeout
    is_late: bool = False
    grace_until: float | None = None  # it was asked to stop
    look_at: float | None = None  # at its memory

    @property
    def key(self) -> list[object]:
        return [self.running.claimed.id_text, self.running.claimed.generation]

    @property
    def context(self) -> dict[str, Any]:
        claimed = self.running.claimed
        return {"job": str(claimed.id), "task": claimed.task, "attempt": claimed.attempt}

    def is_lost(self) -> bool:
        """A job that completes itself has no row any more, because it was settled by us."""
        completing = self.running.job is not None and self.running.job._completed
        return self.running.stop == LOST and not completing
