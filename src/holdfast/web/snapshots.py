"""One query of the database serves all viewers: a request within its time gets the rows of the first."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.web.reading import RAN, Ran

T = TypeVar("T")
_KEPT = 500  # topics
FAILED = 2.0  # seconds for which a failure is returned, before the next query
LONGEST = 5.0  # seconds for which data last at most because their query took long
SHARE = 0.01  # of the time, at most, that the queries of an open page take: on a busy server they are made less often


@dataclass(slots=True)
class _Kept:
    value: Any
    at: float  # on the clock of this process
    took: float  # seconds of the query
    generation: int  # the number of acts when the query began
    ran: Ran


class Snapshots:
    """The rows that were read, by topic. A hundred viewers of one topic cost one query."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._failed: dict[str, tuple[BaseException, float]] = {}
        self._under_way: dict[str, asyncio.Future[Any]] = {}
        self._generation = 0
        self.looks = 0

    async def get(
        self,
        topic: str,
        lasts: float,
        look: Callable[[], Awaitable[T]],
        meanwhile: float = 0.0,
        *,
        share: float = 1.0,
        longest: float = LONGEST,
    ) -> T:
        """The data of the topic, at most `lasts` seconds old. Older data serve for `meanwhile` seconds more, while
        a new query runs. Data whose query took long last longer, up to `longest`, so that queries take at most `share` of
        the time."""
        kept = self._kept.get(topic)
        fresh = kept is not None and kept.generation == self._generation
        if kept is not None and share < 1:
            lasts = max(lasts, min(kept.took / share, longest))
        age = time.monotonic() - kept.at if kept is not None else 0.0
        if kept is not None and fresh and age < lasts + meanwhile:
            if age >= lasts and not self._failed_lately(topic):
                self._begin(topic, look)
            old: T = kept.value
            self._note(topic)
            return old
        if failed := self._failed_lately(topic):
            raise failed.with_traceback(None)
        found: T = await asyncio.shield(self._begin(topic, look))
        self._note(topic)
        return found  # a client that disconnects takes nothing from the others

    def _note(self, topic: str) -> None:
        """For who wants to see what was run for him: also what was run for somebody before."""
        ran, kept = RAN.get(), self._kept.get(topic)
        if ran is not None and kept is not None:
            ran.shared += (*kept.ran.shared, *kept.ran.own)

    async def soon(
        self,
        topic: str,
        lasts: float,
        look: Callable[[], Awaitable[T]],
        patience: float,
        meanwhile: float = 0.0,
    ) -> T | None:
        """As get(), for optional parts of a page: after `patience` seconds, or when the query fails, the last data."""
        asked = asyncio.ensure_future(self.get(topic, lasts, look, meanwhile))
        try:
            await asyncio.wait({asked}, timeout=patience)
            if asked.done() and asked.exception() is None:
                return asked.result()
        finally:
            asked.cancel()
        last: T | None = self.last(topic)
        return last

    def _begin(self, topic: str, look: Callable[[], Awaitable[Any]]) -> "asyncio.Future[Any]":
        under_way = self._under_way.get(topic)
        if under_way is None or under_way.get_loop() is not asyncio.get_running_loop():
            generation, began = self._generation, time.monotonic()
            ran = Ran()
            told = RAN.set(ran)
            under_way = asyncio.ensure_future(look())  # it has a copy of the context
            RAN.reset(told)
            self._under_way[topic] = under_way
            under_way.add_done_callback(lambda done: self._keep(topic, done, generation, began, ran))
        return under_way

    def _keep(
        self,
        topic: str,
        done: "asyncio.Future[Any]",
        generation: int,
        began: float,
        ran: Ran,
    ) -> None:
        self.looks += 1
        now = time.monotonic()
        if self._under_way.get(topic) is done:
            del self._under_way[topic]
        if done.cancelled():
            return
        error = done.exception()
        if generation != self._generation:  # it may have read what was there before somebody acted
            return
        if error is not None:
            self._failed[topic] = (error, now)
        else:
            self._failed.pop(topic, None)
            self._kept[topic] = _Kept(done.result(), now, now - began, generation, ran)
        for kept in (self._kept, self._failed):
            while len(kept) > _KEPT:
                del kept[next(iter(kept))]

    def _failed_lately(self, topic: str) -> BaseException | None:
        error, at = self._failed.get(topic, (None, 0.0))
        return error if time.monotonic() - at < FAILED else None

    def trouble(self, topic: str, lasts: float, look: Callable[[], Awaitable[Any]]) -> BaseException | None:
        """Why the last look failed, if it did. Nobody waits: a new look begins when the last is older than `lasts`."""
        kept, (error, failed_at) = self._kept.get(topic), self._failed.get(topic, (None, 0.0))
        newest = max(kept.at if kept is not None else 0.0, failed_at)
        if time.monotonic() - newest >= (FAILED if error is not None else lasts):
            self._begin(topic, look)
        return error

    def last(self, topic: str) -> Any:
        """The last data, however old, and whatever was done since."""
        kept = self._kept.get(topic)
        return None if kept is None else kept.value

    def age(self, topic: str) -> float | None:
        """Seconds since it was read."""
        kept = self._kept.get(topic)
        return None if kept is None else time.monotonic() - kept.at

    def took(self, topic: str) -> float:
        """Seconds that the last query took; 0: there was none."""
        kept = self._kept.get(topic)
        return 0.0 if kept is None else kept.took

    def drop(self, topic: str) -> None:
        """The next query of this topic is a new one."""
        self._kept.pop(topic, None)

    def forget(self) -> None:
        """An act was done: the next query is a new one, also if one is in progress."""
        self._generation += 1
        self._under_way.clear()
        self._failed.clear()
