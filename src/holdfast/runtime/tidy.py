"""Tidying up: expired rows are removed in full batches until none is left or the time budget is used up.

A service of its own, because the sweep must not wait for it. The sweeper decides whose turn it is.
"""

import functools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from .. import telemetry
from ..db.faults import LockTimeout
from ..db.session import Session
from ..store import chains, housekeeping
from ..store.holds import prune_holds
from ..store.limits import prune_key_limits
from ..store.statement import Statement
from .pulse import TIDY_EVERY
from .service import Service

BUDGET = 20.0  # seconds of one tidy; the next one begins a minute after it
BATCH = 5000
_AGAIN = 10.0

# One batch: how many rows went, and whether there may be more.
Chore = Callable[[], Awaitable[tuple[int, bool]]]
# What a shape removes from a table: given the days that finished jobs are kept and the most rows of a batch, how many went.
Prune = Callable[[int, int], Statement[int]]


class Tidier(Service):
    name = "tidy"

    def __init__(self, session: Session, prunes: Mapping[str, Prune]) -> None:
        super().__init__()
        self._prunes = prunes
        self._session = session  # the sweep's: it waits for one batch at most
        self._days: int | None = None
        self._behind = False  # the time was used up before everything was gone
        self._reached: dict[str, datetime | None] = {}  # how far each table has been read

    def begin(self, days: int) -> None:
        """It is this worker's turn."""
        self._days = days
        self.wake()

    async def tick(self) -> float:
        days, self._days = self._days, None
        if days is None and self._behind:  # continues in the next minute, also while every worker sleeps
            days = await self._session.run(housekeeping.tidy_begin(TIDY_EVERY))
        if days is not None:
            await self.tidy_once(days, BUDGET)
        return _AGAIN if self._behind else 3600.0

    async def tidy_once(self, days: int, budget: float) -> None:
        """Every table gets one batch; then those with more to remove take turns."""
        began = time.monotonic()
        await self._empty_slots(days)
        chores = self._chores(days)
        removed: Counter[str] = Counter()
        left = list(chores)
        first = True
        while left and (first or time.monotonic() - began < budget):
            for table in list(left):
                count, more = await chores[table]()
                removed[table] += count
                if not more:
                    left.remove(table)
            first = False
        await self._retry_groups()
        self._behind = bool(left)
        seconds = round(time.monotonic() - began, 1)
        if found := {table: count for table, count in removed.items() if count}:
            telemetry.emit("tidy.done", level=logging.DEBUG, seconds=seconds, **found)
        if left:
            telemetry.emit("tidy.behind", level=logging.WARNING, seconds=seconds, tables=", ".join(left))

    def _chores(self, days: int) -> dict[str, Chore]:
        """By table."""

        def plain(make: Callable[[int], Statement[int]], batch: int) -> Chore:
            async def chore() -> tuple[int, bool]:
                count = await self._session.run(make(batch))
                return count, count >= batch

            return chore

        def from_mark(table: str) -> Chore:
            async def chore() -> tuple[int, bool]:
                statement = housekeeping.prune(table, days, BATCH, self._reached.get(table))
                self._reached[table], count = await self._session.run(statement)
                return count, self._reached[table] is not None

            return chore

        return {
            **{table: from_mark(table) for table in housekeeping.FROM_MARK},
            "workers": plain(housekeeping.prune_workers, 500),
            "throughput": plain(lambda n: housekeeping.prune_throughput(days, n), BATCH),
            "audit": plain(housekeeping.prune_audit, 1000),
            "quarantine": plain(housekeeping.prune_quarantine, 1000),
            "key_limits": plain(prune_key_limits, BATCH),
            "key_holds": plain(prune_holds, BATCH),
            **{table: plain(functools.partial(prune, days), BATCH) for table, prune in self._prunes.items()},
        }

    async def _empty_slots(self, days: int) -> None:
        await self._session.run(housekeeping.note_slots())
        for slot in await self._session.run(housekeeping.expired_slots(days)):
            try:
                await self._session.run(housekeeping.empty_slot(slot, days))
            except LockTimeout as error:  # a backup reads it: this table later, the others now
                telemetry.emit("archive.busy", slot=slot, error=str(error))
        await self._session.run(housekeeping.note_slots())

    async def _retry_groups(self) -> None:
        for group, closed in await self._session.run(chains.retry_groups(100)):
            level = logging.INFO if closed else logging.WARNING
            telemetry.emit("group.closed" if closed else "group.stuck", level=level, group=group)
