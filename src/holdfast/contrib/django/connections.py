"""Django's connections around handlers: closed when they are too old or broken, and lent to a handler's Transaction.

Django keeps a connection per thread, and looks at it when a request begins and ends. A handler's thread has no requests: so
each call of a handler takes their place.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from django.db import Error, connections, reset_queries, transaction

from ... import telemetry
from ...db.faults import translate
from ...model.text import describe
from .threads import Threads


def close_old_connections() -> None:
    """As Django's own, but that a connection stays whose transaction is open: a handler's Transaction, or a test's."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _begin() -> None:
    reset_queries()
    close_old_connections()


class _HeldConnections:
    """Closes the connections of a thread when the thread ends. Django leaves that to the garbage collector: until it comes,
    no test runner can drop its database."""

    def __init__(self) -> None:
        self.connections: list[Any] = []

    def __del__(self) -> None:
        for connection in self.connections:
            if not connection.in_atomic_block:
                with contextlib.suppress(Exception):
                    connection.close()


class _OfThread(threading.local):
    def __init__(self) -> None:  # in each thread
        self.held = _HeldConnections()


_of_thread = _OfThread()


@contextlib.contextmanager
def usable_connections() -> Iterator[None]:
    """Around a handler in its thread."""
    _begin()
    try:
        yield
    finally:
        close_old_connections()
        _of_thread.held.connections = list(connections.all(initialized_only=True))


threads = Threads(_begin, close_old_connections)  # of async handlers


class DjangoLender:
    """A handler's Transaction is on the connection that the ORM uses in its thread."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        close_old_connections()
        connection = connections[self._alias]
        raw: psycopg.Connection[Any] | None = None
        try:
            connection.ensure_connection()
            raw = connection.connection
            assert raw is not None
            yield raw
        except (Error, psycopg.Error) as error:
            cause = error if isinstance(error, psycopg.Error) else error.__cause__
            lost = raw is None or raw.closed  # at the end of its block Django closes one that broke
            if not (lost and isinstance(cause, psycopg.Error)):
                raise  # the handler's own
            raise translate(cause) or error from error
        finally:
            close_old_connections()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What Django would roll back without a word, because the handler caught an error of the ORM, is a failure here: the
        job must not count as done."""
        with transaction.atomic(using=self._alias, durable=True):
            yield
            connection: Any = connections[self._alias]
            connection.validate_no_broken_transaction()
            connection.run_on_commit = [
                (savepoints, _reported(call), robust) for savepoints, call, robust in connection.run_on_commit
            ]


def _reported(call: Callable[[], object]) -> Callable[[], None]:
    """What raises after the commit cannot undo the job, nor keep the calls after it from being made."""

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 whatever it raises, the job is completed
            details = describe(error)
            telemetry.emit(
                "django.on_commit_failed",
                level=logging.ERROR,
                call=getattr(call, "__qualname__", repr(call)),
                error=details.summary,
                trace=details.trace,
            )

    return run
