"""The part of YAML that our files are written in: mappings, lists, plain and quoted scalars, folded text, comments."""

import json
import re
from typing import Any

_KEY = re.compile(r"([\w.-]+):(?: (.*))?$")


def documents(text: str) -> list[Any]:
    return [load(part) for part in re.split(r"^---$", text, flags=re.MULTILINE)]


def load(text: str) -> Any:
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    value, rest = _block(lines, 0)
    assert not rest, f"not understood: {rest[0]!r}"
    return value


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block(lines: list[str], indent: int) -> tuple[Any, list[str]]:
    assert lines
    assert _indent(lines[0]) == indent, f"odd indent: {lines[0]!r}"
    return _list(lines, indent) if lines[0].lstrip().startswith("- ") else _mapping(lines, indent)


def _list(lines: list[str], indent: int) -> tuple[list[Any], list[str]]:
    found = []
    while lines and _indent(lines[0]) == indent and lines[0].lstrip().startswith("- "):
        inner = [" " * (indent + 2) + lines[0].lstrip()[2:], *lines[1:]]
        if _KEY.match(inner[0].strip()):
            value, lines = _mapping(inner, indent + 2)
        else:
            value, lines = _scalar(inner[0].strip()), lines[1:]
        found.append(value)
    return found, lines


def _mapping(lines: list[str], indent: int) -> tuple[dict[str, Any], list[str]]:
    found: dict[str, Any] = {}
    while lines and _indent(lines[0]) == indent and not lines[0].lstrip().startswith("- "):
        match = _KEY.match(lines[0].strip())
        assert match, f"not understood: {lines[0]!r}"
        key, text = match.groups()
        assert key not in found, f"{key} comes twice"
        lines = lines[1:]
        if text == ">-":
            folded = _deeper(lines, indent)
            found[key], lines = " ".join(line.strip() for line in folded), lines[len(folded) :]
        elif text is None:
            found[key], lines = _block(lines, _indent(lines[0]))
        else:
            found[key] = _scalar(text)
    return found, lines


def _deeper(lines: list[str], indent: int) -> list[str]:
    count = next((n for n, line in enumerate(lines) if _indent(line) <= indent), len(lines))
    return lines[:count]


def _scalar(text: str) -> Any:
    if text.startswith('"'):
        return json.loads(text)
    if text.startswith("["):
        return [_scalar(part.strip()) for part in text[1:-1].split(",")]
    assert not re.search(r"[{}&*!|>%@`]", text[:1]), f"not understood: {text!r}"
    assert ": " not in text, f"not understood: {text!r}"
    assert " #" not in text, f"not understood: {text!r}"
    return int(text) if re.fullmatch(r"\d+", text) else text
