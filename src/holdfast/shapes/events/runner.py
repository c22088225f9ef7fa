"""One subscription, or one shard of it, at work: read a batch, let it take effect, move the position with it.

Whatever goes wrong with the database or with the ownership ends the runner; its service takes the subscription up again.
What happens when an event fails is for the subscriber to decide (poison).
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
from ...model.job import NewRow
from ...model.text import describe, storable
from ...store import jobs
from ...store.statement import Flow
from ...tasks.writer import unknown_queue
from . import store
from .declare import Apply, Declared
from .event import Event, EventRow, job_payload
from .log import Log
from .store import Owned, Page

JOBS_BATCH = 1000
BATCH_BYTES = 4 * 2**20


class Runner:
    """`owned` is moved along with the position in the database."""

    def __init__(
        self, database: Database, log: Log, declared: Declared, owned: Owned, lease: float, keyed: bool
    ) -> None:
        self._database = database
        self._log = log
        self._declared = declared
        self._owned = owned
        self._lease = lease
        self._keyed = keyed  # the queue of its jobs is claimed key by key
        self._parked: set[str] | None = None
        self._most: int | None = None  # events at once, while one of them is looked for that fails
        self._attempts = 0
        self.moved = 0  # events that it passed
        self.stuck = False  # it waits because something failed

    @property
    def position(self) -> int:
        return self._owned.position

    @property
    def key(self) -> tuple[str, int, int]:
        return self._owned.key

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
            if self._log.last <= owned.position:
                await self._log.beyond(owned.position)
            page = await self._read()
            if page.position == owned.position:
                await asyncio.sleep(0)
                self._log.last = min(self._log.last, page.last)
                continue
            if not await self._step(page):
                return

    async def _read(self) -> Page:
        owned = self._owned
        apply = self._declared.apply
        most = self._most or (JOBS_BATCH if apply is None else apply.batch)
        ends = [end for end in (owned.until, owned.barrier) if end is not None]
        page = await self._database.arun(
            lambda: store.read_events(
                owned.position,
                owned.seq,
                most,
                patterns=owned.patterns,
                most_bytes=BATCH_BYTES,
                shard=owned.shard,
                shards=owned.shards,
                until=min(ends) if ends else None,
            )
        )
        failpoints.point("events.read")
        return page

    async def _step(self, page: Page) -> bool:
        """False: the subscription is not this runner's any more."""
        try:
            if self._declared.apply is None or not page.events:
                await self._make_jobs(page)
            else:
                await self._project(self._declared.apply, page)
        except LeaseLost:
            return False
        except _Poisoned as poisoned:
            return await self._handle(poisoned)
        self._moved_to(page)
        return True

    def _moved_to(self, page: Page) -> None:
        self.moved += page.position - self._owned.position
        self._owned.position, self._owned.seq = page.position, page.seq
        if self._most is not None:  # found and passed: more and more at once again
            self._most = min(self._most * 4, 10_000)
            if self._most >= 500:
                self._most = None
        self._attempts, self.stuck = 0, False

    # Jobs ----------------------------------------------------------------------------------------------------------------

    async def _make_jobs(self, page: Page) -> None:
        """The events become jobs in the transaction that moves the position. Without events it only moves."""
        owned = self._owned
        rows = [] if self._declared.task is None else self._rows(page.events)

        def flow() -> Flow[bool]:
            covered = (
                f"{{[{owned.position + 1},{page.position + 1})}}" if self._declared.task is not None else None
            )
            if not (yield from store.advance(owned, page.position, page.seq, self._lease, covered)):
                return False
            if rows:
                for row, written in zip(rows, (yield from jobs.enqueue(rows)), strict=True):
                    if written.conflict is not None:
                        raise unknown_queue(row.queue, [])
            return True

        if not await self._database.arun(flow):
            raise LeaseLost
        failpoints.point("events.jobs.done")

    def _rows(self, events: Sequence[EventRow]) -> list[NewRow]:
        definition = self._declared.task
        assert definition is not None
        s = definition.settings
        replay = self._owned.replay_of is not None
        done = _ranges(self._owned.delivered) if replay else []
        return [
            NewRow(
                definition.name,
                job_payload(row, self._declared.parameter, self._owned.era, replay=replay),
                s.queue,
                s.version,
                row.key or str(row.id) if self._keyed else row.key,
                s.priority,
                s.max_attempts,
            )
            for row in events
            if not any(lower <= row.position < upper for lower, upper in done)
        ]

    # Projections ---------------------------------------------------------------------------------------------------------

    async def _project(self, apply: Apply, page: Page) -> None:
        """Effect and position in one transaction."""
        if self._parked is None:
            self._parked = await self._database.arun(lambda: store.parked_keys(self._owned.name))
        behind = [row for row in page.events if row.key is not None and row.key in self._parked]
        rows = [row for row in page.events if row not in behind] if behind else page.events
        failed = [(row, "behind", None) for row in behind]
        try:
            events = [self._event(apply, row) for row in rows]
            await self._apply(apply, events, page.position, page.seq, failed)
        except (LeaseLost, DatabaseUnavailable, Contended, asyncio.CancelledError):
            raise
        except _Poisoned:
            raise
        except BaseException as error:
            raise _Poisoned(page, rows, error) from error
        failpoints.point("events.projected")

    def _event(self, apply: Apply, row: EventRow) -> Event[Any]:
        again = self._owned.replay_of is not None or self._owned.status == "building"
        return apply.converter.event(row, self._owned.era, replay=again)

    async def _apply(
        self,
        apply: Apply,
        events: Sequence[Event[Any]],
        position: int,
        seq: int,
        failed: Sequence[tuple[EventRow, str, str | None]],
    ) -> None:
        owned = self._owned

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
        """A batch failed. Find the event, try it a few times, then do as the subscriber wants."""
        self.stuck = True
        owned, apply = self._owned, self._declared.apply
        assert apply is not None
        span = poisoned.page.position - owned.position
        if span > 1:  # which of them? A half at a time
            self._most = span // 2
            return True
        self._attempts += 1
        error = describe(poisoned.error).summary
        row = poisoned.rows[0]
        what = f"event {row.position} ({row.type}, key {row.key!r}) failed: {error}"
        telemetry.emit(
            "projection.failed",
            level=logging.WARNING,
            subscription=owned.name,
            position=row.position,
            attempt=self._attempts,
            error=error,
        )
        if self._attempts < apply.max_attempts:
            await self._database.arun(lambda: store.note_trouble(owned, storable(what, 2000)))
            await asyncio.sleep(apply.retry.delay(self._attempts))
            return True
        return await self._give_up(apply, poisoned, storable(what, 2000), error)

    async def _give_up(self, apply: Apply, poisoned: "_Poisoned", what: str, error: str) -> bool:
        owned, row, page = self._owned, poisoned.rows[0], poisoned.page
        if apply.poison == "stop" or (apply.poison == "park_key" and row.key is None):
            await self._database.arun(lambda: store.stop_shard(owned, what))
            telemetry.emit("projection.stopped", level=logging.ERROR, subscription=owned.name, error=what)
            return False
        kind = "skipped" if apply.poison == "skip" else "parked"

        def flow() -> Flow[bool]:
            if not (yield from store.advance(owned, page.position, page.seq, self._lease)):
                return False
            yield from store.note_failures(owned, [(row, kind, storable(error, 2000))])
            return True

        if not await self._database.arun(flow):
            return False
        if kind == "parked" and row.key is not None and self._parked is not None:
            self._parked.add(row.key)
        telemetry.emit(
            f"projection.{kind}", level=logging.ERROR, subscription=owned.name, position=row.position
        )
        self._moved_to(page)
        return True


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


def _ranges(text: str) -> list[tuple[int, int]]:
    """A multirange of the database: lower bounds are in it, upper bounds are not."""
    parts = [part.strip("[)").split(",") for part in text.strip("{}").split("),") if part]
    return [(int(lower), int(upper)) for lower, upper in parts]
