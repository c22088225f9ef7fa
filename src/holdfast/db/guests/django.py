"""Django's connections as guests: `django.db.connection`, or one of `django.db.connections`."""

from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from django.db.utils import Error

from ...store.statement import Flow, Statement
from ..executors import drive
from .psycopg import missing
from .refusals import refusal, unusable

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")


class DjangoGuest:
    advice = "wrap it: with transaction.atomic(): ..."

    def __init__(self, conn: "BaseDatabaseWrapper") -> None:
        check_connection(conn)
        self._conn = conn

    def in_transaction(self) -> bool:
        return self._conn.in_atomic_block or not self._conn.get_autocommit()

    def run(self, what: Statement[T] | Flow[T]) -> T:
        raw = self._raw()
        try:
            with self._conn.wrap_database_errors:
                return drive(raw, what)
        except Error as error:
            cause = error.__cause__
            if isinstance(cause, psycopg.Error) and (known := missing(cause)):
                raise known from cause
            raise

    def _raw(self) -> psycopg.Connection[Any]:
        """The driver's connection, after the checks that Django makes itself: thread, health, broken blocks."""
        self._conn.cursor().close()
        self._conn.validate_no_broken_transaction()
        raw: psycopg.Connection[Any] = self._conn.connection
        return raw


def check_connection(conn: Any) -> None:
    """Refuse a connection that does not go to PostgreSQL by psycopg 3."""
    vendor = getattr(conn, "vendor", None)
    if vendor is None:  # the proxy of something else, such as a cache
        raise refusal(conn)
    if vendor != "postgresql":
        raise unusable(
            f"Django's connection {conn.alias!r} to {vendor}",
            "jobs live in PostgreSQL: pass the connection of an alias with "
            '"ENGINE": "django.db.backends.postgresql" in DATABASES',
        )
    driver = conn.Database.__name__
    if driver != "psycopg":
        raise unusable(
            f"Django's connection {conn.alias!r} on {driver}",
            "Django takes psycopg 3 where it finds it: pip install 'psycopg[binary]', and restart",
        )
