"""Values as a person types them: arguments of a task, spans of time, moments, rates."""

import json
import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.errors import ConfigurationError
from holdfast.model.duration import UNITS, parse_duration

_RATE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*/\s*([smhd])")
_SIZE = re.compile(r"([0-9]{1,15})\s*(?:([kKmMgGtT])?[bB])?")


def parse_arguments(items: Sequence[str]) -> dict[str, object]:
    """By name, in the order given. `order_id:=17 note=hello` is {"order_id": 17, "note": "hello"}."""
    found: dict[str, object] = {}
    for item in items:
        name, value = _parse(item)
        if name in found:
            raise ConfigurationError(f"argument {name!r} is given twice. Give each name once")
        found[name] = value
    return found


def _parse(item: str) -> tuple[str, object]:
    left, sign, text = item.partition("=")
    if not sign:
        raise ConfigurationError(
            f"{item!r} is no argument. Write name=text for a string, "
            "or name:=json for a number, true, null, a list or an object"
        )
    name = left.removesuffix(":")
    if not name:
        raise ConfigurationError(f"{item!r} has no name before its {left}=. Write name{left}={text}")
    return name, _read_json(name, text) if left.endswith(":") else text


def _read_json(name: str, text: str) -> object:
    try:
        value: object = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ConfigurationError(f"the value of {name!r} is nested too deep. Flatten it") from None
    except ValueError as error:
        raise ConfigurationError(
            f"the value of {name!r} is not JSON: {error}. For a string write {name}={text[:60]}"
        ) from None
    return value


def parse_object(text: str, what: str) -> dict[str, object]:
    """A JSON object; `what` names the option in errors."""
    how = """Write it like '{"order_id": 17}'"""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ConfigurationError(f"{what} is nested too deep. Flatten it") from None
    except ValueError as error:
        raise ConfigurationError(f"{what} is not JSON: {error}. {how}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{what} must be a JSON object, not {text[:60]}. {how}")
    return value


def _refuse(constant: str) -> object:
    raise ValueError(f"JSON has no {constant}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def parse_span(text: str, what: str) -> float:
    """Seconds of `90s`, `15m`, `1h30m`, `3d`, `1w`, `250ms` or a plain number; `what` names the option in errors."""
    number = parse_duration(text)
    if number is None:
        raise ConfigurationError(
            f"{what} {text!r} is no span of time. Write 90s, 15m, 2h, 3d or plain seconds"
        )
    return number


def parse_moment(text: str, what: str) -> datetime | timedelta:
    """A span from now, or an ISO time with its zone: `5m`, `2026-05-01T10:00+02:00`, `2026-05-01T08:00Z`."""
    number = parse_duration(text)
    if number is not None:
        try:
            return timedelta(seconds=number)
        except OverflowError:
            raise ConfigurationError(f"{what} {text!r} is too far ahead: ten years at most") from None
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(
            f"{what} {text!r} is neither a span of time nor a time. Write 5m, 2h, or 2026-05-01T10:00+02:00"
        ) from None
    if at.utcoffset() is None:
        raise ConfigurationError(f"{what} {text!r} has no time zone. Write {text}Z for UTC, or {text}+02:00")
    return at


def parse_rate(text: str, what: str) -> float:
    """How many a second: `100/s`, `5/m`, `1000/h`."""
    found = _RATE.fullmatch(text.strip())
    if found is None or float(found[1]) == 0:
        raise ConfigurationError(f"{what} {text!r} is no rate. Write 100/s, 5/m or 1000/h")
    return float(found[1]) / UNITS[found[2]]


def parse_size(text: str, what: str) -> int:
    """Bytes of `500MB`, `10GB`, `2 TB` or a plain number, counted by 1024 as PostgreSQL does."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"{what} {text!r} is no size. Write 500MB, 10GB or plain bytes")
    return int(found[1]) << 10 * ("", "k", "m", "g", "t").index((found[2] or "").lower())
