"""SQLAlchemy's sessions and connections as guests, and SQLModel's, which are subclasses.

A session or connection begins its transaction before we write, so that its own commit and rollback cover the job. On
psycopg we then use the driver's connection, with a separate cursor. On asyncpg the statement goes through SQLAlchemy: its
adapter sends BEGIN before its own first statement only, so one sent past it would commit by itself.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, PendingRollbackError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from ...store.statement import Flow, Statement
from ..executors import adrive, awalk, drive
from ..faults import schema_missing
from .psycopg import begins, missing
from .refusals import closed, unusable
from .text import as_text

if TYPE_CHECKING:  # at run time it needs greenlet, which a sync application may not have
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

T = TypeVar("T")
_PLAIN = {"stream_results": False, "yield_per": None}  # whatever the engine is set to
_ADVICE = 'use an engine without isolation_level="AUTOCOMMIT"'


def session_guest(session: Session | scoped_session[Any]) -> "SqlalchemyGuest":
    _check(session, _bind(session))
    return SqlalchemyGuest(session.connection)


def connection_guest(conn: Connection) -> "SqlalchemyGuest":
    if conn.closed:
        raise closed(conn)
    _check(conn, conn)
    return SqlalchemyGuest(lambda: conn)


def async_session_guest(session: "AsyncSession | async_scoped_session[Any]") -> "AsyncSqlalchemyGuest":
    _check(session, _bind(session), is_async=True)
    return AsyncSqlalchemyGuest(session.connection)


def async_connection_guest(conn: "AsyncConnection") -> "AsyncSqlalchemyGuest":
    if conn.sync_connection is None:
        raise unusable(
            "an AsyncConnection that was not started", "write: async with engine.begin() as conn: ..."
        )
    if conn.closed:
        raise closed(conn)
    _check(conn, conn.sync_connection, is_async=True)

    async def same() -> "AsyncConnection":
        return conn

    return AsyncSqlalchemyGuest(same)


class SqlalchemyGuest:
    advice = _ADVICE

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect

    def in_transaction(self) -> bool:
        return begins(_raw(self._connect()))

    def run(self, what: Statement[T] | Flow[T]) -> T:
        conn = self._connect()
        _begin(conn)
        try:
            return drive(_raw(conn), what)
        except psycopg.Error as error:
            if lost := _raw(conn).closed:  # as SQLAlchemy does: its rollback must not use this connection
                conn.invalidate(error)
            raise missing(error) or _wrapped(error, conn, lost) from error


class AsyncSqlalchemyGuest:
    advice = _ADVICE

    def __init__(self, connect: "Callable[[], Awaitable[AsyncConnection]]") -> None:
        self._connect = connect

    async def in_transaction(self) -> bool:
        raw: Any = (await (await self._connect()).get_raw_connection()).dbapi_connection
        return not raw.autocommit

    async def arun(self, what: Statement[T] | Flow[T]) -> T:
        conn = await self._connect()
        if conn.dialect.driver == "asyncpg":
            return await self._through(conn, what)
        await conn.run_sync(_begin)
        raw: Any = (await conn.get_raw_connection()).driver_connection
        try:
            return await adrive(raw, what)
        except psycopg.Error as error:
            if lost := bool(raw.closed):
                await conn.invalidate(error)
            raise missing(error) or _wrapped(error, conn, lost) from error

    async def _through(self, conn: "AsyncConnection", what: Statement[T] | Flow[T]) -> T:
        try:
            return await awalk(partial(_execute, conn), what)
        except DBAPIError as error:
            cause = getattr(error.orig, "__cause__", None)  # asyncpg's own
            if known := schema_missing(getattr(cause, "sqlstate", None), str(cause)):
                raise known from error
            raise


async def _execute(conn: "AsyncConnection", statement: Statement[T]) -> T:
    text, params = as_text(statement)
    rows = (await conn.exec_driver_sql(text, params, _PLAIN)).all()
    return statement.decode([tuple(row) for row in rows])


def _raw(conn: Connection) -> psycopg.Connection[Any]:
    return cast(psycopg.Connection[Any], conn.connection.driver_connection)


def _begin(conn: Connection) -> None:
    """What SQLAlchemy does before its own statements: begin, unless it has; refuse, when only a rollback is left."""
    current = conn.get_nested_transaction() or conn.get_transaction()
    if current is None:
        conn.begin()
    elif not current.is_active:
        raise PendingRollbackError(
            "the transaction of this connection failed; roll it back before you continue"
        )


def _wrapped(error: psycopg.Error, conn: "Connection | AsyncConnection", lost: bool) -> BaseException:
    """As SQLAlchemy raises it, so that the caller's handlers find it."""
    return DBAPIError.instance(
        None, None, error, psycopg.Error, connection_invalidated=lost, dialect=conn.dialect
    )


def _bind(session: Any) -> Engine | Connection:
    try:
        found: Engine | Connection = session.get_bind()
    except UnboundExecutionError:
        raise unusable(
            f"a {type(session).__name__} that does not say which of its databases is meant",
            "name it: conn=session.connection(bind_arguments={...})",
        ) from None
    return found


def _check(conn: object, bind: Engine | Connection, *, is_async: bool = False) -> None:
    dialect = bind.dialect
    name = type(conn).__name__
    drivers = ("psycopg", "asyncpg") if is_async else ("psycopg",)
    if dialect.is_async and not is_async:
        raise unusable(
            f"a {name} of an async engine",
            "pass its AsyncSession or AsyncConnection to await aenqueue(), aguard() or acomplete()",
        )
    if dialect.name != "postgresql" or dialect.driver not in drivers:
        create = "create_async_engine" if is_async else "create_engine"
        raise unusable(
            f"a SQLAlchemy {name} on {dialect.name}+{dialect.driver}",
            f'connect with psycopg 3: {create}("postgresql+psycopg://...")',
        )
