"""Waiting for a socket, cheaper than the driver does it."""

import asyncio
from typing import Any

import psycopg
from psycopg import waiting


async def waited(work: Any, socket: int) -> Any:
    """Like the driver's own wait_async(), without its timers: a session has a time limit itself."""
    ear = Readiness(socket)
    try:
        return await ear.hear(work)
    finally:
        ear.close()


class Readiness:
    """Reports when a socket is ready. A large reply comes in dozens of pieces: its reader stays from one to the next."""

    def __init__(self, socket: int) -> None:
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._ready = 0
        self._reads = False
        self._unheard = False  # it was ready before anybody waited

    def _heard(self, what: int) -> None:
        self._ready |= what
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        elif self._unheard:
            self.close()  # nobody reads the waiting data: the loop would call this in every turn
        else:
            self._unheard = True

    async def hear(self, work: Any) -> Any:
        """What the driver's generator returns in the end."""
        try:
            wanted = next(work)
            while True:
                wanted = work.send(await self.until(wanted))
        except StopIteration as done:
            return done.value
        except OSError as error:
            raise psycopg.OperationalError("the socket was closed") from error

    async def until(self, wanted: int) -> int:
        """Until it can be read, or written, as wanted. Returns which."""
        if self._reads != bool(wanted & waiting.WAIT_R):
            self._reads = not self._reads
            if self._reads:
                self._loop.add_reader(self._socket, self._heard, waiting.READY_R)
            else:
                self._loop.remove_reader(self._socket)
        if writes := bool(wanted & waiting.WAIT_W):
            self._loop.add_writer(self._socket, self._heard, waiting.READY_W)
        self._ready, self._future, self._unheard = 0, self._loop.create_future(), False
        try:
            await self._future
        finally:
            if writes:
                self._loop.remove_writer(self._socket)
        return self._ready

    def close(self) -> None:
        """Before anybody closes the socket: its number may be given to another at once."""
        if self._reads:
            self._reads = False
            self._loop.remove_reader(self._socket)
