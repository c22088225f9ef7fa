"""Durations are float seconds or timedelta everywhere in the public API."""

import math
from datetime import timedelta

Duration = float | timedelta


def seconds(value: Duration, what: str = "duration", *, least: float = 0.0) -> float:
    """The value in seconds; ValueError names `what` when it is no finite number of at least `least`."""
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"{what} must be seconds or a timedelta, not {type(value).__name__} {value!r}")
    if not math.isfinite(number) or number < least:
        raise ValueError(f"{what} must be a finite number of at least {least:g} seconds, not {value!r}")
    return number
