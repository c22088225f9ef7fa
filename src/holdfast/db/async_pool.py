"""The pool of an event loop, for its tasks."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from .pool import FIRST_PAUSE, LONGEST_PAUSE, C, Closed, Pool, away, received
from .transaction_end import OwnAsyncConnection


class AsyncPool(Pool[OwnAsyncConnection]):
    """For one event loop; only its tasks use it."""

    def __init__(
        self,
        dsn: str,
        arguments: dict[str, Any],
        size: int,
        patience: float,
        is_fresh: Callable[[OwnAsyncConnection], bool],
        configure: Callable[[OwnAsyncConnection], Awaitable[None]],
    ) -> None:
        super().__init__(dsn, arguments, size, patience, is_fresh)
        self._configure = configure

    def _call_later(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._close_unused)

    async def take(self) -> OwnAsyncConnection:
        deadline = time.monotonic() + self._patience
        while True:
            served, conn = self._take()
            if not served:
                conn = await self._wait(deadline)
            if conn is None:
                return await self._open(deadline)
            if await self._is_alive(conn):
                return conn

    async def _is_alive(self, conn: OwnAsyncConnection) -> bool:
        if self._is_fresh(conn):
            return True
        try:
            await conn.execute("")
        except psycopg.Error:
            self._close_dead(conn)
            return False
        except BaseException:  # cancelled: the state of the connection is unknown
            self._discard(conn)
            raise
        return True

    async def _wait(self, deadline: float) -> OwnAsyncConnection | None:
        arriving, hand = _future()
        served, conn = self._take(hand)
        if served:
            return conn
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return received(await arriving)
        except TimeoutError:
            self._leave(self._line, hand, lambda: _result(arriving))
            raise self._none_came() from None
        except BaseException:
            self._leave(self._line, hand, lambda: _result(arriving))
            raise

    async def _open(self, deadline: float) -> OwnAsyncConnection:
        pause, conn = FIRST_PAUSE, None
        try:
            while True:
                try:
                    async with asyncio.timeout(max(2.0, deadline - time.monotonic())):
                        conn = await self._connect(self._bounded(deadline))
                    return conn
                except TimeoutError:
                    raise self._none_came() from None
                except psycopg.Error as error:
                    if self._is_over(error, pause, deadline):
                        raise away(error) from error
                other = await self._returned_within(pause)
                if other is not None and await self._is_alive(other):
                    return other
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self._end_opening(conn)

    async def _connect(self, arguments: dict[str, Any]) -> OwnAsyncConnection:
        conn = await OwnAsyncConnection.connect(self._dsn, **arguments)
        try:
            await self._configure(conn)
        except BaseException:
            conn.pgconn.finish()
            raise
        return conn

    async def _returned_within(self, seconds: float) -> OwnAsyncConnection | None:
        """A connection that came back meanwhile."""
        if self._idle:
            return self._idle.pop()[0]
        arriving, hand = _future()
        self._retrying.append(hand)
        try:
            async with asyncio.timeout(seconds):
                return received(await arriving)
        except TimeoutError:
            if isinstance(came := _result(arriving), OwnAsyncConnection):
                return came
            self._leave(self._retrying, hand, Closed)
            return None
        except BaseException:
            self._leave(self._retrying, hand, lambda: _result(arriving))
            raise


def _future() -> tuple[
    "asyncio.Future[OwnAsyncConnection | Closed | None]",
    Callable[[OwnAsyncConnection | Closed | None], bool],
]:
    arriving: asyncio.Future[OwnAsyncConnection | Closed | None]
    arriving = asyncio.get_running_loop().create_future()

    def hand(what: OwnAsyncConnection | Closed | None) -> bool:
        if arriving.done():  # its task was cancelled
            return False
        arriving.set_result(what)
        return True

    return arriving, hand


def _result(arriving: "asyncio.Future[C | Closed | None]") -> C | Closed | None:
    return arriving.result() if arriving.done() and not arriving.cancelled() else Closed()
