"""A page of documentation per event type, in Markdown, made from the classes."""

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ..declare import Declared as Subscribed
from .catalog import Declared
from .explain import alternatives
from .rules import RULES
from .schemas import Schema

INDEX = "README.md"
_MEANS = {
    "full": "code of any version reads events of any version",
    "backward": "code of this version reads older events",
    "forward": "code of older versions reads these events",
    "none": "no promise",
}
_SAMPLES = {
    "date-time": "2026-05-01T10:00:00Z",
    "date": "2026-05-01",
    "time": "10:00:00Z",
    "duration": "PT1H",
    "uuid": "0197f3a0-0000-7000-8000-000000000000",
    "email": "somebody@example.com",
    "uri": "https://example.com/",
}


def pages(
    code: Mapping[tuple[str, int], Declared], subscriptions: Sequence[Subscribed]
) -> Iterator[tuple[str, str]]:
    """Name and text of each file: one per event type, and a list of them."""
    lines = ["# Events", "", "| event | versions | |", "|---|---|---|"]
    for name, items in groupby(sorted(code.items()), key=lambda item: item[0][0]):
        versions = [item for _, item in items]
        file = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.md"
        numbers = ", ".join(str(v.kind.version) for v in versions)
        lines.append(f"| [{name}]({file}) | {numbers} | {_cell(_about(versions[-1]).split(chr(10), 1)[0])} |")
        yield file, _page(name, versions, subscriptions)
    yield INDEX, "\n".join(lines) + "\n"


def _page(name: str, versions: Sequence[Declared], subscriptions: Sequence[Subscribed]) -> str:
    newest = versions[-1]
    lines = [f"# {name}", ""]
    if about := _about(newest):
        lines += [about, ""]
    key = newest.kind.key
    lines += ["| | |", "|---|---|", f"| newest version | {newest.kind.version} |"]
    lines.append(
        f"| key | {f'`{_cell(key)}`: events of one key are delivered in order' if key else 'none'} |"
    )
    who = [s for s in subscriptions if any(fnmatch.fnmatchcase(name, p) for p in s.patterns)]
    said = ", ".join(
        f"`{_cell(s.name)}` ({'projection' if s.apply is not None else 'consumer'})" for s in who
    )
    lines.append(f"| subscribers | {said or 'none in this application'} |")
    for item in reversed(versions):
        lines += ["", *_version(item)]
    return "\n".join(lines) + "\n"


def _version(item: Declared) -> Iterator[str]:
    kind, own = item.kind, item.contract
    yield f"## Version {kind.version}"
    yield ""
    yield f"Class `{kind.cls.__qualname__}`. Compatibility `{kind.compatibility}`: {_MEANS[kind.compatibility]}."
    if kind.step is not None:
        name = getattr(kind.step.func, "__name__", "a function")
        yield f"Events of version {kind.step.old.version} are upcast to it by `{name}`."
    yield ""
    yield "| field | type | may be missing when read | |"
    yield "|---|---|---|---|"
    for path, schema, required in _fields(own.reader, own.reader, "", ()):
        text = _cell(str(schema.get("description", ""))) if isinstance(schema, dict) else ""
        yield f"| `{path}` | {_cell(type_text(schema, own.reader))} | {'no' if required else 'yes'} | {text} |"
    yield ""
    yield "As it is written:"
    yield ""
    yield "```json"
    yield json.dumps(sample(own.writer, own.writer), indent=2, ensure_ascii=False)
    yield "```"


def _about(item: Declared) -> str:
    cls = item.kind.cls
    text = (cls.__dict__.get("__doc__") or "").strip()
    if text.startswith(f"{cls.__name__}("):  # a dataclass makes one by itself
        return ""
    return "\n".join(line.strip() for line in text.splitlines())


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _fields(schema: Any, root: Schema, path: str, above: tuple[str, ...]) -> Iterator[tuple[str, Any, bool]]:
    """Every field of the objects in it, with those of lists and inner objects below it."""
    for atom in alternatives(schema, root):
        for name, part in atom.get("properties", {}).items():
            here = f"{path}{name}"
            yield here, part, name in atom.get("required", ())
            if (ref := str(part.get("$ref", "")) if isinstance(part, dict) else "") not in above:
                yield from _fields(part, root, f"{here}.", (*above, ref) if ref else above)
        if atom.get("type") == "array" and isinstance(items := atom.get("items"), dict):
            ref = str(items.get("$ref", ""))
            if not ref or ref not in above:
                yield from _fields(
                    items, root, f"{path.removesuffix('.')}[].", (*above, ref) if ref else above
                )


def type_text(schema: Any, root: Schema) -> str:
    """In words: "integer, at least 0", "list of text or null"."""
    values: list[str] = []
    words: list[str] = []
    for atom in alternatives(schema, root):
        if "const" in atom:
            values.append(json.dumps(atom["const"], ensure_ascii=False))
        else:
            words.append(_word(atom, root))
    if {"true", "false"} <= set(values):
        values = [value for value in values if value not in ("true", "false")]
        words.append("true or false")
    return " or ".join(dict.fromkeys([*words, *values])) or "nothing"


def _word(atom: Schema, root: Schema) -> str:
    name = atom.get("type")
    if name == "array":
        items = atom.get("items", True)
        return "list" if items in (True, {}) or "prefixItems" in atom else f"list of {type_text(items, root)}"
    if name == "object":
        rest = atom.get("additionalProperties")
        return f"map to {type_text(rest, root)}" if isinstance(rest, dict) else "object"
    word = "text" if name == "string" else str(name or "anything")
    said = {
        "format": "{}",
        "pattern": "matching `{}`",
        "minimum": "at least {}",
        "exclusiveMinimum": "above {}",
        "maximum": "at most {}",
        "exclusiveMaximum": "below {}",
        "minLength": "{} characters or more",
        "maxLength": "{} characters or fewer",
    }
    rules = [text.format(atom[key]) for key, text in said.items() if key in atom] + atom.get(RULES, [])
    return f"{word} ({', '.join(rules)})" if rules else word


def sample(schema: Any, root: Schema, depth: int = 0) -> Any:
    """A value of the declared kind, as an example."""
    if isinstance(schema, dict) and schema.get("examples"):
        return schema["examples"][0]
    atoms = list(alternatives(schema, root))
    atom = next((a for a in atoms if a.get("const", ...) is not None), atoms[0] if atoms else {})
    if "const" in atom:
        return atom["const"]
    name = atom.get("type")
    if name == "object":
        found = {} if depth > 4 else atom.get("properties", {})
        return {key: sample(part, root, depth + 1) for key, part in found.items()}
    if name == "array":
        if depth > 4:
            return []
        first = atom.get("prefixItems")
        return [sample(part, root, depth + 1) for part in (first or [atom.get("items", True)])]
    if name in ("integer", "number"):
        return atom.get("minimum", atom.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in atom))
    return _SAMPLES.get(str(atom.get("format")), "text") if name == "string" else None
