"""Group commit: messages that come while one transaction is under way go into the next one together.

Nobody waits for others to come: the first message is written at once; those that arrive meanwhile make up the next batch.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain

from ...db.faults import BadRow, LockTimeout
from ...errors import DatabaseUnavailable
from .store import NewMessage, Written

MOST = 500  # messages of one transaction
BATCH_BYTES = 4 * 1024 * 1024
WAITING_BYTES = 64 * 1024 * 1024  # of all that wait: more is refused, so that memory is bounded

Write = Callable[[Sequence[NewMessage]], Awaitable[list[Written]]]
_Item = tuple[
    NewMessage, "asyncio.Future[Written]", float
]  # and how long it may take, by the clock of its loop


class _Line:
    """What waits on one event loop."""

    __slots__ = ("bytes", "going", "items", "task", "timer")

    def __init__(self) -> None:
        self.items: deque[_Item] = deque()
        self.going: Sequence[_Item] = ()  # being written
        self.bytes = 0
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = (
            None  # one for all: a timer for each would cost more than the rest
        )


class Gatherer:
    def __init__(self, write: Write) -> None:
        self._write = write
        self._lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = weakref.WeakKeyDictionary()

    async def put(self, message: NewMessage, patience: float) -> Written:
        """Returns when its transaction has committed; DatabaseUnavailable when that takes longer than `patience` seconds."""
        loop = asyncio.get_running_loop()
        line = self._lines.setdefault(loop, _Line())
        if line.bytes > WAITING_BYTES:
            raise DatabaseUnavailable("too many messages wait to be written")
        future: asyncio.Future[Written] = loop.create_future()
        until = loop.time() + patience
        line.items.append((message, future, until))
        line.bytes += len(message.payload)
        if line.task is None:
            line.task = loop.create_task(self._run(line), name="holdfast receiver")
        if line.timer is None:
            line.timer = loop.call_at(until, self._give_up, line, patience)
        return await future

    def _give_up(self, line: _Line, patience: float) -> None:
        """Those whose time is over. All have the same patience, so that the first to come is the first to give up."""
        loop, line.timer = asyncio.get_running_loop(), None
        for _, future, until in chain(line.going, line.items):
            if future.done():
                continue
            if until > loop.time():
                line.timer = loop.call_at(until, self._give_up, line, patience)
                return
            future.set_exception(DatabaseUnavailable(f"the message was not written within {patience:g} s"))

    async def _run(self, line: _Line) -> None:
        try:
            await asyncio.sleep(0)  # requests that are read in this turn of the loop come along
            while batch := self._next(line):
                line.going = batch
                await self._written(batch)
        finally:
            line.task, line.going = None, ()
            while line.items:  # only when the loop ends
                line.items.popleft()[1].cancel()

    def _next(self, line: _Line) -> list[_Item]:
        """The next transaction. Whoever has given up meanwhile is left out: the sender will come again."""
        batch: list[_Item] = []
        size = 0
        while line.items and len(batch) < MOST and size < BATCH_BYTES:
            item = line.items.popleft()
            line.bytes -= len(item[0].payload)
            if not item[1].done():
                batch.append(item)
                size += len(item[0].payload)
        return batch

    async def _written(self, batch: Sequence[_Item]) -> None:
        try:
            written = await self._write([message for message, _, _ in batch])
        except (BadRow, LockTimeout) as error:
            if len(batch) > 1:  # one of them is at fault: the others are not to pay for it
                await asyncio.gather(*(self._written([item]) for item in batch))
                return
            self._fail(batch, error)
        except asyncio.CancelledError:
            for _, future, _ in batch:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 whoever waits gets it
            self._fail(batch, error)
        else:
            for (_, future, _), one in zip(batch, written, strict=True):
                if not future.done():
                    future.set_result(one)

    def _fail(self, batch: Sequence[_Item], error: Exception) -> None:
        for _, future, _ in batch:
            if not future.done():
                future.set_exception(error)
