"""COPY on our own connections: the only write that is not a Statement, because rows are streamed while they are made."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import psycopg

from ..store.statement import Statement
from .executors import arun, run

T = TypeVar("T")


def copy_in(
    conn: psycopg.Connection[Any],
    text: str,
    before: Statement[T],
    pieces: Callable[[T], Iterable[bytes]],
    after: Callable[[], Iterable[Statement[Any]]],
) -> None:
    """In the caller's transaction: `before` returns what the rows depend on, `after` the statements that are left."""
    known = run(conn, before)
    with psycopg.Cursor(conn) as cursor, cursor.copy(text.encode()) as copy:
        for piece in pieces(known):
            copy.write(piece)
    for statement in after():
        run(conn, statement)


async def acopy_in(
    conn: psycopg.AsyncConnection[Any],
    text: str,
    before: Statement[T],
    pieces: Callable[[T], Iterable[bytes]],
    after: Callable[[], Iterable[Statement[Any]]],
) -> None:
    known = await arun(conn, before)
    async with psycopg.AsyncCursor(conn) as cursor, cursor.copy(text.encode()) as copy:
        for piece in pieces(known):
            await copy.write(piece)
    for statement in after():
        await arun(conn, statement)
