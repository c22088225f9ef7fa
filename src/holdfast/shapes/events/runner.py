"""Runs one subscription, or one shard of it: read a batch, let it take effect, continue.

The effect commits together with the position (consume, project). Any problem with the database or with the
ownership ends the runner; its service takes the subscription up again.
"""

import asyncio
import contextlib
import logging
import time
from typing import Protocol

from ... import failpoints, telemetry
from ...db.database import Database
from ...errors import LeaseLost
from . import store
from .log import Log
from .reshard import at_barrier
from .store import Owned, Page

BATCH_BYTES = 4 * 2**20
FIRST = 100  # events of the first batch: how long they take is not known yet
LONG = 1.0  # seconds. A batch that took longer is followed by one of half the size


class Effect(Protocol):
    """How a subscriber treats a batch."""

    @property
    def batch(self) -> int:
        """Events to read at once."""
        ...

    @property
    def stuck(self) -> bool:
        """It waits because an event failed."""
        ...

    @property
    def delay(self) -> float:
        """Seconds until events that it did not take may be read again."""
        ...

    async def take(self, page: Page) -> bool:
        """Commit the effect of these events and the position behind them. False: it did not, read again. Raises LeaseLost
        when this owner has lost the subscription."""
        ...


class Runner:
    """`owned` is moved along with the position in the database."""

    def __init__(self, database: Database, log: Log, effect: Effect, owned: Owned) -> None:
        self._database = database
        self._log = log
        self._effect = effect
        self.owned = owned
        self.left = asyncio.Event()  # it was asked to stop at the end of its batch
        self._most = FIRST
        self.moved = 0  # events that it passed
        self.failed = False  # the last try ended with an error

    @property
    def position(self) -> int:
        return self.owned.position

    def is_behind(self, last: int) -> bool:
        """It has events to pass before this position."""
        ends = [end for end in (last, self.owned.until, self.owned.barrier) if end is not None]
        return self.position < min(ends) and not self.stuck

    async def leave(self) -> None:
        """End it when its batch is committed."""
        self.left.set()
        await self._log.nudge()

    async def rest(self, seconds: float) -> None:
        """Unless it was asked to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.left.wait()

    @property
    def stuck(self) -> bool:
        return self.failed or self._effect.stuck

    async def run(self) -> None:
        """Until it is cancelled or asked to stop, or the subscription is lost, stopped or at its end."""
        owned = self.owned
        while not self.left.is_set():
            if await self._is_over():
                return
            page = None
            if self._log.last <= owned.position:
                page = await self._log.beyond(owned, self.left)
                if page is None or not self._may_take(page):
                    continue
            else:
                page = await self._read()
            if page.position == owned.position:
                await asyncio.sleep(0)
                self._log.last = min(self._log.last, page.last)
                continue
            began = time.monotonic()
            try:
                passed = await self._effect.take(page)
            except LeaseLost:
                return
            if passed:
                await self._passed(page, time.monotonic() - began)
            elif self._effect.delay > 0:
                await self.rest(self._effect.delay)

    async def _passed(self, page: Page, seconds: float) -> None:
        owned = self.owned
        self.moved += page.position - owned.position
        if page.events and telemetry.audible(logging.DEBUG):
            telemetry.emit(
                "events.delivered", level=logging.DEBUG, subscription=owned.of, events=len(page.events)
            )
        owned.position, owned.seq = page.position, page.seq
        self.failed = False
        self._measure(seconds)
        if owned.rate is not None:
            await self.rest(len(page.events) / owned.rate)

    async def _is_over(self) -> bool:
        """A replay is at its end, or all shards are at the barrier, where this one waits for the others."""
        owned = self.owned
        if owned.until is not None and owned.position >= owned.until:
            await self._database.arun(lambda: store.end_replay(owned))
            telemetry.emit("replay.done", subscription=owned.of, replay=owned.name, position=owned.position)
            return True
        while owned.barrier is not None and owned.position >= owned.barrier and not self.left.is_set():
            if await at_barrier(self._database, owned):
                return True
        return False

    def _measure(self, seconds: float) -> None:
        """A batch holds its row and its transaction: a slow one is followed by a smaller one."""
        if seconds > LONG:
            self._most = max(1, min(self._most, self._effect.batch) // 2)
        elif seconds < LONG / 4:
            self._most = min(self._most * 4, 10_000)

    @property
    def _batch(self) -> int:
        most = min(self._most, self._effect.batch)
        return most if self.owned.rate is None else max(1, min(most, int(self.owned.rate)))

    def _may_take(self, page: Page) -> bool:
        """At most as many rows of a shared read as it would read by itself."""
        owned = self.owned
        ends = [end for end in (owned.until, owned.barrier) if end is not None]
        return page.position <= min([owned.position + self._batch, *ends])

    async def _read(self) -> Page:
        owned = self.owned
        ends = [end for end in (owned.until, owned.barrier) if end is not None]
        page = await self._database.arun(
            lambda: store.read_events(
                owned.position,
                owned.seq,
                self._batch,
                patterns=owned.patterns,
                most_bytes=BATCH_BYTES,
                shard=owned.shard,
                shards=owned.shards,
                until=min(ends) if ends else None,
            )
        )
        failpoints.point("events.read")
        return page
