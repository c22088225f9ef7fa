"""A Session is one connection of an engine loop, opened when needed and reopened after a loss.

Statements run one at a time. A broken or silent connection is closed and reported as ConnectionLost; the next statement
opens a new one. So no caller ever has to handle reconnecting, and each knows when a reply is in doubt.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import waiting

from .. import failpoints
from ..model.clock import Clock
from ..settings import Settings
from ..store.statement import Flow, Statement
from .connect import CONFIGURE, configuration, connect_arguments
from .executors import adrive
from .faults import ConnectionLost, Contended, translate
from .reachability import Reachability
from .readiness import waited

T = TypeVar("T")


class LoopConnection(psycopg.AsyncConnection[Any]):
    """A cancelled statement closes it at once. The driver would ask the server to cancel and wait for the reply, up to ten
    seconds on a half-open connection; a session throws the connection away in any case."""

    async def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if args or kwargs:
                return await waiting.wait_async(gen, self.pgconn.socket, *args, **{"interval": 0.1, **kwargs})
            return await waited(gen, self.pgconn.socket)
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise


class Session:
    def __init__(
        self,
        dsn: str,
        settings: Settings,
        clock: Clock,
        name: str,
        *,
        keep_plans: bool = False,
        reach: Reachability | None = None,
    ) -> None:
        self._dsn = dsn
        self._settings = settings
        self._clock = clock
        self._name = name
        self._keep_plans = keep_plans
        self._reach = reach or Reachability()
        self._lock = asyncio.Lock()
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._made_at = 0.0
        self._offset = 0.0
        self._pooled = False

    @property
    def is_open(self) -> bool:
        conn = self._conn
        return conn is not None and not conn.closed

    async def run(self, what: Statement[T]) -> T:
        """Run one statement by itself. Serialization failures and deadlocks are tried again."""
        return await self._patiently(lambda: what)

    async def flow(self, make: Callable[[], Flow[T]]) -> T:
        """Run a flow in one transaction; `make` builds a fresh one for every try."""
        return await self._patiently(make)

    async def _patiently(self, make: Callable[[], Statement[T] | Flow[T]]) -> T:
        for pause in (0.005, 0.02, 0.08, 0.3):
            try:
                return await self._run(make())
            except Contended:
                await asyncio.sleep(pause)
        return await self._run(make())

    async def _run(self, what: Statement[T] | Flow[T]) -> T:
        async with self._lock:
            try:
                async with asyncio.timeout(self._settings.statement_timeout + self._settings.connect_timeout):
                    conn = await self._connection()
                    if isinstance(what, Statement):
                        answer = await (self._transact if self._pooled else adrive)(conn, what)
                        failpoints.point(f"{self._name}.{what.name}.done")
                        return answer
                    answer = await self._transact(conn, what)
                    failpoints.point(f"{self._name}.committed")
                    return answer
            except TimeoutError:
                silent = f"the database did not answer within {self._settings.statement_timeout:g} s"
                await self._lose(silent)
                raise ConnectionLost(silent) from None
            except asyncio.CancelledError:
                await self._drop()  # a statement was cut in the middle
                raise
            except psycopg.Error as error:
                known = translate(error)
                if isinstance(known, ConnectionLost) or (self._conn is not None and self._conn.broken):
                    await self._lose(error)
                    raise (
                        known if isinstance(known, ConnectionLost) else ConnectionLost(str(error))
                    ) from error
                if known is None:
                    raise
                raise known from error

    async def _transact(self, conn: psycopg.AsyncConnection[Any], what: Statement[T] | Flow[T]) -> T:
        async with conn.transaction():
            if self._pooled:
                await self._configure(conn)
            return await adrive(conn, what)

    async def _connection(self) -> psycopg.AsyncConnection[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = await LoopConnection.connect(
                self._dsn, **connect_arguments(self._settings, f"holdfast {self._name}")
            )
            self._made_at = time.monotonic()
            await self._configure(self._conn)
            if self._pooled:
                self._conn.prepare_threshold = None
                await self._conn.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            self._reach.connected()
        elif self._offset != self._clock.offset:
            await self._configure(self._conn)
        return self._conn

    async def _configure(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._offset = self._clock.offset
        async with psycopg.AsyncRawCursor(conn) as cursor:
            settings = configuration(
                conn,
                self._clock,
                self._settings.statement_timeout,
                engine=True,
                keep_plans=self._keep_plans,
            )
            ((self._pooled, *_),) = await (await cursor.execute(CONFIGURE.encode(), settings)).fetchall()

    async def _lose(self, error: object) -> None:
        self._reach.lost(error, self._made_at if self._conn is not None else None)
        await self._drop()

    async def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(conn.close(), 1)

    async def close(self) -> None:
        async with self._lock:
            await self._drop()
