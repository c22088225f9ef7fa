"""COPY on our own connections: the only write that is not a Statement, because rows are streamed while they are made."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import psycopg
from psycopg.errors import FeatureNotSupported

from ..model.text import storable
from ..store.statement import Statement
from .executors import arun, run
from .faults import Forbidden

T = TypeVar("T")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """A server refuses COPY into a table whose row-level security applies to the role. It is one more missing right."""
    try:
        yield
    except FeatureNotSupported as error:
        raise Forbidden(storable(str(error).strip())) from error


def copy_in(
    conn: psycopg.Connection[Any],
    text: str,
    before: Statement[T],
    pieces: Callable[[T], Iterable[bytes]],
    after: Callable[[], Iterable[Statement[Any]]],
) -> None:
    """In the caller's transaction: `before` returns what the rows depend on, `after` the statements that are left."""
    known = run(conn, before)
    with contextlib.ExitStack() as stack:
        cursor = stack.enter_context(psycopg.Cursor(conn))
        with _refusals():
            copy = stack.enter_context(cursor.copy(text.encode()))
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
    async with contextlib.AsyncExitStack() as stack:
        cursor = await stack.enter_async_context(psycopg.AsyncCursor(conn))
        with _refusals():
            copy = await stack.enter_async_context(cursor.copy(text.encode()))
        for piece in pieces(known):
            await copy.write(piece)
    for statement in after():
        await arun(conn, statement)
