"""`@event(erase=[...])`: which fields `holdfast events erase` blanks, and with what.

A blank is valid for its field, so that the event is read as before: null where that is allowed, else an empty text, 0,
false, an empty list or an empty object. A field that takes none of them cannot be named.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from ...errors import TaskDefinitionError
from ...tasks.convert import Converter, Misfit, MsgspecConverter, Unsupported, converter, type_name
from ...tasks.payload import shown

Blank = tuple[tuple[str, ...], Any]  # its path in the data, and the value that is put there

BLANKS: tuple[Any, ...] = (None, "", 0, False, [], {})
_WRAPPERS = (typing.Required, typing.NotRequired)


def checked_names(event_name: str, erase: object) -> tuple[str, ...]:
    if isinstance(erase, str) or not isinstance(erase, Sequence):
        raise TaskDefinitionError(
            f'event {event_name!r}: erase must be a list of fields such as ["email"], not {shown(erase)}'
        )
    if bad := [one for one in erase if not isinstance(one, str) or not all(one.split("."))]:
        raise TaskDefinitionError(
            f'event {event_name!r}: erase names fields such as "email" or "address.street", not {shown(bad[0])}'
        )
    return tuple(dict.fromkeys(erase))


def blanks_of(event_name: str, cls: type, names: Sequence[str], in_key: Sequence[str]) -> tuple[Blank, ...]:
    """NameError: a type that a field names is not there yet."""
    return tuple(_blank(event_name, cls, name, in_key) for name in names)


def check_fields(event_name: str, cls: type, names: Sequence[str], in_key: Sequence[str]) -> None:
    """What can be checked before every type is defined: the fields of the class itself."""
    for name in names:
        first, known = name.partition(".")[0], fields_of(cls)
        if known and first not in known:
            raise TaskDefinitionError(_unknown(event_name, name, first, cls))
        if name in in_key:
            raise TaskDefinitionError(
                f"event {event_name!r}: erase names {name!r}, which is part of its key. A key stays in the log: "
                "make it of something that is not to be erased"
            )


def _blank(event_name: str, cls: type, name: str, in_key: Sequence[str]) -> Blank:
    check_fields(event_name, cls, [name], in_key)
    path: list[str] = []
    at: Any = cls
    hint: Any = None
    for step in name.split("."):
        if path:
            at = _inner(event_name, name, step, hint)
        hints = _hints(at)
        if step not in hints:
            raise TaskDefinitionError(_unknown(event_name, name, step, at))
        hint = hints[step]
        path.append(json_name(at, step))
    taken = _converter(event_name, name, at, hint)
    for blank in BLANKS:
        if _takes(taken, blank):
            return tuple(path), blank
    plain = type_name(_bare(hint))
    raise TaskDefinitionError(
        f"event {event_name!r}: erase names {name!r}, and {plain} takes no blank: null, an empty text, 0, false, an empty "
        f"list or object. Declare it as {plain} | None"
    )


def _takes(taken: Converter, blank: Any) -> bool:
    """It is read, and is the same when it is written: a Decimal is made of 0, and written as a text."""
    try:
        back = taken.dump(taken.load(blank))
    except Misfit:
        return False
    return bool(back == blank) and isinstance(back, bool) == isinstance(blank, bool)


def _converter(event_name: str, name: str, at: Any, hint: Any) -> Converter:
    if not getattr(at, "__pydantic_complete__", True):
        raise NameError(f"{at.__qualname__} is not complete")
    try:
        return (
            MsgspecConverter(hint) if hasattr(at, "__struct_fields__") else converter(hint)
        )  # with its limits
    except Unsupported as error:
        raise TaskDefinitionError(f"event {event_name!r}: {name!r} has no JSON form: {error}") from error


def _inner(event_name: str, name: str, step: str, hint: Any) -> Any:
    """The class of a field that has fields itself."""
    bare = _bare(hint)
    parts = get_args(bare) if get_origin(bare) in (Union, types.UnionType) else (bare,)
    inner = [_bare(part) for part in parts if part is not types.NoneType]
    if len(inner) == 1 and isinstance(inner[0], type) and fields_of(inner[0]):
        return inner[0]
    before = name[: -len(step) - 1] if name.endswith(step) else name.partition(f".{step}")[0]
    raise TaskDefinitionError(
        f"event {event_name!r}: erase names {name!r}, and {before} is {type_name(bare)}, which has no field {step!r}. "
        f"Erase {before!r} as a whole"
    )


def _bare(hint: Any) -> Any:
    while get_origin(hint) in (Annotated, *_WRAPPERS):
        hint = get_args(hint)[0]
    return hint


def _hints(cls: Any) -> Mapping[str, Any]:
    """The values that each field accepts, with its limits."""
    found = getattr(cls, "model_fields", None)
    if found:
        return {
            name: Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
            for name, info in found.items()
        }
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: _required(hint) for name, hint in hints.items() if name in fields_of(cls)}


def _required(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) in _WRAPPERS else hint


def _unknown(event_name: str, name: str, step: str, cls: Any) -> str:
    there = f"{type_name(cls)} has no field {step!r}. It has {', '.join(fields_of(cls))}"
    return f"event {event_name!r}: erase names {name!r}, and {there}"


def fields_of(cls: type) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    for attribute in ("model_fields", "__struct_fields__"):
        if found := getattr(cls, attribute, None):
            return list(found)
    return list(typing.get_type_hints(cls)) if hasattr(cls, "__required_keys__") else []


def json_name(cls: Any, name: str) -> str:
    """The name of a field in the data: a msgspec.Struct may rename it."""
    names: Sequence[str] = getattr(cls, "__struct_fields__", ())
    renamed: Mapping[str, str] = dict(
        zip(names, getattr(cls, "__struct_encode_fields__", names), strict=True)
    )
    return renamed.get(name, name)
