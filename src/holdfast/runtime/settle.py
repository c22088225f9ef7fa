"""The settler: outcomes in, natural batches out.

A batch is everything that became ready while the previous one was written: a settle may wait for the one before it, but
not for a timer. An outcome stays here until the database has taken or refused it, through an outage or a bad neighbour.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

from .. import failpoints, telemetry
from ..db.database import Database
from ..db.faults import BadRow, LockNotAvailable
from ..model.breaker import BreakerChange
from ..model.outcome import Settlement
from ..model.state import ARCHIVED, BUSY, COMPLETED, QUARANTINED
from ..model.text import storable
from ..store.claim import quarantine
from ..store.settle import Exceptions, by_attempt, is_plain, settle_done
from .endings import Endings
from .failed_batch import FailedBatch, buried
from .record import Recorders
from .service import Service

T = TypeVar("T")
_MOST_SETTLED = 1000
_BUSY_PAUSE = 0.05
_AGAIN = 50


class Settler(Service):
    name = "settle"

    def __init__(
        self,
        database: Database,
        worker: Callable[[], str],
        on_settled: Callable[[Sequence[Settlement], Sequence[str]], None],
        on_breaker: Callable[[BreakerChange], None] = lambda change: None,
        recorders: Recorders | None = None,
    ) -> None:
        super().__init__()
        self.endings = Endings()
        self._session = database.session("settle", keep_plans=True)
        self._worker = worker
        self._on_settled = on_settled
        self._on_breaker = on_breaker
        self._waiting: deque[Settlement] = deque()
        self._busy: list[Settlement] = []
        self._failed_batch = FailedBatch(
            recorders or Recorders(), self._write, self._busy.extend, self._give_up
        )
        self._reported: dict[int, Settlement] = {}  # outcomes of a batch, by id(), until they are finished
        self._unreported: list[Settlement] = []  # settled, and not reported yet
        self._empty = asyncio.Event()
        self._empty.set()

    def settle(self, settlement: Settlement) -> None:
        # While a batch is being written, the next one follows it in any case.
        if not self._waiting or self._failures:
            self._empty.clear()
            self._wake.set()
        self._waiting.append(settlement)

    @property
    def pending(self) -> int:
        return len(self._waiting) + len(self._busy)

    async def drained(self) -> None:
        """Wait until every outcome given so far is in the database."""
        await self.until(self._empty)

    async def tick(self) -> float:
        try:
            return await self._settle_all()
        finally:
            self._report_last()

    async def _settle_all(self) -> float:
        if self._reported:  # the last one was cut short, and part of its batch was reported
            self._waiting = deque(s for s in self._waiting if id(s) not in self._reported)
            self._busy[:] = [s for s in self._busy if id(s) not in self._reported]
            self._reported.clear()
        again = self._busy[:_AGAIN]
        while self._waiting:
            batch = list(itertools.islice(self._waiting, _MOST_SETTLED))
            failpoints.point("settle.before")
            await self._write(batch, quick=True)
            if len(batch) == len(self._waiting):
                self._waiting.clear()
            else:
                for _ in batch:
                    self._waiting.popleft()
            self._reported.clear()
        self._report_last()
        if again:  # separately: a locked row must not delay the others
            await self._write(again)
            del self._busy[: len(again)]
            self._reported.clear()
        if self._waiting:  # arrived meanwhile
            return 0.0
        if self._busy:
            return _BUSY_PAUSE
        self._empty.set()
        return 3600.0

    async def _write(self, batch: list[Settlement], *, quick: bool = False) -> None:
        """One transaction for the batch. A batch that cannot be settled as a whole is split."""
        if quick and not (batch := await self._quickly(batch)):
            return
        self._report_last()
        try:
            exceptions, changes = await self._session.flow(
                lambda: self._failed_batch.flow(batch, self._worker())
            )
        except Exception as error:  # noqa: BLE001 raised again unless it is about some of them
            await self._failed_batch.settle_in_parts(batch, error)
            return
        self._failed_batch.settled(batch)
        self._report(batch, exceptions)
        for change in changes:
            self._on_breaker(change)

    async def _quickly(self, batch: list[Settlement]) -> list[Settlement]:
        """One statement only, for a batch that allows it. Returns the rest for the usual way."""
        first, left = by_attempt(batch)
        if not first or not is_plain(first):
            return batch
        try:
            done = await self._while_reporting(self._session.run(settle_done(first, self._worker())))
        except (BadRow, LockNotAvailable):  # nothing was written: the usual way finds the bad outcome
            return batch
        if done is None:
            self.endings.add(list(map(itemgetter(0), first)))
        if done is None and not left:
            self._unreported = batch
            return []
        ended: list[Settlement] = []
        for settlement in first:
            grant = settlement.grant
            is_done = done is None or (grant.id_text, grant.generation) in done
            (ended if is_done else left).append(settlement)
        if ended:
            self._end(ended, [COMPLETED] * len(ended))
        return left

    async def _while_reporting(self, work: Coroutine[Any, Any, T]) -> T:
        """Send a batch, and report the previous one while the server writes: for a thousand jobs the report takes a
        millisecond, in which the server would have nothing to do."""
        if not self._unreported:
            return await work
        writing = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.sleep(0)  # it is sent
            self._report_last()
            return await writing
        finally:
            if not writing.done():
                writing.cancel()
                await asyncio.wait([writing])

    def _report_last(self) -> None:
        batch, self._unreported = self._unreported, []
        if batch:
            self._on_settled(batch, [COMPLETED] * len(batch))

    def _report(self, batch: list[Settlement], exceptions: Exceptions) -> None:
        """Report the results. A row that another session has locked for a moment is still ours, and is tried again."""
        if busy := [place for place, answer in exceptions.items() if answer.state == BUSY]:
            self._busy += [batch[place] for place in busy]
            exceptions = {
                n: exceptions[place]
                for n, place in enumerate(p for p in range(len(batch)) if p not in busy)
                if place in exceptions
            }
            batch = [settlement for place, settlement in enumerate(batch) if place not in busy]
        kinds = map(type, map(itemgetter(1), batch))
        states = [ARCHIVED.get(kind, "") for kind in kinds]
        for place, answer in exceptions.items():
            states[place] = answer.state
        self._end(batch, states)

    def _end(self, settlements: list[Settlement], states: list[str]) -> None:
        self._reported.update((id(settlement), settlement) for settlement in settlements)
        self._on_settled(settlements, states)

    async def _give_up(self, settlement: Settlement, reason: str) -> None:
        """The database refuses this outcome: make the job a dead letter; if even that fails, leave the row alone."""
        reason = storable(reason)
        telemetry.emit("settle.refused", level=logging.ERROR, job=settlement.grant.id_text, error=reason)
        if (instead := buried(settlement, reason)) is not None:
            await self._write([instead])
            self._reported[id(settlement)] = settlement
            return
        await self._session.run(quarantine(UUID(settlement.grant.id_text), settlement.grant.queue, reason))
        self._on_settled([settlement], [QUARANTINED])

    async def finish(self) -> None:
        await self._session.close()
