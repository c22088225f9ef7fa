"""One Python type <-> JSON values. pydantic and msgspec are imported when a type first needs them."""

import json
import re
import sys
import types
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Never, NoReturn, Protocol, get_args, get_origin

from ..model.shown import short
from . import typed_dicts
from .payload import deeper_than, shown

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# pydantic writes 255 levels and reads 200: refuse at enqueue what a worker could not read.
MODEL_DEPTH = 180
EXACT = 2**53  # every integer up to here is a float


class Misfit(ValueError):
    """The value is not of the type. The text says why."""


class NewerVersion(Misfit):
    """The value was written by newer code: this type does not accept it, but that of another release does."""


class TooDeep(Misfit):
    """The value is of the type, and nested too deep to be stored."""


class Unsupported(TypeError):
    """The type cannot be converted to JSON and back. The text gives the reason."""


class Converter(Protocol):
    def dump(self, value: Any) -> Any:
        """A JSON value; Misfit when the value is not of the type."""
        ...

    def load(self, value: Any) -> Any:
        """The value of the type from a JSON value; Misfit when it does not fit."""
        ...


class Raw:
    """JSON as it is: Any, object, no annotation, and containers of Any."""

    __slots__ = ("kind",)

    def __init__(self, kind: type = object) -> None:
        self.kind = kind

    def dump(self, value: Any) -> Any:
        if not isinstance(value, self.kind):
            raise Misfit(f"not {shown(value)}")
        return value

    load = dump


class Scalar:
    """str, int, bool, float and None need no library."""

    __slots__ = ("kind",)

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def dump(self, value: Any) -> Any:
        if type(value) is self.kind:
            return value
        if isinstance(value, self.kind) and not isinstance(value, bool):
            return value  # an IntEnum, a str subclass: JSON writes the plain value
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            return _float_of(value)
        raise Misfit(f"not {shown(value)}")

    def load(self, value: Any) -> Any:
        if self.kind is float and type(value) is int:
            return _float_of(value, stored=True)
        return self.dump(value)


def _float_of(value: int, *, stored: bool = False) -> float:
    """The float that is this integer. A stored one may also be the digits that a large float is printed with."""
    try:
        number = float(value)
    except OverflowError:
        raise Misfit("the integer is too large for a float") from None
    if number != value and not (stored and Decimal(repr(number)) == value):
        raise Misfit(f"{short(value)} would become {number!r}. Pass a float, or annotate it as int")
    return number


def _check_exact(given: set[int], back: Any, *, stored: bool = False) -> None:
    """Misfit when an integer comes back as a float that differs: both libraries accept an int for a float, and round it."""
    kept = list(_numbers(back))
    floats = {number for number in kept if isinstance(number, float)}
    for value in given.difference(kept):
        if abs(value) <= sys.float_info.max and float(value) in floats:
            _float_of(value, stored=stored)


def _large_ints(*values: Any) -> set[int]:
    """Integers that a float may not hold exactly."""
    return {n for n in _numbers(*values) if type(n) is int and not -EXACT <= n <= EXACT}


def _numbers(*values: Any) -> Iterator[int | float]:
    stack = list(values)
    while stack:
        top = stack.pop()
        if top is None or type(top) is str:
            continue
        if isinstance(top, dict):
            stack += top.values()
        elif isinstance(top, list | tuple | set | frozenset):
            stack += top
        elif isinstance(top, int | float):
            yield top
        elif fields := getattr(type(top), "__dataclass_fields__", None) or getattr(
            type(top), "model_fields", None
        ):
            stack += [getattr(top, name, None) for name in fields]


_UNEXPECTED = re.compile(
    r"Expected `(.+?)` .*?field_name='(.+?)', input_value=(.*), input_type=(\w+)\]", re.DOTALL
)


def _serialization(said: str) -> str:
    """pydantic's message for a value that is not of the type of its field: the first one, without class names."""
    first, *warnings = said.split("\n  Pydantic")
    found = _UNEXPECTED.search(warnings[0]) if warnings else None
    return f"{found[2]} must be {found[1]}, not {found[4]} {found[3]}" if found else first.split("\n", 1)[0]


class PydanticConverter:
    """Dataclasses, TypedDict, models, dates, UUID, Decimal, enums, unions: whatever pydantic knows."""

    __slots__ = ("_adapter", "_error")

    def __init__(self, annotation: Any) -> None:
        from pydantic import PydanticUserError, ValidationError

        self._error = ValidationError
        try:
            try:
                self._adapter = _adapter(annotation)
            except PydanticUserError as error:
                if error.code != "typed-dict-version" or not typed_dicts.adopt(annotation):
                    raise
                self._adapter = _adapter(annotation)
        except (PydanticUserError, TypeError, NameError) as error:
            raise Unsupported(str(error).split("\n", 1)[0]) from error

    def dump(self, value: Any) -> Any:
        try:
            checked = self._adapter.validate_python(value, strict=True)
            made = self._adapter.dump_python(
                checked, mode="json", by_alias=False, round_trip=True, warnings="error"
            )
        except self._error as error:
            raise _misfit(error) from None
        except RecursionError:
            raise TooDeep(f"nested more than {MODEL_DEPTH} levels deep") from None
        except ValueError as error:  # PydanticSerializationError is one
            if "depth exceeded" in str(error) or "Circular reference" in str(error):
                raise TooDeep(f"nested more than {MODEL_DEPTH} levels deep, or containing itself") from None
            raise Misfit(_serialization(str(error))) from error
        if deeper_than(made, MODEL_DEPTH):
            raise TooDeep(f"nested more than {MODEL_DEPTH} levels deep")
        if large := _large_ints(value, made):
            _check_exact(large, self._dumped(self._read(made)))
        return made

    def load(self, value: Any) -> Any:
        read = self._read(value)
        if large := _large_ints(value):
            _check_exact(large, self._dumped(read), stored=True)
        return read

    def _read(self, value: Any) -> Any:
        try:  # from JSON text, where strict still reads a date from its ISO string
            return self._adapter.validate_json(json.dumps(value), strict=True, by_alias=True, by_name=True)
        except self._error as error:
            raise _misfit(error) from None
        except (ValueError, RecursionError) as error:
            raise Misfit(str(error)) from error

    def _dumped(self, value: Any) -> Any:
        try:
            return self._adapter.dump_python(value, mode="json", round_trip=True, warnings=False)
        except (ValueError, RecursionError) as error:
            raise Misfit(str(error).split("\n", 1)[0]) from error

    def json_schema(self, **options: Any) -> dict[str, Any]:
        """By the stored names; raises pydantic's error if it has no serializer."""
        return self._adapter.json_schema(by_alias=False, **options)

    def schema(self) -> dict[str, Any] | None:
        """The accepted values, as a JSON schema; None: it has none."""
        try:
            return self._adapter.json_schema()
        except Exception:  # noqa: BLE001 of types with validators of the user's own
            return None


def _adapter(annotation: Any) -> "TypeAdapter[Any]":
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    try:
        return TypeAdapter(annotation, config=config)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":  # models and dataclasses bring their own
            raise
        return TypeAdapter(annotation)


class MsgspecConverter:
    """msgspec.Struct, alone or inside containers."""

    __slots__ = ("_annotation", "_module")

    def __init__(self, annotation: Any) -> None:
        try:
            import msgspec
        except ImportError as error:  # a Struct exists, so this means a broken installation
            raise Unsupported(f"msgspec cannot be imported: {error}") from error
        self._module: Any = msgspec
        self._annotation = annotation
        try:
            msgspec.json.Decoder(annotation)
        except TypeError as error:
            raise Unsupported(str(error)) from error

    def dump(self, value: Any) -> Any:
        if isinstance(self._annotation, type) and not isinstance(value, self._annotation):
            raise Misfit(f"not {shown(value)}")
        try:
            made = self._module.to_builtins(value, str_keys=True)
        except RecursionError:
            raise TooDeep(f"nested more than {MODEL_DEPTH} levels deep, or containing itself") from None
        except (TypeError, ValueError) as error:
            raise Misfit(str(error)) from error
        if deeper_than(made, MODEL_DEPTH):
            raise TooDeep(f"nested more than {MODEL_DEPTH} levels deep")
        read = self._read(made)
        if large := _large_ints(made):
            _check_exact(large, self._module.to_builtins(read, str_keys=True))
        return made

    def load(self, value: Any) -> Any:
        read = self._read(value)
        if large := _large_ints(value):
            _check_exact(large, self._module.to_builtins(read, str_keys=True), stored=True)
        return read

    def _read(self, value: Any) -> Any:
        try:
            return self._module.convert(value, self._annotation, strict=True, str_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise Misfit(str(error)) from error

    def schema(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._module.json.schema(self._annotation)
        except Exception:  # noqa: BLE001 of types with hooks of the user's own
            return None
        return found


_RAW = [(t, dict) for t in (dict, dict[str, Any], dict[str, object])]
_RAW_LISTS = [(t, list) for t in (list, list[Any], list[object])]
_KNOWN: dict[Any, Converter] = {
    **{t: Raw(kind) for t, kind in _RAW},
    **{t: Raw(kind) for t, kind in _RAW_LISTS},
    **{t: Raw() for t in (Any, object, Never, NoReturn)},
    **{t: Scalar(t) for t in (str, int, float, bool, types.NoneType)},
    None: Scalar(types.NoneType),
}


def converter(annotation: Any) -> Converter:
    """The converter of a resolved annotation; Unsupported when there is none. A class of Holdfast's may bring one."""
    try:
        known = _KNOWN.get(annotation)
    except TypeError:  # unhashable metadata in Annotated[...]
        known = None
    if known is not None:
        return known
    make = getattr(get_origin(annotation) or annotation, "__holdfast_converter__", None)
    if make is not None:
        made: Converter = make(get_args(annotation))
        return made
    return MsgspecConverter(annotation) if _has_struct(annotation) else PydanticConverter(annotation)


def _has_struct(annotation: Any) -> bool:
    if isinstance(annotation, type) and hasattr(annotation, "__struct_fields__"):
        return True
    return "msgspec" in sys.modules and any(_has_struct(arg) for arg in get_args(annotation))


def type_name(annotation: Any) -> str:
    """The annotation as one would write it."""
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, type) and not get_args(annotation):
        return "None" if annotation is types.NoneType else annotation.__qualname__.rpartition("<locals>.")[2]
    return str(annotation).replace("typing.", "")


def _misfit(error: Any) -> Misfit:
    faults = error.errors(include_url=False, include_context=False)
    first = faults[0]
    where = ".".join(str(step) for step in first["loc"])
    text = f"{where}: {first['msg']}" if where else str(first["msg"])
    if first["type"] == "recursion_loop":
        return TooDeep(f"nested more than {MODEL_DEPTH} levels deep, or containing itself")
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Misfit(f"{text}, not {shown(first['input'])}{more}")
