"""What a notification has just told of: the quick way to it. The usual claims find the rest."""

from collections.abc import Callable, Sequence

from ...model.job import ClaimedJob
from .claimer import Ask
from .queues import Queues


class NotifiedClaimer:
    def __init__(
        self, queues: Queues, notified: Callable[[], Sequence[str]], missed: Callable[[], None]
    ) -> None:
        """`notified`: the queues that notifications came for since it was last called. `missed`: what one of them told of is
        not where new jobs stand, so the next claims are to look everywhere."""
        self._queues = queues
        self._notified = notified
        self._missed = missed

    async def claim(self, ask: Ask) -> list[ClaimedJob]:
        """What is new in these queues: one statement each, and no promise to find all."""
        names = self._notified()
        found: list[ClaimedJob] = []
        if not names:
            return found
        had = 0
        try:
            await self._queues.lost_replies.give_back()
            with self._queues.lost_replies.accounted():
                for name in names:
                    if ask.want > 0:
                        with self._queues.portions.of(name, ask.want, ask.waiting) as most:
                            jobs = await self._queues[name].claim_new(ask._replace(want=most))
                        size = self._queues.portions.came(name, jobs)
                        ask = ask._replace(want=ask.want - len(jobs), waiting=ask.waiting + size)
                        found += jobs
                        had += bool(jobs)
        finally:
            if had < len(names):
                self._missed()
        return found
