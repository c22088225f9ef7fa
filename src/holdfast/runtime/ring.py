"""A worker's place in the rings of its queues: which buckets it owns, read again every second while it is awake.

A queue has a ring if it is ordered by key, or has affinity.

While it sleeps the pulse reports the seats, and the ring reads only when they changed. So a worker knows its share before
the next job wakes it: otherwise it would move half of its keys in the middle of a drain.

Its knowledge is a second old, or older while the database is unreachable. That costs a query or two and nothing else: the
database decides which worker gets a job.
"""

import functools
import time
from collections.abc import Callable, Sequence

from .. import telemetry
from ..db.database import Database
from ..errors import DatabaseError
from ..model.ring import buckets_of
from ..store import workers as store
from .pulse import Pulse
from .service import Service

_NONE = 5.0  # seconds until a queue that has no ring is asked again
_START = 1.0  # seconds in which a new worker reads ten times as often: deploys start several together
_MOVE_UP = 30.0  # seconds with an empty seat before the last seats move up: in a deploy a new worker takes it

Buckets = list[int] | None


class Ring(Service):
    name = "ring"

    def __init__(
        self,
        database: Database,
        queues: Callable[[], Sequence[str]],
        worker: Callable[[], str],
        on_change: Callable[[str, Buckets], None],
    ) -> None:
        """`queues`: those that have a ring now. An operator may change that while the worker runs."""
        super().__init__()
        self._settings = database.settings
        self._session = database.session("ring")
        self.queues = queues
        self._worker = worker
        self._on_change = on_change
        self._mine: dict[str, Buckets] = {}
        self._hole_since: dict[str, float] = {}
        self._seen: list[str] = []  # the seats as last read
        self._steady_at = 0.0

    async def begin(self) -> None:
        """The first read, before the first claim; if it fails, the next tick repeats it."""
        self._steady_at = time.monotonic() + _START
        try:
            await self.tick()
        except DatabaseError as error:
            telemetry.emit("ring.unknown", error=str(error))

    async def tick(self) -> float:
        queues = self.queues()
        self._mine = {queue: buckets for queue, buckets in self._mine.items() if queue in queues}
        known = len(self._mine) == len(queues)
        steady = time.monotonic() >= self._steady_at
        if (
            queues
            and known
            and steady
            and self.pulse is not None
            and self.pulse.lasts
            and self.pulse.seats == self._seen
        ):
            return self.pulse.left  # the pulse reads them
        if queues:
            found = await self._seats(queues)
            self._seen = [seat.text for seat in found]
            for queue in queues:
                await self._look(queue, [seat for seat in found if seat.queue == queue])
        if not queues:
            return _NONE
        return self._settings.ring if steady else self._settings.ring / 10

    def felt(self, pulse: Pulse) -> None:
        """The reply to the pulse of a sleeping worker."""
        if pulse.seats != self._seen:
            self.wake()

    async def _look(self, queue: str, seats: list[store.Seat]) -> None:
        me = self._worker()
        mine = next((seat.seat for seat in seats if seat.worker == me), None)
        if mine is None or self._may_move_up(queue, mine, seats):
            mine = await self._session.flow(functools.partial(store.sit_down, queue, me))
            if mine is None:
                return  # fenced, and its new identity is not in the registry yet: again with the next tick
            seats = await self._seats([queue])
        taken = {mine, *(seat.seat for seat in seats)}
        buckets: Buckets = None if len(taken) == 1 else buckets_of(mine, taken)
        if queue not in self._mine or self._mine[queue] != buckets:
            self._mine[queue] = buckets
            telemetry.emit("ring.changed", worker=me, queue=queue, seat=mine, workers=len(taken))
            self._on_change(queue, buckets)

    async def _seats(self, queues: Sequence[str]) -> list[store.Seat]:
        return await self._session.run(store.ring_seats(queues, self._settings.dead_after, self._worker()))

    def _may_move_up(self, queue: str, mine: int, seats: Sequence[store.Seat]) -> bool:
        """Seats below were empty for a while, and no new worker took them: the last worker takes one, then the next."""
        last = max(seat.seat for seat in seats)
        if last < len(seats):
            self._hole_since.pop(queue, None)
            return False
        since = self._hole_since.setdefault(queue, time.monotonic())
        return mine == last and time.monotonic() - since > _MOVE_UP

    async def finish(self) -> None:
        await self._session.close()
