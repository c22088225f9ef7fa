"""A projection at work: its function runs in the transaction that moves the position.

What happens when an event fails is for the projection to say (poison): the event is found by halving the batch, tried a few
times, and then stops the projection, is skipped, or parks its key.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ... import failpoints, telemetry
from ...db.database import Database
from ...db.faults import Contended
from ...db.guests import async_guest, sync_guest
from ...errors import DatabaseUnavailable, LeaseLost
from ...model.text import describe, storable
from ...store.statement import Flow
from . import store
from .declare import Apply
from .event import Event, EventRow
from .store import Owned, Page


class Project:
    def __init__(self, database: Database, apply: Apply, owned: Owned, lease: float) -> None:
        self._database = database
        self._fn = apply
        self._owned = owned
        self._lease = lease
        self._parked: set[str] | None = None
        self._most: int | None = None  # events at once, while one of them is looked for that fails
        self._attempts = 0
        self.stuck = False

    @property
    def batch(self) -> int:
        return self._most or self._fn.batch

    async def take(self, page: Page) -> bool:
        try:
            await (self._project(page) if page.events else self._pass(page))
        except _Poisoned as poisoned:
            return await self._handle(poisoned)
        self._passed()
        return True

    def _passed(self) -> None:
        if self._most is not None:  # found and passed: more and more at once again
            self._most = min(self._most * 4, 10_000)
            if self._most >= self._fn.batch:
                self._most = None
        self._attempts, self.stuck = 0, False

    async def _pass(self, page: Page) -> None:
        if not await self._database.arun(
            lambda: store.advance(self._owned, page.position, page.seq, self._lease)
        ):
            raise LeaseLost

    async def _project(self, page: Page) -> None:
        """Effect and position in one transaction."""
        if self._parked is None:
            self._parked = await self._database.arun(lambda: store.parked_keys(self._owned.name))
        behind = [row for row in page.events if row.key is not None and row.key in self._parked]
        rows = [row for row in page.events if row not in behind] if behind else page.events
        failed = [(row, "behind", None) for row in behind]
        try:
            events = [self._event(row) for row in rows]
            await self._apply(events, page.position, page.seq, failed)
        except (LeaseLost, DatabaseUnavailable, Contended, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise _Poisoned(page, rows, error) from error
        failpoints.point("events.projected")

    def _event(self, row: EventRow) -> Event[Any]:
        again = self._owned.replay_of is not None or self._owned.status == "building"
        return self._fn.converter.event(row, self._owned.era, replay=again)

    async def _apply(
        self,
        events: Sequence[Event[Any]],
        position: int,
        seq: int,
        failed: Sequence[tuple[EventRow, str, str | None]],
    ) -> None:
        owned, apply = self._owned, self._fn

        def first() -> Flow[bool]:
            return (yield from store.hold(owned))

        def finish(_: object) -> Flow[bool]:
            if failed:
                yield from store.note_failures(owned, failed)
            return (yield from store.advance(owned, position, seq, self._lease))

        if apply.using is not None:
            await _on_theirs(apply, events, first, finish)
        elif apply.is_async:

            async def body(tx: object) -> None:
                for argument in _calls(apply, events):
                    await apply.func(tx, argument)

            await self._database.atransact(body, finish, first=first)
        else:

            def run(tx: object) -> None:
                for argument in _calls(apply, events):
                    apply.func(tx, argument)

            await asyncio.to_thread(self._database.transact, run, finish, None, first)

    # What fails ----------------------------------------------------------------------------------------------------------

    async def _handle(self, poisoned: "_Poisoned") -> bool:
        """A batch failed. Find the event, try it a few times, then do as the projection says."""
        self.stuck = True
        owned, apply = self._owned, self._fn
        span = poisoned.page.position - owned.position
        if span > 1:  # which of them? A half at a time
            self._most = span // 2
            return False
        self._attempts += 1
        error = describe(poisoned.error).summary
        row = poisoned.rows[0]
        what = storable(f"event {row.position} ({row.type}, key {row.key!r}) failed: {error}", 2000)
        telemetry.emit(
            "projection.failed",
            level=logging.WARNING,
            subscription=owned.name,
            position=row.position,
            attempt=self._attempts,
            error=error,
        )
        if self._attempts < apply.max_attempts:
            await self._database.arun(lambda: store.note_trouble(owned, what))
            await asyncio.sleep(apply.retry.delay(self._attempts))
            return False
        if apply.poison == "stop" or (apply.poison == "park_key" and row.key is None):
            await self._database.arun(lambda: store.stop_shard(owned, what))
            telemetry.emit("projection.stopped", level=logging.ERROR, subscription=owned.name, error=what)
            raise LeaseLost
        await self._set_aside(poisoned, storable(error, 2000))
        return True

    async def _set_aside(self, poisoned: "_Poisoned", error: str) -> None:
        """Pass the event, and note it in the same transaction."""
        owned, row, page = self._owned, poisoned.rows[0], poisoned.page
        kind = "skipped" if self._fn.poison == "skip" else "parked"

        def flow() -> Flow[bool]:
            if not (yield from store.advance(owned, page.position, page.seq, self._lease)):
                return False
            yield from store.note_failures(owned, [(row, kind, error)])
            return True

        if not await self._database.arun(flow):
            raise LeaseLost
        if kind == "parked" and row.key is not None and self._parked is not None:
            self._parked.add(row.key)
        telemetry.emit(
            f"projection.{kind}", level=logging.ERROR, subscription=owned.name, position=row.position
        )
        self._passed()


class _Poisoned(Exception):
    """A batch of events could not be applied."""

    def __init__(self, page: Page, rows: Sequence[EventRow], error: BaseException) -> None:
        super().__init__()
        self.page = page
        self.rows = rows
        self.error = error


def _calls(apply: Apply, events: Sequence[Event[Any]]) -> Sequence[Any]:
    """What the function is called with, call by call."""
    if apply.many:
        return [list(events)] if events else []
    return events


async def _on_theirs(
    apply: Apply,
    events: Sequence[Event[Any]],
    first: Callable[[], Flow[bool]],
    finish: Callable[[object], Flow[bool]],
) -> None:
    """In a transaction that the user opens: a SQLAlchemy session, a Django connection, a psycopg connection."""
    assert apply.using is not None
    opened: Any = apply.using()
    if apply.is_async:
        async with opened as conn:
            guest = async_guest(conn, "projection", "projection")
            if not await guest.arun(first()):
                raise LeaseLost
            for argument in _calls(apply, events):
                await apply.func(conn, argument)
            if not await guest.arun(finish(None)):
                raise LeaseLost
        return

    def run() -> None:
        with opened as conn:
            guest = sync_guest(conn, "projection", "projection")
            if not guest.run(first()):
                raise LeaseLost
            for argument in _calls(apply, events):
                apply.func(conn, argument)
            if not guest.run(finish(None)):
                raise LeaseLost

    await asyncio.to_thread(run)
