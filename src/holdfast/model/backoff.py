"""The retry policy of a task: exponential or in steps, capped, jittered, safe at any attempt number, and with a deadline."""

import random
from collections.abc import Sequence

from .duration import Duration, seconds
from .shown import short, shown

LONGEST_DEADLINE = 3600 * 86400.0


class Backoff:
    """Delay before attempt n+1: `first * factor ** (n - 1)`, at most `cap`; or step n of `steps`, the last one from then on.

    With jitter the delay is drawn evenly from the upper half of that, so that jobs which failed together do not come back
    together, and never at once. A step varies by only 20 %, because explicit steps are meant literally. `deadline`: an
    attempt that fails that long after the job was first due is the last one, whatever attempts are left.
    """

    __slots__ = ("cap", "deadline", "factor", "first", "jitter", "steps")

    def __init__(
        self,
        *,
        first: Duration = 2.0,
        factor: float = 2.0,
        cap: Duration = 3600.0,
        jitter: bool = True,
        steps: Sequence[Duration] | None = None,
        deadline: Duration | None = None,
    ) -> None:
        self.first = seconds(first, "Backoff(first=)")
        self.cap = seconds(cap, "Backoff(cap=)")
        if not 1.0 <= factor <= 1000.0:
            raise ValueError(f"Backoff(factor=) must be between 1 and 1000, not {factor!r}")
        self.factor = factor
        self.jitter = jitter
        self.steps = _steps(steps)
        self.deadline = None if deadline is None else _deadline(deadline)
        if self.steps and (self.first, self.factor, self.cap) != (2.0, 2.0, 3600.0):
            raise ValueError(
                "Backoff(steps=) says every delay: first=, factor= and cap= do not go with it. Leave them out"
            )

    def delay(self, attempt: int, random_: random.Random | None = None) -> float:
        """Seconds to wait after failed attempt number `attempt` (1 is the first)."""
        draw = (random_ or random).random() if self.jitter else 0.5
        if self.steps:
            return self.steps[max(0, min(attempt, len(self.steps)) - 1)] * (0.8 + 0.4 * draw)
        try:
            full = min(self.first * self.factor ** max(0, min(attempt - 1, 10_000)), self.cap)
        except OverflowError:
            full = self.cap
        return full * (0.5 + draw / 2) if self.jitter else full

    def __repr__(self) -> str:
        until = "" if self.deadline is None else f", deadline={self.deadline}"
        if self.steps:
            return f"Backoff(steps={list(self.steps)}, jitter={self.jitter}{until})"
        return (
            f"Backoff(first={self.first}, factor={self.factor}, cap={self.cap}, jitter={self.jitter}{until})"
        )


def _deadline(value: Duration) -> float:
    deadline = seconds(value, "Backoff(deadline=)")
    if not 0 < deadline <= LONGEST_DEADLINE:
        raise ValueError(
            f"Backoff(deadline=) must be more than 0 and at most 3600 days, not {short(value)}. "
            "Leave it out for no deadline"
        )
    return deadline


def _steps(steps: object) -> tuple[float, ...]:
    if steps is None:
        return ()
    if isinstance(steps, str) or not isinstance(steps, Sequence):
        raise TypeError(f'Backoff(steps=) must be a list of delays like [5, "5m", "2h"], not {shown(steps)}')
    if not steps:
        raise ValueError("Backoff(steps=) must have at least one delay, and is empty")
    return tuple(seconds(step, f"step {n} of Backoff(steps=)") for n, step in enumerate(steps, 1))
