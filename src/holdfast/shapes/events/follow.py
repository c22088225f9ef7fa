"""A running follower of the log: implements what holdfast.follow promises to shapes that read the log themselves."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from ... import failpoints, telemetry
from ...db.database import Database
from ...errors import DatabaseError, EventsGone, LeaseLost
from ...follow import Follower, LogPage, LogRow, Note
from ...model.text import storable
from ...store.statement import Flow
from . import store
from .event import Event, EventConverter, EventRow, cloudevent_text
from .log import Log
from .store import Owned

_CONVERTER = EventConverter(Any)
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # it also counts while the machine sleeps

_LAST_WORD = 1.0  # seconds


def now() -> float:
    return time.clock_gettime(_CLOCK)


class FollowedLog:
    """The cursor of one follower, run as a Runner is. `until`: the end of its lease by our own clock."""

    def __init__(
        self, database: Database, log: Log, follower: Follower, owned: Owned, lease: float, until: float
    ) -> None:
        self._database = database
        self._log = log
        self.owned = owned
        self.lease = lease
        self._until = until
        self.left = asyncio.Event()
        self.moved = 0
        self.failed = False
        self._following = follower.make(self)

    # For its service ---------------------------------------------------------------------------------------------

    def renewed(self, until: float) -> None:
        self._until = max(self._until, until)

    def is_behind(self, last: int) -> bool:
        until = self.owned.until
        return self.owned.position < (last if until is None else min(last, until)) and not self.stuck

    @property
    def stuck(self) -> bool:
        return self.failed or self._following.stuck

    async def leave(self) -> None:
        self.left.set()
        await self._log.nudge()

    async def rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.left.wait()

    async def run(self) -> None:
        try:
            await self._following.run()
            if self._is_over(self.owned.position):
                await self._database.arun(lambda: store.end_replay(self.owned))
                telemetry.emit(
                    "replay.done",
                    subscription=self.owned.of,
                    replay=self.owned.name,
                    position=self.owned.position,
                )
        except LeaseLost:
            await self._let_go()
        except asyncio.CancelledError:
            with contextlib.suppress(DatabaseError, TimeoutError):
                async with asyncio.timeout(_LAST_WORD):
                    await self._let_go()
            raise

    def _is_over(self, position: int) -> bool:
        """A replay is at its end."""
        return self.owned.until is not None and position >= self.owned.until

    async def _let_go(self) -> None:
        """It sends no more: nobody need wait for the end of its lease."""
        await self._database.arun(lambda: store.let_go(self.owned))

    # For its follower --------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.owned.name

    @property
    def era(self) -> int:
        return self.owned.era

    @property
    def position(self) -> int:
        return self.owned.position

    @property
    def seq(self) -> int:
        return self.owned.seq

    async def read(self, position: int, seq: int, most: int, most_bytes: int) -> LogPage | None:
        owned = self.owned
        most = most if owned.rate is None else max(1, min(most, int(owned.rate)))
        while not self.left.is_set() and not self._is_over(position):
            if self._log.last <= position:
                found = await self._log.beyond(replace(owned, position=position, seq=seq), self.left)
                if found is None or len(found.events) > most or owned.until is not None:
                    continue
                page = found
            else:
                page = await self._database.arun(
                    lambda: store.read_events(
                        position,
                        seq,
                        most,
                        patterns=owned.patterns,
                        most_bytes=most_bytes,
                        until=owned.until,
                    )
                )
            failpoints.point("relay.read")
            if page.position != position:
                return page
            await asyncio.sleep(0)
            self._log.last = min(self._log.last, page.last)
        return None

    async def advance(
        self,
        position: int,
        seq: int,
        notes: Sequence[Note],
        effect: Callable[[], Flow[Any]] | None = None,
    ) -> None:
        owned, began = self.owned, now()

        def flow() -> Flow[bool]:
            if not (yield from store.advance(owned, position, seq, self.lease)):
                return False
            if owned.until is not None:
                yield from store.forget_skipped(owned, position)
            if notes:
                yield from store.note_failures(owned, _failed(notes))
            if effect is not None:
                yield from effect()
            return True

        # A process may be stopped at any moment. In a transaction it would keep the row, and nobody else could take over.
        is_alone = owned.until is None and not notes and effect is None
        if not await self._database.arun(
            lambda: store.advance(owned, position, seq, self.lease) if is_alone else flow()
        ):
            raise LeaseLost
        self.renewed(began + self.lease)
        passed = position - owned.position
        self.moved += passed
        owned.position, owned.seq = position, seq
        self.failed = False
        if owned.rate is not None:
            await self.rest(passed / owned.rate)

    def certain_for(self) -> float:
        return self._until - now()

    async def renew(self) -> None:
        began = now()
        if not await self._database.arun(lambda: store.renew_position(self.owned, self.lease)):
            raise LeaseLost
        self.renewed(began + self.lease)

    async def waiting_keys(self) -> dict[str | None, bool]:
        return await self._database.arun(lambda: store.waiting_keys(self.owned.name))

    async def waiting(self, key: str | None, most: int, after: int) -> list[tuple[str, LogRow]]:
        def flow() -> Flow[list[tuple[str, LogRow]]]:
            found: list[tuple[str, LogRow]] = []
            for failure in (yield from store.waiting_failures(self.owned.name, key, most, after)):
                try:
                    found.append((failure.kind, (yield from store.failed_event(failure))))
                except EventsGone:
                    gone = (failure.position, failure.seq, failure.event_id, failure.type, 1, failure.key)
                    found.append(("gone", EventRow(*gone, failure.at, None, None)))
            return found

        return await self._database.arun(flow)

    async def settle_waiting(self, done: Sequence[int], notes: Sequence[Note]) -> None:
        owned = self.owned

        def flow() -> Flow[bool]:
            if not (yield from store.renew_position(owned, self.lease)):
                return False
            yield from store.forget_failures(owned.name, [*done, *(note.row.position for note in notes)])
            if notes:
                yield from store.note_failures(owned, _failed(notes))
            return True

        if not await self._database.arun(flow):
            raise LeaseLost

    async def stop(self, why: str) -> None:
        await self._database.arun(lambda: store.stop_shard(self.owned, storable(why, 2000)))
        raise LeaseLost

    async def say_trouble(self, what: str) -> None:
        await self._database.arun(lambda: store.note_trouble(self.owned, storable(what, 2000)))

    def event(self, row: LogRow) -> Event[Any]:
        return event_of(row, self.owned.era)

    def cloudevent(self, row: LogRow, event_id: str) -> str:
        return cloudevent_text(cast(EventRow, row), event_id)


def event_of(row: LogRow, era: int) -> Event[Any]:
    return _CONVERTER.event(cast(EventRow, row), era)


def cloudevent_of(row: LogRow) -> str:
    return cloudevent_text(cast(EventRow, row))


def _failed(notes: Sequence[Note]) -> list[tuple[EventRow, str, str | None]]:
    return [
        (cast(EventRow, note.row), note.kind, None if note.error is None else storable(note.error, 2000))
        for note in notes
    ]
