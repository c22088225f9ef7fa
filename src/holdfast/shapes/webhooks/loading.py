"""Data for attempts, read in batches: attempts that begin during one read share the next one."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from ...db.database import Database
from . import store
from .store import Ready, Stored

MOST_DELIVERIES = 500  # deliveries of one read
EVENTS = 256  # that are kept: an event goes to many endpoints
EVENTS_BYTES = 8 * 1024 * 1024


class Asked(NamedTuple):
    knows: bool  # its event is here
    again: bool  # it was started before, and not sent
    future: "asyncio.Future[Ready | None]"


class Loader:
    """For one event loop."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database
        self._waiting: dict[UUID, Asked] = {}
        self._task: asyncio.Task[None] | None = None
        self._events: OrderedDict[UUID, Stored] = OrderedDict()
        self._bytes = 0
        self._over: list[tuple[UUID, UUID, UUID]] = []  # deliveries and their places, of endpoints in order
        self._crowd: dict[UUID, deque[asyncio.Future[None]]] = {}

    def leave(self, delivery: UUID, place: UUID, endpoint: UUID) -> None:
        """The request of an endpoint in order has ended. The next read makes room, also if the job is not settled yet."""
        self._over.append((delivery, place, endpoint))
        for future in self._crowd.get(endpoint, ()):
            if not future.done():
                future.set_result(None)
                break

    async def left(self, endpoint: UUID, seconds: float) -> bool:
        """Wait until a request of the endpoint ends in this process; False: none did in time."""
        if any(of == endpoint for _, _, of in self._over):
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        crowd = self._crowd.setdefault(endpoint, deque())
        crowd.append(future)
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            crowd.remove(future)
            if not crowd:
                self._crowd.pop(endpoint, None)
        return True

    async def begin(self, delivery: UUID, event_id: UUID, *, again: bool = False) -> Ready | None:
        """The delivery as it is now, with its event; None: there is no such delivery. `again`: it has a token of its
        endpoint's rate and did not use it."""
        kept = self._events.get(event_id)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Ready | None] = loop.create_future()
        self._waiting[delivery] = Asked(kept is not None, again, future)
        if self._task is None:
            self._task = loop.create_task(self._run(), name="holdfast webhooks")
        ready = await future
        if ready is None:
            return None
        if ready.event is not None:
            self._keep(ready.event)
        return ready if ready.event is not None or kept is None else ready._replace(event=kept)

    def _keep(self, event: Stored) -> None:
        if event.id not in self._events:
            self._bytes += len(event.data or "")
        self._events[event.id] = event
        self._events.move_to_end(event.id)
        while len(self._events) > EVENTS or (self._bytes > EVENTS_BYTES and len(self._events) > 1):
            _, gone = self._events.popitem(last=False)
            self._bytes -= len(gone.data or "")

    async def _run(self) -> None:
        try:
            await asyncio.sleep(0)  # those that begin in this turn of the loop are included
            while self._waiting:
                batch = dict(list(self._waiting.items())[:MOST_DELIVERIES])
                for delivery in batch:
                    del self._waiting[delivery]
                await self._read(batch)
        finally:
            self._task = None
            for _, _, future in self._waiting.values():  # only when the loop ends
                future.cancel()

    async def _read(self, batch: dict[UUID, Asked]) -> None:
        wanted = [(delivery, knows) for delivery, (knows, _, _) in batch.items()]
        over = self._over[:MOST_DELIVERIES]
        places: list[tuple[UUID, UUID | None]] = [(delivery, place) for delivery, place, _ in over]
        places += [(delivery, None) for delivery, (_, again, _) in batch.items() if again]
        try:
            found = await self._database().arun(lambda: store.begin(wanted, places))
            del self._over[: len(over)]
        except asyncio.CancelledError:
            for _, _, future in batch.values():
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 every waiting caller gets it
            for _, _, future in batch.values():
                if not future.done():
                    future.set_exception(error)
            return
        for delivery, (_, _, future) in batch.items():
            if not future.done():
                future.set_result(found.get(delivery))
