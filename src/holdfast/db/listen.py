"""The listener: a separate connection on which notifications arrive.

It is useless before it has received a notification that came the whole way: a pooler accepts LISTEN and delivers
nothing, and another server or database is as silent. A connection that breaks, or does not reply in time, is closed and
reported as ConnectionLost.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any
from uuid import uuid4

import psycopg

from ..model.address import libpq_address
from ..model.text import storable
from ..settings import Settings
from .connect import connect_arguments
from .faults import ConnectionLost
from .session import LoopConnection

_ANSWER = 4.0  # seconds that a reply may take


class Listener:
    def __init__(self, dsn: str, settings: Settings) -> None:
        self._dsn = libpq_address(dsn)
        self._settings = settings
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self.proof = f"holdfast-proof-{uuid4().hex}"  # a channel that nobody else listens to

    @property
    def is_open(self) -> bool:
        return self._conn is not None

    async def open(self) -> None:
        """Connect, and listen on a channel that proves delivery."""
        arguments = connect_arguments(self._settings, "holdfast listen")
        async with self._watched(self._settings.connect_timeout + _ANSWER):
            self._conn = await LoopConnection.connect(self._dsn, **{**arguments, "prepare_threshold": None})
        await self.listen([self.proof])

    async def listen(self, channels: Iterable[str]) -> None:
        async with self._watched(_ANSWER) as conn:
            for name in channels:
                await conn.execute(f'LISTEN "{name}"'.encode())

    async def hear(self, seconds: float) -> list[str]:
        """The channels of the first notifications; an empty list if none arrive within that many seconds."""
        async with self._watched(seconds + _ANSWER) as conn:
            return [heard.channel async for heard in conn.notifies(timeout=seconds, stop_after=1)]

    async def check(self) -> None:
        """One round trip: the server is there and replies."""
        async with self._watched(_ANSWER) as conn:
            await conn.execute("")

    async def close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(conn.close(), 1)

    async def forget(self) -> None:
        """Close a listener that receives nothing. Behind a pooler the server process that took the LISTEN survives."""
        with contextlib.suppress(ConnectionLost):
            async with self._watched(_ANSWER) as conn:
                await conn.execute("UNLISTEN *")
        await self.close()

    @contextlib.asynccontextmanager
    async def _watched(self, seconds: float) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        try:
            async with asyncio.timeout(seconds):
                yield self._conn  # type: ignore[misc]
        except TimeoutError:
            await self.close()
            raise ConnectionLost(f"the listening connection gave no answer within {seconds:g} s") from None
        except psycopg.Error as error:
            await self.close()
            raise ConnectionLost(storable(str(error).strip()) or type(error).__name__) from error
