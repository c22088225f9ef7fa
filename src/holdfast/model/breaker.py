"""The circuit breaker of a task: how many failures open it, and for how long."""

from dataclasses import dataclass
from uuid import UUID

from .duration import Duration, seconds

_TIMES = 10.0


class Breaker:
    """`@app.task(breaker=Breaker(failures=5, within=60, cooldown=30))`.

    Opens when `failures` attempts failed within `within` seconds and none succeeded in between, over all workers. While it
    is open no job of the task is claimed. After `cooldown` seconds one job is tried: if it succeeds the breaker closes, if
    it fails the next trial waits twice as long, at most `cap` seconds (by default ten times the cooldown).
    """

    __slots__ = ("cap", "cooldown", "failures", "within")

    def __init__(
        self,
        *,
        failures: int = 5,
        within: Duration = 60.0,
        cooldown: Duration = 30.0,
        cap: Duration | None = None,
    ) -> None:
        if not isinstance(failures, int) or isinstance(failures, bool) or not 1 <= failures <= 1000:
            raise ValueError(f"Breaker(failures=) must be an integer from 1 to 1000, not {failures!r}")
        self.failures = failures
        self.within = _period(within, "Breaker(within=)")
        self.cooldown = _period(cooldown, "Breaker(cooldown=)")
        self.cap = _TIMES * self.cooldown if cap is None else _period(cap, "Breaker(cap=)")
        if self.cap < self.cooldown:
            raise ValueError(
                f"Breaker(cap=) must be at least the cooldown of {self.cooldown:g} seconds, not {self.cap:g}"
            )

    def __repr__(self) -> str:
        return f"Breaker(failures={self.failures}, within={self.within}, cooldown={self.cooldown}, cap={self.cap})"


def _period(value: Duration, what: str) -> float:
    number = seconds(value, what)
    if not 0.0 < number <= 86_400.0 * 30:
        raise ValueError(f"{what} must be more than 0 seconds and at most 30 days, not {value!r}")
    return number


@dataclass(frozen=True, slots=True)
class Watch:
    """A breaker counts how an attempt ends. `call`: attempts of one call fail together, and count once."""

    task: str
    breaker: Breaker
    call: UUID | None = None


@dataclass(frozen=True, slots=True)
class BreakerChange:
    """What an outcome did to its task's breaker: opened, reopened (the trial failed) or closed (it succeeded)."""

    task: str
    change: str
    error: str | None = None
