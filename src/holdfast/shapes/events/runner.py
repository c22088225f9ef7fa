"""One subscription, or one shard of it, at work: read a batch, let it take effect, go on.

The effect commits together with the position (consume, project). Whatever goes wrong with the database or with the
ownership ends the runner; its service takes the subscription up again.
"""

import asyncio
from typing import Protocol

from ... import failpoints, telemetry
from ...db.database import Database
from ...errors import LeaseLost
from . import store
from .log import Log
from .reshard import at_barrier
from .store import Owned, Page

BATCH_BYTES = 4 * 2**20


class Effect(Protocol):
    """What a subscriber does with a batch."""

    @property
    def batch(self) -> int:
        """Events to read at once."""
        ...

    @property
    def stuck(self) -> bool:
        """It waits because an event failed."""
        ...

    async def take(self, page: Page) -> bool:
        """Commit the effect of these events and the position behind them. False: it did not, read again. Raises LeaseLost
        when the subscription is not this owner's any more."""
        ...


class Runner:
    """`owned` is moved along with the position in the database."""

    def __init__(self, database: Database, log: Log, effect: Effect, owned: Owned) -> None:
        self._database = database
        self._log = log
        self._effect = effect
        self._owned = owned
        self.moved = 0  # events that it passed
        self.failed = False  # the last try ended with an error

    @property
    def position(self) -> int:
        return self._owned.position

    @property
    def stuck(self) -> bool:
        return self.failed or self._effect.stuck

    async def run(self) -> None:
        """Until it is cancelled, or the subscription is lost, stopped or at its end."""
        owned = self._owned
        while True:
            if owned.until is not None and owned.position >= owned.until:
                await self._database.arun(lambda: store.end_replay(owned))
                telemetry.emit(
                    "replay.done", subscription=owned.of, replay=owned.name, position=owned.position
                )
                return
            if owned.barrier is not None and owned.position >= owned.barrier:
                if await at_barrier(self._database, owned):
                    return
                continue
            if self._log.last <= owned.position:
                await self._log.beyond(owned.position)
            page = await self._read()
            if page.position == owned.position:
                await asyncio.sleep(0)
                self._log.last = min(self._log.last, page.last)
                continue
            try:
                passed = await self._effect.take(page)
            except LeaseLost:
                return
            if passed:
                self.moved += page.position - owned.position
                owned.position, owned.seq = page.position, page.seq
                self.failed = False

    async def _read(self) -> Page:
        owned = self._owned
        ends = [end for end in (owned.until, owned.barrier) if end is not None]
        page = await self._database.arun(
            lambda: store.read_events(
                owned.position,
                owned.seq,
                self._effect.batch,
                patterns=owned.patterns,
                most_bytes=BATCH_BYTES,
                shard=owned.shard,
                shards=owned.shards,
                until=min(ends) if ends else None,
            )
        )
        failpoints.point("events.read")
        return page
