"""Event: one event as a subscriber gets it, and its form in a job."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin
from uuid import UUID

from ...tasks.convert import Converter, Misfit, NewerVersion, Raw, converter
from ...tasks.tracing import KEYS as TRACE
from .contract import SOURCE, EventType, text_of, type_of

_OWN = frozenset(
    ("specversion", "id", "source", "type", "time", "subject", "datacontenttype", "dataschema", "data")
)
_EXTENSION = re.compile("[a-z0-9]{1,20}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")  # which no attribute may use

T_co = TypeVar("T_co", covariant=True)


class EventRow(NamedTuple):
    """One event as the log has it; `headers` and `data` are JSON text. `data` None: it was erased."""

    position: int
    seq: int
    id: UUID
    type: str
    version: int
    key: str | None
    time: datetime
    headers: str | None
    data: str | None


@dataclass(frozen=True, slots=True)
class Event(Generic[T_co]):
    """One event as a subscriber gets it: `async def send_receipt(event: Event[OrderPaid])`."""

    id: UUID  # never changes, not by retry, replay or restore
    position: int  # gapless, the same for all subscribers
    era: int
    type: str
    version: int  # as published; `data` is upcast to the class that the subscriber takes
    key: str | None
    time: datetime
    headers: Mapping[str, str] = field(default_factory=dict)
    data: T_co = None  # type: ignore[assignment]
    replay: bool = False  # delivered by a replay or a rebuild

    @property
    def source(self) -> str:
        """Where it comes from: the header `source` it was published with."""
        return self.headers.get(SOURCE, "holdfast")

    def cloudevent(self) -> dict[str, Any]:
        """The event as CloudEvents 1.0 has it, in its JSON form. Headers are extension attributes, where their names may be:
        1 to 20 lower-case letters and digits. Others are left out."""
        kind = type_of(type(self.data))
        version = self.version if kind is None else kind.version  # of the data as it is here
        envelope: dict[str, Any] = {
            "specversion": "1.0",
            "id": str(self.id),
            "source": self.source,
            "type": self.type,
            "time": self.time.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            "dataschema": f"urn:holdfast:{self.type}:{version}",
        }
        if self.key is not None:
            envelope["subject"] = self.key
        envelope |= {
            name: value
            for name, value in self.headers.items()
            if name not in _OWN and _EXTENSION.fullmatch(name) and not _CONTROL.search(value)
        }
        envelope["data"] = self.data if kind is None else kind.encode(self.data)
        return envelope

    @classmethod
    def __holdfast_converter__(cls, arguments: tuple[Any, ...]) -> "EventConverter":
        return EventConverter(arguments[0] if arguments else Any)


class EventConverter:
    """Event[T] <-> the JSON object that a job carries. T is one event class, a union of them, or anything else that has a
    JSON form; an event class takes the events of its own type."""

    __slots__ = ("_by_type", "_exact", "_other")

    def __init__(self, data: Any) -> None:
        kinds = [type_of(part) for part in _members(data)]
        found = sorted((kind for kind in kinds if kind is not None), key=lambda kind: kind.version)
        self._by_type: dict[str, EventType] = {kind.name: kind for kind in found}  # the newest of each
        self._exact: dict[tuple[str, int], EventType] = {(kind.name, kind.version): kind for kind in found}
        self._other: Converter | None = None if all(kinds) else converter(data)

    def load_data(self, event_type: str, version: int, data: Any) -> Any:
        """The data of an event of this type that was published as `version`; NewerVersion when newer code did, Misfit when
        it does not fit."""
        if data is None:
            raise Misfit(f"the data of this {event_type} was erased")
        kind = self._exact.get((event_type, version)) or self._by_type.get(event_type)
        if kind is not None:
            return kind.load(version, data)
        if self._other is not None:
            return self._other.load(data)
        raise NewerVersion(
            f"the code here has no class for {event_type}: it is none of {', '.join(self._by_type)}"
        )

    def load(self, value: Any) -> Event[Any]:
        if not isinstance(value, dict):
            raise Misfit(f"an event is a JSON object, not {type(value).__name__}")
        try:
            return Event(
                UUID(value["id"]),
                value["position"],
                value["era"],
                value["type"],
                value["version"],
                value["key"],
                datetime.fromisoformat(value["time"]),
                value["headers"] or {},
                self.load_data(value["type"], value["version"], value["data"]),
                bool(value.get("replay")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise Misfit(f"it is no event: {type(error).__name__}: {error}") from None

    def dump(self, value: Any) -> Any:
        if not isinstance(value, Event):
            raise Misfit(f"not {type(value).__name__}")
        kind = type_of(type(value.data)) or self._by_type.get(value.type)
        other = self._other or Raw()
        data = other.dump(value.data) if kind is None else kind.encode(value.data)
        version = value.version if kind is None else kind.version  # upcast data are dumped in the new version
        row = (value.id, value.type, version, value.key, value.time, text_of(dict(value.headers)))
        return json.loads(_envelope(value.position, value.era, *row, text_of(data), value.replay))

    def event(self, row: EventRow, era: int, *, replay: bool = False) -> Event[Any]:
        """The event of a row of the log; Misfit when its data does not fit."""
        data = None if row.data is None else json.loads(row.data)
        headers = json.loads(row.headers) if row.headers else {}
        loaded = self.load_data(row.type, row.version, data)
        return Event(
            row.id, row.position, era, row.type, row.version, row.key, row.time, headers, loaded, replay
        )

    def schema(self) -> dict[str, Any]:
        """The accepted data, for the fingerprint of a handler's signature."""
        found: dict[str, Any] = {
            f"{name}/{version}": kind.fingerprint() for (name, version), kind in sorted(self._exact.items())
        }
        make = getattr(self._other, "schema", None)
        return {**found, "*": make() if make is not None else None}


def job_payload(row: EventRow, parameter: str, era: int, *, replay: bool = False) -> str:
    """The payload of the job that carries an event, assembled from the texts of the log."""
    texts = (row.headers, row.data or "null")
    whole = _envelope(row.position, era, row.id, row.type, row.version, row.key, row.time, *texts, replay)
    return f"{{{text_of(parameter)}:{whole}}}"


def cloudevent_text(row: EventRow, event_id: str | None = None) -> str:
    """The content of `Event.cloudevent()`, as text that is assembled from the texts of the log: the same every time.
    `event_id`: its id as text, for callers that have it."""
    source, extra = '"holdfast"', ""
    if row.headers:
        headers: dict[str, str] = json.loads(row.headers)
        source = text_of(headers.get(SOURCE, "holdfast"))
        extra = "".join(
            f",{text_of(name)}:{text_of(value)}"
            for name, value in headers.items()
            if name not in _OWN and _EXTENSION.fullmatch(name) and not _CONTROL.search(value)
        )
    subject = "" if row.key is None else f',"subject":{text_of(row.key)}'
    time = row.time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return (
        f'{{"specversion":"1.0","id":"{event_id or row.id}","source":{source},"type":"{row.type}",'
        f'"time":"{time}","datacontenttype":"application/json","dataschema":"urn:holdfast:{row.type}:{row.version}"'
        f'{subject}{extra},"data":{row.data or "null"}}}'
    )


def trace_of(row: EventRow) -> str | None:
    """The metadata of the job that carries an event: the trace of its publisher. None: there was none."""
    if row.headers is None or TRACE[0] not in row.headers:
        return None
    headers = json.loads(row.headers)
    found = {key: headers[key] for key in TRACE if key in headers}
    return text_of(found) if found else None


def _envelope(
    position: int,
    era: int,
    event_id: UUID,
    event_type: str,
    version: int,
    key: str | None,
    time: datetime,
    headers: str | None,
    data: str,
    replay: bool,
) -> str:
    again = ',"replay":true' if replay else ""
    tail = f'"headers":{headers or "null"}{again},"data":{data}}}'
    return (
        f'{{"id":"{event_id}","position":{position},"era":{era},"type":{text_of(event_type)},"version":{version},'
        f'"key":{text_of(key)},"time":"{time.astimezone(UTC).isoformat()}",{tail}'
    )


def _members(data: Any) -> tuple[Any, ...]:
    """The parts of a union, or the type itself."""
    origin = get_origin(data)
    return get_args(data) if origin is not None and type_of(data) is None and _is_union(origin) else (data,)


def _is_union(origin: Any) -> bool:
    import types
    import typing

    return origin in (typing.Union, types.UnionType)
