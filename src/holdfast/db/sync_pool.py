"""The pool of a process, for its threads."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Generic

import psycopg

from .pool import FIRST_PAUSE, LONGEST_PAUSE, C, Closed, Pool, away, received
from .transaction_end import OwnConnection


class _Thread(Generic[C]):
    """Of a thread that waits."""

    def __init__(self) -> None:
        self.got: list[C | Closed | None] = []
        self._arrived = threading.Event()

    def hand(self, what: C | Closed | None) -> bool:
        self.got.append(what)
        self._arrived.set()
        return True

    def wait(self, seconds: float) -> bool:
        return self._arrived.wait(seconds)


class _Hurry:
    """A statement that gets no reply in time ends with an error of the driver: its connection is cut. A paused pooler
    accepts connections and never replies on them. The driver would wait for that without end."""

    def __init__(self, conn: psycopg.Connection[Any], seconds: float) -> None:
        self._conn = conn
        self._lock = threading.Lock()
        self._is_over = False
        self.late = False
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def _cut(self) -> None:
        with self._lock:
            if not self._is_over:
                self.late = True
                with socket.socket(fileno=os.dup(self._conn.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> "_Hurry":
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no thread any more
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True


class SyncPool(Pool[OwnConnection]):
    def __init__(
        self,
        dsn: str,
        arguments: dict[str, Any],
        size: int,
        patience: float,
        is_fresh: Callable[[OwnConnection], bool],
        configure: Callable[[OwnConnection], None],
    ) -> None:
        super().__init__(dsn, arguments, size, patience, is_fresh)
        self._configure = configure

    def _call_later(self, seconds: float) -> threading.Timer | None:
        timer = threading.Timer(seconds, self._close_unused)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # the interpreter ends, and all connections with it
            return None
        return timer

    def take(self) -> OwnConnection:
        deadline = time.monotonic() + self._patience
        while True:
            served, conn = self._take()
            if not served:
                conn = self._wait(deadline)
            if conn is None:
                return self._open(deadline)
            if self._is_alive(conn, deadline):
                return conn

    def _is_alive(self, conn: OwnConnection, deadline: float) -> bool:
        if self._is_fresh(conn):
            return True
        try:
            with _Hurry(conn, _left(deadline)):
                conn.execute("")
        except psycopg.Error:
            self._close_dead(conn)
            return False
        except BaseException:  # interrupted: the state of the connection is unknown
            self._discard(conn)
            raise
        return True

    def _wait(self, deadline: float) -> OwnConnection | None:
        waiting = _Thread[OwnConnection]()
        served, conn = self._take(waiting.hand)
        if served:
            return conn
        try:
            if not waiting.wait(max(0.0, deadline - time.monotonic())):
                raise self._none_came()
        except BaseException:
            self._leave(self._line, waiting.hand, lambda: waiting.got[0])
            raise
        return received(waiting.got[0])

    def _open(self, deadline: float) -> OwnConnection:
        pause, conn = FIRST_PAUSE, None
        try:
            while True:
                try:
                    conn = self._connect(self._bounded(deadline), deadline)
                    return conn
                except psycopg.Error as error:
                    if self._is_over(error, pause, deadline):
                        raise away(error) from error
                other = self._returned_within(pause)
                if other is not None and self._is_alive(other, deadline):
                    return other
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self._end_opening(conn)

    def _connect(self, arguments: dict[str, Any], deadline: float) -> OwnConnection:
        conn = OwnConnection.connect(self._dsn, **arguments)
        hurry = _Hurry(conn, _left(deadline))
        try:
            with hurry:
                self._configure(conn)
        except BaseException as error:
            conn.pgconn.finish()
            if hurry.late and isinstance(error, psycopg.Error):
                raise self._none_came() from error
            raise
        return conn

    def _returned_within(self, seconds: float) -> OwnConnection | None:
        """A connection that came back meanwhile."""
        waiting = _Thread[OwnConnection]()
        with self._lock:
            if self._idle:
                return self._idle.pop()[0]
            self._retrying.append(waiting.hand)
        try:
            waiting.wait(seconds)
        except BaseException:
            self._leave(self._retrying, waiting.hand, lambda: waiting.got[0])
            raise
        with self._lock:
            if waiting.hand in self._retrying:
                self._retrying.remove(waiting.hand)
        return received(waiting.got[0]) if waiting.got else None


def _left(deadline: float) -> float:
    """Seconds, at least two: as long as a connection may take anyway."""
    return max(2.0, deadline - time.monotonic())
