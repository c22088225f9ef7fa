"""A separate connection for migrations, and how errors name its address: never with a password."""

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import ConfigurationError, DatabaseUnavailable, MigrationFailed
from holdfast.model.address import libpq_address

Connection = psycopg.Connection[tuple[Any, ...]]

_UNREADABLE = (
    "the database address cannot be read. Write postgresql://user@host:5432/name, "
    "with @ / : # ? and % in a password written as %40 %2F %3A %23 %3F and %25"
)

_SECRETS = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
_CREDENTIALS = re.compile(r"^([\w+]+://[^:/@]*:)[^@/]*@")
_QUERY = re.compile(rf"([?&](?:{'|'.join(_SECRETS)})=)[^&#]*")
_HIDDEN = "(not shown: it cannot be read, and may hold a password)"


def connect(dsn: str) -> Connection:
    """A connection in autocommit; DatabaseUnavailable names its target and why it failed."""
    place = describe(dsn)
    options: dict[str, Any] = {"client_encoding": "utf8", "application_name": "holdfast migrate"}
    if not conninfo_to_dict(dsn).get("connect_timeout"):
        options["connect_timeout"] = 10
    try:
        conn = psycopg.connect(dsn, autocommit=True, prepare_threshold=None, **options)
        conn.execute("SET datestyle = 'ISO'")  # whatever the role's default: the driver reads no others
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"cannot reach {place}: {one_line(error)}") from error
    # Whatever the role's default: a lock is worth nothing to a snapshot that is older than the lock.
    conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return conn


@contextmanager
def pinned(conn: Connection) -> Iterator[None]:
    """A transaction in which no name is resolved in any user's schema: a migrator has more rights than any other role."""
    with conn.transaction():
        conn.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        yield


@contextmanager
def session(dsn: str) -> Iterator[Connection]:
    """A connection that ends with the block; errors of the driver become Holdfast's."""
    place = describe(dsn)
    with connect(dsn) as conn:
        try:
            yield conn
        except psycopg.Error as error:
            if conn.broken:
                raise DatabaseUnavailable(f"lost the connection to {place}: {one_line(error)}") from error
            raise MigrationFailed(f"cannot read the schema of {place}: {one_line(error)}") from error


def _unreadable(dsn: str) -> str:
    word = dsn.partition(":")[0]
    if dsn == word == "embedded":
        return "embedded is written with a colon: embedded:"
    if difflib.get_close_matches(word.lower(), ["embedded"], 1, 0.8):
        return f"the database address begins with {word!r}. A server of its own is written embedded:"
    return _UNREADABLE


def parts_of(dsn: str) -> dict[str, Any]:
    """The parts of a conninfo; one that cannot be read is refused with a clear error."""
    try:
        return dict(conninfo_to_dict(libpq_address(dsn)))
    except psycopg.Error:
        raise ConfigurationError(_unreadable(dsn)) from None  # libpq's own text quotes pieces of the address


def describe(dsn: str) -> str:
    """Host, database and role of a conninfo, for messages: no password, also when a wrong '@' moved it."""
    parts = parts_of(dsn)
    host, port, name, user = (str(parts.get(key) or "") for key in ("host", "port", "dbname", "user"))
    if "@" in host + name or (port and not port.replace(",", "").isdigit()):
        raise ConfigurationError(_UNREADABLE)
    where = f" at {host or 'the default host'}" + (f":{port}" if port else "")
    return (
        (f"database {name!r}" if name else "the default database") + where + (f" as {user!r}" if user else "")
    )


def masked(dsn: str) -> str:
    """The address with *** for every secret in it. One that cannot be read for certain is not shown at all."""
    if dsn.startswith("embedded:"):
        return dsn
    try:
        describe(dsn)
        parts = parts_of(dsn)
        secrets = {key: "***" for key in _SECRETS if parts.get(key) is not None}
        if "://" not in dsn:
            return make_conninfo(**{**parts, **secrets}) if secrets else dsn
        shown = _QUERY.sub(r"\1***", _CREDENTIALS.sub(r"\1***@", dsn, count=1))
        seen = parts_of(shown)
    except ConfigurationError:
        return _HIDDEN
    return shown if all(seen.get(key) == "***" for key in secrets) else _HIDDEN


def one_line(error: BaseException) -> str:
    """Its lines as sentences: those of libpq end without a full stop."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return "".join(f"{line}{'. ' if line[-1].isalnum() else ' '}" for line in lines[:-1]) + "".join(
        lines[-1:]
    )
