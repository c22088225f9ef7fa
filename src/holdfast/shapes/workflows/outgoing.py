"""Events that a run publishes: the log is reached without an import of the shape that owns it."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol
from uuid import UUID, uuid5


class NewEvent(Protocol):
    """One event, checked and encoded. `data` and `headers` are JSON text."""

    @property
    def type(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def key(self) -> str | None: ...
    @property
    def headers(self) -> str | None: ...
    @property
    def id(self) -> UUID | None: ...
    @property
    def version(self) -> int: ...


class Name(Protocol):
    def __call__(self, event: object, /) -> str:
        """The type of publish()'s argument. InvalidEvent: it is no event."""
        ...


class Encode(Protocol):
    def __call__(
        self,
        event: object,
        data: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        key: str | None = None,
        event_id: UUID | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> NewEvent:
        """publish()'s arguments, as the log takes them. InvalidEvent names the part that does not fit."""
        ...


class Events(NamedTuple):
    """What runs need from the events shape. `holdfast.registry.Registry` provides it: shapes do not import each other."""

    name: Name
    encode: Encode


def event_id(run_id: UUID, era: int, key: str) -> UUID:
    """Of a publish: the same at every try and in every process."""
    return uuid5(run_id, f"{era}\n{key}")


def event_json(event: NewEvent) -> str:
    """As holdfast.workflow_publish() takes it; data and headers are JSON text already."""
    plain = {"type": event.type, "key": event.key, "id": str(event.id), "version": event.version}
    return f'{json.dumps(plain)[:-1]}, "data": {event.data}, "headers": {event.headers or "null"}}}'
