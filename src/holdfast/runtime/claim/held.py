"""Jobs that are set aside (held): those this worker does not know, and those it may take back.

It takes back jobs of tasks and versions it knows, unless its own signature has refused their payload. So each signature
tries a job once, whichever workers come and go. The search takes at most a twentieth of the time, because jobs that this
worker refused are mixed with those it may take.
"""

import logging
import time
from uuid import UUID

from ... import telemetry
from ...db.session import Session
from ...store import claim as store
from ..handler import Handlers, signatures

_LOOK = 20_000
_EVERY = 1.0  # seconds between two searches that find nothing


class HeldJobs:
    def __init__(self, session: Session, handlers: Handlers) -> None:
        self._session = session
        self._handlers = handlers
        self._look_at: dict[str, float] = {}
        self._rests_until: dict[str, float] = {}
        self._holding: set[str] = set()

    def look_again(self, queue: str) -> None:
        """Soon: something went back."""
        self._look_at.pop(queue, None)

    def look_now(self) -> None:
        """Whatever it costs."""
        self._look_at, self._rests_until = {}, {}

    async def find(self, queue: str, want: int, *, ordered: bool = False) -> list[UUID]:
        """Held jobs that this worker may take; none when it looked a moment ago and found fewer than it wanted."""
        began = time.monotonic()
        if began < max(self._look_at.get(queue, 0.0), self._rests_until.get(queue, 0.0)):
            return []
        known, takes = self._handlers.known(), signatures(self._handlers)
        ids = await self._session.run(store.find_held(queue, known, want, takes, ordered=ordered))
        if len(ids) < want:
            now = time.monotonic()
            self._look_at[queue] = now + (_EVERY if not ids else 0.0)
            self._rests_until[queue] = now + 20 * (now - began)
        return ids

    async def hold_unknown(self, queue: str) -> int:
        """Set aside jobs that this worker does not know, from the front of the queue on. One at a time in each queue."""
        if queue in self._holding:
            return 0
        self._holding.add(queue)
        held, count = 0, _LOOK
        try:
            while count >= _LOOK // 4:
                count = await self._session.run(store.hold_unknown(queue, self._handlers.known(), _LOOK))
                held += count
        finally:
            self._holding.discard(queue)
        if held:
            telemetry.emit(
                "jobs.held", level=logging.WARNING, queue=queue, count=held, reason="unknown task or version"
            )
        return held
