"""The verbs of users in Python: `app.publish(...)`, `app.events`, and those of a declared subscription."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast, overload
from uuid import UUID

from ...db.database import Database
from ...errors import ConfigurationError, InvalidEvent
from ...model.duration import Duration, seconds
from ...model.queue import Rate
from ...operate.procedure import Procedure, run
from ...settings import default_actor
from ...tasks import checks
from ...tasks.definition import Binding
from ...tasks.payload import shown
from ...tasks.producer import AppProducer
from . import store
from .event import Event
from .lookups import To
from .procedures import Passing, Subscriptions
from .publish import Publisher, new_event, new_events
from .steering import begin_replay, remove
from .store import Failure, Listed, NewEvent, Published


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that was begun."""

    name: str
    left_out: int  # positions that became jobs before, and do not become jobs again
    _verbs: Subscriptions
    _since: int
    _until: int

    def progress(self) -> tuple[int, int]:
        """Events that were read, and how many there are."""
        return self._progress(self._verbs.run(_listed(self.name)))

    async def aprogress(self) -> tuple[int, int]:
        return self._progress(await self._verbs.arun(_listed(self.name)))

    def _progress(self, found: Sequence[Listed]) -> tuple[int, int]:
        total = self._until - self._since
        return (total, total) if not found else (found[0].position - self._since, total)

    def cancel(self) -> None:
        """End it where it is. One that has come to its end stays as it is."""
        self._verbs.run(_cancel(self.name))

    async def acancel(self) -> None:
        await self._verbs.arun(_cancel(self.name))


def _listed(name: str) -> Procedure[list[Listed]]:
    return (yield from run(lambda: store.list_subscriptions(name)))


def _cancel(name: str) -> Procedure[None]:
    if (yield from _listed(name)):
        yield from remove(name)


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

    def pause(self, *, conn: object = None) -> None:
        """Stop delivering to it, on all workers. With `conn`, when the caller's transaction commits."""
        self._verbs.pause(self.name, conn=conn)

    async def apause(self, *, conn: object = None) -> None:
        await self._verbs.pause.arun(self.name, conn=conn)

    def resume(self, *, conn: object = None) -> None:
        """Continue where it was paused."""
        self._verbs.resume(self.name, conn=conn)

    async def aresume(self, *, conn: object = None) -> None:
        await self._verbs.resume.arun(self.name, conn=conn)

    def reset(self, to: To, *, again: bool = False, conn: object = None) -> None:
        """Continue from a position, a time, the "start" or the "end". Events that became jobs are left out, unless
        `again`."""
        self._verbs.reset(self.name, to, again=again, conn=conn)

    async def areset(self, to: To, *, again: bool = False, conn: object = None) -> None:
        await self._verbs.reset.arun(self.name, to, again=again, conn=conn)

    def replay(
        self,
        since: int | datetime,
        until: int | datetime | None = None,
        *,
        again: bool = False,
        rate: Rate | None = None,
    ) -> Replay:
        """Deliver a range again, beside its own position. Events that became jobs are left out, unless `again`. `rate`:
        events per second, at most."""
        verbs = self._verbs
        begun = verbs.run(begin_replay(self.name, since, until, again=again, rate=rate))
        return Replay(begun.name, begun.left_out, verbs, begun.since, begun.until)

    async def areplay(
        self,
        since: int | datetime,
        until: int | datetime | None = None,
        *,
        again: bool = False,
        rate: Rate | None = None,
    ) -> Replay:
        verbs = self._verbs
        begun = await verbs.arun(begin_replay(self.name, since, until, again=again, rate=rate))
        return Replay(begun.name, begun.left_out, verbs, begun.since, begun.until)

    def read_your_writes(self, what: Passing, *, timeout: Duration = 5.0) -> int:
        """Wait until it has passed what was published: `totals.read_your_writes(app.publish(...))`. Takes the result of
        publish(), a list of them, or a position. Raises SubscriptionStopped if it is paused or stopped before that."""
        return self._verbs.await_position(self.name, what, seconds(timeout, "timeout"))

    async def aread_your_writes(self, what: Passing, *, timeout: Duration = 5.0) -> int:
        return await self._verbs.await_position.arun(self.name, what, seconds(timeout, "timeout"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Followed(Subscription):
    """A subscription that sends events elsewhere: what `app.relay(...)` makes."""

    def failures(self, key: str | None = None) -> list[Failure]:
        """Events that it did not send, in order: skipped ones, and those that wait with their key."""
        return self._verbs.failures(self.name, key)

    async def afailures(self, key: str | None = None) -> list[Failure]:
        return await self._verbs.failures.arun(self.name, key)

    def retry_failures(self, key: str | None = None) -> int:
        """Send them, in order, by the worker that owns it; returns how many were skipped or parked."""
        return self._verbs.retry(self.name, key)

    async def aretry_failures(self, key: str | None = None) -> int:
        return await self._verbs.retry.arun(self.name, key)

    def forget_failures(self, key: str | None = None, *, position: int | None = None) -> int:
        """Give up events that it skipped or parked: those of a key, the one at a position, or all; returns how many. Events
        that waited behind them are sent."""
        return self._verbs.forget_failures(self.name, key, position)

    async def aforget_failures(self, key: str | None = None, *, position: int | None = None) -> int:
        return await self._verbs.forget_failures.arun(self.name, key, position)


def _lag(listed: Sequence[Listed]) -> tuple[int, float]:
    return max(row.lag_events for row in listed), max(row.lag_seconds for row in listed)


_Read = list[Event[Any]]


class Events:
    """The log: `app.events.append("order:9182", [...], expected_version=7)`, `app.events.read(position)`."""

    def __init__(self, database: Database) -> None:
        self._publisher = Publisher(database)
        self._verbs = Subscriptions(database, "app")

    @staticmethod
    def new(
        event: object,
        data: Mapping[str, Any] | None = None,
        /,
        *,
        version: int | None = None,
        key: str | None = None,
        id: UUID | None = None,  # noqa: A002 the word of CloudEvents
        headers: Mapping[str, str] | None = None,
    ) -> NewEvent:
        """One event with everything that publish() takes, for publish_many() and append()."""
        return new_event(event, data, version=version, key=key, event_id=id, headers=headers)

    def append(
        self,
        stream: str,
        events: Iterable[object],
        *,
        expected_version: int | None = None,
        conn: object = None,
    ) -> int:
        """Add events to a stream, whose key is `stream`; returns its new version. Raises ConcurrencyConflict if the stream
        is not at `expected_version`; 0 is a stream without an append. From its first append on, every event of its key
        counts."""
        made = _stream_events(stream, events, expected_version)
        return self._publisher.append(stream, made, expected_version, conn)

    async def aappend(
        self,
        stream: str,
        events: Iterable[object],
        *,
        expected_version: int | None = None,
        conn: object = None,
    ) -> int:
        made = _stream_events(stream, events, expected_version)
        return await self._publisher.aappend(stream, made, expected_version, conn)

    def version(self, stream: str, *, conn: object = None) -> int:
        """The version of a stream; 0: it has no append yet."""
        return self._publisher.version(_stream(stream), conn)

    async def aversion(self, stream: str, *, conn: object = None) -> int:
        return await self._publisher.aversion(_stream(stream), conn)

    def read(self, after: int = 0, most: int = 100, types: Sequence[str] | None = None) -> _Read:
        """Events after a position, in order, at most `most`; of `types`, which may be patterns such as "order.*"."""
        return self._verbs.read(*_what_to_read(after, most, types))

    async def aread(self, after: int = 0, most: int = 100, types: Sequence[str] | None = None) -> _Read:
        return await self._verbs.read.arun(*_what_to_read(after, most, types))

    def last_position(self) -> int:
        """The position of the newest committed event."""
        return self._verbs.turn()

    async def alast_position(self) -> int:
        return await self._verbs.turn.arun()


def _what_to_read(
    after: int, most: int, types: Sequence[str] | None
) -> tuple[int, int, Sequence[str] | None]:
    for what, value, low in (("after", after, 0), ("most", most, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 2**63:
            raise ConfigurationError(f"{what} must be a number, {low} or more, not {shown(value)}")
    if types is not None and (isinstance(types, str) or not all(isinstance(one, str) for one in types)):
        raise ConfigurationError(
            f'types are a list of names or patterns, such as ["order.*"], not {shown(types)}'
        )
    return after, most, types


def _stream(stream: str) -> str:
    return checks.key(stream, "the stream", InvalidEvent, empty=False)


def _stream_events(stream: str, events: Iterable[object], expected: int | None) -> list[NewEvent]:
    """The events with the key of the stream. A class that has a key of its own says so: it must be the same."""
    _stream(stream)
    if expected is not None and (
        not isinstance(expected, int) or isinstance(expected, bool) or not 0 <= expected < 2**63
    ):
        raise InvalidEvent(f"expected_version must be 0 or more, not {shown(expected)}")
    made = new_events(events)
    for n, event in enumerate(made, 1):
        if event.key not in (None, stream):
            raise InvalidEvent(f"event {n}: its key is {event.key!r}, and the stream is {stream!r}")
        if event.id is not None:
            raise InvalidEvent(
                f"event {n}: append takes no ids; expected_version makes a second try safe. Leave the id out"
            )
    if not made:
        raise InvalidEvent("append needs one event at least")
    return [event._replace(key=stream) for event in made]


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
        """Append many events in one statement, all or none, in order: instances, tuples (type, data, key), or
        `app.events.new(...)`, with an id and headers."""
        made = new_events(events)
        return Publisher(self.database).publish(made, conn, "publish_many")

    async def apublish_many(self, events: Iterable[object], /, *, conn: object = None) -> list[Published]:
        """`await app.apublish_many([OrderPaid(1, 5), OrderPaid(2, 5)])`: see publish_many()."""
        made = new_events(events)
        return await Publisher(self.database).apublish(made, conn, "publish_many")
