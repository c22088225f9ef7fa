"""Queries that leave no trace on a server, for `holdfast doctor`.

look      a statement or flow in a read-only transaction that is rolled back, with a limit on every statement
plan      what the planner would do with a statement of the engine, under the engine's own settings
run_alone one statement that runs in no transaction, such as VACUUM
listen    whether a notification of one connection reaches another
pooled    whether something between us and the server shares its connections
skew      how far this machine's clock is from the server's

Everything is set for the transaction only: behind a pooler a session's settings would reach strangers.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ..errors import DatabaseError, DatabaseUnavailable
from ..model.address import libpq_address
from ..store import probe as store
from ..store.statement import Flow, Statement
from .connect import CONFIGURE, configuration, connect_arguments
from .database import Database
from .executors import OurCursor, adrive, drive
from .faults import ConnectionLost, translate

T = TypeVar("T")
_ALONE = (
    ("statement_timeout", "0"),
    ("search_path", "pg_catalog, pg_temp"),
    ("lock_timeout", "60s"),  # VACUUM waits for sessions that alter the table, and nobody waits for it
)
_PROBE_WAIT = 5.0  # for a second connection through a pooler that may have none left


@dataclass(frozen=True, slots=True)
class Pooled:
    between: bool  # the server process we talk to is not the one we connected to
    shared: bool  # a session's settings are visible to another one


class Probe:
    def __init__(self, database: Database, limit: float) -> None:
        self._database = database
        self._limit = limit
        self._conn: psycopg.Connection[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()

    def _arguments(self) -> dict[str, Any]:
        arguments = connect_arguments(self._database.settings, "holdfast doctor")
        return {**arguments, "prepare_threshold": None}

    def _connection(self) -> psycopg.Connection[Any]:
        if self._conn is not None and self._conn.info.transaction_status != TransactionStatus.IDLE:
            self._close()
        if self._conn is None:
            try:
                self._conn = psycopg.connect(self._database.dsn, **self._arguments())
                self._conn.execute("SET datestyle = 'ISO'")
            except psycopg.Error as error:
                raise DatabaseUnavailable(f"the database cannot be reached: {str(error).strip()}") from error
        return self._conn

    def look(self, what: Statement[T] | Flow[T]) -> T:
        """Run it as it is now; nothing can be changed, and no statement takes longer than the limit."""
        return self._inside(lambda conn: drive(conn, what))

    def plan(self, statement: Statement[Any]) -> dict[str, Any]:
        def explain(conn: psycopg.Connection[Any]) -> dict[str, Any]:
            with OurCursor(conn, row_factory=tuple_row) as cursor:
                cursor.execute(f"EXPLAIN (FORMAT JSON) {statement.text}".encode(), statement.params)
                ((found,),) = cursor.fetchall()
            plans = found if isinstance(found, list) else json.loads(found)
            return dict(plans[0]["Plan"])

        return self._inside(explain)

    def _inside(self, body: Callable[[psycopg.Connection[Any]], T]) -> T:
        conn = self._connection()
        try:
            with conn.transaction(force_rollback=True):
                conn.execute("SET TRANSACTION READ ONLY")
                conn.execute("SET LOCAL lock_timeout = '1s'")
                with OurCursor(conn, row_factory=tuple_row) as cursor:
                    # Undone with the transaction, like everything in it.
                    cursor.execute(
                        CONFIGURE.encode(),
                        configuration(conn, self._database.clock, self._limit, engine=True),
                    )
                return body(conn)
        except psycopg.Error as error:
            raise translate(error) or DatabaseError(str(error).strip()) from error

    def run_alone(self, text: str) -> None:
        """Run a statement that takes no transaction, and raise the server's error when it refuses."""
        conn = self._connection()
        try:
            self._run_alone(conn, text)
        except psycopg.Error as error:
            raise translate(error) or DatabaseError(str(error).strip()) from error

    def _run_alone(self, conn: psycopg.Connection[Any], text: str) -> None:
        """Its settings last for the session, which ends here."""
        try:
            for name, value in _ALONE:
                conn.execute(f"SET {name} = '{value}'".encode())
            conn.execute(text.encode())
        finally:
            if not conn.broken:
                conn.execute("RESET ALL")
            self._close()

    # Beside it ------------------------------------------------------------------------------------------------------

    def listen(self, wait: float) -> bool:
        """Send a notification as producers do, receive it as workers do; False: it did not arrive within `wait` seconds."""
        return self._aside(lambda: self._listen(wait), wait + 2 * _PROBE_WAIT)

    async def _listen(self, wait: float) -> bool:
        channel = f"holdfast_doctor_{uuid4().hex[:12]}"
        named = self._database.settings.listen_url
        heard_at = libpq_address(named) if named else None
        async with await self._aconnect(heard_at) as hearer, await self._aconnect() as caller:
            await hearer.execute(f"LISTEN {channel}".encode())
            await caller.execute(f"NOTIFY {channel}".encode())
            async for _ in hearer.notifies(timeout=wait, stop_after=1):
                return True
        return False

    def pooled(self) -> Pooled:
        return self._aside(self._pooled, 2 * _PROBE_WAIT)

    async def _pooled(self) -> Pooled:
        mark = uuid4().hex
        async with await self._aconnect() as first:
            if await adrive(first, store.backend_pid()) == first.info.backend_pid:
                return Pooled(between=False, shared=False)
            await adrive(first, store.leave_mark(mark))
            try:
                async with asyncio.timeout(_PROBE_WAIT), await self._aconnect() as second:
                    shared = await adrive(second, store.read_mark()) == mark
            except TimeoutError:  # the pooler has one connection, and keeps it for the first
                shared = False
            await adrive(first, store.leave_mark(""))
            return Pooled(between=True, shared=shared)

    async def _aconnect(self, dsn: str | None = None) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(dsn or self._database.dsn, **self._arguments())

    def _aside(self, make: Callable[[], Awaitable[T]], wait: float) -> T:
        """In a separate thread and loop: the caller may be in a loop already."""

        async def within() -> T:
            async with asyncio.timeout(wait):
                return await make()

        try:
            with ThreadPoolExecutor(1, "holdfast-doctor") as pool:
                return pool.submit(lambda: asyncio.run(within())).result()
        except TimeoutError:
            raise ConnectionLost(f"no answer within {wait:g} s") from None
        except psycopg.Error as error:
            raise translate(error) or DatabaseError(str(error).strip()) from error

    def skew(self) -> tuple[float, float]:
        """(seconds that this machine is ahead of the server, half the round trip): the best of three."""

        def measure(conn: psycopg.Connection[Any]) -> tuple[float, float]:
            clock = self._database.clock
            tries = []
            for _ in range(3):
                before = clock.now()
                there = drive(conn, store.server_time())
                after = clock.now()
                half = (after - before) / 2
                tries.append(((before + half - there).total_seconds(), half.total_seconds()))
            return min(tries, key=lambda t: t[1])

        return self._inside(measure)
