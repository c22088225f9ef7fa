"""A pool of connections whose users open them. There is no thread and no task behind it.

A caller gets the connection that was used last; if there is none, the right to open one, which few have at a time; if
there is none either, a place in the line. An idle connection that turns out to be dead closes all idle ones: a server that
stopped took every one. During an outage the callers with the right retry until their patience ends, so that
the first caller after it has a connection as soon as the server accepts one, and an error is the server's own.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from ..errors import DatabaseUnavailable
from .connect import AnyConnection

C = TypeVar("C", bound=AnyConnection)

MAX_IDLE = 120.0  # seconds until an unused connection is closed
MAX_AGE = 3_600.0  # seconds until a connection is closed when it comes back: a server process only grows
OPENING = 2  # at a time: callers that wait meanwhile may get connections that are returned
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 0.5


class Closed:
    """What waiting callers get when the pool is closed."""


class Pool(Generic[C]):
    """The part that never waits. Each change is made under one lock. None in place of a connection grants the right
    to open one. A caller that waits leaves a function that takes either, and returns False when it no longer waits."""

    def __init__(
        self, dsn: str, arguments: dict[str, Any], size: int, patience: float, is_fresh: Callable[[C], bool]
    ) -> None:
        self._dsn = dsn
        self._arguments = arguments
        self._size = size
        self._patience = patience
        self._is_fresh = is_fresh
        self._lock = threading.Lock()
        self._idle: deque[tuple[C, float]] = (
            deque()
        )  # with the time since when they are idle; the last one used is at the end
        self._opened_at: dict[C, float] = {}
        self._count = 0  # lent, idle and being opened
        self._opening = 0
        self._trouble: psycopg.Error | None = None  # of the latest try to open one
        self._line: deque[Callable[[C | Closed | None], bool]] = deque()
        self._retrying: deque[Callable[[C | Closed | None], bool]] = deque()  # that pause between two tries
        self._is_closed = False
        self.keeps = True  # unused connections; otherwise each is closed when it is returned
        self._timer: threading.Timer | asyncio.TimerHandle | None = None

    def resize(self, size: int) -> None:
        with self._lock:
            self._size = size
            self._invite()

    def _take(self, hand: Callable[[C | Closed | None], bool] | None = None) -> tuple[bool, C | None]:
        """Whether the caller gets something, and what. If not, `hand` gets it later."""
        with self._lock:
            if self._idle:
                return True, self._idle.pop()[0]
            if self._count < self._size and self._opening < OPENING:
                self._count += 1
                self._opening += 1
                return True, None
            if hand is not None:
                self._line.append(hand)
            return False, None

    def _invite(self) -> None:
        """Give the right to open a connection to those in the line, while there is room."""
        while self._line and self._count < self._size and self._opening < OPENING:
            if self._line.popleft()(None):
                self._count += 1
                self._opening += 1

    def _serve(self, conn: C) -> bool:
        """Whether a waiting caller took it."""
        for line in (self._retrying, self._line):
            while line:
                if line.popleft()(conn):
                    return True
        return False

    def _leave(
        self,
        line: "deque[Callable[[C | Closed | None], bool]]",
        hand: Callable[[C | Closed | None], bool],
        late: Callable[[], C | Closed | None],
    ) -> None:
        """The owner of `hand` no longer waits. A connection that arrives too late goes to the next caller."""
        with self._lock:
            if hand in line:
                line.remove(hand)
                return
            got = late()
        if isinstance(got, psycopg.Connection | psycopg.AsyncConnection):
            self.give_back(got)
        elif got is None:
            self._end_opening(None)

    def _end_opening(self, conn: C | None) -> None:
        """Called by the owner of the right; None: there is no new connection."""
        with self._lock:
            self._opening -= 1
            if conn is None:
                self._count -= 1
            else:
                self._trouble = None
                self._opened_at[conn] = time.monotonic()
                conn._pool = (
                    None  # the driver's mark of a pooled one: that it ends with the program is normal
                )
            self._invite()

    def give_back(self, conn: C) -> None:
        """One that is not idle, too old, or of a pool that was closed is closed."""
        now = time.monotonic()
        usable = conn.pgconn.transaction_status == TransactionStatus.IDLE
        with self._lock:
            if usable and not self._is_closed and now - self._opened_at.get(conn, 0.0) < MAX_AGE:
                if self._serve(conn):
                    return
                if self.keeps:
                    self._idle.append((conn, now))
                    if self._timer is None:
                        self._timer = self._call_later(MAX_IDLE)
                    return
        self._discard(conn)

    def _discard(self, *conns: C) -> None:
        for conn in conns:
            self._opened_at.pop(conn, None)
            conn.pgconn.finish()
        with self._lock:
            self._count -= len(conns)
            self._invite()

    def _call_later(self, seconds: float) -> threading.Timer | asyncio.TimerHandle | None:
        raise NotImplementedError

    def _close_unused(self) -> None:
        with self._lock:
            long_ago = time.monotonic() - MAX_IDLE
            unused = [conn for conn, since in self._idle if since <= long_ago]
            for _ in unused:
                self._idle.popleft()
            self._timer = self._call_later(MAX_IDLE) if self._idle else None
        self._discard(*unused)

    def _close_dead(self, conn: C) -> None:
        """The idle ones are dead too, unless they were used a moment ago."""
        with self._lock:
            dead = [other for other, _ in self._idle if not self._is_fresh(other)]
            self._idle = deque(kept for kept in self._idle if kept[0] not in dead)
        self._discard(conn, *dead)

    def close(self) -> None:
        """Those in use are closed when they come back."""
        with self._lock:
            self._is_closed = True
            if self._timer is not None:
                self._timer.cancel()
            idle, self._idle = list(self._idle), deque()
            while self._line:
                self._line.popleft()(Closed())
        self._discard(*(conn for conn, _ in idle))

    def _none_came(self) -> DatabaseUnavailable:
        if self._trouble is not None:
            return away(self._trouble)
        if self._count - self._opening < self._size:  # some are being opened, and that takes longer
            return DatabaseUnavailable(f"the database did not take a connection within {self._patience:g} s")
        return DatabaseUnavailable(
            f"all {self._size} connections of the pool were in use for "
            f"{self._patience:g} s; raise pool_size or hold connections for less time"
        )

    def _bounded(self, deadline: float) -> dict[str, Any]:
        """Connection parameters, so that connecting does not take much longer than the caller waits. The driver counts whole
        seconds, and at least two. Raises when the right to open one came too late."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._none_came()
        within = min(self._arguments["connect_timeout"], max(2, math.ceil(left)))
        return {**self._arguments, "connect_timeout": within}

    def _is_over(self, error: psycopg.Error, pause: float, deadline: float) -> bool:
        """Whether to give up instead of trying again after `pause`. What the server refuses, it refuses again."""
        self._trouble = error
        return not isinstance(error, psycopg.OperationalError) or time.monotonic() + pause >= deadline


def away(error: psycopg.Error) -> DatabaseUnavailable:
    return DatabaseUnavailable(f"the database cannot be reached: {str(error).strip()}")


def received(what: C | Closed | None) -> C | None:
    if isinstance(what, Closed):
        raise DatabaseUnavailable("the app was closed while this waited for one of its connections")
    return what
