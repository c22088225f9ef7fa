"""psycopg connections as guests."""

from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from ...errors import SchemaMissing
from ...store.statement import Flow, Statement
from ..executors import adrive, drive
from ..faults import translate
from ..transaction import AsyncTransaction, Transaction

T = TypeVar("T")


def _begins(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether a statement now is part of a transaction that the user ends."""
    return not conn.autocommit or conn.info.transaction_status != TransactionStatus.IDLE


def _explain(error: psycopg.Error) -> Exception:
    known = translate(error)
    return known if isinstance(known, SchemaMissing) else error


class PsycopgGuest:
    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn

    def in_transaction(self) -> bool:
        return _begins(self._conn)

    def run(self, what: Statement[T] | Flow[T]) -> T:
        try:
            return drive(self._conn, what)
        except psycopg.Error as error:
            raise _explain(error) from error


class AsyncPsycopgGuest:
    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._conn = conn

    def in_transaction(self) -> bool:
        return _begins(self._conn)

    async def arun(self, what: Statement[T] | Flow[T]) -> T:
        try:
            return await adrive(self._conn, what)
        except psycopg.Error as error:
            raise _explain(error) from error


def transaction_guest(tx: Transaction) -> PsycopgGuest:
    return PsycopgGuest(tx.connection)


def async_transaction_guest(tx: AsyncTransaction) -> AsyncPsycopgGuest:
    return AsyncPsycopgGuest(tx.connection)
