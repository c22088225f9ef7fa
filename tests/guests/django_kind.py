"""Django's connection, in `transaction.atomic()`."""

from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import psycopg
from django.db import connections, transaction
from django.db.utils import ConnectionHandler, InternalError
from tests.django_app.setting_up import set_up
from tests.guests.kinds import Kind, parts

set_up()


def database(url: str, **options: Any) -> dict[str, Any]:
    """The entry of DATABASES for a url."""
    at = parts(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": at["dbname"],
        "USER": at["user"] or "",
        "PASSWORD": at["password"] or "",
        "HOST": at["host"] or "",
        "PORT": at["port"] or "",
        "OPTIONS": options,
    }


class DjangoConnection(Kind):
    """One wrapper, known to Django under an alias of its own in this thread."""

    advice = "wrap it: with transaction.atomic(): ..."
    read_only = InternalError

    def open(self) -> None:
        options: dict[str, Any] = {}
        if self.isolation:
            options["isolation_level"] = psycopg.IsolationLevel[self.isolation.replace(" ", "_")]
        self.alias = f"shop_{uuid4().hex}"
        self.conn = ConnectionHandler({"default": database(self.url, **options)})["default"]
        self.conn.alias = self.alias
        connections[self.alias] = self.conn

    def close(self) -> None:
        self.conn.close()
        del connections[self.alias]

    def block(self) -> AbstractContextManager[Any]:
        return transaction.atomic(using=self.alias)

    def nested(self) -> AbstractContextManager[Any]:
        return transaction.atomic(using=self.alias)

    def write(self, order: int) -> None:
        with self.conn.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [order])

    def one(self, query: str) -> Any:
        with self.conn.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0] if cursor.description else None
