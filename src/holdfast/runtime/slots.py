"""How many more jobs this worker wants right now."""

import asyncio
import time
from collections import deque

from .threads import Threads

_RUN = 32
_FEW = 100  # jobs ahead: they are topped up when none is left


class Slots:
    """Free slots plus jobs to hold ahead of them, and that only while handlers are quick: a job must not wait here behind
    a long one while another worker is idle.

    Ahead means the prefetch of the settings; once handlers have shown how quick they are, as many as they do in a twentieth
    of a second: a claim of ten jobs costs the database nearly as much as one of hundreds."""

    _QUICK = 0.5
    _AHEAD = 0.05  # seconds of work
    _SOON = 0.03  # the same, for queues whose keys take turns: jobs here have had their turn
    _MOST_AHEAD = 2000

    def __init__(self, concurrency: int, prefetch: int, threads: Threads | None = None) -> None:
        self._threads = threads or Threads()
        self.concurrency = concurrency
        self._prefetch = prefetch
        self._mean = 0.0
        self._jobs_each = 1.0  # slots that end at a time: more than one where batches are called
        self._finished = 0
        self._finished_at = 0.0
        self.running = 0
        self.ahead = prefetch  # jobs to hold beyond the free slots, as last computed
        self.enough = False  # the last claim found less than it asked for: there are no more
        self._coming_back: deque[asyncio.Future[None]] = deque()  # back from a rest, and waiting for a slot

    def want(self, ready: int, batches: int = 0) -> int:
        """`ready` wait for a slot already; `batches` lack that many, which take no slot each. Few are not worth a claim."""
        self.ahead = ahead = self._ahead()
        if self._suffice(ready):
            return 0
        return max(0, self.free + ahead - ready, batches if self.free > 0 and not ready else 0)

    def lacks(self, ahead: int) -> bool:
        """Whether a free slot is a reason to claim more, with that many at hand."""
        return not self.enough and 4 * ahead <= 3 * self.ahead and (self.free > 0 or not self._suffice(ahead))

    def content(self, ready: int) -> bool:
        """Whether a claim would want nothing, and the jobs that wait here take every free slot at once. Handlers that
        end one at a time would cost a check each."""
        return self.free <= ready and self._suffice(ready)

    def _suffice(self, ready: int) -> bool:
        """Few are topped up when none is left, many when a quarter is gone."""
        return ready > 0 and (self.ahead < _FEW or 4 * ready >= 3 * self.ahead)

    def _ahead(self) -> int:
        if self._mean >= self._QUICK or not self._prefetch:
            return 0
        if self._finished < self.concurrency:
            return self._prefetch
        quick = self._AHEAD * self.concurrency * self._jobs_each / max(self._mean, 1e-6)
        return max(self._prefetch, min(self._MOST_AHEAD, int(quick)))

    @property
    def soon(self) -> int:
        """How many jobs find a slot within a moment, beyond those for which one is free."""
        if not self._prefetch or self._finished < self.concurrency or self._mean >= self._QUICK:
            return 0
        return min(self.concurrency, int(self._SOON * self.concurrency / max(self._mean, 1e-6)))

    @property
    def free(self) -> int:
        """A sync handler past its timeout gives its slot back though its thread runs on: at most as many as there
        are slots, or threads would pile up without end."""
        over = self._threads.abandoned - self.concurrency
        return self.concurrency - self.running - (over if over > 0 else 0)

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

    def rest(self) -> None:
        """A job in flight gives up its slot for a while."""
        self.running -= 1
        self._hand_over()

    async def unrest(self) -> None:
        """It takes a slot again: before any new job does, and in the order of their rests. However this ends, it has one."""
        if self.free > 0:
            self.running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._coming_back.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():  # else it has been given one
                self.running += 1
            raise

    def _hand_over(self) -> None:
        while self._coming_back and self.free > 0:
            turn = self._coming_back.popleft()
            if not turn.done():
                self.running += 1
                turn.set_result(None)

    def finished(self, began: float, jobs: int = 1) -> None:
        """A slot is free; `jobs`: how many have ended with it."""
        self.running -= 1
        if jobs > 1 or self._jobs_each > 1:
            self._jobs_each = max(1.0, self._jobs_each + 0.2 * (jobs - self._jobs_each))
        if self._coming_back:
            self._hand_over()
        self._finished += 1
        self._finished_at = now = time.monotonic()
        self._mean += 0.2 * (now - began - self._mean)

    @property
    def blocked(self) -> bool:
        """Every slot has a long job, so jobs wait here for long. While quick ones end, they only wait their turn."""
        quick = self._mean < self._QUICK and time.monotonic() - self._finished_at < self._QUICK
        return self.free <= 0 and not quick
