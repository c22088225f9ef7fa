"""The service of every worker that takes a sample of the queues each minute. The database knows whether it has one."""

import random

from ...db.database import Database
from ...runtime.service import Service
from ...store import samples as store
from ...store.wake import Question

_MINUTE = 60.0


class Sampler(Service):
    name = "samples"
    longest_pause = 30.0

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._late_after = database.settings.dead_after
        self._due = True  # until a pulse reports that it is due
        self.question = Question(store.DUE, ())

    def on_answer(self, answer: bool) -> None:
        self._due = answer
        if answer:
            self.wake()

    async def tick(self) -> float:
        if self.pulse is not None and self.pulse.lasts and not self._due:
            return max(self.pulse.left, 0.01)
        self._due = False
        await self._database.arun(lambda: store.take_sample(self._late_after))
        return _MINUTE * random.uniform(0.5, 1.0)  # noqa: S311 so that no minute is left out
