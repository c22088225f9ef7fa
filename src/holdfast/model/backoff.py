"""The retry policy of a task: exponential, capped, jittered, and safe at any attempt number."""

import random

from .duration import Duration, seconds


class Backoff:
    """Delay before attempt n+1: `first * factor ** (n - 1)`, at most `cap`.

    With jitter the delay is drawn evenly from the upper half of that, so that jobs which failed
    together do not come back together, and never at once.
    """

    __slots__ = ("cap", "factor", "first", "jitter")

    def __init__(
        self, *, first: Duration = 2.0, factor: float = 2.0, cap: Duration = 3600.0, jitter: bool = True
    ) -> None:
        self.first = seconds(first, "Backoff(first=)")
        self.cap = seconds(cap, "Backoff(cap=)")
        if not 1.0 <= factor <= 1000.0:
            raise ValueError(f"Backoff(factor=) must be between 1 and 1000, not {factor!r}")
        self.factor = factor
        self.jitter = jitter

    def delay(self, attempt: int, random_: random.Random | None = None) -> float:
        """Seconds to wait after failed attempt number `attempt` (1 is the first)."""
        try:
            full = min(self.first * self.factor ** max(0, min(attempt - 1, 10_000)), self.cap)
        except OverflowError:
            full = self.cap
        if not self.jitter:
            return full
        return full * (0.5 + (random_ or random).random() / 2)

    def __repr__(self) -> str:
        return f"Backoff(first={self.first}, factor={self.factor}, cap={self.cap}, jitter={self.jitter})"
