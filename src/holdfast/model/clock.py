"""The movable clock.

Only the database's clock decides anything. In a test it is moved by an offset: Python keeps the offset
here, every connection we open carries it as the setting `holdfast.clock_offset`, and `holdfast.now()` in SQL adds
it. In production the offset is zero and nothing is sent.
"""

from datetime import UTC, datetime, timedelta

from .duration import Duration, seconds


class Clock:
    """Wall time plus an offset that only goes forward."""

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset = 0.0

    @property
    def offset(self) -> float:
        return self._offset

    def advance(self, span: Duration) -> None:
        """By seconds, a timedelta or text such as "1h"."""
        if isinstance(span, float | int) and span < 0:
            raise ValueError(f"the clock goes forward only, not by {span!r} seconds")
        self._offset += seconds(span, "the span")

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._offset)
