"""A projection: its function runs in the transaction that moves the position (calling).

The projection decides how a failing event is treated (poison): the event is found by halving the batch, tried a few
times, and then stops the projection, is skipped, or parks its key. An event whose data was erased or does not fit fails at
once: no attempt would change it.
"""

import logging
from collections.abc import Sequence
from typing import Any

from ... import failpoints, telemetry
from ...db.database import Database
from ...db.faults import Contended
from ...errors import LeaseLost
from ...model.backoff import Backoff
from ...model.duration import seconds
from ...model.signals import DeadLetter, Retry, Snooze
from ...model.text import describe, storable
from ...runtime.decide import signal_in
from ...store.statement import Flow
from ...tasks.convert import Misfit, NewerVersion
from . import store
from .apply import Apply
from .calling import Broken, Call, FunctionFailed
from .event import Event, EventRow
from .store import Held, Owned, Page

_CONTENDED = 10  # tries of a batch after conflicts in the database, before they count as a failure
_LONGEST = 3600.0  # seconds between two attempts

Failed = list[tuple[EventRow, str, str | None]]


class Project:
    """`shadow`: it builds tables again, in this schema, `batch` events at a time."""

    def __init__(
        self,
        database: Database,
        apply: Apply,
        owned: Owned,
        lease: float,
        shadow: str | None = None,
        batch: int | None = None,
    ) -> None:
        self._shadow = shadow
        self._usual = batch or apply.batch
        self._database = database
        self._fn = apply
        self._owned = owned
        self._lease = lease
        self._parked: set[str] | None = None
        self._most: int | None = None  # events at once, while the failing one is searched
        self._attempts = 0
        self._conflicts = 0
        self.stuck = False
        self.delay = 0.0

    @property
    def batch(self) -> int:
        return self._most or self._usual

    async def take(self, page: Page) -> bool:
        self.delay = 0.0
        try:
            await (self._project(page) if page.events else self._pass(page))
        except _Poisoned as poisoned:
            return await self._handle(poisoned)
        except Broken as broken:
            await self._stop(str(broken))
        self._passed()
        return True

    def _passed(self) -> None:
        if self._most is not None:  # found and passed: the batch grows again
            self._most = min(self._most * 4, 10_000)
            if self._most >= self._usual:
                self._most = None
        self._attempts, self._conflicts, self.stuck = 0, 0, False

    async def _pass(self, page: Page) -> None:
        if not await self._database.arun(
            lambda: store.advance(self._owned, page.position, page.seq, self._lease)
        ):
            raise LeaseLost

    async def _project(self, page: Page) -> None:
        """Effect and position in one transaction."""
        parked = await self.parked()
        rows, behind = divided(page.events, parked)
        events = self._loaded(page, rows, behind)
        try:
            await self._apply(events, page, behind)
        except FunctionFailed as failed:
            raise _Poisoned(page, rows, behind, failed.error) from failed.error
        except Contended as error:
            self._conflicts += 1
            if self._conflicts < _CONTENDED:
                raise
            raise _Poisoned(page, rows, behind, error) from error
        failpoints.point("events.projected")

    async def parked(self) -> set[str]:
        if self._parked is None:
            self._parked = await self._database.arun(lambda: store.parked_keys(self._owned.name))
        return self._parked

    def _loaded(self, page: Page, rows: Sequence[EventRow], behind: Failed) -> list[Event[Any]]:
        again = self._owned.replay_of is not None or self._owned.status == "building"
        found: list[Event[Any]] = []
        for row in rows:
            try:
                found.append(self._fn.converter.event(row, self._owned.era, replay=again))
            except BaseException as error:  # models and their validators are the user's code
                raise _Poisoned(page, rows, behind, error, unreadable=row) from error
        return found

    async def _apply(self, events: Sequence[Event[Any]], page: Page, failed: Failed) -> None:
        owned = self._owned

        def first() -> Flow[Held | None]:
            held = yield from store.hold(owned)
            if held is not None and self._shadow is not None:
                yield from store.enter_shadow(self._shadow)
            return held

        def finish() -> Flow[bool]:
            if self._shadow is not None:
                yield from check_beside(self._shadow)
            if failed:
                yield from store.note_failures(owned, failed)
            return (yield from store.advance(owned, page.position, page.seq, self._lease))

        def move(xid: str) -> Flow[bool]:
            return (yield from store.advance(owned, page.position, page.seq, self._lease, xid))

        alone = self._shadow is None and not failed
        await Call(self._database, self._fn, first, finish, events, move=move if alone else None).run()

    # What fails ----------------------------------------------------------------------------------------------------------

    async def _handle(self, poisoned: "_Poisoned") -> bool:
        """A batch failed. Find the event, try it a few times, then treat it as the projection declares."""
        if (most := self._fewer(poisoned)) is not None:
            self._most = most
            return False
        row, apply = poisoned.rows[0], self._fn
        delay, is_last = self._verdict(poisoned)
        error = describe(poisoned.error).summary
        what = storable(f"event {row.position} ({row.type}, key {row.key!r}) failed: {error}", 2000)
        telemetry.emit(
            "projection.failed",
            level=logging.WARNING,
            subscription=self._owned.name,
            position=row.position,
            attempt=self._attempts,
            error=error,
        )
        if not is_last:
            self.stuck = True
            await self._database.arun(lambda: store.note_trouble(self._owned, what))
            self.delay = delay
            return False
        newer = isinstance(poisoned.error, NewerVersion)  # it would be lost if it were skipped
        if (
            apply.poison == "stop"
            or (apply.poison == "park_key" and row.key is None)
            or (newer and apply.poison == "skip")
        ):
            await self._stop(f"{what}. Start workers that know it, then resume" if newer else what)
        await self._set_aside(poisoned, storable(error, 2000))
        return True

    def _fewer(self, poisoned: "_Poisoned") -> int | None:
        """How many to read, so that the failing event is found; None: it is alone."""
        start, rows, bad = self._owned.position, poisoned.rows, poisoned.unreadable
        if bad is not None and rows[0] is not bad:
            return bad.position - 1 - start  # the events before it
        if len(rows) == 1:
            return None
        if bad is not None:
            return bad.position - start
        return max(rows[(len(rows) - 1) // 2].position - start, 1)

    def _verdict(self, poisoned: "_Poisoned") -> tuple[float, bool]:
        """Seconds to the next attempt, and whether there is none. Signals decide it: Retry and Snooze set the time, and
        Snooze spends no attempt; DeadLetter means that there is none."""
        self._attempts += 1
        try:
            signal = signal_in(poisoned.error)
            if isinstance(signal, Snooze):
                delay = min(seconds(signal.after, "Snooze(after=)"), _LONGEST)
                self._attempts -= 1
                return delay, False
            is_last = self._attempts >= self._fn.max_attempts or isinstance(signal, DeadLetter)
            if poisoned.unreadable is not None and isinstance(poisoned.error, Misfit):
                return 0.0, True
            if isinstance(signal, Retry) and signal.after is not None:
                return min(seconds(signal.after, "Retry(after=)"), _LONGEST), is_last
            return min(seconds(self._fn.retry.delay(self._attempts), "Backoff.delay()"), _LONGEST), is_last
        except BaseException as error:  # noqa: BLE001 a wrong delay, or methods of the user's own that raise
            poisoned.error = error
            return Backoff().delay(self._attempts), self._attempts >= self._fn.max_attempts

    async def _stop(self, what: str) -> None:
        """It does not run again before it is resumed."""
        await self._database.arun(lambda: store.stop_shard(self._owned, storable(what, 2000)))
        telemetry.emit("projection.stopped", level=logging.ERROR, subscription=self._owned.name, error=what)
        raise LeaseLost

    async def _set_aside(self, poisoned: "_Poisoned", error: str) -> None:
        """Pass the event, and record it in the same transaction."""
        owned, row, page = self._owned, poisoned.rows[0], poisoned.page
        kind = "skipped" if self._fn.poison == "skip" else "parked"

        def flow() -> Flow[bool]:
            if not (yield from store.advance(owned, page.position, page.seq, self._lease)):
                return False
            yield from store.note_failures(owned, [(row, kind, error), *poisoned.behind])
            return True

        if not await self._database.arun(flow):
            raise LeaseLost
        if kind == "parked" and row.key is not None and self._parked is not None:
            self._parked.add(row.key)
        telemetry.emit(
            f"projection.{kind}", level=logging.ERROR, subscription=owned.name, position=row.position
        )
        self._passed()


def check_beside(shadow: str) -> Flow[None]:
    """A rebuild writes to its shadow only: other tables have these events already."""
    beside = yield from store.written_beside(shadow)
    if beside is not None:
        raise Broken(
            f"it wrote to {beside} while its tables are rebuilt. Name every table that it writes in tables=, "
            "and write their names without a schema, so that they mean the new ones meanwhile"
        )


def divided(events: Sequence[EventRow], parked: set[str]) -> tuple[list[EventRow], Failed]:
    """The events to apply, and those that wait behind another of their key."""
    rows = [row for row in events if row.key is None or row.key not in parked]
    behind: Failed = [(row, "behind", None) for row in events if row.key is not None and row.key in parked]
    return rows, behind


class _Poisoned(Exception):
    """A batch of events could not be applied. `unreadable`: this one of them could not be loaded."""

    def __init__(
        self,
        page: Page,
        rows: Sequence[EventRow],
        behind: Failed,
        error: BaseException,
        unreadable: EventRow | None = None,
    ) -> None:
        super().__init__()
        self.page = page
        self.rows = rows
        self.behind = behind
        self.error = error
        self.unreadable = unreadable
