"""Events that a projection skipped or parked are applied later, in their order.

Any process with the projection's code may do it, beside the workers: the rows of the subscription are locked first, so no
worker applies an event meanwhile, and effect and record commit together. A key is parked while one of its events waits.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ... import telemetry
from ...db.database import Database
from ...errors import ConfigurationError, EventsGone, LeaseLost, UnknownSubscription
from ...model.actor import Actor
from ...model.text import describe, storable
from ...store.audit import audit
from ...store.statement import Flow
from . import store
from .apply import Apply
from .calling import Broken, Call, FunctionFailed
from .event import Event
from .store import Failure, Held

T = TypeVar("T")
_TRIES = 10  # while another session applies the same events


@dataclass(frozen=True, slots=True)
class Retried:
    """The result for events that a projection had skipped or parked."""

    applied: int
    left: int  # they failed again, or wait behind one that did
    error: str | None = None  # of the first that failed


class Retrying:
    def __init__(self, database: Database, apply: Apply, name: str, key: str | None, actor: Actor) -> None:
        self._database = database
        self._fn = apply
        self._name = name
        self._key = key
        self._actor = actor
        self._blocked: set[str | int] = set()  # keys, and positions of events without one
        self._error: str | None = None
        self._era = 1
        self._start = 0  # of the log

    async def run(self) -> Retried:
        log = await self._database.arun(store.log_state)
        self._era, self._start = log.era, log.start
        applied, after, tries = 0, 0, 0
        while found := await self._next(after):
            waiting = [f for f in found if self._lane(f) not in self._blocked]
            if not waiting:
                after = found[-1].position
                continue
            try:
                applied += await self._apply(waiting)
                tries = 0
            except LeaseLost:  # another session was quicker: read again
                tries += 1
                if tries == _TRIES:
                    raise
        left = await self._database.arun(lambda: store.count_failures(self._name, self._key))
        which = {"subscription": self._name, **({} if self._key is None else {"key": self._key})}
        await self._database.arun(lambda: audit(self._actor, "projection retry", which, applied))
        telemetry.emit("projection.retried", subscription=self._name, applied=applied, left=left)
        return Retried(applied, left, self._error)

    async def _next(self, after: int) -> list[Failure]:
        return await self._database.arun(
            lambda: store.list_failures(self._name, self._key, self._fn.batch, after)
        )

    def _lane(self, failure: Failure) -> str | int:
        return failure.position if failure.key is None else failure.key

    async def _apply(self, failures: Sequence[Failure]) -> int:
        """As many of the first as can be applied together. An event that fails alone blocks its key for this time."""
        while True:
            try:
                await self._together(failures)
                return len(failures)
            except FunctionFailed as failed:
                error = failed.error
            if len(failures) == 1:
                await self._failed_again(failures[0], storable(describe(error).summary, 2000))
                return 0
            failures = failures[: len(failures) // 2]

    async def _failed_again(self, failure: Failure, error: str) -> None:
        self._blocked.add(self._lane(failure))
        self._error = self._error or f"event {failure.position}: {error}"
        await self._database.arun(lambda: store.failed_again(self._name, failure.position, error))

    async def _together(self, failures: Sequence[Failure]) -> None:
        positions = [failure.position for failure in failures]
        if positions[0] <= self._start:
            raise FunctionFailed(EventsGone(f"the log begins after position {self._start}"))

        def first() -> Flow[Held | None]:
            held = yield from store.lock_positions(self._name)
            if held is None:
                raise UnknownSubscription(f"there is no subscription {self._name!r}")
            if held.version != self._fn.version:
                raise ConfigurationError(
                    f"the tables of {self._name} are of version {held.version}, and this code is of version "
                    f"{self._fn.version}. Rebuild them first"
                )
            found = yield from store.lock_failures(self._name, positions)
            return held if found == len(positions) else None

        def read() -> Flow[list[Event[Any]]]:
            events = []
            for failure in failures:
                row = yield from store.failed_event(failure)
                events.append(row)
            return self._loaded(events)

        def finish() -> Flow[bool]:
            yield from store.forget_failures(self._name, positions)
            if any(failure.kind != "skipped" for failure in failures):
                yield from store.fence(self._name)
            return True

        events = await self._database.arun(read)
        try:
            await Call(self._database, self._fn, first, finish, events).run()
        except Broken as broken:
            cause = broken.__cause__
            raise (
                cause if isinstance(cause, ConfigurationError) else ConfigurationError(str(broken))
            ) from broken

    def _loaded(self, rows: Sequence[Any]) -> list[Event[Any]]:
        try:
            return [self._fn.converter.event(row, self._era) for row in rows]
        except BaseException as error:
            raise FunctionFailed(error) from error


def in_a_loop(database: Database, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it from sync code, whether or not this thread has a loop that runs."""

    async def main() -> T:
        try:
            return await work()
        finally:
            await database.aclose()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main()).result()
