"""Errors in terms that the layers above can act on without knowing the driver."""

import psycopg
from psycopg import errors as pg

from ..errors import DatabaseError, DatabaseUnavailable, EventsGone, HoldfastError, SchemaMissing
from ..model.text import storable


class ConnectionLost(DatabaseUnavailable):
    """The connection broke: whether the last statement took effect is not known."""


class BadRow(DatabaseError):
    """The database refused a statement because of the data in some row."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Contended(DatabaseError):
    """A serialization failure or deadlock: the transaction may simply be tried again."""


class Forbidden(DatabaseError):
    """The role lacks a privilege."""


class LockTimeout(DatabaseError):
    """Another session held a lock for too long."""


class JobsBusy(LockTimeout):
    """Another session holds jobs of an act that changes all of them or none: nothing was changed."""


class LockNotAvailable(LockTimeout):
    """A lock was not granted within the time that the statement allows for it."""


# Errors a single row can cause: bad values, broken constraints, limits, raising triggers, damaged storage.
_ROW_CLASSES = ("22", "23", "54", "P0", "XX")
_RETRY = ("40001", "40P01")
_LOCK = ("55P03", "57014")
_MISSING = ("3F000", "42P01", "42883", "42704")


def schema_missing(state: str | None, text: str) -> SchemaMissing | None:
    """The error of any driver, by its SQLSTATE and text, when it says that our schema is not there or too old."""
    if state not in _MISSING or "holdfast" not in text:
        return None
    first = storable(text.strip()).splitlines()[0]
    return SchemaMissing(f"the database has no current holdfast schema ({first}). Run: holdfast migrate up")


def translate(error: psycopg.Error) -> HoldfastError | None:
    """Our error for a driver's error, or None when it has no meaning of its own here."""
    state = error.sqlstate or ""
    text = storable(str(error).strip())
    if state in _RETRY:
        return Contended(text)
    if state == "HF003":
        return EventsGone(storable(error.diag.message_primary or text))
    if state == "42501":
        return Forbidden(text)
    if state == "55P03":
        return LockNotAvailable(text)
    if state in _LOCK:
        return LockTimeout(text)
    if missing := schema_missing(state, text):
        return missing
    if state == "25006" or state[:2] in ("08", "53", "57", "58"):
        # read-only standby, lost connection, out of resources, being shut down: an outage, never a job's failure
        return ConnectionLost(text)
    if state[:2] in _ROW_CLASSES:
        return BadRow(text, state)
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not isinstance(
        error, pg.QueryCanceled
    ):
        return ConnectionLost(text or type(error).__name__)
    return None
