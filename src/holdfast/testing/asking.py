"""The session in which a kit asks about its database.

A new session reads the catalog again: for the view of all jobs that is ten times the work of the question, and a test that
waits for a row asks again and again. So one session is kept, and left as a new one is found."""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.rows import dict_row

from ..model.clock import Clock

Row = dict[str, Any]


def set_clock(conn: psycopg.Connection[Row], clock: Clock) -> None:
    conn.execute("SELECT set_config('holdfast.clock_offset', %s, false)", [f"{clock.offset} seconds"])
    conn.commit()


class Asking:
    def __init__(self, url: str) -> None:
        self._url = url
        self._kept: dict[int, psycopg.Connection[Row]] = {}  # by process: a forked one has its own
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lend(self, clock: Clock) -> Iterator[psycopg.Connection[Row]]:
        """A session in a transaction, which is committed. One that another thread waits in is not waited for."""
        conn = self._take(clock)
        try:
            yield conn
            conn.commit()
            conn.autocommit = True
            conn.execute("DISCARD ALL")
            conn.autocommit = False
        except BaseException:
            conn.close()
            raise
        with self._lock:
            kept = self._kept.setdefault(os.getpid(), conn)
        if kept is not conn:
            conn.close()

    def _take(self, clock: Clock) -> psycopg.Connection[Row]:
        with self._lock:
            kept = self._kept.pop(os.getpid(), None)
        if kept is not None:
            with contextlib.suppress(psycopg.OperationalError):  # the server ended it
                set_clock(kept, clock)
                return kept
            kept.close()
        # No statement is prepared by name: what a session has prepared is discarded with the rest.
        conn = psycopg.Connection[Row].connect(self._url, row_factory=dict_row, prepare_threshold=None)
        set_clock(conn, clock)
        return conn

    def close(self) -> None:
        with self._lock:
            kept = self._kept.pop(os.getpid(), None)
        if kept is not None:
            kept.close()
