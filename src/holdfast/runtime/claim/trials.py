"""The trial of a breaker: one job, tried while the breaker is not closed. Of several workers that claim it, one gets it."""

from collections.abc import Sequence

from ... import telemetry
from ...db.faults import BadRow
from ...model.job import ClaimedJob
from ...store import breaker
from ..breakers import Breakers
from .claimer import Ask, QueueClaimer
from .queues import Queues
from .suspects import Suspects


class TrialClaimer:
    def __init__(self, queues: Queues, breakers: Breakers, suspects: Suspects) -> None:
        self._queues = queues
        self._tasks = breakers.tasks
        self._suspects = suspects

    async def claim(self, ask: Ask) -> list[ClaimedJob]:
        """One job of a task whose breaker may try one. A suspect too, if it can run apart now."""
        suspects = self._suspects.room(1, spare=True) > 0
        for task in await self._queues.session.run(breaker.breakers_due(list(self._tasks))):
            with self._queues.lost_replies.accounted():
                for queue in self._queues:
                    if taken := await self._try(queue, ask.worker, task, self._tasks[task], suspects):
                        telemetry.emit("breaker.half_open", task=task, job=taken[0].id, worker=ask.worker)
                        return taken
        return []

    async def _try(
        self, queue: QueueClaimer, worker: str, task: str, versions: Sequence[int], suspects: bool
    ) -> list[ClaimedJob]:
        session, rules, name = self._queues.session, queue.rules, queue.queue
        try:
            trial = await session.flow(
                lambda: breaker.find_trial(name, task, versions, suspects=suspects, ordered=rules.ordered)
            )
        except BadRow:  # some row cannot be set aside: a sweep reports it
            trial = None
        if trial is None:
            return []
        token, lease = self._queues.lost_replies.token(worker), self._queues.leases[name]
        try:
            return await session.flow(
                lambda: breaker.claim_trial(
                    name, worker, token, lease=lease, task=task, trial=trial, rules=rules
                )
            )
        except BadRow as error:
            await queue.quarantine(trial.job_id, error)
            return []
