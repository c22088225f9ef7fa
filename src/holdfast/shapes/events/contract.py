"""Event types: the options of `@event`, how instances become JSON, how old versions are read, and their
keys."""

import contextlib
import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from ...errors import InvalidEvent, InvalidPayload, TaskDefinitionError
from ...tasks import checks
from ...tasks.convert import Converter, Misfit, NewerVersion, Unsupported, converter, type_name
from ...tasks.fingerprint import code_of
from ...tasks.payload import WRITERS, dump, quoted, short, shown
from ...tasks.tracing import KEYS as TRACE
from .blanks import Blank, blanks_of, check_fields, checked_names, fields_of, json_name

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
Compatibility = Literal["backward", "forward", "full", "none"]

DATA_BYTES = 224 * 1024  # a job that carries the event has room for the rest
HEADER_BYTES = 8 * 1024
SOURCE = "source"  # the header that becomes the attribute of CloudEvents
_MARK = "__holdfast_event__"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_URI_REFERENCE = re.compile(r"(?:[A-Za-z0-9:/?#@!$&'()*+,;=._~\[\]-]|%[0-9A-Fa-f]{2})+")


@dataclass(frozen=True, slots=True)
class Step:
    """How the version before becomes this one."""

    old: "EventType"
    func: Callable[[Any], Any]


class EventType:
    """A class as version `version` of the event type `name`."""

    def __init__(
        self,
        name: str,
        version: int,
        cls: type,
        key: str | None,
        compatibility: Compatibility = "full",
        erase: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.version = version
        self.cls = cls
        self.key = key
        self.compatibility = compatibility
        self.step: Step | None = None
        self.erase = erase
        self._fields = {field: json_name(cls, field) for field in _names_in(key or "")}
        self._blanks: tuple[Blank, ...] | None = None
        self._converter: Converter | None = None

    @property
    def converter(self) -> Converter:
        """Built at first use: the types that the class names may be defined after it."""
        if self._converter is None:
            try:
                self._converter = converter(self.cls)
            except Unsupported as error:
                raise TaskDefinitionError(
                    f"event {self.name!r}: {type_name(self.cls)} has no JSON form: {error} "
                    "Use a dataclass, a TypedDict, a pydantic model or a msgspec.Struct"
                ) from error
        return self._converter

    @property
    def blanks(self) -> tuple[Blank, ...]:
        """The values that replace its fields in `erase`. NameError: a type of a field is not defined yet."""
        if self._blanks is None:
            self._blanks = blanks_of(self.name, self.cls, self.erase, tuple(self._fields))
        return self._blanks

    def encode(self, value: Any) -> dict[str, Any]:
        """The data as a JSON object; InvalidEvent names the field that does not fit."""
        try:
            made = self.converter.dump(value)
        except Misfit as error:
            raise InvalidEvent(f"event {self.name!r} must be {type_name(self.cls)}: {error}") from None
        if not isinstance(made, dict):
            raise InvalidEvent(
                f"event {self.name!r}: {type_name(self.cls)} becomes {type(made).__name__}; event data is a JSON object"
            )
        return made

    def checked(self, data: object) -> dict[str, Any]:
        """Data that was given as a dict, as an instance of the class would be written: every field, and no other."""
        try:
            made = self.encode(self.converter.load(data))
        except Misfit as error:
            raise InvalidEvent(f"event {self.name!r} version {self.version}: {error}") from None
        if (extra := _beside(data, made)) is not None:
            raise InvalidEvent(
                f"event {self.name!r} version {self.version}: {type_name(self.cls)} has no field {extra!r}. "
                "Leave it out, or declare another version that has it"
            )
        return made

    def load(self, version: int, data: Any) -> Any:
        """The data of an event that was published as `version`, as this class has it: read in its own version, and then
        upcast. NewerVersion when newer code published it, Misfit when it does not fit."""
        if version == self.version:
            return self.converter.load(data)
        if version > self.version:
            raise NewerVersion(
                f"the event is version {version} of {self.name}, and the code here knows it up to version {self.version}"
            )
        reader, steps = self.reader_of(version)
        try:
            value = reader.converter.load(data)
        except Misfit as error:
            of = (
                f"as version {version} of {self.name}"
                if reader.version == version
                else self._unread(version, reader)
            )
            raise Misfit(f"{error}; it was published {of}") from None
        for step in steps:
            value = step._upcast(value)
        return value

    def reader_of(self, version: int) -> "tuple[EventType, list[EventType]]":
        """The type that reads an event of an older version, and those that it is upcast to after that. A version without
        an upcaster is read as the next one that has one, which must be compatible with it."""
        reader: EventType = self
        steps: list[EventType] = []
        while version < reader.version and reader.step is not None:
            steps.append(reader)
            reader = reader.step.old
        return reader, steps[::-1]

    def _unread(self, version: int, reader: "EventType") -> str:
        return (
            f"as version {version} of {self.name}, and read as version {reader.version}. "
            f"Declare version {version} and @upcast it"
        )

    def _upcast(self, value: Any) -> Any:
        """One step, from the version before to this one."""
        assert self.step is not None
        what = f"upcasting {self.name} from version {self.step.old.version} to {self.version}"
        try:
            made = self.step.func(value)
        except Exception as error:
            raise Misfit(f"{what} failed: {type(error).__name__}: {error}") from error
        if not isinstance(made, self.cls if not hasattr(self.cls, "__required_keys__") else dict):
            raise Misfit(f"{what} returned {shown(made)}, not {type_name(self.cls)}")
        return made

    def fingerprint(self) -> dict[str, Any]:
        """The accepted data, for the fingerprint of a handler's signature. A repaired upcaster gives another fingerprint."""
        make = getattr(self.converter, "schema", None)
        step = None if self.step is None else [code_of(self.step.func), self.step.old.fingerprint()]
        return {"version": self.version, "data": make() if make is not None else None, "step": step}

    def key_of(self, data: Mapping[str, Any]) -> str | None:
        """The key that the template makes of the data."""
        if self.key is None:
            return None
        missing = [name for name, there in self._fields.items() if data.get(there) is None]
        if missing:
            raise InvalidEvent(
                f"event {self.name!r}: the key {self.key!r} needs {missing[0]!r}, which has no value. Pass key=..."
            )
        values = {name: data[there] for name, there in self._fields.items()}
        if bad := [name for name, value in values.items() if isinstance(value, dict | list | bool)]:
            raise InvalidEvent(
                f"event {self.name!r}: the field {bad[0]!r} of the key is {shown(values[bad[0]])}. "
                "A key is made of text and numbers: pass key=..."
            )
        return self.key.format_map(values)

    def __repr__(self) -> str:
        return f"EventType({self.name!r}, version={self.version})"


DECLARED: dict[tuple[str, int], list[EventType]] = {}  # every class of this process, by name and version


def event(
    name: str,
    *,
    version: int = 1,
    key: str | None = None,
    compatibility: Compatibility = "full",
    erase: Sequence[str] = (),
) -> Callable[[type[T]], type[T]]:
    """Make a class an event type: `@event("order.paid", key="order:{order_id}")` over a dataclass, a TypedDict, a pydantic
    model or a msgspec.Struct. `key` is a template over its fields; events of one key are delivered in order.

    A class whose fields change is another version. `compatibility` says what `holdfast contracts check` asks of it: that its
    code reads older versions ("backward"), that code of older versions reads it ("forward"), or both ("full").

    `erase` names the fields that `holdfast events erase` blanks: `erase=["email", "address.street"]`. Without it all of the
    data is erased."""
    type_name_of(name, TaskDefinitionError)
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version < 2**31:
        raise TaskDefinitionError(f"event {name!r}: version must be 1 or more, not {shown(version)}")
    if compatibility not in get_args(Compatibility):
        raise TaskDefinitionError(
            f"event {name!r}: compatibility must be one of {', '.join(get_args(Compatibility))}, not {shown(compatibility)}"
        )

    erased = checked_names(name, erase)

    def declare(cls: type[T]) -> type[T]:
        if not isinstance(cls, type):
            raise TaskDefinitionError(f"@event takes a class, not {shown(cls)}")
        _check_key(name, key, cls)
        kind = EventType(name, version, cls, key, compatibility, erased)
        check_fields(name, cls, erased, _names_in(key or ""))
        with contextlib.suppress(NameError):  # of a type that is defined later: it is checked at first use
            _ = kind.blanks
        setattr(cls, _MARK, kind)
        others = DECLARED.setdefault((name, version), [])
        others[:] = [other for other in others if _place(other.cls) != _place(cls)] + [kind]
        return cls

    return declare


def upcast(old: type[A], new: type[B]) -> Callable[[Callable[[A], B]], Callable[[A], B]]:
    """Turn version n of an event type into version n + 1: `@upcast(OrderPaidV1, OrderPaid)` over a function from the one
    class to the other. Steps are chained when events are read; the log stays as it was written."""
    before, after = (type_of(cls) for cls in (old, new))
    for kind, cls in ((before, old), (after, new)):
        if kind is None:
            raise TaskDefinitionError(
                f'@upcast takes two event classes, and {shown(cls)} is none. Write @event("...") above it'
            )
    assert before is not None
    assert after is not None
    if (before.name, before.version + 1) != (after.name, after.version):
        raise TaskDefinitionError(
            f"@upcast takes a version and the next one of the same event type, not {before.name} version {before.version} "
            f"and {after.name} version {after.version}"
        )

    def declare(fn: Callable[[A], B]) -> Callable[[A], B]:
        if not callable(fn):
            raise TaskDefinitionError(f"@upcast goes above a function, not {shown(fn)}")
        if after.step is not None and _place(after.step.func) != _place(fn):
            raise TaskDefinitionError(
                f"{after.name}: version {before.version} is upcast twice, by {after.step.func.__qualname__} and by "
                f"{getattr(fn, '__qualname__', fn)}. Keep one"
            )
        after.step = Step(before, fn)
        return fn

    return declare


def _place(thing: object) -> tuple[object, object]:
    """Where it is written: a module may run again."""
    return getattr(thing, "__module__", None), getattr(thing, "__qualname__", thing)


def declared_as(name: str, version: int) -> EventType | None:
    """The class of this process that is this version; None: there is none, or more than one."""
    found = DECLARED.get((name, version), ())
    return found[0] if len(found) == 1 else None


def type_of(cls: object) -> EventType | None:
    """The options of `@event` on a class; None: it is no event. A subclass is none unless it is decorated itself."""
    found = getattr(cls, "__dict__", {}).get(_MARK)
    return cast("EventType | None", found)


def type_name_of(name: object, fail: checks.Fail) -> str:
    """A usable name of an event type."""
    return checks.task_name(name, "the event's type", fail)


def _beside(given: object, made: object, path: str = "") -> str | None:
    """The first field that was given and is missing in the result."""
    if isinstance(given, Mapping) and isinstance(made, dict):
        for name, value in given.items():
            if name not in made:
                return f"{path}{name}"
            if (found := _beside(value, made[name], f"{path}{name}.")) is not None:
                return found
    elif isinstance(given, list) and isinstance(made, list):
        for n, (value, other) in enumerate(zip(given, made, strict=False)):
            if (found := _beside(value, other, f"{path}{n}.")) is not None:
                return found
    return None


def _names_in(template: str) -> tuple[str, ...]:
    return tuple(name for _, name, _, _ in string.Formatter().parse(template) if name is not None)


def _check_key(event_name: str, key: str | None, cls: type) -> None:
    if key is None:
        return
    if not isinstance(key, str) or not key:
        raise TaskDefinitionError(
            f'event {event_name!r}: key must be a template such as "order:{{order_id}}", not {shown(key)}'
        )
    try:
        parts = list(string.Formatter().parse(key))
    except ValueError as error:
        raise TaskDefinitionError(f"event {event_name!r}: the key {key!r} cannot be read: {error}") from None
    known = fields_of(cls)
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if spec or conversion or not name.isidentifier():
            raise TaskDefinitionError(
                f"event {event_name!r}: the key {key!r} may only have plain fields such as {{order_id}}"
            )
        if known and name not in known:
            raise TaskDefinitionError(
                f"event {event_name!r}: the key {key!r} names {name!r}, which {cls.__qualname__} does not have "
                f"(it has {', '.join(known)})"
            )


def data_text(data: object, name: str) -> str:
    """Checked JSON text of the data of an event of this type."""
    if not isinstance(data, dict):
        if not isinstance(data, Mapping):
            raise InvalidEvent(f"event {name!r}: the data of an event is a JSON object, not {shown(data)}")
        data = dict(data)
    try:
        return _short(data) or dump(data, "data", DATA_BYTES)
    except InvalidPayload as error:
        raise InvalidEvent(f"event {name!r}: {error}") from None


def _short(data: dict[Any, Any]) -> str | None:
    """A short object of plain values, as `dump` writes it, in a third of the time; None: it is not that simple."""
    try:
        return short([f"{quoted(name)}:{WRITERS[type(value)](value)}" for name, value in data.items()])
    except (KeyError, TypeError, ValueError):
        return None


def headers_text(headers: Mapping[str, str] | None, name: str) -> str | None:
    """Checked JSON text of the headers of an event of this type; None: it has none."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in headers.items()
    ):
        raise InvalidEvent(f"event {name!r}: headers must map names to strings, not {shown(headers)}")
    source = headers.get(SOURCE)
    if source is not None and not _URI_REFERENCE.fullmatch(source):
        raise InvalidEvent(
            f"event {name!r}: the header {SOURCE!r} must be a URI or a part of one, such as "
            f'"https://shop.example/orders" or "/orders", not {shown(source)}'
        )
    try:
        return dump(dict(headers), "headers", HEADER_BYTES) if headers else None
    except InvalidPayload as error:
        raise InvalidEvent(f"event {name!r}: {error}") from None


def carrying(headers: str | None, context: Mapping[str, str]) -> str | None:
    """The headers with the context of a trace. The user's own win, and so does the limit: an event without a
    trace is better than none."""
    known: dict[str, str] = json.loads(headers) if headers else {}
    if TRACE[0] in known:
        return headers
    for keys in (TRACE, TRACE[:1]):
        kept = {key: context[key] for key in keys if key in context}
        with contextlib.suppress(InvalidPayload):
            return dump({**known, **kept}, "headers", HEADER_BYTES)
    return headers


def text_of(value: object) -> str:
    return quoted(value) if isinstance(value, str) else _encode(value)
