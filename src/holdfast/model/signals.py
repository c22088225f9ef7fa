"""Exceptions that a handler raises to decide how its attempt ends.

They derive from BaseException so that an `except Exception` in the handler does not swallow them.
"""

from .duration import Duration


class HandlerSignal(BaseException):
    """The base of the signals by which a handler ends its attempt on purpose."""


class Retry(HandlerSignal):
    """Run this job again. Spends an attempt; `after` replaces the task's backoff."""

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Snooze(HandlerSignal):
    """Run this job again later, without spending an attempt."""

    def __init__(self, after: Duration) -> None:
        super().__init__(after)
        self.after = after


class DeadLetter(HandlerSignal):
    """Give this job up now, whatever attempts are left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Cancel(HandlerSignal):
    """End this job as cancelled."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
