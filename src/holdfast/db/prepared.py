"""Runs a statement of texts that the driver has already prepared on a connection, without a cursor.

A cursor, and the objects it makes for each statement, cost the client twice the time of sending and receiving. The first
calls on a connection go the usual way, and so does every call on one that is in a pipeline, about to begin a transaction,
set to prepare nothing, or in another encoding. What the driver prepares, drops and counts is left to the driver.
"""

import functools
from typing import Any, NamedTuple

from psycopg import errors, generators
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from ..store.statement import Statement
from .connect import AnyConnection

_TUPLES, _OFF = int(ExecStatus.TUPLES_OK), int(PipelineStatus.OFF)
_IDLE, _IN_BLOCK = int(TransactionStatus.IDLE), int(TransactionStatus.INTRANS)

Answer = PQGen[list[tuple[Any, ...]]]


class _Key(NamedTuple):
    """The key under which the driver finds a prepared statement."""

    query: bytes
    types: tuple[int, ...]  # it says of a text, and of NULL, that the server knows which


@functools.cache
def _key(text: str, parameters: int) -> _Key:
    return _Key(text.encode(), (0,) * parameters)


def prepared(conn: AnyConnection, statement: Statement[Any]) -> Answer | None:
    """To be waited for under the connection's lock, which the caller holds; returns its rows. None: the usual way."""
    try:
        return _prepared(conn, statement)
    except AttributeError:  # these names are the driver's own: another release may have others
        return None


def _prepared(conn: AnyConnection, statement: Statement[Any]) -> Answer | None:
    pgconn, known = conn.pgconn, conn._prepared
    status = pgconn.transaction_status
    if status != _IN_BLOCK and not (status == _IDLE and conn.autocommit):
        return None
    if pgconn.pipeline_status != _OFF or pgconn.parameter_status(b"client_encoding") != b"UTF8":
        return None
    key = _key(statement.text, len(statement.params))
    name = known._names.get(key)
    if name is None or known.prepare_threshold is None or known._to_flush:
        return None
    values = [None if value is None else value.encode() for value in statement.params]
    if b"\0" in b"".join(filter(None, values)):  # it would end the text; the driver refuses it
        return None
    known._names.move_to_end(key)  # of those that it has, the driver drops what was used longest ago
    return _answer(pgconn, name, values)


def _answer(pgconn: PGconn, name: bytes, values: list[bytes | None]) -> Answer:
    pgconn.send_query_prepared(name, values)
    results = yield from generators.execute(pgconn)
    result = results[-1]
    if result.status != _TUPLES:
        raise errors.error_from_result(result, encoding="utf-8")
    return [(_texts(result.get_value(0, 0)),)]


def _texts(array: bytes | None) -> list[str | None]:
    """Of a text[] of words."""
    assert array is not None
    assert b'"' not in array
    return [None if word == "NULL" else word for word in array[1:-1].decode().split(",")]
