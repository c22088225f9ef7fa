"""Claims from the queues that a notification named: the quick way to new jobs. The usual claims find the rest."""

from collections.abc import Callable, Sequence

from ...model.job import ClaimedJob
from .claimer import Ask
from .queues import Queues


class NotifiedClaimer:
    def __init__(self, queues: Queues, notified: Callable[[], Sequence[str]]) -> None:
        """`notified` returns the queues that notifications named since its last call."""
        self._queues = queues
        self._notified = notified

    async def claim(self, ask: Ask) -> list[ClaimedJob]:
        """New jobs of these queues: one statement each, without a promise to find all."""
        names = self._notified()
        found: list[ClaimedJob] = []
        if not names or ask.want <= 0:
            return found
        await self._queues.lost_replies.give_back()
        with self._queues.lost_replies.accounted():
            for name in names:
                if ask.want > 0:
                    with self._queues.portions.of(name, ask.want, ask.waiting) as most:
                        jobs = await self._queues[name].claim_new(ask._replace(want=most))
                    size = self._queues.portions.came(name, jobs)
                    ask = ask._replace(want=ask.want - len(jobs), waiting=ask.waiting + size)
                    found += jobs
        return found
