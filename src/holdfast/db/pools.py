"""Connection pools for producers and handlers: opened at first use, one per process and per event loop.

A pool never crosses a fork or a loop: it is looked up by process id and loop, so a child or a second loop opens its own.
"""

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from ..model.clock import Clock
from ..settings import Settings
from ..store.statement import Last
from .async_pool import AsyncPool
from .connect import (
    CONFIGURE,
    CONFIGURED,
    PIN,
    PIN_LOCAL,
    UNPIN,
    AnyConnection,
    Configuration,
    configuration,
    configured,
    connect_arguments,
    waiting_to_be_read,
)
from .executors import is_heard
from .sync_pool import SyncPool
from .transaction_end import Message, Own, OwnAsyncConnection, OwnConnection, can_end, message

# RESET ALL leaves the role alone.
RESET = "SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; UNLISTEN *; CLOSE ALL; DISCARD TEMP"
# Fails if a handler left a statement that it prepared by name: then its connection is closed. Dropping every
# prepared statement would also drop those that the driver and Holdfast keep.
LEFT = """
SELECT pg_catalog.pg_advisory_unlock_all(),
       CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0
            THEN ('holdfast: prepared by a handler ' OPERATOR(pg_catalog.||) pg_catalog.count(*)::pg_catalog.text)::int END
FROM pg_catalog.pg_prepared_statement() AS p
WHERE p.from_sql AND NOT p.name OPERATOR(pg_catalog.^@) 'holdfast_'
"""

_SCANS = CONFIGURED.index("enable_seqscan")
_FRESH = 1.0  # seconds: longer ago, and the server is asked


def _restore(conn: Own) -> None:
    conn.row_factory = tuple_row
    conn.prepare_threshold = None if conn.is_pooled else 5


def _was_reset(conn: Own) -> bool:
    """Asked once, with the commit of the current user."""
    done, conn.is_reset = conn.is_reset, False
    return done


def _turn(conn: Own, lent: bool | None) -> str | None:
    """The statement that gives it the search_path for its next user; with `lent` None any will do. It keeps the last one
    set, so that a process that enqueues, publishes and runs handlers with a transaction seldom needs one. Behind a
    pooler: see transaction()."""
    if lent is None or conn.is_pooled or lent == conn.is_theirs:
        return None
    return UNPIN if lent else PIN


def _is_fresh(conn: Own) -> bool:
    """Used a moment ago, and no data have arrived since: a server that stopped would have reported that. Asking it costs
    as much as a small statement, for every enqueue and every handler's transaction."""
    if conn.closed:
        return False
    return time.monotonic() - conn.used_at < _FRESH and not waiting_to_be_read(conn.pgconn.socket)


def _reset_text(conn: Own) -> str:
    return f"{RESET}; {LEFT}; {conn.settings}"


class Pools:
    def __init__(
        self,
        dsn: str,
        settings: Settings,
        clock: Clock,
        *,
        keeps: bool = True,
        longest: float | None = None,
    ) -> None:
        self._keeps = keeps
        self._longest = longest  # seconds of one statement
        self._dsn = dsn
        self._settings = settings
        self._clock = clock
        self._size = settings.pool_size
        self._lock = threading.Lock()
        self._sync: dict[int, SyncPool] = {}
        self._async: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, AsyncPool]]
        self._async = weakref.WeakKeyDictionary()
        self._of_loop: dict[asyncio.AbstractEventLoop, weakref.WeakSet[psycopg.AsyncConnection[Any]]] = {}
        self._all: weakref.WeakSet[Own] = weakref.WeakSet()
        self._returning: set[asyncio.Future[None]] = set()

    @property
    def open(self) -> int:
        """Connections that are open, lent or not."""
        with self._lock:
            return sum(not conn.closed for conn in self._all)

    async def reserve(self, size: int) -> None:
        """Room for that many handlers at once, each in a transaction of its own."""
        if size <= self._size:
            return
        with self._lock:
            self._size = size
            for sync_pool in self._sync.values():
                sync_pool.resize(size)
        _, pool = self._async.get(asyncio.get_running_loop(), (0, None))
        if pool is not None:
            pool.resize(size)

    def _options(self) -> tuple[str, dict[str, Any], int, float]:
        arguments = connect_arguments(self._settings, "holdfast")
        return self._dsn, arguments, self._size, self._settings.connect_timeout

    def _parameters(self, conn: Own) -> Configuration:
        with self._lock:
            self._all.add(conn)
        conn.offset = self._clock.offset
        return configuration(conn, self._clock, self._longest, engine=False)

    def _is_pooled(self, conn: Own, rows: list[tuple[Any, ...]]) -> bool:
        pooled, *values, before = rows[0]
        conn.is_theirs = False
        if conn.before is None:
            conn.before = before
        conn.settings = configured(values, conn.before)
        if pooled:
            conn.is_pooled = True
            conn.prepare_threshold = None
        return conn.is_pooled

    def ending(self, conn: AnyConnection, last: Last | None) -> Message | None:
        """How the transaction of a handler ends and its connection is reset; None: step by step."""
        if not can_end(conn) or conn.is_pooled or conn.before is None or (last is not None and is_heard()):
            return None
        return message(conn, last, LEFT, f"{RESET}; {conn.settings}", scans=conn.before[_SCANS] == "on")

    @contextlib.contextmanager
    def transaction(self, conn: OwnConnection) -> Iterator[None]:
        """For statements of our own that are not qualified throughout."""
        with conn.transaction():
            if conn.is_pooled:
                conn.execute(PIN_LOCAL)
            yield

    @contextlib.asynccontextmanager
    async def atransaction(self, conn: OwnAsyncConnection) -> AsyncIterator[None]:
        async with conn.transaction():
            if conn.is_pooled:
                await conn.execute(PIN_LOCAL)
            yield

    def _configure(self, conn: OwnConnection) -> None:
        with psycopg.RawCursor(conn) as cursor:
            rows = cursor.execute(CONFIGURE.encode(), self._parameters(conn)).fetchall()
        if self._is_pooled(conn, rows):
            conn.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)

    async def _aconfigure(self, conn: OwnAsyncConnection) -> None:
        self._of_loop.setdefault(asyncio.get_running_loop(), weakref.WeakSet()).add(conn)
        async with psycopg.AsyncRawCursor(conn) as cursor:
            await cursor.execute(CONFIGURE.encode(), self._parameters(conn))
            rows = await cursor.fetchall()
        if self._is_pooled(conn, rows):
            await conn.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)

    @contextlib.contextmanager
    def connection(self, *, lent: bool | None = False) -> Iterator[OwnConnection]:
        """A connection of this process. One lent to a handler is reset before anyone else gets it."""
        pool, conn = self.take(lent)
        try:
            yield conn
        finally:
            self.give_back(pool, conn, lent)

    def take(self, lent: bool | None) -> tuple[SyncPool, OwnConnection]:
        """See connection(); to be given back whatever happens."""
        pool = self._sync.get(os.getpid()) or self._new_pool()
        conn = pool.take()
        try:
            if conn.offset != self._clock.offset:
                self._configure(conn)
            if turn := _turn(conn, lent):
                conn.is_theirs = None  # until it is done: a waiting caller may be interrupted
                conn.execute(turn.encode())
                conn.is_theirs = bool(lent)
        except BaseException:
            self.give_back(pool, conn, lent)
            raise
        return pool, conn

    def _new_pool(self) -> SyncPool:
        with self._lock:
            pool = self._sync.get(os.getpid())
            if pool is None:
                pool = SyncPool(*self._options(), _is_fresh, self._configure)
                pool.keeps = self._keeps
                self._sync[os.getpid()] = pool  # a parent's pool stays: it is not ours to close
            return pool

    def give_back(self, pool: SyncPool, conn: OwnConnection, lent: bool | None) -> None:
        try:
            if lent and not conn.closed:
                self._reset_now(conn)
        finally:
            conn.used_at = time.monotonic()
            pool.give_back(conn)

    def _reset_now(self, conn: OwnConnection) -> None:
        """A handler's leftovers on it are not for the next user."""
        try:
            _restore(conn)
            if conn.is_pooled:
                self._configure(conn)
            else:
                if not _was_reset(conn):
                    conn.execute(_reset_text(conn).encode())
                conn.is_theirs = True
        except psycopg.Error:
            conn.close()
        except BaseException:
            conn.close()
            raise

    @contextlib.asynccontextmanager
    async def aconnection(self, *, lent: bool | None = False) -> AsyncIterator[OwnAsyncConnection]:
        pool, conn = await self.atake(lent)
        try:
            yield conn
        finally:
            await self.agive_back(pool, conn, lent)

    async def atake(self, lent: bool | None) -> tuple[AsyncPool, OwnAsyncConnection]:
        loop = asyncio.get_running_loop()
        pid, pool = self._async.get(loop, (0, None))
        if pool is None or pid != os.getpid():
            self._forget_ended_loops()
            pool = AsyncPool(*self._options(), _is_fresh, self._aconfigure)
            pool.keeps = self._keeps
            self._async[loop] = (os.getpid(), pool)
        conn = await pool.take()
        try:
            if conn.offset != self._clock.offset:
                await self._aconfigure(conn)
            if turn := _turn(conn, lent):
                conn.is_theirs = None  # until it is done: a waiting caller may be cancelled
                await conn.execute(turn.encode())
                conn.is_theirs = bool(lent)
            if lent:
                conn.listen()
        except BaseException:
            await self.agive_back(pool, conn, lent)
            raise
        return pool, conn

    async def agive_back(self, pool: AsyncPool, conn: OwnAsyncConnection, lent: bool | None) -> None:
        conn.deafen()
        if lent and not conn.closed and not _was_reset(conn):
            back = asyncio.ensure_future(self._reset(pool, conn))
            self._returning.add(back)
            back.add_done_callback(self._returning.discard)
            # A handler cancelled at this point must not cost the pool a connection.
            await asyncio.shield(back)
            return
        if lent:
            _restore(conn)
            conn.is_theirs = True
        conn.used_at = time.monotonic()
        pool.give_back(conn)

    def _forget_ended_loops(self) -> None:
        """A loop that ended without aclose() left connections that nobody can await any more; its pool keeps it alive."""
        for loop in [loop for loop in list(self._of_loop) if loop.is_closed()]:
            pid, _ = self._async.pop(loop, (0, None))
            for conn in self._of_loop.pop(loop, ()):
                if pid == os.getpid():
                    conn.pgconn.finish()

    async def _reset(self, pool: AsyncPool, conn: OwnAsyncConnection) -> None:
        try:
            _restore(conn)
            if conn.is_pooled:
                await self._aconfigure(conn)
            else:
                await conn.execute(_reset_text(conn).encode())
                conn.is_theirs = True
        except psycopg.Error:
            await conn.close()
        finally:
            conn.used_at = time.monotonic()
            pool.give_back(conn)

    def close(self) -> None:
        pool = self._sync.pop(os.getpid(), None)
        if pool is not None:
            pool.close()

    async def aclose(self) -> None:
        loop = asyncio.get_running_loop()
        pid, pool = self._async.pop(loop, (0, None))
        self._of_loop.pop(loop, None)
        if pool is not None and pid == os.getpid():
            pool.close()
