"""The work of a task since the last report, in sums."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from math import frexp, ldexp

from .histogram import BUCKETS, PLACES


def _empty() -> list[int]:
    return [0] * BUCKETS


def _count(counts: list[int], ordered: list[float]) -> None:
    """Add values to their buckets: one lookup for each bucket in use, and none for each value."""
    at = bisect_right(ordered, 0.0)
    counts[0] += at
    while at < len(ordered):
        power = frexp(ordered[at])[1]  # less than 2 ** power, and not less than half of that
        end = max(bisect_left(ordered, ldexp(1.0, power), at), at + 1)  # of infinity the power is 0
        counts[PLACES[power]] += end - at
        at = end


@dataclass(slots=True)
class Sums:
    completed: int = 0
    failed: int = 0  # attempts that failed, retried or not
    dead: int = 0
    cancelled: int = 0
    run_seconds: float = 0.0
    wait_seconds: float = 0.0
    max_run: float = 0.0
    max_wait: float = 0.0
    runs: list[int] = field(default_factory=_empty)  # attempts by how long they ran
    waits: list[int] = field(default_factory=_empty)

    def attempt(self, run: float, wait: float) -> None:
        """One more attempt that completed or failed, and the time it took."""
        self.run_seconds += run
        self.wait_seconds += wait
        if run > self.max_run:
            self.max_run = run
        if wait > self.max_wait:
            self.max_wait = wait
        self.runs[PLACES[frexp(run)[1]] if run > 0.0 else 0] += 1  # as bucket_of, which is a call more
        self.waits[PLACES[frexp(wait)[1]] if wait > 0.0 else 0] += 1

    def attempts(self, runs: list[float], waits: list[float]) -> None:
        """Many that completed, like attempt() for each."""
        if not runs:
            return
        self.completed += len(runs)
        if len(runs) == 1:
            self.attempt(runs[0], waits[0])
            return
        self.run_seconds += sum(runs)
        self.wait_seconds += sum(waits)
        runs, waits = sorted(runs), sorted(waits)  # as they mostly are
        self.max_run = max(self.max_run, runs[-1])
        self.max_wait = max(self.max_wait, waits[-1])
        _count(self.runs, runs)
        _count(self.waits, waits)

    def merge(self, other: "Sums") -> None:
        self.completed += other.completed
        self.failed += other.failed
        self.dead += other.dead
        self.cancelled += other.cancelled
        self.run_seconds += other.run_seconds
        self.wait_seconds += other.wait_seconds
        self.max_run = max(self.max_run, other.max_run)
        self.max_wait = max(self.max_wait, other.max_wait)
        self.runs = [a + b for a, b in zip(self.runs, other.runs, strict=True)]
        self.waits = [a + b for a, b in zip(self.waits, other.waits, strict=True)]

    def columns(self) -> tuple[float | str, ...]:
        """As holdfast.throughput has them; a histogram is an array, as text."""
        ends = (self.completed, self.failed, self.dead, self.cancelled)
        times = (self.run_seconds, self.wait_seconds, self.max_run, self.max_wait)
        return *ends, *times, *("{" + ",".join(map(str, counts)) + "}" for counts in (self.runs, self.waits))
