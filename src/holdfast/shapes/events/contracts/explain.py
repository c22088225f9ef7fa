"""Where a reader refuses what a writer writes: both schemas are walked side by side, path by path.

The algebra decides, and this explains. A schema is split into alternatives, each of one type or one value; every
alternative of the writer needs one of the reader that accepts it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .rules import RULES
from .schemas import Schema


class Reason(NamedTuple):
    """`what` has {w} for the version whose events do not fit and {r} for the one whose code cannot read them. `fix` says how
    new code can read old events, and `keep` how old code can read new ones."""

    path: str
    what: str
    fix: str
    keep: str

    def said(self, writer: str, reader: str) -> str:
        """Not by format(): patterns and values of the user may have braces in them."""
        return self.what.replace("{w}", writer).replace("{r}", reader)


def reasons(writer: Schema, reader: Schema) -> list[Reason]:
    """Empty: no relevant difference was found."""
    return list(dict.fromkeys(_Walk(writer, reader).compare(writer, reader, "")))


_TYPES = {
    "object": "an object",
    "array": "a list",
    "integer": "an integer",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
}


class _Walk:
    def __init__(self, writer: Schema, reader: Schema) -> None:
        self._writer = writer
        self._reader = reader
        self._open: set[tuple[str, str]] = set()  # pairs of definitions that are being compared

    def compare(self, writer: Any, reader: Any, path: str) -> list[Reason]:
        pair = _reference(writer), _reference(reader)
        if all(pair) and pair in self._open:
            return []  # a type that contains itself
        self._open.add(pair)
        try:
            wanted = list(alternatives(reader, self._reader))
            found: list[Reason] = []
            for atom in alternatives(writer, self._writer):
                found += self._one_of(atom, wanted, path)
            return found
        finally:
            self._open.discard(pair)

    def _one_of(self, atom: Schema, wanted: Sequence[Schema], path: str) -> list[Reason]:
        """Why none of the reader's alternatives accepts it: the differences of the nearest."""
        tried: list[list[Reason]] = []
        for other in wanted:
            if not _same_type(atom, other):
                continue
            found = self._atom(atom, other, path)
            if not found:
                return []
            tried.append(found)
        if "const" in atom and len(tried) != 1:
            return [_value(atom["const"], wanted, path)]
        if not tried:
            return [_type(atom, wanted, path)]
        return min(tried, key=len)

    def _atom(self, w: Schema, r: Schema, path: str) -> list[Reason]:
        if not r or ("const" in w and "const" in r and _equal(w["const"], r["const"])):
            return []
        if "const" in r:
            values = [r["const"]]
            return [_value(w["const"], [r], path) if "const" in w else _only(values, path)]
        found = list(_bounds(w, r, path))
        if "const" in w:
            return found
        if r.get("type") == "object":
            found += self._object(w, r, path)
        elif r.get("type") == "array":
            found += self._array(w, r, path)
        return found

    def _object(self, w: Schema, r: Schema, path: str) -> Iterator[Reason]:
        has, takes = w.get("properties", {}), r.get("properties", {})
        rest, other = w.get("additionalProperties", True), r.get("additionalProperties", True)
        for name in r.get("required", ()):
            if name not in w.get("required", ()):
                yield _missing(_join(path, name), name in has)
        for name, part in has.items():
            target = takes.get(name, other)
            if target is False and part is not False:
                yield _closed(_join(path, name))
            else:
                yield from self.compare(part, target, _join(path, name))
        if rest is not False:
            for name in takes.keys() - has.keys():
                yield from self.compare(rest, takes[name], _join(path, name))
            if other is False:
                yield _closed(_join(path, "*"))
            else:
                yield from self.compare(rest, other, _join(path, "*"))
            names = {"type": "string"}
            yield from self.compare(
                w.get("propertyNames", names), r.get("propertyNames", names), _join(path, "(name)")
            )
        if r.get("patternProperties", {}) not in ({}, w.get("patternProperties", {})):
            yield _rule(path, "names of its fields", "have a pattern")

    def _array(self, w: Schema, r: Schema, path: str) -> Iterator[Reason]:
        first, wanted = w.get("prefixItems", []), r.get("prefixItems", [])
        most = w.get("maxItems")
        for n in range(max(len(first), len(wanted))):
            if most is None or n < most:
                part = first[n] if n < len(first) else w.get("items", True)
                target = wanted[n] if n < len(wanted) else r.get("items", True)
                yield from self.compare(part, target, f"{path}[{n}]")
        if most is None or most > max(len(first), len(wanted)):
            yield from self.compare(w.get("items", True), r.get("items", True), f"{path}[]")


# Alternatives ------------------------------------------------------------------------------------------------------------


def _reference(schema: Any) -> str:
    return str(schema.get("$ref", "")) if isinstance(schema, dict) else ""


def alternatives(schema: Any, root: Schema) -> Iterator[Schema]:
    """Each of one type, one value, or {} for anything."""
    if schema is False:
        return
    if not isinstance(schema, dict):
        yield {}
        return
    whole = {
        key: value for key, value in schema.items() if key not in ("$defs", "title", "description", "default")
    }
    if "$ref" in whole:
        target: Any = root
        for step in str(whole.pop("$ref")).removeprefix("#/").split("/"):
            target = target[step.replace("~1", "/").replace("~0", "~")]
        yield from alternatives({**target, **whole} if isinstance(target, dict) else target, root)
        return
    for key in ("anyOf", "oneOf"):
        if key in whole:
            parts = whole.pop(key)
            for part in parts:
                for atom in alternatives(part, root):
                    yield {**whole, **atom}
            return
    yield from _typed(whole, root)


def _typed(whole: Schema, root: Schema) -> Iterator[Schema]:
    if "allOf" in whole:
        parts = [atom for part in whole.pop("allOf") for atom in list(alternatives(part, root))[:1]]
        for part in parts:
            whole = {**part, **whole}
    if "enum" in whole:
        rest = {key: value for key, value in whole.items() if key not in ("enum", "type")}
        yield from ({**rest, "const": value} for value in whole["enum"])
    elif "const" in whole:
        yield {key: value for key, value in whole.items() if key != "type"}
    elif isinstance(whole.get("type"), list):
        yield from ({**whole, "type": name} for name in whole["type"])
    elif "type" not in whole and "properties" in whole:
        yield {**whole, "type": "object"}
    elif whole.get("type") == "boolean":  # two values, so that Literal[True] and bool can be compared
        yield from ({"const": value} for value in (False, True))
    elif whole.get("type") == "null":
        yield {"const": None}
    else:
        yield whole


def _type_of(atom: Schema) -> str | None:
    if "const" not in atom:
        return atom.get("type")
    value = atom["const"]
    if isinstance(value, bool):
        return "boolean"
    names: Mapping[type, str] = {
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
    }
    return "null" if value is None else names[type(value)]


def _same_type(w: Schema, r: Schema) -> bool:
    has, takes = _type_of(w), _type_of(r)
    return takes is None or has == takes or (has == "integer" and takes == "number")


def _equal(a: object, b: object) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


# Rules -------------------------------------------------------------------------------------------------------------------


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _missing(path: str, optional: bool) -> Reason:
    lack = "may lack it" if optional else "do not have it"
    return Reason(
        path,
        f"{{r}} code requires it, and {{w}} events {lack}",
        "Give it a default",
        "Keep the field, and keep writing it",
    )


def _closed(path: str) -> Reason:
    return Reason(
        path,
        "{w} events have it, and {r} code takes no fields that it does not declare",
        "Declare the field, or let the class ignore others",
        "Leave the field out of this version, until no code is left that forbids others",
    )


def _type(atom: Schema, wanted: Sequence[Schema], path: str) -> Reason:
    has = _TYPES.get(_type_of(atom) or "", "anything")
    takes = " or ".join(dict.fromkeys(_TYPES.get(_type_of(r) or "", "anything") for r in wanted)) or "nothing"
    nullable = has == "null"
    return Reason(
        path,
        f"it may be null in {{w}} events, and {{r}} code takes {takes}"
        if nullable
        else f"it is {has} in {{w}} events, and {{r}} code takes {takes}",
        "Let it be None too" if nullable else f"Take {has} too",
        "Do not write null" if nullable else f"Keep writing {takes}, or give the new form another name",
    )


def _value(value: object, wanted: Sequence[Schema], path: str) -> Reason:
    if value is None or not any("const" in r for r in wanted):
        return _type({"const": value}, wanted, path)
    shown = json.dumps(value)
    takes = ", ".join(
        json.dumps(r["const"]) if "const" in r else _TYPES.get(r.get("type", ""), "anything") for r in wanted
    )
    return Reason(
        path,
        f"{{w}} events may have {shown}, and {{r}} code takes {takes}",
        f"Keep taking {shown}",
        f"Do not write {shown} until all code takes it",
    )


def _only(values: Sequence[object], path: str) -> Reason:
    takes = ", ".join(json.dumps(value) for value in values)
    return Reason(
        path,
        f"{{w}} events may have other values, and {{r}} code takes {takes} alone",
        "Take the other values too",
        "Do not write other values until all code takes them",
    )


def _rule(path: str, what: str, rule: str) -> Reason:
    return Reason(
        path,
        f"{{r}} code wants {what} to {rule}, and {{w}} events need not",
        "Take the old values too",
        "Keep the rule that older code relies on",
    )


def _bounds(w: Schema, r: Schema, path: str) -> Iterator[Reason]:
    """Numbers, lengths, patterns, formats and rules."""
    if "const" in w:
        yield from _value_bounds(w["const"], r, path)
        return
    for low, strict, high, over, what in (
        ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "it"),
        ("minLength", "", "maxLength", "", "its length"),
        ("minItems", "", "maxItems", "", "its number of items"),
        ("minProperties", "", "maxProperties", "", "its number of fields"),
    ):
        if _below(_end(w, low, strict, 1), _end(r, low, strict, 1)):
            yield _rule(path, what, f"be {_said(r, low, strict, 'at least', 'above')}")
        if _below(_end(w, high, over, -1), _end(r, high, over, -1)):
            yield _rule(path, what, f"be {_said(r, high, over, 'at most', 'below')}")
    step, own = r.get("multipleOf"), w.get("multipleOf")
    if step is not None and (own is None or own % step) and not (w.get("type") == "integer" and step == 1):
        yield _rule(path, "it", f"be a multiple of {step}")
    if r.get("uniqueItems") and not w.get("uniqueItems"):
        yield _rule(path, "its items", "be unique")
    for key in ("pattern", "format", "contentEncoding"):
        if key in r and r[key] != w.get(key):
            had = f" ({{w}}: {w[key]})" if key in w else ""
            yield _rule(
                path, "it", f"have the {'encoding' if key == 'contentEncoding' else key} {r[key]}{had}"
            )
    rules = [rule for rule in r.get(RULES, ()) if rule not in w.get(RULES, ())]
    yield from (_rule(path, "it", f"keep the rule `{rule}`") for rule in rules)


def _end(part: Schema, name: str, strict: str, sign: int) -> tuple[float, int] | None:
    """One end of a range, so that a wider one is smaller; None: it has no end."""
    ends = []
    if (value := part.get(name)) is not None and not (
        name.startswith("min") and name != "minimum" and value == 0
    ):
        ends.append((sign * value, 0))
    if strict and (value := part.get(strict)) is not None:
        ends.append((sign * value, 1))
        if part.get("type") == "integer" and float(value).is_integer():
            ends[-1] = (sign * value + 1, 0)
    return max(ends) if ends else None


def _below(writer: tuple[float, int] | None, reader: tuple[float, int] | None) -> bool:
    return reader is not None and (writer is None or writer < reader)


def _said(part: Schema, name: str, strict: str, at: str, beyond: str) -> str:
    return f"{at} {part[name]}" if name in part else f"{beyond} {part[strict]}"


def _value_bounds(value: Any, r: Schema, path: str) -> Iterator[Reason]:
    """One value that is written, against the limits of the reader."""
    own: Schema = {"type": _type_of({"const": value})}
    if isinstance(value, int | float) and not isinstance(value, bool):
        own |= {"minimum": value, "maximum": value, "multipleOf": value or r.get("multipleOf", 1)}
    elif isinstance(value, str):
        own |= {"minLength": len(value), "maxLength": len(value)}
        own |= {key: r[key] for key in ("pattern",) if key in r and _matches(r[key], value)}
    yield from _bounds(own, r, path)


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return False
