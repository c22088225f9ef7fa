"""The address of the database, from settings.DATABASES."""

import re
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from ...db.guests import sync_guest
from ...db.guests.django import check_connection
from ...errors import ConfigurationError, WrongConnection
from ...store.probe import which_database
from ...store.statement import Statement

_NOT_OURS = ("client_encoding",)  # of a connection, not of a place
_same: set[tuple[object, object]] = set()  # addresses of one database
_KEYWORDS = frozenset(option.keyword.decode() for option in Conninfo.get_defaults()).difference(_NOT_OURS)


def address_of(alias: str) -> str:
    """libpq's parameters for Django's database. Read again each time: a test runner changes it."""
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(connections)
        raise ConfigurationError(
            f"settings.HOLDFAST: DATABASE is {alias!r}, which is not in DATABASES (it has: {known})"
        ) from None
    check_connection(connection)
    if not connection.settings_dict.get("AUTOCOMMIT", True):
        raise ConfigurationError(
            f"DATABASES[{alias!r}] has AUTOCOMMIT: False. Jobs need to know where a transaction ends: take it out, and "
            "use transaction.atomic(), or ATOMIC_REQUESTS for every view"
        )
    try:
        given = connection.get_connection_params()
    except ImproperlyConfigured as error:
        raise ConfigurationError(f"DATABASES[{alias!r}]: {error}") from None
    where: dict[str, Any] = {
        name: value for name, value in given.items() if name in _KEYWORDS and value is not None
    }
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        where["options"] = f"{where.get('options', '')} -c role={_escaped(role)}".strip()
    return make_conninfo(**where)


def _escaped(word: str) -> str:
    """A word of libpq's `options`, which are split at spaces."""
    return re.sub(r"([\\\s])", r"\\\1", word)


def check_place(alias: str, conn: Any, run: Callable[[Statement[Any]], Any]) -> None:
    """Refuse a connection of Django's to another database than that of the jobs: no worker would find the job. Two addresses
    may be of one database, such as a pooler's and the server's: that is asked once, of both. `run` asks that of the jobs."""
    given = getattr(conn, "settings_dict", None)
    ours = connections[alias].settings_dict
    if given is None or given is ours:
        return
    there, here = (tuple(of[name] for name in ("NAME", "HOST", "PORT")) for of in (given, ours))
    if there == here or (there, here) in _same:
        return
    if sync_guest(conn, "enqueue", "aenqueue").run(which_database()) != run(which_database()):
        raise WrongConnection(
            f"this is Django's connection to DATABASES[{conn.alias!r}], but settings.HOLDFAST puts jobs into "
            f"DATABASES[{alias!r}]. Pass django.db.connections[{alias!r}], inside of transaction.atomic(using={alias!r})"
        )
    _same.add((there, here))


def place_of(alias: str) -> tuple[object, ...]:
    """What of DATABASES says where it is: cheap to compare."""
    found = connections.settings.get(alias, {})
    return tuple(str(found.get(name)) for name in ("NAME", "HOST", "PORT", "USER", "PASSWORD", "OPTIONS"))
