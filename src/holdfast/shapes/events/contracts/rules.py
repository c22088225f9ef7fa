"""Rules of a class that JSON Schema cannot express: a time with its zone, a date not before another, keys that are
numbers, how many digits a Decimal has.

Without them a reader's schema accepts more than its code does, and a breaking change would pass. Each is a text under
`x-rules`. The algebra compares texts: a reader with the same rule, or none, can read what a writer with that rule writes.
"""

import functools
import json
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

RULES = "x-rules"
_BOUNDS = ("ge", "gt", "le", "lt")


def ruled(part: Schema, rules: list[str]) -> Schema:
    return {**part, RULES: sorted({*part.get(RULES, ()), *rules})} if rules else part


def _zone(wanted: object) -> list[str]:
    """`aware`, `naive`, or the seconds of one zone."""
    if wanted is None:
        return []
    if isinstance(wanted, bool):
        return ["aware" if wanted else "naive"]
    return [wanted] if isinstance(wanted, str) else ["aware", f"zone {wanted}"]


def key_rules(keys: Schema) -> list[str]:
    """Of names that have to be written as `keys` says; empty: any text will do."""
    plain = {name: value for name, value in keys.items() if name != "title"}
    if plain in ({}, {"type": "string"}) or any(not key_rules(part) for part in plain.get("anyOf", ())):
        return []
    if "type" not in plain:
        return [f"keys {json.dumps(plain, sort_keys=True)}"]
    return [f"keys {plain.pop('type')}", *(f"keys {name} {value}" for name, value in plain.items())]


# Pydantic ----------------------------------------------------------------------------------------------------------------


@functools.cache
def described() -> Any:
    """pydantic's schema of a class, with the rules that it leaves out."""
    from pydantic.json_schema import GenerateJsonSchema

    class Described(GenerateJsonSchema):
        def datetime_schema(self, schema: Any) -> Any:
            return _temporal(super().datetime_schema(schema), schema)

        def date_schema(self, schema: Any) -> Any:
            return _temporal(super().date_schema(schema), schema)

        def time_schema(self, schema: Any) -> Any:
            return _temporal(super().time_schema(schema), schema)

        def timedelta_schema(self, schema: Any) -> Any:
            return _temporal(super().timedelta_schema(schema), schema)

        def decimal_schema(self, schema: Any) -> Any:
            text = ruled({"type": "string", "format": "decimal"}, _decimal_rules(schema))
            if self.mode == "serialization":
                return text
            number = next(
                part for part in super().decimal_schema(schema)["anyOf"] if part["type"] == "number"
            )
            return {"anyOf": [_of_digits(number, schema), text]}

        def dict_schema(self, schema: Any) -> Any:
            made = super().dict_schema(schema)
            if "keys_schema" in schema and "propertyNames" not in made and "patternProperties" not in made:
                rules = key_rules(self.generate_inner(schema["keys_schema"]))
                if rules:
                    made["propertyNames"] = {RULES: sorted(rules)}
            return made

    return Described


def _temporal(made: Schema, schema: Any) -> Schema:
    bounds = [f"{name} {schema[name]}" for name in _BOUNDS if schema.get(name) is not None]
    past = [] if schema.get("now_op") is None else [str(schema["now_op"])]
    return ruled(made, [*_zone(schema.get("tz_constraint")), *past, *bounds])


def _decimal_rules(schema: Any) -> list[str]:
    named = (*_BOUNDS, "multiple_of", "max_digits", "decimal_places")
    found = [f"{name} {schema[name]}" for name in named if schema.get(name) is not None]
    return found if schema.get("allow_inf_nan") else [*found, "finite"]


def _of_digits(number: Schema, schema: Any) -> Schema:
    """A number for a Decimal with a limit of digits: the digits of a float are not known."""
    digits, places = schema.get("max_digits"), schema.get("decimal_places")
    if digits is None and places is None:
        return number
    made = {**number, "type": "integer"}
    if digits is not None:
        most = 10 ** max(0, digits - (places or 0)) - 1
        made["minimum"] = max(made.get("minimum", -most), -most)
        made["maximum"] = min(made.get("maximum", most), most)
    return made


# msgspec -----------------------------------------------------------------------------------------------------------------


def marked(schema: Schema, cls: Any) -> Schema:
    """The schema that msgspec made of a class, with the rules that it leaves out."""
    import msgspec

    made: Schema = json.loads(json.dumps(schema))
    seen: set[str] = set()
    _mark(msgspec.inspect.type_info(cls), made, made, seen)
    return made


def _mark(kind: Any, part: Any, root: Schema, seen: set[str]) -> None:
    name = type(kind).__name__
    if name == "Metadata":
        _mark(kind.type, part, root, seen)
        return
    if not isinstance(part, dict):
        return
    if "$ref" in part:
        if part["$ref"] not in seen:
            seen.add(part["$ref"])
            _mark(kind, root["$defs"][part["$ref"].rpartition("/")[2]], root, seen)
        return
    if name in ("DateTimeType", "TimeType"):
        part["format"] = "date-time" if name == "DateTimeType" else "time"
        part.update(ruled({}, _zone(kind.tz)))
    elif name in ("DictType", "FrozenDictType"):
        if names := _msgspec_names(kind.key_type):
            part["propertyNames"] = names
        _mark(kind.value_type, part.get("additionalProperties"), root, seen)
    else:
        for inner, place in _inner(kind, name, part):
            _mark(inner, place, root, seen)


def _inner(kind: Any, name: str, part: Schema) -> Iterator[tuple[Any, Any]]:
    """The parts of a msgspec type, each with its place in the schema."""
    if name == "UnionType":
        for one in kind.types:
            yield from ((one, place) for place in _alternatives(part) if _may_be(one, place))
    elif hasattr(kind, "item_type"):
        yield kind.item_type, part.get("items")
    elif hasattr(kind, "item_types"):
        yield from zip(kind.item_types, part.get("prefixItems", ()), strict=False)
    elif hasattr(kind, "fields"):
        if "properties" in part:
            yield from ((field.type, part["properties"].get(field.encode_name)) for field in kind.fields)
        else:  # its tag, if it has one, comes before its fields
            places = part.get("prefixItems", [])
            yield from zip((field.type for field in kind.fields), places[-len(kind.fields) :], strict=False)


def _alternatives(part: Schema) -> Iterator[Schema]:
    for one in part.get("anyOf", ()):
        yield from _alternatives(one) if "anyOf" in one else (one,)


def _may_be(kind: Any, place: Schema) -> bool:
    """Whether this is the place of a type in a union: a union of msgspec has at most one type of text, of lists and of
    objects, but for classes, which are known by their names."""
    while type(kind).__name__ == "Metadata":
        kind = kind.type
    name = type(kind).__name__
    if "$ref" in place:
        return hasattr(kind, "cls") and place["$ref"].rpartition("/")[2] == kind.cls.__name__
    if name in ("DateTimeType", "TimeType"):
        return place.get("type") == "string"
    if name in ("DictType", "FrozenDictType"):
        return place.get("type") == "object"
    return place.get("type") == "array" and (hasattr(kind, "item_type") or hasattr(kind, "item_types"))


def _msgspec_names(kind: Any) -> Schema:
    """The names that keys may have; {}: msgspec has said so itself, or they may have any."""
    while type(kind).__name__ == "Metadata":
        kind = kind.type
    name = type(kind).__name__
    if name in ("StrType", "AnyType"):
        return {}
    if name in ("LiteralType", "EnumType"):
        values = kind.values if name == "LiteralType" else [one.value for one in kind.cls]
        return {"enum": sorted(map(str, values))}
    if name == "UnionType":
        found = [_msgspec_names(one) for one in kind.types]
        return {"anyOf": found} if all(found) else {}
    bounds = [f"keys {n} {getattr(kind, n)}" for n in _BOUNDS if getattr(kind, n, None) is not None]
    return ruled({}, [f"keys {name.removesuffix('Type').lower()}", *bounds])
