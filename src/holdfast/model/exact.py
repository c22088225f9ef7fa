"""JSON with every number exactly as written: PostgreSQL keeps that; a float or Python's limits may not."""

import json
import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

_DIGITS = 640  # an int with this number of digits can be read and written under every limit that Python may be given


class Number:
    """A number that an int or a float would not give back as it is written."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Number) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)


def loads(text: str) -> Any:
    return json.loads(text, parse_int=_whole, parse_float=_fraction)


def _whole(text: str) -> int | Number:
    return int(text) if len(text) <= _DIGITS else Number(text)


def _fraction(text: str) -> float | Number:
    number = float(text)
    return number if repr(number) == text else Number(text)


def dumps(value: Any, *, default: Callable[[Any], Any] | None = None, **options: Any) -> str:
    """Like json.dumps, of what loads() has read too."""
    mark = uuid4().hex  # no text of the value contains it
    found: list[str] = []

    def plain(item: Any) -> Any:
        if isinstance(item, Number):
            found.append(item.text)
            return f"{mark}:{len(found) - 1}"
        if default is None:
            raise TypeError(f"{type(item).__name__} has no JSON form")
        return default(item)

    text = json.dumps(value, default=plain, **options)
    return re.sub(f'"{mark}:([0-9]+)"', lambda m: found[int(m[1])], text) if found else text
