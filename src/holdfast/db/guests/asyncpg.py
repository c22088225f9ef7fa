"""asyncpg connections as guests, bare or out of a pool."""

from typing import Any, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from ...store.statement import Flow, Statement
from ..executors import awalk
from ..faults import schema_missing
from .refusals import closed
from .text import as_text

T = TypeVar("T")


class AsyncpgGuest:
    advice = "wrap it: async with conn.transaction(): ..."

    def __init__(self, conn: "asyncpg.Connection[Any] | PoolConnectionProxy[Any]") -> None:
        if _is_closed(conn):
            raise closed(conn)
        self._conn = conn

    async def in_transaction(self) -> bool:
        return self._conn.is_in_transaction()

    async def arun(self, what: Statement[T] | Flow[T]) -> T:
        try:
            return await awalk(self._one, what)
        except asyncpg.PostgresError as error:
            if known := schema_missing(error.sqlstate, str(error)):
                raise known from error
            raise

    async def _one(self, statement: Statement[T]) -> T:
        text, params = as_text(statement)
        rows = await self._conn.fetch(text, *params, record_class=asyncpg.Record)
        return statement.decode([tuple(row) for row in rows])


def _is_closed(conn: "asyncpg.Connection[Any] | PoolConnectionProxy[Any]") -> bool:
    try:
        return conn.is_closed()
    except asyncpg.InterfaceError:  # given back to its pool
        return True
