"""COPY on connections of our own: the only way in that is no Statement, because rows are streamed while they are made."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import psycopg

from ..store.statement import Statement
from .executors import arun, run

T = TypeVar("T")
_CHUNK = 96 * 1024  # bytes that are sent at once


def copy_in(
    conn: psycopg.Connection[Any],
    text: str,
    before: Statement[T],
    lines: Callable[[T], Iterable[str]],
    after: Callable[[], Iterable[Statement[Any]]],
) -> None:
    """One transaction: `before` tells what the lines need to know, `after` says what is left to do."""
    with conn.transaction():
        known = run(conn, before)
        with psycopg.Cursor(conn) as cursor, cursor.copy(text.encode()) as copy:
            for chunk in _chunks(lines(known)):
                copy.write(chunk)
        for statement in after():
            run(conn, statement)


async def acopy_in(
    conn: psycopg.AsyncConnection[Any],
    text: str,
    before: Statement[T],
    lines: Callable[[T], Iterable[str]],
    after: Callable[[], Iterable[Statement[Any]]],
) -> None:
    async with conn.transaction():
        known = await arun(conn, before)
        async with psycopg.AsyncCursor(conn) as cursor, cursor.copy(text.encode()) as copy:
            for chunk in _chunks(lines(known)):
                await copy.write(chunk)
        for statement in after():
            await arun(conn, statement)


def _chunks(lines: Iterable[str]) -> Iterator[bytes]:
    """Lines put together: memory stays the same, however many there are."""
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _CHUNK:
            yield "".join(held).encode()
            held, size = [], 0
    if held:
        yield "".join(held).encode()
