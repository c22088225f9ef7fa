"""One look at the database serves everybody who looks: whoever comes within its time gets what was read for the first."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
_KEPT = 500  # topics


@dataclass(slots=True)
class _Kept:
    value: Any
    at: float  # on the clock of this process


class Snapshots:
    """What was read, by topic. A hundred viewers of one topic cost one look."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._under_way: dict[str, asyncio.Future[Any]] = {}
        self.looks = 0

    async def get(self, topic: str, lasts: float, look: Callable[[], Awaitable[T]]) -> T:
        """What is known of the topic, not older than `lasts` seconds."""
        kept = self._kept.get(topic)
        if kept is not None and time.monotonic() - kept.at < lasts:
            value: T = kept.value
            return value
        under_way = self._under_way.get(topic)
        if under_way is None or under_way.get_loop() is not asyncio.get_running_loop():
            under_way = asyncio.ensure_future(look())
            self._under_way[topic] = under_way
            under_way.add_done_callback(lambda done: self._keep(topic, done))
        return await asyncio.shield(under_way)  # one who goes away takes nothing from the others

    def _keep(self, topic: str, done: "asyncio.Future[Any]") -> None:
        self.looks += 1
        if self._under_way.get(topic) is done:
            del self._under_way[topic]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[topic] = _Kept(done.result(), time.monotonic())
        while len(self._kept) > _KEPT:
            self._kept.pop(next(iter(self._kept)))

    def last(self, topic: str) -> Any:
        """What was read last, however long ago."""
        kept = self._kept.get(topic)
        return None if kept is None else kept.value

    def age(self, topic: str) -> float | None:
        """Seconds since it was read."""
        kept = self._kept.get(topic)
        return None if kept is None else time.monotonic() - kept.at

    def forget(self) -> None:
        """Somebody has acted: the next look is a new one."""
        self._kept.clear()
