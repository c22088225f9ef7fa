"""How many more jobs this worker wants right now."""

import time
from collections.abc import Callable

_RUN = 32


class Slots:
    """Free slots plus a small prefetch, and the prefetch only while handlers are quick: a job must not wait here behind a
    long one while another worker is idle."""

    _QUICK = 0.5

    def __init__(self, concurrency: int, prefetch: int, abandoned: Callable[[], int] = lambda: 0) -> None:
        self._abandoned = abandoned
        self.concurrency = concurrency
        self._prefetch = prefetch
        self._mean = 0.0
        self.running = 0

    def want(self, ready: int, batches: int = 0) -> int:
        """`ready` wait for a slot already; `batches` lack so many, which take no slot each."""
        if ready:
            return 0
        want = self.free + (self._prefetch if self._mean < self._QUICK else 0)
        return max(0, want, batches if self.free > 0 else 0)

    @property
    def free(self) -> int:
        """A sync handler past its timeout gives its slot back though its thread runs on: so many as there are slots,
        and no more, or threads would pile up without end."""
        return self.concurrency - self.running - max(0, self._abandoned() - self.concurrency)

    @property
    def run(self) -> int:
        """How many jobs of one stream to take at a time: many while handlers are quick, so that not each costs a claim."""
        return _RUN if self._mean < self._QUICK / 10 else 1

    def expect_long(self) -> None:
        """No prefetch until handlers have been quick again."""
        self._mean = 4 * self._QUICK

    def started(self) -> float:
        self.running += 1
        return time.monotonic()

    def finished(self, began: float) -> None:
        self.running -= 1
        self._mean = 0.8 * self._mean + 0.2 * (time.monotonic() - began)
