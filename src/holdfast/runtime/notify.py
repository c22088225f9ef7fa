"""The listener's keeper: it connects, proves that what producers say is heard, and passes it on.

Polling is enough for correctness and goes on behind this. A worker that does not hear has no row among the sleepers
(sleep.py), so that nobody talks to it in vain.
"""

import logging
import time
from collections.abc import Callable, Sequence

from .. import telemetry
from ..db.database import Database
from ..db.listen import Listener
from ..db.session import Session
from ..store import wake as store
from .service import Service
from .sleep import Sleep

# A connection that fell silent is noticed after _CHECK and what an answer may take (db/listen.py): within 15 seconds.
_CHECK = 10.0  # seconds between two round trips on the listening connection
_PROVE = 60.0  # and between two notifications to ourselves
_ECHO = 3.0  # that one of them may take


class Notify(Service):
    name = "notify"

    def __init__(
        self,
        database: Database,
        session: Session,
        queues: Sequence[str],
        sleep: Sleep,
        look: Callable[[], None],
        claim: Callable[[], None],
    ) -> None:
        """`claim` what is new; `look` everywhere."""
        super().__init__()
        self._poll = database.settings.poll
        self._session = session
        self._listener = Listener(database.settings.listen_url or database.dsn, database.settings)
        self._channels = {store.channel(queue): queue for queue in queues}
        self._sleep = sleep
        self._look = look
        self._claim = claim
        self._topics: dict[str, Service] = {}  # channel -> the service that wants to be woken
        self._proved_at = 0.0
        self._deaf = False

    def add(self, service: Service) -> None:
        """Also wake this service, for its topic. Before the start."""
        if service.topic is not None:
            self._topics[store.channel(service.topic)] = service

    async def tick(self) -> float:
        try:
            if not self._listener.is_open:
                await self._listener.open()
            if time.monotonic() - self._proved_at > _PROVE and not await self._prove():
                return _PROVE
            if heard := await self._listener.hear(_CHECK):
                await self._pass_on(heard)
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
        heard: list[str] = []
        while self._listener.proof not in heard:
            left = deadline - time.monotonic()
            if left <= 0:
                await self._give_up()
                return False
            heard = await self._listener.hear(left)
            await self._pass_on(heard)
        self._proved_at = time.monotonic()
        if not self._sleep.hears:
            await self._listener.listen([*self._channels, *self._topics])
            self._sleep.hears, self._deaf = True, False
            telemetry.emit("listen.ready", channels=",".join(self._channels))
            self._look()  # what was said while nobody heard
            for service in self._topics.values():
                service.listening(True)
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
                f"{self._poll:g} s. LISTEN needs a connection of its own to the server itself, not a pooler in "
                "transaction mode: set listen_url (HOLDFAST_LISTEN_URL) to the server's own address",
            )

    async def _pass_on(self, heard: list[str]) -> None:
        for name in set(heard) & self._topics.keys():
            self._topics[name].heard()
        if queues := [self._channels[name] for name in heard if name in self._channels]:
            self._sleep.heard(queues, self._claim)
            await self._sleep.calm()

    def _lost(self) -> None:
        self._proved_at = 0.0
        if self._sleep.hears:
            self._sleep.hears = False
            self._look()  # up, and back to polling
            for service in self._topics.values():
                service.listening(False)

    async def finish(self) -> None:
        await self._listener.close()
