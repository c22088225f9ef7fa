"""The log as a worker sees it: it notices new events, turns the page once for all of its subscriptions, and reads
once for those that are at its end.

While events come, it turns the page every few milliseconds. After half a second without one it enters the sleepers, reads
once more, and waits until it is woken, until the pulse of its worker reports new events, or, without a pulse,
until it reads by itself. If it is woken often it leaves the sleepers: notifications are for idle systems.
"""

import asyncio
import fnmatch
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...db.session import Session
from ...errors import ForeignLog
from ...store import wake
from . import store
from .store import Owned, Page, Tail

BUSY = 0.02  # seconds between two pages while events come
DROWSY = 0.5  # seconds without an event, after which it sleeps
MANY = 50  # times within a second: too often to be woken singly
TAIL = 100  # events that are read with the turn of a page, at most
TAIL_BYTES = 2**20


class Log:
    def __init__(
        self,
        session: Session,
        worker: Callable[[], str],
        longest: float,
        names: Sequence[str],
        on_free: Callable[[], None],
    ) -> None:
        """`on_free` is called when one of these subscriptions has no owner."""
        self._session = session
        self._worker = worker
        self._names = names
        self._on_free = on_free
        self._longest = longest  # seconds between two reads of its own while it sleeps
        self.last = -1  # the last position that is known
        self.hears = False
        self._moved = asyncio.Condition()
        self._waiting: list[Owned] = []  # waiters for the next position
        self._new: tuple[Tail, Page] | None = None  # rows that the last turn has read for them
        self._bell = asyncio.Event()
        self._entered: str | None = None  # as which worker it is among the sleepers
        self._rung_at: list[float] = []
        self._told: int | None = None  # what the pulse last reported
        self._told_at = -2 * longest

    def on_answer(self, answer: int | None) -> None:
        """The last number that was drawn for an event; None: a publishing transaction is open. The first reply after
        that counts as new, because such a transaction may commit without a notification."""
        self._told_at = time.monotonic()
        if answer is None or answer != self._told:
            self._told = answer
            self._bell.set()

    def ring(self) -> None:
        """An event was published."""
        self._rung_at = [*self._rung_at, time.monotonic()][-MANY:]
        self._bell.set()

    async def turn(self) -> int:
        """Number the committed events, and wake the waiters."""
        tail = self._tail()
        turned = await self._session.run(store.turn_and_look(self._names, tail, TAIL, TAIL_BYTES))
        if turned.is_free:
            self._on_free()
        if (last := turned.last) is None:
            raise ForeignLog
        if last != self.last:
            async with self._moved:
                self.last = last
                self._new = None if tail is None or turned.page is None else (tail, turned.page)
                self._moved.notify_all()
        return last

    def _tail(self) -> Tail | None:
        """The waiters that are farthest. A shard reads for itself."""
        waiting = [o for o in self._waiting if o.shards == 1]
        if not waiting:
            return None
        first = max(waiting, key=lambda o: o.position)
        at_it = [o for o in waiting if o.position == first.position]
        return Tail(first.position, first.seq, frozenset(p for o in at_it for p in o.patterns))

    async def beyond(self, owned: Owned, left: asyncio.Event) -> Page | None:
        """Wait until the log has events after this position, or the waiter was asked to stop. Returns them, if they
        were read while it waited; None: they still have to be read."""
        async with self._moved:
            if self.last > owned.position:
                return None
            self._waiting.append(owned)
            try:
                await self._moved.wait_for(lambda: self.last > owned.position or left.is_set())
            finally:
                self._waiting = [o for o in self._waiting if o is not owned]
            return None if left.is_set() else self._read_for(owned)

    def _read_for(self, owned: Owned) -> Page | None:
        if self._new is None or owned.shards > 1:
            return None
        tail, page = self._new
        if tail.position != owned.position or not tail.patterns.issuperset(owned.patterns):
            return None
        wanted = [e for e in page.events if any(fnmatch.fnmatchcase(e.type, p) for p in owned.patterns)]
        return replace(page, events=wanted)

    async def nudge(self) -> None:
        """Waiters check whether they were asked to stop."""
        async with self._moved:
            self._moved.notify_all()

    async def watch(self) -> None:
        """Turn pages for ever."""
        quiet_since = time.monotonic()
        while True:
            self._bell.clear()
            before = self.last
            if await self.turn() != before:
                quiet_since = time.monotonic()
            quiet = time.monotonic() - quiet_since
            asleep = await self._rest(quiet)
            await self._wait(self._longest if asleep else BUSY if quiet < DROWSY else 0.25, asleep)

    async def _wait(self, pause: float, asleep: bool) -> None:
        """Until the bell rings, or it is time to read. Asleep, the pulse reads."""
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._bell.wait()
                return
            except TimeoutError:
                if not asleep or time.monotonic() - self._told_at > 2 * self._longest:
                    return

    async def _rest(self, quiet: float) -> bool:
        """Fall asleep, stay asleep, or wake up. True: it sleeps, and may wait to be woken."""
        now = time.monotonic()
        often = len(self._rung_at) == MANY and now - self._rung_at[0] < 1.0
        if not self.hears or often:
            self._rung_at = []
            await self.get_up()
            return False
        if self._entered == self._worker():
            return True
        if quiet >= DROWSY and await self._session.run(
            wake.fall_asleep(self._worker(), [store.TOPIC], self._longest)
        ):
            self._entered = self._worker()
            self._bell.set()  # once more: for commits from before the entry among the sleepers
            return True
        return False

    async def get_up(self) -> None:
        worker, self._entered = self._entered, None
        if worker is not None:
            await self._session.run(wake.get_up(worker, [store.TOPIC]))
