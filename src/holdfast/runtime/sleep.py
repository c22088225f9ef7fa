"""Sleep: when an idle worker lies down, how long it sleeps at most, and when it gets up.

A worker that has found nothing for half a second enters the sleepers, looks once more, and sleeps: until a notification
wakes it (notify.py), until the next job is due, or until it looks by itself: after the poll interval, and once it has slept
for a while with the next heartbeat (pulse.py), whichever comes first. So a notification only makes it quicker.

It stays among the sleepers while it does what a notification came for, and leaves them when many come, or when it has no
slot free for a while: notifications are for idle systems, and the many of a busy one would hold up the commits of producers.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .. import telemetry
from ..db.session import Session
from ..errors import DatabaseError
from ..store import wake as store
from .handler import Handlers, signatures
from .pulse import Pulse

DROWSY = 0.25  # a pause that has grown to this: half a second has brought nothing
_SPREAD = 0.0005  # seconds per sleeper: not all of them look at once
_LEAST = 0.002  # between two looks that notifications ask for
_MANY = 100  # notifications within a second: too many to look at one by one
_LIGHT = 10.0  # seconds for which it looks every poll interval: who enqueued before it lay down and commits now told nobody
_HUSH = (1.0, 30.0)  # seconds until it may lie down again after that, doubling


FIRST_PAUSE = 0.005
CALM_PAUSE = 0.04  # the same, where notifications come for all that becomes due


class Pause:
    """Between two claims that found too little: short at first, and longer each time. Whatever happens meanwhile ends it."""

    def __init__(self) -> None:
        self.seconds = FIRST_PAUSE
        self.ended = asyncio.Event()
        self.looked_at = 0.0

    def begin(self) -> float:
        """A look now, and a pause from then on."""
        self.ended.clear()
        self.looked_at = time.monotonic()
        return self.looked_at

    def end(self) -> None:
        self.ended.set()

    def end_in(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.ended.set)

    async def wait(self, seconds: float) -> bool:
        """Whether something happened before they were over."""
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            return False
        return True

    def now(self) -> None:
        """Something became due: look, and the next pauses are short again."""
        self.seconds = FIRST_PAUSE
        self.end()


class Nap(NamedTuple):
    seconds: float  # 0: look now
    deep: bool = False  # nothing was due when it began: ask again before a claim is tried


class Sleep:
    def __init__(
        self,
        session: Session,
        worker: Callable[[], str],
        queues: Sequence[str],
        handlers: Handlers,
        poll: float,
    ) -> None:
        self._session = session
        self._worker = worker
        self._queues = list(queues)
        self._handlers = handlers
        self._poll = poll
        self.pulse: Pulse | None = None
        self.hears = False
        self._lay_down_at = 0.0
        self._look_at = 0.0
        self._entered: str | None = None  # under which identity
        self._asleep = 1  # workers in these queues
        self._dear_until = 0.0
        self._heard_at: list[float] = []
        self._notified: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._hush = _HUSH[0]
        self._not_before = 0.0

    def told(self) -> bool:
        """Whether a notification comes for all that becomes due: it is among the sleepers, also while it does something."""
        return self.hears and self._entered is not None and self._entered == self._worker()

    # Down and up --------------------------------------------------------------------------------------------------------

    async def rest(self, pause: float, *, able: bool, again: bool) -> Nap:
        """How to spend a pause. `able`: there is a slot to fill; `again`: it slept and has not looked since."""
        try:
            return await self._rest(pause, able, again)
        except DatabaseError as error:  # the next claim meets it too
            telemetry.emit("sleep.failed", level=logging.WARNING, error=str(error))
            self._entered = None
            return Nap(pause)

    async def _rest(self, pause: float, able: bool, again: bool) -> Nap:
        if self.pulse is not None and (pause < DROWSY or not able or not self.hears):
            self.pulse.end()
        if not self.hears or (pause >= DROWSY and not able):
            await self._get_up()
            return Nap(pause)
        await self.calm()
        if pause < DROWSY or time.monotonic() < self._not_before:
            return Nap(pause)
        if self._entered != self._worker():
            return await self._lie_down(pause)
        return await self._until_due(pause, again)

    async def _lie_down(self, pause: float) -> Nap:
        """Enter, and look once more: what was committed before that woke nobody."""
        worker = self._worker()
        if not await self._session.run(store.fall_asleep(worker, self._queues, self._longest)):
            return Nap(pause)
        self._entered, self._lay_down_at = worker, time.monotonic()
        return Nap(0.0)

    @property
    def _longest(self) -> float:
        """Seconds between two looks in deep sleep."""
        return self._poll if self.pulse is None else max(self._poll, self.pulse.every)

    async def _until_due(self, pause: float, again: bool) -> Nap:
        """Until the next job is due, at most; one that is due but could not be claimed a moment ago does not count."""
        began = time.monotonic()
        if began < self._dear_until:
            return Nap(0.0 if again else pause)
        light = self.pulse is None or began - self._lay_down_at < _LIGHT
        every = self._poll if light else self._longest
        looks = not again or began >= self._look_at
        found = await self._ask(began, every if looks else None)
        if found is None:
            return Nap(pause)
        due_in, self._asleep = found
        if looks:
            # Under an old snapshot it walks over all that is finished. A claim does not: it starts at its mark.
            self._dear_until = time.monotonic() + 20 * (time.monotonic() - began) - self._poll
            if due_in is not None and due_in <= 0:
                return Nap(0.0) if again else Nap(pause)
            self._look_at = time.monotonic() + (every if due_in is None else min(every, due_in))
        left = self._look_at - time.monotonic()
        return Nap(max(left if self.pulse is None else min(left, self.pulse.every), 0.001), deep=True)

    async def _ask(self, began: float, within: float | None) -> store.Prospect | None:
        """What there is to expect, and the heartbeat with it; None: unknown, the worker is not alive."""
        known, takes = self._handlers.known(), signatures(self._handlers)
        if self.pulse is None:
            return await self._session.run(store.next_due(self._queues, known, within or self._poll, takes))
        worker = self._worker()
        found = await self._session.run(self.pulse.statement(worker, self._queues, known, within, takes))
        if found is None:
            return None
        self.pulse.felt(worker, began, found)
        return store.Prospect(found.due_in, found.asleep)

    async def calm(self) -> None:
        """Get up when there were too many notifications, and stay up for a while."""
        now = time.monotonic()
        if self._entered is None or len(self._heard_at) < _MANY or now - self._heard_at[0] > 1.0:
            return
        if now - self._not_before > 2 * _HUSH[1]:
            self._hush = _HUSH[0]
        self._not_before = now + self._hush
        self._hush = min(self._hush * 2, _HUSH[1])
        await self._get_up()

    async def _get_up(self) -> None:
        worker, self._entered = self._entered, None
        if worker is not None:
            await self._session.run(store.get_up(worker, self._queues))

    # Being told ---------------------------------------------------------------------------------------------------------

    def heard(self, queues: Sequence[str], look: Callable[[], None]) -> None:
        """A notification came for each of these. Look soon: not all sleepers at once, and not once for each of many."""
        now = time.monotonic()
        self._notified.update(queues)
        if self._timer is None:
            last = self._heard_at[-1] if self._heard_at else 0.0
            spread = random.uniform(0, min(_SPREAD * (self._asleep - 1), 0.1))  # noqa: S311 no secret
            wait = max(spread, last + _LEAST - now)
            self._timer = asyncio.get_running_loop().call_later(wait, self._now, look)
        self._heard_at = [*self._heard_at, *[now] * len(queues)][-_MANY:]

    def _now(self, look: Callable[[], None]) -> None:
        self._timer = None
        look()

    def notified(self) -> list[str]:
        """The queues that notifications came for since the last call."""
        queues, self._notified = sorted(self._notified), set()
        return queues
