"""Run a Statement or a Flow on a psycopg connection, sync and async. Everything else about a query is shared.

The cursor is ours: raw `$1` placeholders, plain tuples and the driver's default types, whatever row factory, loaders
and dumpers the user has registered. JSON travels as text. Nothing here commits or rolls back.

`listen_in()` reports every statement that ran, with its result, to a subscriber. Without subscribers it costs nothing.
"""

import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeVar, cast

import psycopg
from psycopg import postgres
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format, PipelineStatus
from psycopg.rows import tuple_row
from psycopg.types import TypesRegistry
from psycopg.types.array import register_all_arrays

from ..store.arrays import UuidArray
from ..store.statement import Flow, Row, Statement
from .prepared import prepared

T = TypeVar("T")

Ran = Callable[[Statement[Any], list[Row], float], None]  # what ran, its result, and the seconds that it took
_listeners: list[Ran] = []

_types = TypesRegistry()
postgres.register_default_types(_types)
_adapters = AdaptersMap(types=_types)
postgres.register_default_adapters(_adapters)
register_all_arrays(_adapters)


class _AsItIs(Dumper):
    format = Format.BINARY
    oid = 2951  # uuid[]

    def dump(self, obj: UuidArray) -> UuidArray:
        return obj


_adapters.register_dumper(UuidArray, _AsItIs)


class OurCursor(psycopg.RawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return _adapters


class _AsyncCursor(psycopg.AsyncRawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return _adapters


def _has_rows(cursor: psycopg.RawCursor[Row] | psycopg.AsyncRawCursor[Row]) -> bool:
    """The same as `cursor.description`, which describes every column for it."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


def _in_pipeline(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """In a guest's pipeline the reply comes when it is fetched. A statement on a guest always has one."""
    return conn.pgconn.pipeline_status != PipelineStatus.OFF


def listen_in(told: Ran) -> Callable[[], None]:
    """Report every statement of this process from now on; the returned function ends it."""
    _listeners.append(told)
    return lambda: _listeners.remove(told)


def is_heard() -> bool:
    """Whether there are subscribers."""
    return bool(_listeners)


def _tell(statement: Statement[Any], rows: list[Row], began: float) -> None:
    for told in tuple(_listeners):
        told(statement, rows, time.perf_counter() - began)


def run(conn: psycopg.Connection[Any], statement: Statement[T]) -> T:
    began = time.perf_counter() if _listeners else 0.0
    rows = _quick(conn, statement) if statement.texts else None
    if rows is None:
        with OurCursor(conn, row_factory=tuple_row) as cursor:
            cursor.execute(statement.text.encode(), statement.params, binary=statement.binary)
            rows = cursor.fetchall() if _has_rows(cursor) or _in_pipeline(conn) else []
    if _listeners:
        _tell(statement, rows, began)
    return statement.decode(rows)


async def arun(conn: psycopg.AsyncConnection[Any], statement: Statement[T]) -> T:
    began = time.perf_counter() if _listeners else 0.0
    rows = await _aquick(conn, statement) if statement.texts else None
    if rows is None:
        async with _AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(statement.text.encode(), statement.params, binary=statement.binary)
            rows = await cursor.fetchall() if _has_rows(cursor) or _in_pipeline(conn) else []
    if _listeners:
        _tell(statement, rows, began)
    return statement.decode(rows)


def _quick(conn: psycopg.Connection[Any], statement: Statement[Any]) -> list[Row] | None:
    with conn.lock:
        answer = prepared(conn, statement)
        return None if answer is None else conn.wait(answer)


async def _aquick(conn: psycopg.AsyncConnection[Any], statement: Statement[Any]) -> list[Row] | None:
    async with conn.lock:
        answer = prepared(conn, statement)
        return None if answer is None else await conn.wait(answer)


def drive(conn: psycopg.Connection[Any], what: Statement[T] | Flow[T]) -> T:
    """Run it in the connection's current transaction."""
    return walk(partial(run, conn), what)


async def adrive(conn: psycopg.AsyncConnection[Any], what: Statement[T] | Flow[T]) -> T:
    return await awalk(partial(arun, conn), what)


def walk(one: Callable[[Statement[Any]], Any], what: Statement[T] | Flow[T]) -> T:
    """Run a statement, or a flow statement by statement, each with `one`."""
    if isinstance(what, Statement):
        return cast(T, one(what))
    flow: Generator[Statement[Any], Any, T] = what
    answer: Any = None
    while True:
        try:
            statement = flow.send(answer)
        except StopIteration as done:
            return cast(T, done.value)
        answer = one(statement)


async def awalk(one: Callable[[Statement[Any]], Awaitable[Any]], what: Statement[T] | Flow[T]) -> T:
    if isinstance(what, Statement):
        return cast(T, await one(what))
    flow: Generator[Statement[Any], Any, T] = what
    answer: Any = None
    while True:
        try:
            statement = flow.send(answer)
        except StopIteration as done:
            return cast(T, done.value)
        answer = await one(statement)
