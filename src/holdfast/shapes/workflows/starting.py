"""Starts in batches: the starts that were requested during the last statement are one statement."""

import asyncio
import weakref
from typing import NamedTuple

from ...db.database import Database
from ...errors import DatabaseUnavailable
from . import store
from .journal import Started, StartRun

MOST_RUNS = 1000  # runs of a statement


class _Asked(NamedTuple):
    new: StartRun
    timeout: float | None
    done: "asyncio.Future[Started]"

    @property
    def kind(self) -> tuple[object, ...]:
        """What all runs of a statement have in common."""
        new = self.new
        return (
            new.workflow,
            new.version,
            new.queue,
            new.if_exists,
            new.delay,
            new.priority,
            tuple(new.tags),
            self.timeout,
        )


class StartWriter:
    """Of one event loop and database. A start that is refused affects itself only: then each is sent alone."""

    def __init__(self, database: Database) -> None:
        self._database = weakref.ref(database)
        self._waiting: list[_Asked] = []
        self._writing: asyncio.Task[None] | None = None

    async def start(self, new: StartRun, timeout: float | None) -> Started:
        asked = _Asked(new, timeout, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all(), name="holdfast start")
        return await asked.done

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                kind = self._waiting[0].kind
                batch = [asked for asked in self._waiting if asked.kind == kind][:MOST_RUNS]
                taken = set(map(id, batch))
                self._waiting = [asked for asked in self._waiting if id(asked) not in taken]
                await self._write([asked for asked in batch if not asked.done.done()])
        finally:
            self._writing = None
            for asked in self._waiting:  # the loop ends
                asked.done.cancel()
            self._waiting.clear()

    async def _write(self, batch: list[_Asked]) -> None:
        database = self._database()
        assert database is not None, "a caller that waits for a start holds its database"
        try:
            if len(batch) > 1:
                news = [asked.new for asked in batch]
                found = await database.arun(lambda: store.start_many(news, timeout=batch[0].timeout))
                _tell(database, batch[0].new)
                if all(one.conflict is None for one in found):  # else none was started
                    for asked, one in zip(batch, found, strict=True):
                        _end(asked, one)
                    return
        except (DatabaseUnavailable, asyncio.CancelledError) as error:
            for asked in batch:
                _fail(asked, error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        except Exception:  # noqa: BLE001, S110 of one of them, which is raised below
            pass
        for asked in batch:
            await self._write_one(database, asked)

    async def _write_one(self, database: Database, asked: _Asked) -> None:
        if asked.done.done():
            return
        try:
            started = await database.arun(lambda: store.start(asked.new, timeout=asked.timeout))
            _tell(database, asked.new)
            _end(asked, started)
        except (Exception, asyncio.CancelledError) as error:
            _fail(asked, error)
            if isinstance(error, asyncio.CancelledError):
                raise


def _tell(database: Database, new: StartRun) -> None:
    """The worker of this process, if it is due."""
    if not new.delay:
        database.enqueued(None if new.queue is None else {new.queue})


def _end(asked: _Asked, started: Started) -> None:
    if not asked.done.done():
        asked.done.set_result(started)


def _fail(asked: _Asked, error: BaseException) -> None:
    if asked.done.done():
        return
    if isinstance(error, Exception):
        asked.done.set_exception(error)
    else:
        asked.done.cancel()


_STARTERS: (
    "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakKeyDictionary[Database, StartWriter]]"
)
_STARTERS = weakref.WeakKeyDictionary()


def start_writer_of(database: Database) -> StartWriter:
    """That of the running event loop."""
    found = _STARTERS.setdefault(asyncio.get_running_loop(), weakref.WeakKeyDictionary())
    if database not in found:
        found[database] = StartWriter(database)
    return found[database]
