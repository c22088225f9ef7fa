"""How a queue is claimed from: its rules, as declared and as stored."""

import math
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Literal, cast

from .duration import Duration, seconds

Ordering = Literal["none", "key"]
Affinity = Literal["none", "key"]
OnDeadLetter = Literal["skip", "block", "park"]
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}  # of a rate


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of starts in a number of seconds: `Rate(100, per=60)`. `burst` may start at once after a quiet time."""

    count: float
    per: Duration = 1.0
    burst: int | None = None  # None: what a second allows, and at least one

    def __post_init__(self) -> None:
        if isinstance(self.per, str | timedelta):
            object.__setattr__(self, "per", seconds(self.per, "per of a Rate"))
        for name in ("count", "per"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} of a Rate must be a number greater than 0, not {value!r}")
        if self.burst is not None and (
            isinstance(self.burst, bool) or not isinstance(self.burst, int) or self.burst < 1
        ):
            raise ValueError(f"burst of a Rate must be a whole number of at least 1, not {self.burst!r}")

    @property
    def per_second(self) -> float:
        return self.count / cast("float", self.per)

    @property
    def size(self) -> int:
        """How many tokens the bucket holds."""
        return self.burst or max(1, math.ceil(self.per_second))

    @property
    def text(self) -> str:
        """As it is written on the command line: '100/m'."""
        for unit, length in UNITS.items():
            count = self.per_second * length
            if count > 0.5 and abs(count - round(count)) < 1e-6 * count:
                return f"{round(count)}/{unit}"
        return f"{self.per_second:g}/s"

    @classmethod
    def of(cls, per_second: float | None, size: int | None) -> "Rate | None":
        return None if per_second is None else cls(per_second, 1.0, size)

    def same(self, other: "Rate | None") -> bool:
        return other is not None and (self.size, round(self.per_second, 9)) == (
            other.size,
            round(other.per_second, 9),
        )


@dataclass(frozen=True, slots=True)
class QueueRules:
    ordering: Ordering = "none"
    on_dead_letter: OnDeadLetter = "skip"
    fair: bool = False  # every key gets its turn
    weights: dict[str, float] = field(default_factory=dict)  # turns of a key, where they are not 1
    concurrency: int | None = None  # jobs of the queue that run at once, over all workers
    key_concurrency: int | None = None  # of one key
    rate: Rate | None = None  # starts of the queue, over all workers
    key_rate: Rate | None = None  # of one key
    aging: float | None = None  # seconds of waiting that count as much as one priority
    keep_completed: bool = True  # False: nothing stays of a job that completed
    affinity: Affinity = "none"  # key: jobs of a key go to the same worker while it lives, in no order

    @property
    def ordered(self) -> bool:
        return self.ordering == "key"

    @property
    def affine(self) -> bool:
        return self.affinity == "key"

    @property
    def keyed(self) -> bool:
        """Claimed key by key, and made for it: it has the index, and every job has a key."""
        return self.ordered or self.fair or self.key_concurrency is not None or self.key_rate is not None

    @property
    def limited(self) -> int:
        """0: by nothing; 1: as a whole, so a claim has to ask how much it may take; 2: by key too. As queues.limited."""
        if self.key_concurrency is not None or self.key_rate is not None:
            return 2
        return 0 if self.concurrency is None and self.rate is None else 1

    def differs(self, other: "QueueRules") -> list[str]:
        """The names of what is not the same."""
        return [f.name for f in fields(self) if not _same(getattr(self, f.name), getattr(other, f.name))]


MADE_SO = ("ordering", "fair")  # what a queue is made with, and cannot be changed under its jobs
PROMISED = (*MADE_SO, "on_dead_letter")  # what an app that declares it relies on; the rest are limits


def _same(mine: object, other: object) -> bool:
    return mine.same(other) if isinstance(mine, Rate) and isinstance(other, Rate) else mine == other
