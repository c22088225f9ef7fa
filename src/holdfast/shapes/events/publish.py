"""Publishing: the arguments of `app.publish()` become rows of the log, on our connection or on the caller's."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from ... import telemetry
from ...db.database import Database
from ...db.guests import async_guest, sync_guest
from ...errors import InvalidEvent
from ...tasks import checks, tracing
from ...tasks.payload import shown
from . import store
from .contract import EventType, carrying, data_text, declared_as, headers_text, type_name_of, type_of
from .store import NewEvent, Published

MOST_AT_ONCE = 100_000


def new_event(
    event: object,
    data: Mapping[str, Any] | None = None,
    *,
    version: int | None = None,
    key: str | None = None,
    event_id: UUID | None = None,
    headers: Mapping[str, str] | None = None,
) -> NewEvent:
    """One event, checked and encoded: an instance of an event class, or a type and its data."""
    if isinstance(event, str):
        name = type_name_of(event, InvalidEvent)
        if data is None:
            raise InvalidEvent(f"event {name!r} needs its data. Write publish({name!r}, {{...}})")
        number = 1 if version is None else _version(name, version)
        declared = declared_as(name, number)
        text = data_text(data if declared is None else declared.checked(data), name)
    else:
        kind, value = _kind_of(event, data)
        if version is not None:
            raise InvalidEvent(
                f"event {kind.name!r}: its class says the version, {kind.version}. Leave version out"
            )
        name, number = kind.name, kind.version
        made = kind.encode(value)
        text = data_text(made, name)
        if key is None:
            key = kind.key_of(made)
    if key is not None:
        checks.key(key, f"event {name!r}: key", InvalidEvent, empty=False)
    if event_id is not None and not isinstance(event_id, UUID):
        raise InvalidEvent(f"event {name!r}: id must be a UUID, not {shown(event_id)}")
    return NewEvent(name, text, key, headers_text(headers, name), event_id, number)


def _kind_of(event: object, data: object) -> tuple[EventType, object]:
    """An instance, or an event class with its data, as a TypedDict needs it."""
    kind = type_of(event) if isinstance(event, type) else type_of(type(event))
    if kind is None:
        what = type(event).__qualname__ if not isinstance(event, type) else event.__qualname__
        raise InvalidEvent(
            f'{what} is no event. Declare it: @event("order.paid") above the class, or write publish("order.paid", {{...}})'
        )
    if isinstance(event, type):
        if data is None:
            raise InvalidEvent(
                f"event {kind.name!r} needs its data. Write publish({event.__qualname__}, {{...}})"
            )
        return kind, data
    if data is not None:
        raise InvalidEvent(f"event {kind.name!r} has its data already. Leave the second argument out")
    return kind, event


def type_of_event(event: object) -> str:
    """The type name of an argument of publish()."""
    if isinstance(event, str):
        return type_name_of(event, InvalidEvent)
    kind = type_of(event if isinstance(event, type) else type(event))
    return kind.name if kind is not None else _kind_of(event, None)[0].name


def outgoing(
    event: object,
    data: Mapping[str, Any] | None = None,
    *,
    version: int | None = None,
    key: str | None = None,
    event_id: UUID | None = None,
    headers: Mapping[str, str] | None = None,
) -> NewEvent:
    """One event that another shape writes, with the active trace context."""
    made = new_event(event, data, version=version, key=key, event_id=event_id, headers=headers)
    with tracing.publishing([made.type], 1) as context:
        return _carrying(made, context) if context else made


def _version(name: str, version: object) -> int:
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version < 2**31:
        raise InvalidEvent(f"event {name!r}: version must be from 1 to {2**31 - 1:,}, not {shown(version)}")
    return version


def new_events(events: Iterable[object]) -> list[NewEvent]:
    """Instances of event classes, tuples of a type, its data and perhaps a key, or what `app.events.new()` made."""
    if isinstance(events, str | bytes | Mapping) or not isinstance(events, Iterable):
        raise InvalidEvent(
            f"events must be a list of instances or of tuples (type, data, key), not {shown(events)}"
        )
    made: list[NewEvent] = []
    for item in events:
        if len(made) >= MOST_AT_ONCE:
            raise InvalidEvent(f"more than {MOST_AT_ONCE:,} events at once. Publish them in several calls")
        try:
            made.append(_one_of_many(item))
        except InvalidEvent as error:
            raise InvalidEvent(f"event {len(made) + 1}: {error}") from None
    return made


def _one_of_many(item: object) -> NewEvent:
    if isinstance(item, NewEvent):
        return item
    if isinstance(item, tuple) and type_of(type(item)) is None:
        if not 2 <= len(item) <= 3:
            raise InvalidEvent(f"a tuple is (type, data) or (type, data, key), not {shown(item)}")
        return new_event(item[0], item[1], key=item[2] if len(item) == 3 else None)
    return new_event(item)


@contextlib.contextmanager
def traced(events: Sequence[NewEvent]) -> Iterator[Sequence[NewEvent]]:
    """A span around one publish, if tracing is in use; every event carries its context. Written events are counted, if
    metrics are in use."""
    with tracing.publishing(sorted({event.type for event in events}), len(events)) as context:
        yield [_carrying(event, context) for event in events] if context else events
    if telemetry.audible(logging.DEBUG):
        telemetry.emit("events.published", level=logging.DEBUG, events=len(events))


def _carrying(event: NewEvent, context: Mapping[str, str]) -> NewEvent:
    return event._replace(headers=carrying(event.headers, context))


class Publisher:
    """Writes events for one app."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def publish(self, events: Sequence[NewEvent], conn: object | None, verb: str) -> list[Published]:
        guest = None if conn is None else sync_guest(conn, verb, f"a{verb}")
        if not events:
            return []
        with traced(events) as sent:
            if guest is None:
                return self._database.run(lambda: store.publish(sent))
            return guest.run(store.publish(sent))

    async def apublish(self, events: Sequence[NewEvent], conn: object | None, verb: str) -> list[Published]:
        guest = None if conn is None else async_guest(conn, f"a{verb}", verb)
        if not events:
            return []
        with traced(events) as sent:
            if guest is None:
                return await self._database.arun(lambda: store.publish(sent))
            return await guest.arun(store.publish(sent))

    def append(
        self, stream: str, events: Sequence[NewEvent], expected: int | None, conn: object | None
    ) -> int:
        guest = None if conn is None else sync_guest(conn, "append", "aappend")
        with traced(events) as sent:
            if guest is None:
                return self._database.run(lambda: store.append(stream, sent, expected))
            return guest.run(store.append(stream, sent, expected))

    async def aappend(
        self, stream: str, events: Sequence[NewEvent], expected: int | None, conn: object | None
    ) -> int:
        guest = None if conn is None else async_guest(conn, "aappend", "append")
        with traced(events) as sent:
            if guest is None:
                return await self._database.arun(lambda: store.append(stream, sent, expected))
            return await guest.arun(store.append(stream, sent, expected))

    def version(self, stream: str, conn: object | None) -> int:
        guest = None if conn is None else sync_guest(conn, "version", "aversion")
        if guest is None:
            return self._database.run(lambda: store.stream_version(stream))
        return guest.run(store.stream_version(stream))

    async def aversion(self, stream: str, conn: object | None) -> int:
        guest = None if conn is None else async_guest(conn, "aversion", "version")
        if guest is None:
            return await self._database.arun(lambda: store.stream_version(stream))
        return await guest.arun(store.stream_version(stream))
