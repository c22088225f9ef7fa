"""Low-water marks: where plain claims of a queue begin."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..model.job import ClaimedJob
from ..store.claim import Mark, Place


@dataclass(slots=True)
class Marks:
    """Where the next plain claim of a queue begins, per priority, and when to look from the start again."""

    at: dict[int, Mark | None] = field(default_factory=lambda: {0: None})
    full_at: float = 0.0
    held_at: float = 0.0

    def ordered(self) -> list[Place]:
        return sorted(self.at.items(), key=lambda place: place[0], reverse=True)

    def moved(self, jobs: Sequence[ClaimedJob]) -> None:
        """Behind the last of each priority. They come in claim order, so that is the last met."""
        for priority, last in {job.priority: job for job in jobs}.items():
            place, known = Mark(last.available_at, last.seq), self.at.get(priority)
            if known is None or place > known:
                self.at[priority] = place
