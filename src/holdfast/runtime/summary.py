"""One line of the log for all the jobs of some seconds: how many, how fast, how many failed."""

import time

from .. import telemetry
from ..model.histogram import percentiles
from ..model.tally import Sums

EVERY = 10.0  # seconds between two lines


class Summary:
    """Fed with the sums that were written. It logs nothing for a time in which no attempt ended."""

    def __init__(self) -> None:
        self._sums = Sums()
        self._said_at = time.monotonic()

    def add(self, sums: Sums) -> None:
        self._sums.merge(sums)

    def say(self, *, last: bool = False) -> None:
        """Emit the line, when it is time, or for the last time."""
        now, sums = time.monotonic(), self._sums
        passed = now - self._said_at
        ended = sums.completed + sums.failed + sums.cancelled
        if not last and passed < EVERY:
            return
        if ended:
            found = percentiles(sums.runs, sums.max_run)
            telemetry.emit(
                "worker.summary",
                jobs=ended,
                rate=f"{ended / max(passed, 0.1):.1f}/s",
                failed=sums.failed,
                dead=sums.dead,
                p95=None if found is None else round(found.p95, 3),
            )
        self._sums, self._said_at = Sums(), now
