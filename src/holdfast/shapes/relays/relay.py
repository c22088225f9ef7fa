"""The loop of a relay: read ahead, send by lanes, move the cursor behind confirmed messages.

The loop owns everything in memory. Beside it run one read, a few batches in flight, one move of the cursor and one try of
events that wait aside. Memory is bounded: events that the destination cannot take are not read, and stay in the log.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from ... import failpoints, telemetry
from ...errors import LeaseLost
from ...follow import BareRow, Cursor, LogPage, LogRow, Note
from ...transport import Confirmed, Outcome, RetryLater
from .aside import Aside, lane_of, said
from .breaker import Breaker
from .lanes import Item, Lane, Lanes, Name
from .link import Link
from .message import Maker, Unsendable
from .spec import Spec

BYTES_AHEAD = 16 * 2**20  # of messages in memory
PAGE_BYTES = 4 * 2**20
PAGE = 1000
WAVES = 4  # batches in flight
MOVE_EACH = 500  # messages after which the cursor moves, however soon
FEW = 3  # tries of a key after which it is set aside when memory is full

T = TypeVar("T")
Wave = tuple[list[Item], Sequence[Outcome], float]  # and when it was sent


class Relay:
    def __init__(self, spec: Spec, cursor: Cursor) -> None:
        self._spec = spec
        self._cursor = cursor
        able = spec.transport.capabilities
        self._able = able
        self._timeout = min(10.0, 0.4 * cursor.lease)
        self._margin = 0.1 * self._timeout  # a message needs some time to arrive
        self._link = Link(spec.transport, self._timeout, self._make_certain, self._holds)
        self._maker = Maker(spec.route, cursor, able.max_bytes, able.key_bytes, spec.sent)
        self._waves: set[asyncio.Task[Wave]] = set()
        self._reading: asyncio.Task[LogPage | None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._breaker = Breaker(cursor, spec.retry)
        self._begin()

    def _begin(self) -> None:
        cursor = self._cursor
        self._lanes = Lanes(cursor.position, cursor.seq, prefix=self._able.in_flight == "prefix")
        self._read_to = (cursor.position, cursor.seq)
        self._notes: list[Note] = []
        self._bad: tuple[LogRow, str] | None = None  # where it is to stop, and why
        self._moved_at = time.monotonic()
        self._aside = Aside(self._spec, cursor, self._link, self._maker, self._breaker)

    @property
    def stuck(self) -> bool:
        lanes = self._lanes
        held_up = not lanes.is_empty and not lanes.has_ready() and lanes.in_flight == 0
        return self._breaker.is_open or (held_up and lanes.next_retry() is not None)

    async def run(self) -> None:
        self._begin()
        await self._aside.load()
        left = self._task(self._cursor.left.wait(), "left")
        try:
            while not await self._round(left):
                pass
            if self._bad is not None:
                await self._stop(*self._bad)
        finally:
            tasks = [left, *self._waves, *filter(None, (self._reading, self._moving)), *self._aside.tasks()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._waves.clear()
            self._reading = self._moving = None
            await self._link.close()

    def _task(self, work: Coroutine[Any, Any, T], what: str) -> "asyncio.Task[T]":
        return asyncio.get_running_loop().create_task(work, name=f"holdfast relay {self._cursor.name} {what}")

    async def _round(self, left: "asyncio.Task[Any]") -> bool:
        """True: it should end, and every sent message has its outcome."""
        leaving = left.done()
        if not leaving:
            self._start_reading()
            self._spill()
            self._send()
            self._aside.go_on(away=self._breaker.is_open and not self._may_try_aside)
        self._start_moving(leaving or self._bad is not None)
        busy = {*self._waves, *filter(None, (self._reading, self._moving)), *self._aside.tasks()}
        at_bad = self._bad is not None and self._lanes.is_done_before(self._bad[0].position)
        if (leaving or at_bad) and not self._waves and self._moving is None:
            return True
        await asyncio.wait(
            busy if leaving else {*busy, left}, timeout=self._pause(), return_when=asyncio.FIRST_COMPLETED
        )
        await self._collect()
        return False

    # Reading ---------------------------------------------------------------------------------------------------------

    def _start_reading(self) -> None:
        lanes = self._lanes
        full = self._has_enough or lanes.bytes >= BYTES_AHEAD or lanes.ahead() >= 2 * self._spec.most_ahead
        if self._reading is None and self._bad is None and not full:
            room = 2 * self._spec.window - lanes.unsent
            wanted = self._cursor.read(*self._read_to, min(room, PAGE), PAGE_BYTES)
            self._reading = self._task(wanted, "reads")

    @property
    def _has_enough(self) -> bool:
        """As much as two windows may be in memory. There must be room for half a window: a read after every few confirmed
        messages would cost more than sending them."""
        return self._lanes.unsent > 2 * self._spec.window - max(1, self._spec.window // 2)

    @property
    def _is_full(self) -> bool:
        lanes = self._lanes
        return self._has_enough or lanes.bytes >= BYTES_AHEAD or lanes.ahead() >= self._spec.most_ahead

    def _enter(self, page: LogPage) -> None:
        for row in page.events:
            item = Item(row.position, row.seq, row)
            if row.key is not None and self._aside.holds(row.key):
                self._pass_noted(item, Note(BareRow.of(row), "behind"))
                continue
            try:
                item.message = self._maker.message(row)
            except Unsendable as error:
                note = self._refuse(row, said(error.why, self._spec))
                if note is None:
                    return
                self._pass_noted(item, note)
                continue
            self._lanes.add(item, self._lane_of(item))
        self._lanes.add_done(Item(page.position, page.seq))
        self._read_to = (page.position, page.seq)

    def _pass_noted(self, item: Item, note: Note) -> None:
        self._aside.noted(note)
        item.note = note
        self._lanes.add_done(item)

    def _lane_of(self, item: Item) -> Name:
        assert item.message is not None
        if self._able.order == "destination":
            return ("to", item.message.destination)
        return ("at", item.position) if item.message.key is None else ("key", item.message.key)

    # Sending ---------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        now, lanes, window = time.monotonic(), self._lanes, self._spec.window
        other = self._breaker.is_open and self._has_untried
        if self._breaker.is_open and (self._waves or now < self._breaker.due(other=other)):
            return
        most = self._most_waves
        each = max(1, window if most == 1 else window // WAVES)
        while len(self._waves) < most and lanes.in_flight < window:
            size = 1 if self._breaker.is_open else min(each, self._able.max_batch, window - lanes.in_flight)
            items = lanes.take(size, now, self._below, untried=other)
            if not items:
                return
            self._waves.add(self._task(self._wave(items), "sends"))
            if self._breaker.is_open:
                return

    @property
    def _below(self) -> int | None:
        """Nothing is sent from here on."""
        return None if self._bad is None else self._bad[0].position

    @property
    def _has_untried(self) -> bool:
        return self._lanes.has_untried(self._below)

    @property
    def _may_try_aside(self) -> bool:
        """All that could be tried of an unreachable destination waits aside."""
        lanes = self._lanes
        has_other = self._waves or lanes.has_ready() or lanes.next_retry() is not None
        return not has_other and time.monotonic() >= self._breaker.due()

    @property
    def _most_waves(self) -> int:
        return 1 if self._able.in_flight == "prefix" else WAVES

    async def _wave(self, items: list[Item]) -> Wave:
        messages = [item.message for item in items if item.message is not None]
        sent_at = time.monotonic()
        return items, await self._link.send(messages), sent_at

    async def _make_certain(self) -> None:
        """No other worker has this relay, now and while a message may be in flight. After a pause of this process the
        clock shows it: then the database is asked."""
        if self._cursor.certain_for() <= self._timeout:
            await self._cursor.renew()
            if self._timeout >= self._cursor.certain_for():  # the renewal itself took that long
                raise LeaseLost

    def _holds(self) -> bool:
        """The lease lasts until what is written now has arrived."""
        return self._cursor.certain_for() > self._margin

    def _pause(self) -> float | None:
        """Seconds until there is something to do that no task reports."""
        now, due = time.monotonic(), []
        retry, aside = self._lanes.next_retry(), self._aside.next_look()
        if self._breaker.is_open:
            trial = 0.0 if self._lanes.has_ready() else aside if retry is None else retry
            if not self._waves and trial is not None:  # otherwise the trial wakes it
                due.append(max(self._breaker.due(other=self._has_untried), trial))
        elif (
            retry is not None
            and len(self._waves) < self._most_waves
            and self._lanes.in_flight < self._spec.window
        ):
            due.append(retry)  # otherwise a returning batch releases it
        if self._lanes.passed[0] > self._cursor.position and self._moving is None:
            due.append(self._moved_at + self._spec.every)
        if aside is not None and not self._breaker.is_open:
            due.append(aside)
        return max(0.001, min(due) - now) if due else None

    # Outcomes --------------------------------------------------------------------------------------------------

    async def _collect(self) -> None:
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            page = reading.result()
            if page is not None:
                self._enter(page)
        for wave in [wave for wave in self._waves if wave.done()]:
            self._waves.discard(wave)
            await self._settle(*wave.result())
        if self._moving is not None and self._moving.done():
            moving, self._moving = self._moving, None
            moving.result()
        self._aside.collect()

    async def _settle(self, items: list[Item], outcomes: Sequence[Outcome], sent_at: float) -> None:
        failpoints.point("relay.confirmed")
        failed: dict[int, tuple[Lane, RetryLater]] = {}
        again: list[Item] = []
        sent, refused = 0, []
        for item, found in zip(items, outcomes, strict=True):
            assert item.lane is not None
            row, outcome = item.row, found
            assert row is not None
            lane = lane_of(row)
            if id(item.lane) in failed:
                again.append(item)
                continue
            if isinstance(outcome, RetryLater):
                outcome = self._breaker.judged(lane, outcome)
            if isinstance(outcome, Confirmed):
                self._lanes.finish(item)
                self._breaker.confirmed(lane)
                sent += 1
            elif isinstance(outcome, RetryLater) and not self._gives_up(item.lane, outcome):
                failed[id(item.lane)] = (item.lane, outcome)
                again.append(item)
            elif (note := self._refuse(row, said(outcome, self._spec))) is not None:
                self._lanes.finish(item, note)
                self._breaker.forget(lane)
                self._aside.noted(note)
                refused.append(note)
            else:
                why = outcome.reason if isinstance(outcome, RetryLater) else outcome.detail
                failed[id(item.lane)] = (item.lane, RetryLater(why, after=0.0, scope="key"))
                again.append(item)
        self._lanes.again(again)
        for note in refused:
            if note.kind == "parked":
                self._set_aside_behind(note.row)
        await self._wait_for(list(failed.values()), sent_at)
        if sent and telemetry.audible(logging.DEBUG):
            telemetry.emit("relay.sent", level=logging.DEBUG, subscription=self._cursor.name, events=sent)

    async def _wait_for(self, failed: list[tuple[Lane, RetryLater]], sent_at: float) -> None:
        now = time.monotonic()
        away = {lane.name: outcome for lane, outcome in failed if outcome.scope == "destination"}
        if away:
            await self._breaker.failed(next(iter(away.values())), now, sent_at, away)
        else:  # the destination exists, whatever it replied about the key
            await self._breaker.worked()
        for lane, outcome in failed:
            if outcome.scope == "destination":
                lane.lost, lane.error = lane.lost + 1, outcome.reason
            elif lane.items:
                delay = self._spec.retry.delay(lane.attempts + 1) if outcome.after is None else outcome.after
                self._lanes.wait(lane, now + min(delay, 300.0), self._breaker.clock(), outcome.reason)

    def _gives_up(self, lane: Lane, outcome: RetryLater) -> bool:
        """Its first message has failed for as long as it may. While the destination is unreachable none is given up."""
        since, longest = lane.failing_since, self._spec.retry_for
        if longest is None or since is None or outcome.scope != "key":
            return False
        return self._breaker.clock() - since >= longest

    def _refuse(self, row: LogRow, error: str) -> Note | None:
        """How an unsent message is recorded; None: the relay stops before it."""
        policy = "skip" if row.data is None else self._spec.refused
        if policy == "stop":
            what = f"event {row.position} ({row.type}, key {row.key!r}) was refused: {error}"
            if self._bad is None or row.position < self._bad[0].position:
                self._bad = (row, what)
            return None
        telemetry.emit(
            "relay.refused",
            level=logging.ERROR,
            subscription=self._cursor.name,
            position=row.position,
            error=error,
        )
        return Note(BareRow.of(row), "skipped" if policy == "skip" or row.key is None else "parked", error)

    def _set_aside_behind(self, row: LogRow) -> None:
        """Events of a key whose event waits aside wait behind it."""
        if row.key is not None and (behind := self._lanes.waits_behind(row.key)):
            notes = [Note(BareRow.of(item.row), "behind") for item in behind if item.row is not None]
            self._lanes.drop(behind, notes)
            for note in notes:
                self._aside.noted(note)

    def _spill(self) -> None:
        """A lane that fails for long, or keeps others from being read, waits aside. It is tried again from there."""
        if self._spec.refused == "stop":
            return
        first = self._lanes.first()
        if first is not None and first.sent == 0 and first.lost >= FEW and self._is_alone:
            self._spill_lane(first)
        if self._lanes.next_retry() is None:
            return
        now, full = self._breaker.clock(), self._is_full
        for lane in list(self._lanes.failing()):
            held_for = 0.0 if lane.failing_since is None else now - lane.failing_since
            if lane.sent == 0 and (held_for >= self._spec.spill_after or (full and lane.attempts >= FEW)):
                self._spill_lane(lane)

    @property
    def _is_alone(self) -> bool:
        """Everything else is sent: more messages behind it were confirmed than can have been in flight together with it."""
        return self._lanes.confirmed > self._spec.window and self._is_full

    def _spill_lane(self, lane: Lane) -> None:
        rows = [BareRow.of(item.row) for item in lane.items if item.row is not None]
        telemetry.emit(
            "relay.spilled",
            level=logging.WARNING,
            subscription=self._cursor.name,
            position=rows[0].position,
            events=len(rows),
            error=lane.error,
        )
        notes: list[Note] = []
        for row in rows:
            behind = row.key is not None and self._aside.holds(row.key)
            note = Note(row, "behind") if behind else Note(row, "spilled", lane.error)
            self._aside.noted(note)
            notes.append(note)
        self._lanes.drop(list(lane.items), notes)
        for row in rows:
            self._set_aside_behind(row)

    async def _stop(self, row: LogRow, why: str) -> None:
        telemetry.emit(
            "relay.stopped",
            level=logging.ERROR,
            subscription=self._cursor.name,
            position=row.position,
            error=why,
        )
        await self._cursor.stop(why)

    # The cursor ------------------------------------------------------------------------------------------------------

    def _start_moving(self, at_once: bool) -> None:
        """Regularly while messages flow, and at once when none does."""
        self._notes += self._lanes.pass_done()
        behind = self._lanes.passed[0] - self._cursor.position
        if self._moving is not None or behind <= 0:
            return
        due = time.monotonic() - self._moved_at >= self._spec.every or behind >= MOVE_EACH
        if at_once or due or self._lanes.in_flight == 0:
            notes, self._notes = self._notes, []
            self._moving = self._task(self._move(*self._lanes.passed, notes), "moves")

    async def _move(self, position: int, seq: int, notes: list[Note]) -> None:
        failpoints.point("relay.before_cursor")
        await self._cursor.advance(position, seq, notes)
        failpoints.point("relay.moved")
        self._moved_at = time.monotonic()
        self._aside.stored(notes)
