"""Run a Statement or a Flow on a psycopg connection, sync and async. Everything else about a query is shared.

The cursor is ours: raw `$1` placeholders and plain tuples, whatever the connection's own row factory is. JSON
travels as text, so that no codec of the connection can get in the way. Nothing here commits or rolls back.
"""

from collections.abc import Generator
from typing import Any, TypeVar, cast

import psycopg
from psycopg.rows import tuple_row

from ..store.statement import Flow, Row, Statement

T = TypeVar("T")


def run(conn: psycopg.Connection[Any], statement: Statement[T]) -> T:
    with psycopg.RawCursor(conn, row_factory=tuple_row) as cursor:
        cursor.execute(statement.text.encode(), statement.params)
        rows: list[Row] = cursor.fetchall() if cursor.description else []
    return statement.decode(rows)


async def arun(conn: psycopg.AsyncConnection[Any], statement: Statement[T]) -> T:
    async with psycopg.AsyncRawCursor(conn, row_factory=tuple_row) as cursor:
        await cursor.execute(statement.text.encode(), statement.params)
        rows: list[Row] = await cursor.fetchall() if cursor.description else []
    return statement.decode(rows)


def drive(conn: psycopg.Connection[Any], what: Statement[T] | Flow[T]) -> T:
    """Run it in the connection's current transaction."""
    if isinstance(what, Statement):
        return run(conn, what)
    flow: Generator[Statement[Any], Any, T] = what
    answer: Any = None
    while True:
        try:
            statement = flow.send(answer)
        except StopIteration as done:
            return cast(T, done.value)
        answer = run(conn, statement)


async def adrive(conn: psycopg.AsyncConnection[Any], what: Statement[T] | Flow[T]) -> T:
    if isinstance(what, Statement):
        return await arun(conn, what)
    flow: Generator[Statement[Any], Any, T] = what
    answer: Any = None
    while True:
        try:
            statement = flow.send(answer)
        except StopIteration as done:
            return cast(T, done.value)
        answer = await arun(conn, statement)
