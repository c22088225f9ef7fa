"""Breakers of this worker's tasks: which attempts they count, and when to look for a trial job while one is not closed."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable

from .. import telemetry
from ..db.session import Session
from ..model.breaker import BreakerChange, Watch
from ..store.breaker import Note, close_unwatched, count_ends
from .handler import Handlers
from .inflight import Running

_EVERY = 1.0


class Breakers:
    def __init__(
        self, handlers: Handlers, session: Session, every: float, on_closed: Callable[[], None]
    ) -> None:
        self._handlers = handlers
        self._session = session
        self._every = min(every, _EVERY)
        self._on_closed = on_closed
        self._look_at = 0.0
        self.tasks: dict[str, list[int]] = defaultdict(list)  # with a breaker -> versions
        self._others: list[str] = []
        for task, version in handlers.known():
            handler = handlers.find(task, version)
            if handler is not None and handler.breaker is not None:
                self.tasks[task].append(version)
            else:
                self._others.append(task)
        self.watching = bool(self.tasks)

    def look_again(self) -> None:
        self._look_at = 0.0

    def due(self, free: int) -> bool:
        """True when a breaker may try a job and a slot is free for it."""
        if not self.tasks or free <= 0 or time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + self._every
        return True

    def watch(self, running: Running) -> Watch | None:
        if not self.tasks or (task := running.claimed.task) not in self.tasks:
            return None
        handler = self._handlers.find(task, running.claimed.version)
        return Watch(task, handler.breaker, running.call) if handler and handler.breaker else None

    async def succeeded(self, watch: Watch, running: Running) -> None:
        """A handler completed its job in a transaction of its own, which no breaker counted."""
        note = Note(watch.breaker, succeeded=True, good=[running.grant.token])
        if (change := await self._session.flow(lambda: count_ends(watch.task, note))) is not None:
            self.changed(change)

    async def close_unwatched(self) -> None:
        """Close breakers of tasks that lost theirs in a deploy: nobody would ever start their trial."""
        for task in await self._session.run(close_unwatched(self._others)):
            self.changed(BreakerChange(task, "closed"))

    def changed(self, change: BreakerChange) -> None:
        if change.change == "closed":
            telemetry.emit("breaker.closed", task=change.task)
            self._on_closed()
        else:
            again = change.change == "reopened"
            telemetry.emit(
                "breaker.opened", level=logging.WARNING, task=change.task, error=change.error, again=again
            )
