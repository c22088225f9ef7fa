"""JSON values that may be stored, checked before any SQL, so that a refusal costs no transaction.

`dump` turns a JSON value into text. The usual payload is encoded by the C encoder and checked by four
cheap tests; only if one of them rings is the value walked to find and name the place.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any

from ..errors import InvalidPayload
from ..model.shown import shown as shown

PAYLOAD_BYTES = 256 * 1024
RESULT_BYTES = 64 * 1024
METADATA_BYTES = 8 * 1024
MAX_DEPTH = 500  # PostgreSQL parses some 6,600 levels at its default stack; Python's encoder fewer than 1,000
MAX_DIGITS = 1000

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_spaced = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_WITH_EXPONENT = re.compile(r"[\[,:]-?\d[\d.]*e[+-]\d")  # as Python writes it, always with a sign
_DIGITS = frozenset("0123456789.")
_LOOKS = 16  # at places where a number may end with an exponent, in order
_LARGE_FLOAT = re.compile(r'"(?:[^"\\]|\\.)*"|(-?[0-9.]+)e\+([0-9]+)')
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_TOO_LARGE = 10**MAX_DIGITS
_PLAIN = 10**15
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTAINERS = (dict, list, tuple)  # "dict | list" would be made again for each value
_ADVICE = {
    "payload": "Store it elsewhere (a table, a file, object storage) and pass a reference",
    "result": "Store it elsewhere (a table, a file, object storage) and return a reference",
    "metadata": "Put the data into the payload",
    "data": "Store it elsewhere (a table, a file, object storage) and publish a reference",
    "headers": "Put it into the data",
}


def dump(value: object, what: str = "payload", limit: int = PAYLOAD_BYTES, *, was_json: bool = False) -> str:
    """Compact JSON text of a JSON value; InvalidPayload names the place that cannot be stored. `was_json`: its objects
    were read from JSON, so their keys are texts."""
    try:
        text = _encode(value)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(value, what)
        raise InvalidPayload(f"{what} cannot be written as JSON: {error}") from error
    if _suspicious(text) or not (was_json or _plain_keys(value)):
        _refuse(value, what)
    if has_exponents := "e" in text if isinstance(value, float) else _has_exponents(text):
        text = _LARGE_FLOAT.sub(_positional, text)
    if size > limit // 2 or has_exponents:
        # the database counts jsonb as it prints it: a space after each separator, and numbers without exponents
        size = len(_encode_spaced(value).encode()) + _unfolded(value)
    if size > limit:
        raise InvalidPayload(
            f"{what} is {size:,} bytes of JSON, more than the limit of {limit:,} ({limit // 1024} KiB). "
            f"{_ADVICE.get(what, _ADVICE['payload'])}"
        )
    return text


def stored_order(value: Any) -> Any:
    """The value with the keys of its objects in the order in which jsonb returns them: the shortest first, by bytes. Code
    that walks an object then behaves the same before and after it was stored. Values that cannot be stored are unchanged."""
    try:
        return _ordered(value)
    except (TypeError, ValueError, AttributeError, RecursionError):
        return value  # dump() reports what is wrong with it


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        keys = sorted(value, key=_by_bytes) if len(value) > 1 else value
        return {key: _ordered(value[key]) for key in keys}
    if isinstance(value, list | tuple):
        return [_ordered(one) if isinstance(one, _CONTAINERS) else one for one in value]
    return value


def _by_bytes(key: str) -> tuple[int, bytes]:
    raw = key.encode()
    return len(raw), raw


def _has_exponents(text: str) -> bool:
    """Whether it may have a number with an exponent. Ids in texts look similar, at their hyphens: a few are checked from
    behind, since the expression would check every comma and colon."""
    for sign in ("e-", "e+"):
        at, looks = text.find(sign), 0
        while at > 0:
            begins = at - 1
            while text[begins] in _DIGITS:
                begins -= 1
            if begins < at - 1 and text[begins - 1 if text[begins] == "-" else begins] in "[,:":
                return True
            looks += 1
            if looks == _LOOKS:
                return _WITH_EXPONENT.search(text) is not None
            at = text.find(sign, at + 2)
    return False


def _positional(found: re.Match[str]) -> str:
    """1e+16 as 10000000000000000.0: jsonb keeps the digits of a number and no exponent, so only the point marks it as a
    float. Texts stay as they are."""
    return found[0] if found[1] is None else f"{Decimal(found[0]):f}.0"


def _plain_float(value: float) -> str:
    text = float.__repr__(value)
    if not -1e16 < value < 1e16 or text == "-0.0":  # see dump()
        raise ValueError
    return text


quoted: Callable[[str], str] = json.encoder.encode_basestring
WRITERS: dict[type, Callable[[Any], str]] = {
    str: quoted,
    int: int.__repr__,
    float: _plain_float,
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): lambda _: "null",
}


def short(members: Iterable[str]) -> str | None:
    """An object of members that WRITERS wrote, as `dump` writes it; None: use dump(). So short that no number can be
    too long in it, and that it keeps within the limit however its numbers are printed."""
    text = "{" + ",".join(members) + "}"
    if len(text) > MAX_DIGITS or "\\u0000" in text:
        return None
    if not text.isascii():
        text.encode()  # ValueError: half a character
    return text


def scalar(value: object) -> str | None:
    """JSON text of a plain value as `dump` writes it; None: look at it there."""
    kind = type(value)
    if kind is str:
        text: Any = value
        return quoted(text) if len(text) <= MAX_DIGITS and text.isascii() and text.isprintable() else None
    if kind is int:
        number: Any = value
        return int.__repr__(number) if -_PLAIN < number < _PLAIN else None
    return WRITERS[kind](value) if value is None or kind is bool else None


def _unfolded(value: object) -> int:
    """The additional length of floats when they are written out."""
    more, stack = 0, [value]
    while stack:
        top = stack.pop()
        if isinstance(top, float):
            short = repr(top)
            if "e" in short:
                more += len(format(Decimal(short), "f")) - len(short) + (2 if "e+" in short else 0)
        else:
            stack += _children(top)
    return more


def deeper_than(value: object, limit: int) -> bool:
    """Whether JSON containers are nested more than `limit` levels deep."""
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child for parent in level for child in _children(parent) if isinstance(child, dict | list | tuple)
        ]
        if not level:
            return False
    return True


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _suspicious(text: str) -> bool:
    return (
        "\\u0000" in text
        or "-0.0" in text
        or text.count("[") + text.count("{") > MAX_DEPTH
        or (len(text) > MAX_DIGITS and _LONG_NUMBER.search(text) is not None)
    )


def _plain_keys(value: object) -> bool:
    """False when some key is no plain string. The encoder would write such a key as text without a word."""
    stack: list[Any] = [value]
    while stack:
        top = stack.pop()
        if isinstance(top, dict):
            for key, child in top.items():
                if type(key) is not str:
                    return False
                if isinstance(child, _CONTAINERS):
                    stack.append(child)
        elif isinstance(top, _CONTAINERS):
            stack += [child for child in top if isinstance(child, _CONTAINERS)]
    return True


def _refuse(value: object, what: str) -> None:
    """Walk the value without recursion and raise for the first thing that cannot be stored."""
    path: list[str] = []
    _check(value, path, what)
    active = {id(value)}
    stack = [(value, _items(value))]
    while stack:
        parent, items = stack[-1]
        found = next(items, None)
        if found is None:
            stack.pop()
            active.discard(id(parent))
            if path:
                path.pop()
            continue
        segment, child, key = found
        if key is not None:
            _check_key(key, path, what)
        path.append(segment)
        _check(child, path, what)
        if not isinstance(child, dict | list | tuple):
            path.pop()
            continue
        if id(child) in active:
            raise InvalidPayload(f"{_place(path, what)} contains itself. Build a value without cycles")
        if len(stack) >= MAX_DEPTH:
            raise InvalidPayload(
                f"{_place(path, what)} is nested more than {MAX_DEPTH} levels deep. "
                "Flatten it, or pass it as one string"
            )
        active.add(id(child))
        stack.append((child, _items(child)))


def _items(value: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield (f".{key}" if isinstance(key, str) else f"[{key!r}]"), child, (key,)
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield f"[{index}]", child, None


def _check(value: Any, path: list[str], what: str) -> None:
    fault = None
    if isinstance(value, str):
        fault = _text_fault(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            fault = f"is {value!r}, which JSON does not have. Pass None or a string"
        elif value == 0.0 and math.copysign(1.0, value) < 0:
            fault = "is -0.0, whose sign PostgreSQL does not keep. Pass 0.0 (x + 0.0), or a string"
    elif isinstance(value, int):
        if abs(value) >= _TOO_LARGE:
            fault = f"is an integer of more than {MAX_DIGITS:,} digits. Pass it as a string"
    elif value is not None and not isinstance(value, dict | list | tuple):
        fault = (
            f"is {shown(value)}, which is not JSON. "
            "Annotate it with its type so that it can be converted, or pass a JSON value"
        )
    if fault:
        raise InvalidPayload(f"{_place(path, what)} {fault}")


def _check_key(key: tuple[Any], path: list[str], what: str) -> None:
    name = key[0]
    place = f"a key of {_place(path, what)}" if path else f"a key of the {what}"
    if not isinstance(name, str):
        raise InvalidPayload(f"{place} is {shown(name)}; JSON keys are strings. Use str({name!r})")
    if fault := _text_fault(name):
        raise InvalidPayload(f"{place} {fault}")


def _text_fault(text: str) -> str | None:
    if "\x00" in text:
        return (
            f"contains a NUL character ({shown(text)}), which PostgreSQL cannot store. "
            "Remove it, or send base64"
        )
    if _SURROGATE.search(text):
        return (
            f"contains a lone surrogate ({shown(text)}), which is not valid Unicode text. "
            "Decode the source with errors='replace', or send base64"
        )
    return None


def _place(path: list[str], what: str) -> str:
    if not path:
        return what
    shown_path = path if len(path) <= 8 else [*path[:4], " ... ", *path[-2:]]
    return f"{what} value {_bounded(''.join(shown_path).removeprefix('.'))}"


def _bounded(text: str) -> str:
    """A path with unprintable characters escaped and its length bounded."""
    clean = text if text.isprintable() else text.encode("unicode_escape").decode()
    return clean if len(clean) <= 120 else clean[:117] + "..."
