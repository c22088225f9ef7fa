"""What a task did since the last report, in sums."""

from dataclasses import astuple, dataclass


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

    def attempt(self, run: float, wait: float) -> None:
        """One more attempt that completed or failed, and the time it took."""
        self.run_seconds += run
        self.wait_seconds += wait
        if run > self.max_run:
            self.max_run = run
        if wait > self.max_wait:
            self.max_wait = wait

    def merge(self, other: "Sums") -> None:
        self.completed += other.completed
        self.failed += other.failed
        self.dead += other.dead
        self.cancelled += other.cancelled
        self.run_seconds += other.run_seconds
        self.wait_seconds += other.wait_seconds
        self.max_run = max(self.max_run, other.max_run)
        self.max_wait = max(self.max_wait, other.max_wait)

    def columns(self) -> tuple[float, ...]:
        return astuple(self)
