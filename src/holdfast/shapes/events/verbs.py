"""What users do from Python: `app.publish(...)`, `app.events`, and the verbs of a declared subscription."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast, overload
from uuid import UUID

from ...db.database import Database
from ...errors import InvalidEvent
from ...operate.procedure import Procedure, run
from ...settings import default_actor
from ...tasks import checks
from ...tasks.definition import Binding
from ...tasks.payload import shown
from ...tasks.producer import AppProducer
from . import store
from .event import Event
from .procedures import Passing, Subscriptions, To
from .publish import Publisher, new_event, new_events
from .store import Listed, NewEvent, Published


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that was begun."""

    name: str
    _verbs: Subscriptions
    _since: int
    _until: int

    def progress(self) -> tuple[int, int]:
        """Events that were read, and how many there are."""
        found = self._verbs.run(_listed(self.name))
        total = self._until - self._since
        return (total, total) if not found else (found[0].position - self._since, total)

    def cancel(self) -> None:
        """End it where it is."""
        self._verbs.remove(self.name)


def _listed(name: str) -> Procedure[list[Listed]]:
    return (yield from run(lambda: store.list_subscriptions(name)))


class Subscription:
    """A subscription that the code declares: `send_receipt.lag()`, `send_receipt.pause()`."""

    def __init__(self, name: str, binding: Binding) -> None:
        self.name = name
        self._binding = binding

    @property
    def _verbs(self) -> Subscriptions:
        producer = cast(AppProducer, self._binding.require(self.name))
        return Subscriptions(producer.database, default_actor())

    def lag(self) -> tuple[int, float]:
        """How far it is behind the log: events, seconds."""
        return _lag(self._verbs.find(self.name))

    async def alag(self) -> tuple[int, float]:
        return _lag(await self._verbs.find.arun(self.name))

    def pause(self) -> None:
        """Stop delivering to it, on all workers."""
        self._verbs.pause(self.name)

    async def apause(self) -> None:
        await self._verbs.pause.arun(self.name)

    def resume(self) -> None:
        """Go on where it was paused."""
        self._verbs.resume(self.name)

    async def aresume(self) -> None:
        await self._verbs.resume.arun(self.name)

    def reset(self, to: To) -> None:
        """Go on from a position, a time, the "start" or the "end"."""
        self._verbs.reset(self.name, to)

    async def areset(self, to: To) -> None:
        await self._verbs.reset.arun(self.name, to)

    def replay(
        self, since: int | datetime, until: int | datetime | None = None, *, again: bool = False
    ) -> Replay:
        """Deliver a range once more, beside its own position. Events that became jobs are left out, unless `again`."""
        verbs = self._verbs
        name = verbs.replay(self.name, since, until, again=again)
        listed = verbs.run(_listed(name))[0]
        return Replay(name, verbs, listed.position, listed.until or listed.position)

    def read_your_writes(self, what: Passing, *, timeout: float = 5.0) -> int:
        """Wait until it has passed what was published: `totals.read_your_writes(app.publish(...))`. Takes what publish()
        returned, a list of that, or a position. SubscriptionStopped when it is paused or stopped before that."""
        return self._verbs.await_position(self.name, what, timeout)

    async def aread_your_writes(self, what: Passing, *, timeout: float = 5.0) -> int:
        return await self._verbs.await_position.arun(self.name, what, timeout)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _lag(listed: Sequence[Listed]) -> tuple[int, float]:
    return max(row.lag_events for row in listed), max(row.lag_seconds for row in listed)


_Read = list[Event[Any]]


class Events:
    """The log: `app.events.append("order:9182", [...], expected_version=7)`, `app.events.read(position)`."""

    def __init__(self, database: Database) -> None:
        self._publisher = Publisher(database)
        self._verbs = Subscriptions(database, "app")

    def append(
        self,
        stream: str,
        events: Iterable[object],
        *,
        expected_version: int | None = None,
        conn: object = None,
    ) -> int:
        """Add events to a stream, whose key is `stream`; returns its new version. ConcurrencyConflict when it is not at
        `expected_version`: 0 is a stream that nobody has appended to."""
        made = _stream_events(stream, events, expected_version)
        return self._publisher.append(stream, made, expected_version, conn)[0]

    async def aappend(
        self,
        stream: str,
        events: Iterable[object],
        *,
        expected_version: int | None = None,
        conn: object = None,
    ) -> int:
        made = _stream_events(stream, events, expected_version)
        return (await self._publisher.aappend(stream, made, expected_version, conn))[0]

    def read(self, after: int = 0, most: int = 100, types: Sequence[str] | None = None) -> _Read:
        """Events after a position, in order."""
        return self._verbs.read(after, most, types)

    async def aread(self, after: int = 0, most: int = 100, types: Sequence[str] | None = None) -> _Read:
        return await self._verbs.read.arun(after, most, types)

    def last_position(self) -> int:
        """The position of the newest committed event."""
        return self._verbs.turn()

    async def alast_position(self) -> int:
        return await self._verbs.turn.arun()


def _stream_events(stream: str, events: Iterable[object], expected: int | None) -> list[NewEvent]:
    checks.key(stream, "the stream", InvalidEvent, empty=False)
    if expected is not None and (not isinstance(expected, int) or isinstance(expected, bool) or expected < 0):
        raise InvalidEvent(f"expected_version must be 0 or more, not {shown(expected)}")
    made = [event._replace(key=stream) for event in new_events(events)]
    if not made:
        raise InvalidEvent("append needs one event at least")
    return made


class HasEvents:
    """`app.publish(...)` and `app.events`."""

    if TYPE_CHECKING:

        @property
        def database(self) -> Database: ...

    @property
    def events(self) -> Events:
        """The log of this app's database."""
        return Events(self.database)

    @overload
    def publish(
        self,
        event: object,
        /,
        *,
        key: str | None = ...,
        id: UUID | None = ...,
        headers: Mapping[str, str] | None = ...,
        conn: object = ...,
    ) -> Published: ...
    @overload
    def publish(
        self,
        event: str | type,
        data: Mapping[str, Any],
        /,
        *,
        version: int | None = ...,
        key: str | None = ...,
        id: UUID | None = ...,
        headers: Mapping[str, str] | None = ...,
        conn: object = ...,
    ) -> Published: ...
    def publish(
        self,
        event: Any,
        data: Mapping[str, Any] | None = None,
        /,
        *,
        version: int | None = None,
        key: str | None = None,
        id: UUID | None = None,  # noqa: A002 the word of CloudEvents
        headers: Mapping[str, str] | None = None,
        conn: object = None,
    ) -> Published:
        """Append one event to the log: `app.publish(OrderPaid(9182, 995), conn=conn)`, or by name:
        `app.publish("order.paid", {"order_id": 9182}, key="order:9182")`. With `conn` it is part of the caller's
        transaction. An `id` that was published before is not published again."""
        made = new_event(event, data, version=version, key=key, event_id=id, headers=headers)
        return Publisher(self.database).publish([made], conn, "publish")[0]

    @overload
    async def apublish(
        self,
        event: object,
        /,
        *,
        key: str | None = ...,
        id: UUID | None = ...,
        headers: Mapping[str, str] | None = ...,
        conn: object = ...,
    ) -> Published: ...
    @overload
    async def apublish(
        self,
        event: str | type,
        data: Mapping[str, Any],
        /,
        *,
        version: int | None = ...,
        key: str | None = ...,
        id: UUID | None = ...,
        headers: Mapping[str, str] | None = ...,
        conn: object = ...,
    ) -> Published: ...
    async def apublish(
        self,
        event: Any,
        data: Mapping[str, Any] | None = None,
        /,
        *,
        version: int | None = None,
        key: str | None = None,
        id: UUID | None = None,  # noqa: A002
        headers: Mapping[str, str] | None = None,
        conn: object = None,
    ) -> Published:
        """`await app.apublish(OrderPaid(9182, 995), conn=conn)`: see publish()."""
        made = new_event(event, data, version=version, key=key, event_id=id, headers=headers)
        return (await Publisher(self.database).apublish([made], conn, "publish"))[0]

    def publish_many(self, events: Iterable[object], /, *, conn: object = None) -> list[Published]:
        """Append many events in one statement, all or none, in their order: instances, or tuples (type, data, key)."""
        return Publisher(self.database).publish(new_events(events), conn, "publish_many")

    async def apublish_many(self, events: Iterable[object], /, *, conn: object = None) -> list[Published]:
        """`await app.apublish_many([OrderPaid(1, 5), OrderPaid(2, 5)])`: see publish_many()."""
        return await Publisher(self.database).apublish(new_events(events), conn, "publish_many")
