"""How a queue is claimed from: its rules, as declared and as stored."""

from dataclasses import asdict, dataclass
from typing import Literal

Ordering = Literal["none", "key"]
OnDeadLetter = Literal["skip", "block", "park"]


@dataclass(frozen=True, slots=True)
class QueueRules:
    ordering: Ordering = "none"
    on_dead_letter: OnDeadLetter = "skip"

    @property
    def keyed(self) -> bool:
        """Claimed key by key."""
        return self.ordering == "key"

    def differs(self, other: "QueueRules") -> list[str]:
        """The names of what is not the same."""
        mine, theirs = asdict(self), asdict(other)
        return [name for name in mine if mine[name] != theirs[name]]
