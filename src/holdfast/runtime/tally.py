"""The tally: what this worker finished, summed up here and added to holdfast.throughput every few seconds.

A report that fails keeps its sums for the next one. One whose reply was lost is looked up by its transaction first, so
that nothing is counted twice. A worker that is killed takes its last few seconds with it.
"""

import asyncio
import contextlib
from collections.abc import Iterable

from ..db.faults import BadRow
from ..db.session import Session
from ..errors import DatabaseError
from ..model.outcome import Failed, Outcome
from ..model.state import CANCELLED, COMPLETED, DEAD, PENDING
from ..model.tally import Sums
from ..store import tally as store
from ..store.statement import Flow
from .inflight import Running
from .service import Service
from .summary import Summary

_EVERY = 5.0
_MOST_PAIRS = 1000  # pairs of queue and task; a row can name any task
_OTHERS = "(others)"
_AGAIN = 0.1
_NONE = Sums()  # of no task: nothing is counted there


class Tally(Service):
    name = "tally"

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._sums: dict[tuple[str, str], Sums] = {}
        self._sent: dict[tuple[str, str], Sums] = {}  # not known to be written, nor not to be
        self._transaction: str | None = None
        self._writing = asyncio.Lock()
        self._summary = Summary()

    def settled(
        self, queue: str, task: str, outcome: Outcome, state: str, run: float = 0.0, wait: float = 0.0
    ) -> None:
        """Count the end of an attempt. Jobs that were released, snoozed, held or lost have not ended."""
        dead = state in DEAD
        failed = dead or (state == PENDING and isinstance(outcome, Failed))
        if state == CANCELLED:
            self._of(queue, task).cancelled += 1
        elif failed or state == COMPLETED:
            sums = self._of(queue, task)
            sums.completed += not failed
            sums.failed += failed
            sums.dead += dead
            sums.attempt(run, wait)

    def completed(self, held: Iterable[Running | None], now: float) -> None:
        """Count jobs that were just completed. A worker has thousands at a time."""
        queue, task, sums = "", "", _NONE
        runs, waits = list[float](), list[float]()  # of one task and queue
        for running in held:
            if running is None:
                continue
            claimed, began = running.claimed, running.started_at
            if claimed.task != task or claimed.queue != queue:
                sums.attempts(runs, waits)
                runs, waits = [], []
                queue, task = claimed.queue, claimed.task
                sums = self._of(queue, task)
            if began:
                runs.append(now - began)
                waits.append(claimed.now - claimed.due + began - running.claimed_at)
            else:
                sums.completed += 1
        sums.attempts(runs, waits)

    def buried(self, queue: str, task: str) -> None:
        """A sweep made it a dead letter: its process died once too often."""
        sums = self._of(queue, task)
        sums.failed += 1
        sums.dead += 1

    def _of(self, queue: str, task: str) -> Sums:
        key = (queue, task)
        if (found := self._sums.get(key)) is not None:
            return found
        if len(self._sums) >= _MOST_PAIRS:
            key = (queue, _OTHERS)
        return self._sums.setdefault(key, Sums())

    async def tick(self) -> float:
        return _EVERY if await self.report() else _AGAIN

    async def report(self) -> bool:
        """Write the sums. False: an earlier report is still in progress in the database."""
        async with self._writing:
            if not await self._is_clear():
                return False
            if self._sums:
                self._sent, self._sums, self._transaction = self._sums, {}, None
                try:
                    await self._session.flow(self._write)
                finally:
                    # Known only once the database had it all: until the reply comes the commit is in doubt.
                    if self._transaction is None:
                        self._take_back()
                self._written()
            return True

    def _written(self) -> None:
        """The sums are in the database: they go into the next line of the log, too."""
        for sums in self._sent.values():
            self._summary.add(sums)
        self._sent = {}
        self._summary.say()

    def _write(self) -> Flow[None]:
        self._transaction = None
        self._transaction = yield from store.tally(self._sent)

    async def _is_clear(self) -> bool:
        """Whether every earlier report is settled: counted, or taken back to be counted again."""
        if self._sent and self._transaction is not None:
            try:
                state = await self._session.run(store.tally_state(self._transaction))
            except BadRow:  # another server, which never had it
                state = None
            if state == "in progress":
                return False
            if state != "committed":
                self._take_back()
            self._written()
        return True

    def _take_back(self) -> None:
        for (queue, task), sums in self._sent.items():
            self._of(queue, task).merge(sums)
        self._sent = {}

    async def last(self) -> None:
        """Everything counted so far, before the worker leaves; tried until it is written, or the caller gives up."""
        while True:
            with contextlib.suppress(DatabaseError):
                if await self.report():
                    self._summary.say(last=True)
                    return
            await asyncio.sleep(_AGAIN)
