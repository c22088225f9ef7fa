"""The address of the database, from settings.DATABASES."""

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from ...db.guests.django import check_connection
from ...errors import ConfigurationError

_NOT_OURS = ("client_encoding",)  # of a connection, not of a place
_KEYWORDS = frozenset(option.keyword.decode() for option in Conninfo.get_defaults()).difference(_NOT_OURS)


def address_of(alias: str) -> str:
    """What libpq needs to come where Django's connection goes. Asked for anew each time: a test runner changes it."""
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
    return make_conninfo(
        **{name: value for name, value in given.items() if name in _KEYWORDS and value is not None}
    )


def place_of(alias: str) -> tuple[object, ...]:
    """What of DATABASES says where it is: cheap to compare."""
    found = connections.settings.get(alias, {})
    return tuple(str(found.get(name)) for name in ("NAME", "HOST", "PORT", "USER", "PASSWORD", "OPTIONS"))
