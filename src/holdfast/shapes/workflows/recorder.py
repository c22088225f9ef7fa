"""The recorder: the waiting rows of all runs of a worker are written in one statement.

A batch is what arrived while the last one was written, as in the settler. Runs take turns in it. An entry stays here
until the database has taken or refused it, through an outage or a bad neighbour. A row that the database refuses affects
its own entry only, whose owner gets the error.
"""

import asyncio
import contextlib
import logging
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from ... import failpoints, telemetry
from ...db.database import Database
from ...db.faults import BadRow, Contended, LockTimeout
from ...errors import DatabaseUnavailable
from ...model.job import Owned
from ...model.state import BUSY, LOST, SUSPENDED
from ...store.statement import Statement
from . import store
from .faults import Evicted
from .journal import History, Record, RecordRefused, Stored, Wait
from .lanes import MOST_ROWS, Asked, Lane, Part
from .working import LONG, FailedAttempt, ReportedProgress, StepProgress, log_failed, say

T = TypeVar("T")
TURNS = 4  # of the loop, from the record of a step to that of the next one
BUSY_PAUSE = 0.05  # seconds until a locked row is tried again
BEAT = 0.1  # seconds between two reads for runs that rest
SLOW = 1.0  # and for those that are running


class Watcher(Protocol):
    def heard(self, seen: store.Seen) -> None:
        """The news of the latest read for its run."""

    def at_work(self, before: float) -> StepProgress:
        """The progress of its steps."""
        ...


class Recorder:
    """Of one event loop and database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._session = database.session("record", keep_plans=True)
        self._looking = database.session("look")
        self._records: Lane[store.Entry] = Lane()
        self._decisions: Lane[tuple[Wait, Sequence[Record]]] = Lane()
        self._suspends: Lane[Sequence[Wait]] = Lane()
        self._part = Part()
        self._failed: deque[FailedAttempt] = deque(maxlen=MOST_ROWS)
        self._histories: dict[str, list[asyncio.Future[History]]] = {}
        self._wake = asyncio.Event()
        self._look = asyncio.Event()
        self._watched: weakref.WeakValueDictionary[str, Watcher] = weakref.WeakValueDictionary()
        self._resting: set[str] = set()  # of them, those that only wait
        self._looked_at = 0.0
        self._told = ReportedProgress()
        self.drift = 0.0  # of the database's clock against ours
        self._tasks: list[asyncio.Task[None]] = []
        self.users = 0

    def start(self) -> None:
        if not self._tasks:
            self._tasks = [
                self._loop.create_task(self._forever(self._write_all), name="holdfast record"),
                self._loop.create_task(self._forever(self._look_all), name="holdfast look"),
            ]

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._session.close()
        await self._looking.close()

    # Called by runs ------------------------------------------------------------------------------------------------------

    def record(self, grant: Owned, rows: Sequence[Record], shown: str | None) -> "asyncio.Future[datetime]":
        size = 0 if shown is None else len(shown)
        for row in rows:
            size += len(row.key) + len(row.result or "") + len(row.error or "")
        return self._ask(self._records, grant, store.Entry(grant, rows, shown), size, len(rows) or 1)

    async def decide(self, grant: Owned, wait: Wait, rows: Sequence[Record]) -> Stored | None:
        found: Stored | None = await self._ask(self._decisions, grant, (wait, rows))
        return found

    async def suspend(self, grant: Owned, waits: Sequence[Wait]) -> bool:
        return bool(await self._ask(self._suspends, grant, waits))

    async def history(self, run: str) -> History:
        future: asyncio.Future[History] = self._loop.create_future()
        self._histories.setdefault(run, []).append(future)
        self._wake.set()
        self.start()
        return await future

    def failed(self, attempt: FailedAttempt) -> None:
        """It is written before any later entry of its run."""
        self._failed.append(attempt)
        self._wake.set()

    def _ask(
        self, lane: Lane[T], grant: Owned, what: T, size: int = 0, rows: int = 1
    ) -> "asyncio.Future[Any]":
        """Queues a write; the future gets its result."""
        if not self._tasks:
            self.start()
        done = self._loop.create_future()
        lane.add(Asked(grant, what, done, size, rows))
        self._wake.set()
        return done

    def watch(self, run: str, watcher: Watcher) -> None:
        """Report events for this run, as long as the watcher lives."""
        self._watched[run] = watcher
        self.start()

    @contextlib.contextmanager
    def closely(self, run: str) -> Iterator[None]:
        """It rests: read often."""
        self._resting.add(run)
        self._look.set()
        try:
            yield
        finally:
            self._resting.discard(run)

    def time(self) -> float:
        """The database's clock, by our estimate."""
        return time.time() + self._database.clock.offset + self.drift

    def _heard_time(self, at: datetime, asked_at: float) -> None:
        self.drift = at.timestamp() - (asked_at + time.time()) / 2 - self._database.clock.offset

    def look(self) -> None:
        """An event may have come: read now."""
        self._look.set()

    async def run(self, statement: Callable[[], Statement[T]]) -> T:
        """A statement of one run alone; an outage is waited out."""
        while True:
            try:
                return await self._database.arun(statement)
            except (DatabaseUnavailable, Contended, LockTimeout):
                await asyncio.sleep(BUSY_PAUSE * 4)

    # The loops --------------------------------------------------------------------------------------------------

    async def _forever(self, once: Callable[[], Awaitable[None]]) -> None:
        pause = 0.1
        while True:
            try:
                await once()
                pause = 0.1
            except DatabaseUnavailable as error:
                telemetry.emit("record.failed", level=logging.WARNING, error=str(error), next_try_in=pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
            except Exception as error:  # noqa: BLE001 this loop outlives every error
                text = f"{type(error).__name__}: {error}"
                telemetry.emit("record.failed", level=logging.ERROR, error=text, next_try_in=pause)
                telemetry.log.debug("record failed", exc_info=error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)

    async def _write_all(self) -> None:
        while self._failed or self._histories or self._decisions or self._suspends or self._records:
            if self._failed:
                await self._log_failed()
            if self._histories:
                await self._read_histories()
            if self._records:
                await self._others_come()
                await self._in_batches(self._records, self._write_records)
            if self._decisions:
                await self._in_batches(self._decisions, self._write_decisions)
            if self._suspends:
                await self._in_batches(self._suspends, self._write_suspends)
        await self._wake.wait()
        self._wake.clear()

    async def _log_failed(self) -> None:
        batch = list(self._failed)
        self._failed.clear()
        try:
            await self._session.run(log_failed(batch))
        except DatabaseUnavailable:
            self._failed.extendleft(reversed(batch))
            raise

    async def _others_come(self) -> None:
        """If few have come, the loop turns a few times, so that those that the last statement released come too: otherwise
        runs that were started together stay a separate batch."""
        for _ in range(TURNS):
            if len(self._records) * 2 >= len(self._watched):
                return
            await asyncio.sleep(0)

    async def _in_batches(
        self, lane: Lane[T], write: Callable[[str, list[Asked[T]]], Awaitable[None]]
    ) -> None:
        batch = lane.take(self._part.of(len(self._watched)))
        by_queue: dict[str, list[Asked[T]]] = {}
        for asked in batch:
            by_queue.setdefault(asked.grant.queue, []).append(asked)
        try:
            for queue, part in by_queue.items():
                await self._in_parts(queue, part, write)
        except BaseException:
            for asked in batch:  # kept: its caller keeps waiting
                if not asked.done.done():
                    lane.add(asked)
            raise

    async def _in_parts(
        self, queue: str, part: list[Asked[T]], write: Callable[[str, list[Asked[T]]], Awaitable[None]]
    ) -> None:
        """Halved until the refused row is alone."""
        part = [asked for asked in part if not asked.done.done()]
        if not part:
            return
        try:
            await write(queue, part)
        except BadRow as error:
            if len(part) == 1:
                part[0].fail(RecordRefused(str(error)))
                return
            middle = len(part) // 2
            await self._in_parts(queue, part[:middle], write)
            await self._in_parts(queue, part[middle:], write)
        except LockTimeout:
            for asked in part:
                self._later(self._lane_of(write), asked)

    def _lane_of(self, write: object) -> Lane[Any]:
        other = self._decisions if write == self._write_decisions else self._suspends
        return self._records if write == self._write_records else other

    def _later(self, lane: Lane[T], asked: Asked[T]) -> None:
        """Its row is locked: once more in a moment."""

        def again() -> None:
            lane.add(asked)
            self._wake.set()

        self._loop.call_later(BUSY_PAUSE, again)

    async def _write_records(self, queue: str, batch: list[Asked[store.Entry]]) -> None:
        said: dict[str, int] = {}
        entries = [asked.what for asked in batch]
        for n, entry in enumerate(entries):  # of several heartbeats of a run, the last counts
            if entry.shown is not None:
                if (before := said.get(entry.grant.id_text)) is not None:
                    entries[before] = entries[before]._replace(shown=None)
                said[entry.grant.id_text] = n
        failpoints.point("record.before")
        asked_at = time.time()
        written = await self._session.run(store.record(queue, entries))
        failpoints.point("record.done")
        self._heard_time(written.at, asked_at)
        missing, at = set(written.missing), written.at
        for n, asked in enumerate(batch):
            if n not in missing:
                asked.end(at)
        if missing:
            await self._check(queue, [batch[n] for n in sorted(missing)])

    async def _check(self, queue: str, missing: list[Asked[store.Entry]]) -> None:
        """Why entries were not written: done before, busy, or no longer ours."""
        rows = [(asked.grant, row) for asked in missing for row in asked.what.rows]
        checked = await self._session.run(store.check(queue, rows)) if rows else []
        found = iter(checked)
        for asked in missing:
            states = [next(found) for _ in asked.what.rows]
            if any(state.state == LOST for state in states):
                asked.fail(Evicted(f"run {asked.grant.id_text} is no longer ours"))
            elif states and all(state.state == "recorded" for state in states) and asked.what.shown is None:
                asked.end(max(state.at for state in states if state.at is not None))
            elif states and all(state.state == "recorded" for state in states):
                # All but the progress of its code, which is not worth another try of the rows.
                self._later(
                    self._records,
                    Asked(asked.grant, store.Entry(asked.grant, (), asked.what.shown), asked.done),
                )
            elif not states:
                await self._say_again(queue, asked)
            else:
                self._later(self._records, asked)

    async def _say_again(self, queue: str, asked: Asked[store.Entry]) -> None:
        """No rows, and the progress was not written: busy, or lost?"""
        (state,) = await self._session.run(
            store.check(queue, [(asked.grant, Record("?", "decision", "done"))])
        )
        if state.state == LOST:
            asked.fail(Evicted(f"run {asked.grant.id_text} is no longer ours"))
        else:
            self._later(self._records, asked)

    async def _write_decisions(self, queue: str, batch: list[Asked[tuple[Wait, Sequence[Record]]]]) -> None:
        failpoints.point("decide.before")
        statement = store.decide(queue, [(asked.grant, *asked.what) for asked in batch])
        found = await self._session.run(statement)
        failpoints.point("decide.done")
        for asked, decision in zip(batch, found, strict=True):
            if decision.answer == BUSY:
                self._later(self._decisions, asked)
            elif decision.answer == LOST:
                asked.fail(Evicted(f"run {asked.grant.id_text} is no longer ours"))
            else:
                asked.end(decision.stored)

    async def _write_suspends(self, queue: str, batch: list[Asked[Sequence[Wait]]]) -> None:
        failpoints.point("suspend.before")
        statement = store.suspend(queue, [(asked.grant, asked.what) for asked in batch])
        found = await self._session.run(statement)
        failpoints.point("suspend.done")
        for asked, answer in zip(batch, found, strict=True):
            if answer == BUSY:
                self._later(self._suspends, asked)
            elif answer == LOST:
                asked.fail(Evicted(f"run {asked.grant.id_text} is no longer ours"))
            else:
                asked.end(answer == SUSPENDED)

    async def _read_histories(self) -> None:
        wanted = list(self._histories)[:MOST_ROWS]
        found = await self._session.run(store.histories(wanted))
        for run in wanted:
            history, ended = found.get(run, (None, False))
            if history is not None and ended:
                await self._session.run(store.reopen(history.run_id))
                again = await self._session.run(store.histories([run]))
                history = again[run][0]
            for future in self._histories.pop(run, ()):
                if future.done():
                    continue
                if history is None:
                    future.set_exception(KeyError(run))
                else:
                    future.set_result(history)

    async def _look_all(self) -> None:
        """One statement for all that rest, or are running."""
        self._look.clear()
        now = time.monotonic()
        everybody = now - self._looked_at >= SLOW
        if everybody:
            self._looked_at = now
        if runs := list(self._watched if everybody else self._resting):
            for run, seen in (await self._looking.run(store.changed(runs))).items():
                if (watcher := self._watched.get(run)) is not None:
                    watcher.heard(seen)
        if everybody:
            await self._say_at_work()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEAT if self._resting else SLOW):
                await self._look.wait()

    async def _say_at_work(self) -> None:
        """For people who look at runs; nothing waits for it."""
        before = self.time() - LONG
        if news := self._told.news([watcher.at_work(before) for watcher in list(self._watched.values())]):
            await self._looking.run(say(news))
            self._told.keep(news)


_RECORDERS: (
    "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakKeyDictionary[Database, Recorder]]"
)
_RECORDERS = weakref.WeakKeyDictionary()


def recorder_of(database: Database) -> Recorder:
    """That of the running event loop."""
    found = _RECORDERS.setdefault(asyncio.get_running_loop(), weakref.WeakKeyDictionary())
    if database not in found:
        found[database] = Recorder(database)
    return found[database]


def forget(database: Database, recorder: Recorder) -> None:
    """It is closed: the next caller gets another."""
    found = _RECORDERS.get(asyncio.get_running_loop())
    if found is not None and found.get(database) is recorder:
        del found[database]
