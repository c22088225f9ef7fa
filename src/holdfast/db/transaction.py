"""The transaction a handler asks for. Its writes commit together with the job's completion."""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg


class Transaction:
    """A sync handler's transaction: `def settle(tx: Transaction, invoice_id: int)`."""

    __slots__ = ("_connection",)

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self._connection

    def execute(
        self, query: str, params: Sequence[object] | Mapping[str, object] = ()
    ) -> psycopg.Cursor[Any]:
        """Run a statement with psycopg's `%s` placeholders; the cursor holds its rows."""
        return self._connection.execute(query.encode(), params or None)


class AsyncTransaction:
    """An async handler's transaction: `async def settle(tx: AsyncTransaction, invoice_id: int)`."""

    __slots__ = ("_connection",)

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        return self._connection

    async def execute(
        self, query: str, params: Sequence[object] | Mapping[str, object] = ()
    ) -> psycopg.AsyncCursor[Any]:
        return await self._connection.execute(query.encode(), params or None)
