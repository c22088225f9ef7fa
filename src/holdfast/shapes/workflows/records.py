"""The writes of a run: rows that wait for the next record, events with them, and the progress of its code."""

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from ...db.faults import BadRow
from ...errors import ConfigurationError, DatabaseUnavailable
from ...model.text import storable
from .faults import Evicted, WorkflowFailed
from .handed_on import HandedOn
from .journal import Journal, NewChild, NewJobs, Record, RecordRefused, Stored, Wait
from .outgoing import NewEvent
from .replay import Replay, size_of

T = TypeVar("T")
MOST_BYTES = 16 * 1024 * 1024  # of a history: each claim reads it, and at its end it becomes one row
MOST_LATER = 4096  # characters of a result that may be written with the end of its run


class Records(ABC):
    def __init__(self, journal: Journal, replay: Replay, most: int, *, writes: bool) -> None:
        """`most` records that the history may have. `writes`: False if a history is only checked."""
        self.loop = asyncio.get_running_loop()
        self.journal = journal
        self.replay = replay
        self.stopped: BaseException | None = None  # what every call raises from now on
        self._most = most
        self._writes = writes
        self._pending: list[Record] = []
        self._outgoing: dict[str, tuple[Record, NewEvent]] = {}  # by their key, until they are written
        self._shown: str | None = None
        self._writing = 0  # records that are being written,
        self._writing_size = 0  # and their content
        self.behind = False  # a waiting entry must be durable before anything else begins
        self.flushing = False
        self._flushed: asyncio.Future[None] | None = None  # the end of one that other branches wait for
        self._soon: asyncio.Task[None] | None = None
        self.handed = HandedOn(replay)

    @abstractmethod
    def lost(self, error: BaseException) -> NoReturn:
        """The database could not be written, or the run has another owner."""
        raise NotImplementedError

    @abstractmethod
    def refused(self, error: RecordRefused) -> NoReturn:
        """The database refuses both the result and its failure, and would at another try."""
        raise NotImplementedError

    def later(self, row: Record) -> None:
        """To be written with the next record."""
        self._pending.append(row)

    def known(self) -> list[Stored]:
        """The records, and the markers of patches that wait for another record: at the end there is none."""
        at = self.journal.now()
        markers = [Stored(row, 0, at) for row in self._pending if row.kind == "patch"]
        return [*self.replay.rows(), *markers]

    def publish_later(self, row: Record, event: NewEvent) -> None:
        """The same, with the event that it stands for."""
        self._outgoing[row.key] = (row, event)
        self._pending.append(row)

    async def published(self, key: str) -> Stored:
        """Durable when it returns. If another branch is about to write it too, it is one event, by its id."""
        if self._outgoing.get(key, (None,))[0] in self._pending:
            await self.flush()
        elif (other := self._outgoing.get(key)) is not None:
            self._keep([other[0]], await self._written([other[0]]))
        found = self.replay.stored(key)
        assert found is not None
        return found

    def show(self, state: str) -> None:
        self._shown = state

    async def record(self, row: Record) -> Stored:
        """Durable when it returns."""
        while self.behind and self.flushing:
            await self._other_flush()
        if self.stopped is not None:
            raise self.stopped
        self._check_length(row)
        under_way = self._begin_flush()
        rows, shown = self._drain(), self._shown
        self._shown = None
        size = size_of(row)
        self._writing += 1
        self._writing_size += size
        try:
            try:
                at = await self._write([*rows, row], shown)
            except RecordRefused as refused:
                row = _refused(row, refused)
                at = await self._write([*rows, row], shown)
        except asyncio.CancelledError:
            self._put_back(rows)  # written or not: a second time changes nothing
            self._shown = self._shown or shown
            raise
        except RecordRefused as error:
            self.refused(error)
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees storage errors
            self.lost(error)
        finally:
            self._writing -= 1
            self._writing_size -= size
            self._end_flush(under_way)
        self._keep([*rows, row], at)
        return Stored(row, 0, at)

    def record_later(self, row: Record, at: datetime) -> Stored:
        """The code continues with it at once. It is durable before anything else begins, or it ends with the run: between
        two calls code only computes. If it takes long, the record is written meanwhile."""
        self._check_length(row)
        kept = Stored(row, 0, at)
        self._pending.append(row)
        self.replay.keep(kept)
        self.behind = True
        self.loop.call_soon(self._write_soon)
        return kept

    def _write_soon(self) -> None:
        if self.behind and self.stopped is None:
            self._soon = self.loop.create_task(self._quietly())

    async def _quietly(self) -> None:
        with contextlib.suppress(Exception, Evicted):  # the code learns it at its next call
            await self.flush()

    async def close(self) -> None:
        if self._soon is not None and not self._soon.done():
            self._soon.cancel()
            await asyncio.wait({self._soon})
        self._soon = None  # whose context knows the run

    async def flush(self) -> None:
        """Before a write that does not go through record(), and before the run is put away: records that decide the way of a
        replay must be written first, and neither events nor the value of set_state() wait for the end of a wait. Writes of
        others are waited for."""
        while self.flushing:
            await self._other_flush()
        if (
            self.behind
            or self._shown is not None
            or any(row.kind in ("patch", "event") for row in self._pending)
        ):
            under_way = self._begin_flush()
            try:
                rows = self._drain()
                self._keep(rows, await self._written(rows))
            finally:
                self._end_flush(under_way)
        if self.stopped is not None:
            raise self.stopped

    def _begin_flush(self) -> bool:
        """Entries that must be durable before anything else begins are being written: other branches wait for them."""
        if self.behind:
            self.flushing = True
            return True
        return False

    def _end_flush(self, under_way: bool) -> None:
        if under_way:
            self.flushing = False
            if self._flushed is not None:
                self._flushed.set_result(None)
                self._flushed = None

    async def _other_flush(self) -> None:
        if self._flushed is None:
            self._flushed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._flushed)

    async def finish(self, *, completed: bool = False) -> None:
        """Events, with the rows before them, and the last value of set_state(). The rest of a run that completed is written
        with its end. Rows that wait for another record are dropped."""
        while self.flushing:
            await self._other_flush()
        if not self._writes or not (self.behind or self._outgoing or self._shown is not None):
            return
        rows = self._drain() if self.behind or self._outgoing else []
        if completed and not self._outgoing and self._shown is None and _size(rows) <= 8192:
            try:
                self.journal.record_at_end(rows)
            except Evicted as error:
                self.lost(error)
            self._keep(rows, self.journal.now())
        else:
            self._keep(rows, await self._written(rows))

    async def _written(self, rows: list[Record]) -> datetime:
        shown, self._shown = self._shown, None
        try:
            try:
                return await self._write(rows, shown)
            except RecordRefused as refused:
                if not any(row.ended for row in rows):
                    raise
                # The code continued with the refused value: from its failure on it takes another way.
                await self._write([_refused(row, refused) if row.ended else row for row in rows], shown)
                raise Evicted from refused
        except asyncio.CancelledError:
            self._put_back(rows)  # written or not: a second time changes nothing
            self._shown = self._shown or shown
            raise
        except RecordRefused as error:
            self.refused(error)
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees storage errors
            self.lost(error)

    def _write(self, rows: Sequence[Record], shown: str | None) -> Awaitable[datetime]:
        events: Sequence[NewEvent] = ()
        if self._outgoing:
            events = [self._outgoing[row.key][1] for row in rows if row.key in self._outgoing]
        return self.journal.record(rows, state=shown, events=events)

    async def decide(self, wait: Wait) -> Stored | None:
        return await self._to_its_end(self._decided(wait))

    async def _decided(self, wait: Wait) -> Stored | None:
        if (row := self.handed.next(wait)) is not None:
            return await self.record(row)
        found = await self._taken(lambda rows: self.journal.decide(wait, rows))
        if found is None and wait.kind == "child" and self.handed.may_have(wait):
            end = await self._child_end(wait)
            return None if end is None else await self.record(end)
        return found

    async def _child_end(self, wait: Wait) -> Record | None:
        try:
            end = await self.journal.child_end(wait.name)
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees storage errors
            self.lost(error)
        if end is None:
            return None
        outcome, result, error_text = end
        return Record(wait.key, "child", outcome, wait.ordinal, result, error_text, began=wait.began)

    async def receive(self, wait: Wait) -> Stored:
        """All waiting signals of a name."""
        return await self._to_its_end(self._received(wait))

    async def _received(self, wait: Wait) -> Stored:
        if (given := self.handed.every(wait)) is not None:
            return await self.record(given)
        row = await self._taken(lambda rows: self.journal.receive(wait, rows))
        assert row is not None
        return row

    async def _to_its_end(self, writing: Coroutine[Any, Any, T]) -> T:
        """A branch that lost waits for what it is taking, so that it is known. Not if the run leaves memory."""
        task = self.loop.create_task(writing)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self.stopped is None:
                await asyncio.wait({task})
            raise
        finally:
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # asyncio would report it as unhandled

    async def _taken(self, ask: Callable[[Sequence[Record]], Awaitable[Stored | None]]) -> Stored | None:
        """Messages from outside, with the rows that wait for another record."""
        if self.stopped is not None:
            raise self.stopped
        await self.flush()
        while any(row.kind == "event" for row in self._pending):  # of another branch, published meanwhile
            await self.flush()
        rows = self._drain()
        try:
            row = await ask(rows)
        except asyncio.CancelledError:
            self._put_back(rows)
            raise
        except RecordRefused as error:
            self.refused(error)
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees storage errors
            self.lost(error)
        if row is None:
            self._put_back(rows)
            return None
        for other in rows:
            self.replay.keep(Stored(other, row.generation, other.ended or row.at))
        self.replay.keep(row)
        return row

    async def transact(self, run: Callable[[Any], Awaitable[str]], row: Callable[[str], Record]) -> Stored:
        """An error of `run`, or of its commit, is the failure of the step. An outage does not reach the code."""
        failed: list[BaseException] = []

        async def body(tx: Any) -> str:
            try:
                return await run(tx)
            except BaseException as error:
                failed.append(error)
                raise

        return await self._transacted(self.journal.transact(body, row), failed)

    async def transact_blocking(self, run: Callable[[Any], str], row: Callable[[str], Record]) -> Stored:
        """The same for a plain function."""
        failed: list[BaseException] = []

        def body(tx: Any) -> str:
            try:
                return run(tx)
            except BaseException as error:
                failed.append(error)
                raise

        return await self._transacted(self.journal.transact_blocking(body, row), failed)

    async def _transacted(self, writing: Awaitable[Stored], failed: list[BaseException]) -> Stored:
        try:
            kept = await writing
        except (DatabaseUnavailable, Evicted) as error:
            if failed and error is failed[0]:
                raise
            self.lost(error)
        except BadRow as error:  # of its commit: a deferred constraint, or a result that cannot be stored
            raise error.__cause__ or error from None
        self.replay.keep(kept)
        return kept

    async def start(self, child: NewChild, row: Record) -> Stored:
        self._check_length(row)
        try:
            kept = await self.journal.start(child, row)
        except ConfigurationError:
            raise
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees storage errors
            self.lost(error)
        self.replay.keep(kept)
        return kept

    async def call(self, jobs: NewJobs, row: Record) -> None:
        self._check_length(row)
        try:
            await self.journal.call(jobs, row)
        except ConfigurationError:
            raise
        except (Exception, Evicted) as error:  # noqa: BLE001 the code never sees storage errors
            self.lost(error)
        self._keep([row], self.journal.now())

    def _drain(self) -> list[Record]:
        rows, self._pending = self._pending, []
        self.behind = False
        return rows

    def _put_back(self, rows: list[Record]) -> None:
        self._pending[:0] = rows
        self.behind = self.behind or any(row.ended or row.kind == "patch" for row in rows)

    def _keep(self, rows: Sequence[Record], at: datetime) -> None:
        for row in rows:
            if row.ended is None:  # otherwise it was kept when the code continued with it
                self._outgoing.pop(row.key, None)
                self.replay.keep(Stored(row, 0, at))

    def check_length(self, key: str) -> None:
        """Before a call is made: a body whose end could not be recorded does not run."""
        length, size = len(self.replay) + self._writing, self.replay.size + self._writing_size
        if (length < self._most and size < MOST_BYTES) or self.replay.stored(key) is not None:
            return
        if length >= self._most:
            raise WorkflowFailed(
                f"the history has {length:,} records, which is the limit. Use wf.continue_as_new() regularly, "
                "or declare the workflow with a larger max_history",
                kind="HistoryTooLong",
            )
        raise WorkflowFailed(
            f"the history has {size:,} bytes of JSON, more than the limit of {MOST_BYTES:,}. Use wf.continue_as_new() now "
            "and then, or store results elsewhere (a table, a file, object storage) and return references",
            kind="HistoryTooLarge",
        )

    def _check_length(self, row: Record) -> None:
        if row.kind != "compensation":
            self.check_length(row.key)


def _refused(row: Record, error: RecordRefused) -> Record:
    """The record that replaces it."""
    text = {"kind": "RecordRefused", "message": storable(str(error))[:8192], "attempts": row.attempts}
    return row._replace(outcome="failed", result=None, error=json.dumps(text))


def _size(rows: Sequence[Record]) -> int:
    return sum(len(row.key) + len(row.result or "") + 200 for row in rows)
