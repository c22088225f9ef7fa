"""The service of every worker that runs operations: one worker at a time runs one, by its claim of the row."""

import asyncio
import contextlib
from uuid import UUID, uuid4

from ...db.database import Database
from ...errors import DatabaseUnavailable
from ...model.actor import Actor
from ...operate.operations import SILENCE, VERBS, carry_on
from ...operate.procedure import Runner
from ...runtime.service import Service
from ...store import operations as store
from ...store.wake import Question

EVERY = 5.0  # seconds between two searches
_PAUSE = 0.02  # seconds between two batches: jobs come first
_LAST_WORD = 2.0


class Operations(Service):
    name = "operations"

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._token = uuid4()  # of the next claim, or of one whose reply was lost
        self._left: UUID | None = None  # of the last one that we ran
        self._waits = True  # until a pulse reports one
        self._working = asyncio.Lock()
        self.question = Question(store.WAITS, (SILENCE, sorted(VERBS)))

    def on_answer(self, answer: bool) -> None:
        self._waits = answer
        if answer:
            self.wake()

    async def tick(self) -> float:
        asleep = self.pulse is not None and self.pulse.lasts
        if asleep and self.pulse is not None and not self._waits:
            return max(self.pulse.left, 0.01)
        self._waits = False
        return 0.0 if await self._carry_on() else EVERY

    async def catch_up(self) -> bool:
        """True: an operation was continued, which may have made jobs due."""
        try:
            return await self._carry_on()
        except DatabaseUnavailable:
            return False

    async def _carry_on(self) -> bool:
        async with self._working:
            runner = Runner(self._database, Actor(self.worker()))
            work = carry_on(
                self.worker(), self._token, pause=_PAUSE, left=self._left, on_claim=self._note_claim
            )
            return await runner.arun(work) is not None

    def _note_claim(self) -> None:
        """However long an outage lasts, the operation that it interrupted is found by its token afterwards."""
        self._left, self._token = self._token, uuid4()

    async def finish(self) -> None:
        """An interrupted one is for the next worker, at once."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_LAST_WORD):
                if (left := self._left) is not None:
                    await self._database.arun(lambda: store.release_operation(left))
