"""Suspects: jobs that were in two processes that died or fell silent. They run apart from all others, which continue.

Each runs in a separate child process, several side by side: a suspect that kills its process is identified at once, and
harms no other job. Where no child can import the app, one suspect at a time runs in a slot of the worker.

They have half of the slots while other jobs wait, and all free ones while none does. A worker with one slot gives it to
others after a suspect, for as long as the suspect had it. Half of one slot is half of its time.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence

from ... import telemetry
from ...db.session import Session
from ...errors import DatabaseError
from ...model.job import ClaimedJob, Owned
from ...model.outcome import DeadLettered, ErrorText, Lost, Outcome, Released
from ...model.text import storable
from ...settings import Settings
from ...store.owner import count_crash
from ..child_ends import Crashed, NotApart
from ..inflight import Processes, Running
from .claimer import Ask
from .queues import Queues

_EVERY = 1.0
_MOST_CHILDREN = 16  # children for suspects, of about 40 MB each
_TRY_AGAIN = 60.0  # seconds after which a child is tried again that could not be started
_TRIAL = 10.0  # seconds during which that one is tried alone


class Suspects:
    def __init__(
        self, session: Session, settings: Settings, children: Callable[[], Processes | None], slots: int
    ) -> None:
        """`children` is asked when there is a first suspect; None: they cannot import the app."""
        self._session = session
        self._every = min(settings.sweep, _EVERY)
        self._most_crashes = settings.max_crashes
        self._find_children = children
        self._children: Processes | None = None
        self._found: Processes | None = None
        self._alone_until = math.inf  # one at a time, until children are known to be there
        self._try_at = 0.0
        self._asked = False
        self._look_at = 0.0
        self._running: set[tuple[str, int]] = set()
        self._slots = slots
        self._others_first = False  # in the only slot
        self._took_at = self._others_until = 0.0

    def look_again(self) -> None:
        self._look_at = 0.0

    def others_came(self) -> None:
        """A claim brought other jobs: they had their turn."""
        if time.monotonic() >= self._others_until:
            self._others_first = False

    def room(self, free: int, *, spare: bool) -> int:
        """How many may be taken now into that many free slots. `spare`: nothing else waits for them."""
        part = 0 if self._others_first else min(_MOST_CHILDREN, max(1, self._slots // 2))
        most = _MOST_CHILDREN if spare else part
        if time.monotonic() < self._alone_until:
            most = min(most, 1)
        return max(0, min(free, most - len(self._running)))

    def due(self, free: int, *, spare: bool) -> int:
        """The same, and 0 when it is too early."""
        if (room := self.room(free, spare=spare)) <= 0 or time.monotonic() < self._look_at:
            return 0
        self._look_at = time.monotonic() + self._every
        return room

    def took(self, jobs: Sequence[Running]) -> None:
        """Each runs in a separate child; or in a slot here, as the only suspect."""
        if not jobs:
            return
        self._took_at = now = time.monotonic()
        self._others_first = self._slots == 1
        if not self._asked:
            self._asked = True
            self._children = self._found = self._find_children()
            self._alone_until = math.inf if self._children is None else now
        elif self._children is None and self._found is not None and now >= self._try_at:
            self._children, self._alone_until = self._found, now + _TRIAL
        for running in jobs:
            running.apart = self._children
            self._running.add((running.claimed.id_text, running.claimed.generation))
        self.look_again()  # there may be more
        apart = self._children is not None
        telemetry.emit("suspects.claimed", level=logging.WARNING, count=len(jobs), apart=apart)

    def ended(self, jobs: Iterable[Owned]) -> None:
        if self._running:
            left = self._running - {(job.id_text, job.generation) for job in jobs}
            if len(left) < len(self._running):
                self._running = left
                now = time.monotonic()
                self._others_until = now + (now - self._took_at)
                self.look_again()

    async def judge(self, running: Running, outcome: Outcome, worker: str) -> Outcome:
        """What happens to a suspect that ran in a child."""
        if isinstance(outcome, NotApart):
            if self._children is not None:
                self._children, self._alone_until = None, math.inf
                self._try_at = time.monotonic() + _TRY_AGAIN
                telemetry.emit("suspects.no_child", level=logging.WARNING, error=outcome.reason)
            return Released(outcome.reason)
        if not isinstance(outcome, Crashed):
            return outcome
        error = outcome.error
        try:
            deaths = await self._session.run(count_crash(running.grant, self._most_crashes, worker, error))
        except DatabaseError as fault:
            return Released(f"its process died, and the database could not record it: {fault}")
        if deaths is None:
            return Lost()
        if deaths < self._most_crashes:
            return Released(f"{error.kind}: {error.message}")
        message = f"{error.message}; processes that had this job died or fell silent {deaths} times"
        return DeadLettered(ErrorText(error.kind, storable(message), error.trace))


class SuspectClaimer:
    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    async def claim(self, ask: Ask) -> list[ClaimedJob]:
        """Suspects of one queue."""
        with self._queues.lost_replies.accounted():
            for queue in self._queues:
                if taken := await queue.claim_suspects(ask):
                    return taken
        return []
