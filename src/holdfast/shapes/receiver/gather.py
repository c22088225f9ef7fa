"""Group commit: messages that arrive while one transaction is in progress go into the next one together.

No message waits for others: the first is written at once; those that arrive meanwhile make up the next batch.
If a few of them wait, a second transaction does not wait for the first, whose time is mostly that of the disk.
"""

import asyncio
import math
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from ...db.faults import BadRow, LockTimeout
from ...errors import DatabaseUnavailable
from .store import NewMessage, Written

MOST_MESSAGES = 500  # messages of one transaction
WRITERS = 2  # transactions at once, each on a connection of its own
ENOUGH = 8  # messages that wait, for a second one: smaller transactions are more expensive for both
BATCH_BYTES = 4 * 1024 * 1024
WAITING_BYTES = 64 * 1024 * 1024  # of all that wait: more is refused, so that memory is bounded

Write = Callable[[Sequence[NewMessage]], Awaitable[list[Written]]]
_Item = tuple[
    NewMessage, "asyncio.Future[Written]", float
]  # and how long it may take, by the clock of its loop


class _Line:
    """The waiting messages of one event loop."""

    __slots__ = ("bytes", "going", "items", "timer", "writers")

    def __init__(self) -> None:
        self.items: deque[_Item] = deque()
        self.going: dict[int, Sequence[_Item]] = {}  # being written, by the writer
        self.bytes = 0
        self.writers: dict[int, asyncio.Task[None]] = {}
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
        all_write = len(line.going) == len(line.writers) < WRITERS
        if not line.writers or (all_write and len(line.items) >= ENOUGH):
            name = next(n for n in range(WRITERS) if n not in line.writers)
            line.writers[name] = loop.create_task(self._run(line, name), name="holdfast receiver")
        if line.timer is None:
            line.timer = loop.call_at(until, self._give_up, line, patience)
        return await future

    def _give_up(self, line: _Line, patience: float) -> None:
        """Those whose time is over. All have the same patience, so in each batch, and among those that wait, the first to
        arrive is the first to give up."""
        loop, line.timer = asyncio.get_running_loop(), None
        now, first = loop.time(), math.inf
        for items in (*line.going.values(), line.items):
            for _, future, until in items:
                if future.done():
                    continue
                if until > now:
                    first = min(first, until)
                    break
                future.set_exception(
                    DatabaseUnavailable(f"the message was not written within {patience:g} s")
                )
        if first < math.inf:
            line.timer = loop.call_at(first, self._give_up, line, patience)

    async def _run(self, line: _Line, name: int) -> None:
        try:
            await asyncio.sleep(0)  # requests that are read in this turn of the loop are included
            while batch := self._next(line):
                line.going[name] = batch
                await self._written(batch)
        except asyncio.CancelledError:  # the loop ends
            while line.items:
                line.items.popleft()[1].cancel()
            raise
        finally:
            del line.writers[name]
            line.going.pop(name, None)

    def _next(self, line: _Line) -> list[_Item]:
        """The next transaction. Callers that have given up meanwhile are left out: the sender will come again."""
        batch: list[_Item] = []
        size = 0
        while line.items and len(batch) < MOST_MESSAGES and size < BATCH_BYTES:
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
            if len(batch) > 1:  # one of them is at fault: the others must not pay for it
                await asyncio.gather(*(self._written([item]) for item in batch))
                return
            self._fail(batch, error)
        except asyncio.CancelledError:
            for _, future, _ in batch:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 every waiting caller gets it
            self._fail(batch, error)
        else:
            for (_, future, _), one in zip(batch, written, strict=True):
                if not future.done():
                    future.set_result(one)

    def _fail(self, batch: Sequence[_Item], error: Exception) -> None:
        for _, future, _ in batch:
            if not future.done():
                future.set_exception(error)
