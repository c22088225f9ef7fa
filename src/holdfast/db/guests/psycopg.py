"""psycopg connections as guests."""

from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from ...errors import SchemaMissing
from ...store.statement import Flow, Statement
from ..executors import adrive, arun, drive, run
from ..faults import schema_missing
from ..transaction import AsyncTransaction, Transaction
from .refusals import closed, unusable

T = TypeVar("T")
Raw = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


def begins(conn: Raw) -> bool:
    return not conn.autocommit or conn.info.transaction_status != TransactionStatus.IDLE


def missing(error: psycopg.Error) -> SchemaMissing | None:
    return schema_missing(error.sqlstate, str(error))


def _check_open(conn: Raw) -> None:
    if conn.closed:
        if not conn.broken:  # a broken one has a more precise error
            raise closed(conn)
    elif conn.pgconn.parameter_status(b"client_encoding") == b"SQL_ASCII":  # text would come as bytes
        raise unusable("a connection with client_encoding SQL_ASCII", "first: SET client_encoding = 'UTF8'")


class PsycopgGuest:
    advice = "wrap it: with conn.transaction(): ..."

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        _check_open(conn)
        self._conn = conn

    def in_transaction(self) -> bool:
        return begins(self._conn)

    def run(self, what: Statement[T] | Flow[T]) -> T:
        try:
            return run(self._conn, what) if isinstance(what, Statement) else drive(self._conn, what)
        except psycopg.Error as error:
            if known := missing(error):
                raise known from error
            raise


class AsyncPsycopgGuest:
    advice = "wrap it: async with conn.transaction(): ..."

    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        _check_open(conn)
        self._conn = conn

    async def in_transaction(self) -> bool:
        return begins(self._conn)

    async def arun(self, what: Statement[T] | Flow[T]) -> T:
        try:
            if isinstance(what, Statement):
                return await arun(self._conn, what)
            return await adrive(self._conn, what)
        except psycopg.Error as error:
            if known := missing(error):
                raise known from error
            raise


def transaction_guest(tx: Transaction) -> PsycopgGuest:
    return PsycopgGuest(tx.connection)


def async_transaction_guest(tx: AsyncTransaction) -> AsyncPsycopgGuest:
    return AsyncPsycopgGuest(tx.connection)
