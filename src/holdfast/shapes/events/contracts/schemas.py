"""The two schemas of an event class.

The reader is the accepted data: a field with a default may be missing, and unknown fields are ignored.
The writer is the written data: every field, since `publish` writes defaults too, and no other.
"""

import functools
import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from ....errors import TaskDefinitionError
from ....tasks.convert import MsgspecConverter, PydanticConverter, type_name
from ..contract import EventType
from .rules import described, marked

Schema = dict[str, Any]

_WORDS = (
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "discriminator",
    "readOnly",
    "writeOnly",
)
_NAMED = ("properties", "$defs", "patternProperties")  # their keys are names, whatever they are
_VALUES = ("enum", "const", "default", "examples")  # its content is no schema


class Schemas(NamedTuple):
    reader: Schema
    writer: Schema

    @property
    def digest(self) -> str:
        """Of both, without the texts for people."""
        whole = json.dumps([essence(self.reader), essence(self.writer)], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()


def schemas_of(kind: EventType) -> Schemas:
    """TaskDefinitionError when the class has no JSON Schema."""
    converter = kind.converter
    try:
        if isinstance(converter, MsgspecConverter):
            return Schemas(*map(_plain, _of_msgspec(converter, kind.cls)))
        if isinstance(converter, PydanticConverter):
            reader = converter.json_schema(mode="validation", schema_generator=described())
            writer = converter.json_schema(mode="serialization", schema_generator=_written())
            return Schemas(_plain(reader), _plain(closed(writer)))
    except Exception as error:  # both libraries raise their own errors about fields that the user defined
        said = str(error).split("\n", 1)[0]
        raise TaskDefinitionError(
            f"event {kind.name!r} version {kind.version}: {type_name(kind.cls)} has no JSON Schema: {said}"
        ) from error
    raise TaskDefinitionError(f"event {kind.name!r}: {type_name(kind.cls)} has no JSON Schema")


def _plain(schema: Schema) -> Schema:
    """As JSON has it: a default may be a tuple, or no number."""
    made: Schema = json.loads(json.dumps(schema), parse_constant=lambda _: None)
    return made


@functools.cache
def _written() -> Any:
    """How pydantic describes what `publish` writes: it dumps every field, and no computed one."""
    from pydantic_core import PydanticOmit

    class Written(described()):  # type: ignore[misc]
        def computed_field_schema(self, schema: Any) -> Any:
            raise PydanticOmit

        def field_is_required(self, field: Any, total: bool) -> bool:
            if field["type"] == "typed-dict-field":
                return bool(field.get("required", total))
            return "serialization_exclude_if" not in field

    return Written


def _of_msgspec(converter: MsgspecConverter, cls: type) -> Schemas:
    """msgspec has one schema for both. For a Struct that may leave fields out, this adds the ones it always writes."""
    reader = converter.schema()
    if reader is None:
        raise TypeError("msgspec cannot describe one of its fields")
    reader = marked(reader, cls)
    return Schemas(reader, closed(reader, complete=not _leaves_out(cls)))


def _leaves_out(cls: type) -> bool:
    import msgspec

    for part in _parts(msgspec.inspect.type_info(cls), set()):
        if isinstance(part, msgspec.inspect.StructType) and part.cls.__struct_config__.omit_defaults:
            return True
        if isinstance(part, msgspec.inspect.Field):
            defaults = (part.default, part.default_factory)
            if not part.required and all(default is msgspec.NODEFAULT for default in defaults):
                return True  # UNSET, or a key of a TypedDict
    return False


def _parts(found: Any, seen: set[int]) -> Iterator[Any]:
    """The parts of a msgspec type."""
    if id(found) in seen:
        return
    seen.add(id(found))
    yield found
    for name in getattr(found, "__struct_fields__", ()):
        value = getattr(found, name)
        for part in value if isinstance(value, tuple) else (value,):
            if hasattr(part, "__struct_fields__"):
                yield from _parts(part, seen)


def closed(schema: Any, *, complete: bool = False) -> Any:
    """As a writer keeps it: no field that it does not declare; `complete`: and every one that it does."""

    def close(part: Schema) -> Schema:
        if "properties" not in part:
            return part
        more = {"required": sorted(part["properties"])} if complete and part["properties"] else {}
        return {"additionalProperties": False, **part, **more}

    return mapped(schema, close)


def essence(schema: Any) -> Any:
    """Without the texts for people."""
    return mapped(schema, lambda part: {key: value for key, value in part.items() if key not in _WORDS})


def mapped(schema: Any, change: Any) -> Any:
    """The schema with every schema in it changed, the inner ones first."""
    if isinstance(schema, list):
        return [mapped(part, change) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key in _NAMED:
            made[key] = {name: mapped(part, change) for name, part in value.items()}
        else:
            made[key] = value if key in _VALUES or key == "required" else mapped(value, change)
    return change(made)
