"""Wake-ups: an idle worker sleeps until somebody tells it that there is something to do.

Notify    keeps the listener, proves that it hears, and says so when it does not
Sleep     when to lie down, how long to sleep at most, and when to get up

Polling is enough for correctness and goes on behind all of this: nobody sleeps for longer than the poll interval, nor past
the moment when the next job is due. A worker that does not hear has no row among the sleepers and polls.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .. import telemetry
from ..db.database import Database
from ..db.listen import Listener
from ..db.session import Session
from ..errors import DatabaseError
from ..store import wake as store
from .service import Service

DROWSY = 0.25  # a pause that has grown to this: half a second has brought nothing
_CHECK = 5.0  # seconds between two round trips on the listening connection
_PROVE = 60.0  # and between two notifications to ourselves
_ECHO = 3.0  # that one of them may take
_SPREAD = 0.0005  # per sleeper: not all of them look at once
_LEAST = 0.02  # between two looks that notifications ask for
_MANY = 10  # notifications within a second: too many to be told one by one
_HUSH = (0.5, 30.0)  # seconds until it may lie down again after that, doubling


class Notify(Service):
    name = "notify"

    def __init__(
        self,
        database: Database,
        session: Session,
        queues: Sequence[str],
        on_heard: Callable[[Sequence[str]], None],
    ) -> None:
        super().__init__()
        self._settings = database.settings
        self._session = session
        self._listener = Listener(database.settings.listen_url or database.dsn, database.settings)
        self._channels = {store.channel(queue): queue for queue in queues}
        self._on_heard = on_heard
        self._proved_at = 0.0
        self._deaf = False
        self.hears = False

    async def tick(self) -> float:
        try:
            if not self._listener.is_open:
                await self._listener.open()
            if time.monotonic() - self._proved_at > _PROVE and not await self._prove():
                return _PROVE
            if heard := await self._listener.hear(_CHECK):
                self._tell(heard)
            else:
                await self._listener.check()
        except BaseException:
            self._lost()
            raise
        return 0.0

    async def _prove(self) -> bool:
        """Say something on the way that producers take, and hear it."""
        await self._session.run(store.say_it(self._listener.proof))
        deadline = time.monotonic() + _ECHO
        while (left := deadline - time.monotonic()) > 0:
            heard = await self._listener.hear(left)
            self._tell(heard)
            if self._listener.proof in heard:
                break
        else:
            await self._give_up()
            return False
        self._proved_at = time.monotonic()
        if not self.hears:
            await self._listener.listen(self._channels)
            self.hears, self._deaf = True, False
            telemetry.emit("listen.ready", channels=",".join(self._channels))
            self._on_heard([])  # what was said while nobody heard
        return True

    async def _give_up(self) -> None:
        self._lost()
        await self._listener.forget()
        if not self._deaf:
            self._deaf = True
            telemetry.emit(
                "listen.deaf",
                level=logging.WARNING,
                error=f"a notification to ourselves did not come back within {_ECHO:g} s, so this worker polls every "
                f"{self._settings.poll:g} s. LISTEN needs a connection of its own to the server itself, not a pooler in "
                "transaction mode: set listen_url (HOLDFAST_LISTEN_URL) to the server's own address",
            )

    def _tell(self, heard: list[str]) -> None:
        if queues := [self._channels[name] for name in heard if name in self._channels]:
            self._on_heard(queues)

    def _lost(self) -> None:
        self._proved_at = 0.0
        if self.hears:
            self.hears = False
            self._on_heard([])  # up, and back to polling

    async def finish(self) -> None:
        await self._listener.close()


class Nap(NamedTuple):
    seconds: float  # 0: look now
    deep: bool = False  # nothing was due when it began: ask again before a claim is tried


class Sleep:
    """The claim loop asks how long to rest; producers find a row while this worker sleeps."""

    def __init__(
        self,
        session: Session,
        worker: Callable[[], str],
        queues: Sequence[str],
        known: Callable[[], Sequence[tuple[str, int]]],
        poll: float,
    ) -> None:
        self._session = session
        self._worker = worker
        self._queues = list(queues)
        self._known = known
        self._poll = poll
        self.hears: Callable[[], bool] = lambda: False
        self._entered: str | None = None  # under which identity
        self._asleep = 1
        self._dear_until = 0.0
        self._heard: list[float] = []
        self._hush = _HUSH[0]
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._told: set[str] = set()

    @property
    def is_asleep(self) -> bool:
        return self._entered == self._worker()

    async def rest(self, pause: float, *, able: bool, again: bool) -> Nap:
        """How to spend a pause. `able`: there is a slot to fill; `again`: it slept and has not looked since."""
        try:
            return await self._rest(pause, able, again)
        except DatabaseError as error:  # the next claim says so too
            telemetry.emit("sleep.failed", level=logging.WARNING, error=str(error))
            self._entered = None
            return Nap(pause)

    async def _rest(self, pause: float, able: bool, again: bool) -> Nap:
        now = time.monotonic()
        quiet = len(self._heard) < _MANY or now - self._heard[0] > 1.0
        if self.is_asleep and not quiet:
            self._not_before = now + self._hush
            self._hush = min(self._hush * 2, _HUSH[1])
        if not self.hears() or not quiet or (pause >= DROWSY and not able):
            await self._get_up()
            return Nap(pause)
        if pause < DROWSY or now < self._not_before:
            return Nap(pause)
        if not self.is_asleep:
            return await self._lie_down(pause)
        if now - self._not_before > 2 * _HUSH[1]:
            self._hush = _HUSH[0]
        return await self._until_due(pause, again)

    async def _lie_down(self, pause: float) -> Nap:
        """Enter, and look once more: what was committed before that was told to nobody."""
        worker = self._worker()
        if not await self._session.run(store.fall_asleep(worker, self._queues, self._poll)):
            return Nap(pause)
        self._entered = worker
        return Nap(0.0)

    async def _until_due(self, pause: float, again: bool) -> Nap:
        """Until the next job is due, at most; one that is due but could not be claimed a moment ago does not count."""
        began = time.monotonic()
        if began < self._dear_until:
            return Nap(0.0 if again else pause)
        found = await self._session.run(store.next_due(self._queues, self._known(), self._poll))
        due_in, self._asleep = found
        # Under an old snapshot it walks over all that is finished. A claim does not, it starts at its mark.
        self._dear_until = time.monotonic() + 20 * (time.monotonic() - began) - self._poll
        if due_in is not None and due_in <= 0:
            return Nap(0.0) if again else Nap(pause)
        return Nap(pause if due_in is None else min(pause, due_in), deep=True)

    async def _get_up(self) -> None:
        worker, self._entered = self._entered, None
        if worker is not None:
            await self._session.run(store.get_up(worker))

    def told(self) -> list[str]:
        """The queues that somebody spoke of since the last call."""
        queues, self._told = sorted(self._told), set()
        return queues

    def heard(self, look: Callable[[], None], queues: Sequence[str]) -> None:
        """Look soon, not all sleepers at the same moment, and not for each of many notifications: a queue for each came."""
        now = time.monotonic()
        self._told.update(queues)
        if self._timer is None:
            last = self._heard[-1] if self._heard else 0.0
            spread = random.uniform(0, min(_SPREAD * (self._asleep - 1), 0.1))  # noqa: S311 no secret
            wait = max(spread, last + _LEAST - now)
            self._timer = asyncio.get_running_loop().call_later(wait, self._look, look)
        self._heard = [*self._heard, *[now] * len(queues)][-_MANY:]

    def _look(self, look: Callable[[], None]) -> None:
        self._timer = None
        look()
