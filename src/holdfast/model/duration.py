"""Durations are seconds, a timedelta or text such as "1h30m" everywhere in the public API. Only this module reads them."""

import math
import re
from datetime import timedelta

from .shown import short, shown

Duration = float | timedelta | str

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
_PART = re.compile(rf"({_NUMBER}) ?(ms|[smhdw]) ?")
_TEXT = re.compile(rf"(?:{_PART.pattern})+|({_NUMBER})")
_LONGEST = 100  # characters


def parse_duration(text: str) -> float | None:
    """Seconds of `250ms`, `90s`, `15m`, `1h30m`, `2d`, `1w` or a plain number of seconds; None: it is none of these."""
    text = text.strip() if len(text) <= _LONGEST else ""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    if found[3] is not None:
        return float(found[3])
    return sum(float(number) * UNITS[unit] for number, unit in _PART.findall(text))


def seconds(value: Duration, what: str = "duration", *, least: float = 0.0) -> float:
    """The value in seconds; TypeError or ValueError names `what` when it is no finite duration of at least `least`."""
    number = _number(value, what)
    if not math.isfinite(number) or number < least:
        raise ValueError(f"{what} must be a finite number of at least {least:g} seconds, not {short(value)}")
    return number


def _number(value: object, what: str) -> float:
    """By the methods of the built-in types: those of a subclass may do anything."""
    if isinstance(value, timedelta):
        return timedelta.total_seconds(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return int.__float__(value)
        except OverflowError:
            return math.inf if int.__gt__(value, 0) else -math.inf
    if not isinstance(value, str):
        raise TypeError(f'{what} must be seconds, a timedelta or text like "10m", not {shown(value)}')
    number = parse_duration(str.__str__(value))
    if number is None:
        raise ValueError(f'{what} must be a duration like "90s", "15m" or "1h30m", not {short(value)}')
    return number
