"""An unreachable destination: nothing is sent, then one message is tried, then all continue."""

import contextlib
import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from ... import telemetry
from ...errors import DatabaseError
from ...follow import Cursor
from ...model.backoff import Backoff
from ...transport import RetryLater

LONGEST = 300.0  # seconds between two tries, whatever a destination requests
LONE = 3  # failures of one lane, with confirms of others in between, after which it is not the destination that fails
FEW = 3  # lanes that failed in a row: fewer may have failed for their own reasons


class Breaker:
    def __init__(self, cursor: Cursor, retry: Backoff) -> None:
        self._cursor = cursor
        self._retry = retry
        self._attempts = 0
        self._since = 0.0
        self._opened_at = 0.0
        self._away = 0.0  # seconds of outages that are over
        self._confirmed = 0  # messages, ever
        self._lone: dict[
            str | int, tuple[int, int]
        ] = {}  # failures that count, and what was confirmed by then
        self._failed: set[object] = set()  # lanes, since it opened
        self._soon = 0.0
        self.until = 0.0  # the next try

    @property
    def is_open(self) -> bool:
        return self._attempts > 0

    def due(self, *, other: bool = False) -> float:
        """When the next message may be tried. `other`: it is of a lane that has not failed. As long as few have, the reason
        may be theirs, and the others need not wait long to find out."""
        return min(self.until, self._soon) if other and len(self._failed) < FEW else self.until

    def clock(self) -> float:
        """Seconds of a clock that stops while the destination is unreachable: no key is blamed for that time."""
        now = time.monotonic()
        return (self._since if self.is_open else now) - self._away

    def judged(self, lane: str | int, outcome: RetryLater) -> RetryLater:
        """`lane`: a key, or the position of an event without one. If it fails again and again while others are confirmed, as
        with a path that always times out, its own events are the reason, and not the destination."""
        if outcome.scope == "key":
            return outcome
        failures, seen = self._lone.get(lane, (0, self._confirmed))
        is_alone = self._confirmed > seen
        failures += is_alone
        self._lone[lane] = failures, self._confirmed
        return replace(outcome, scope="key") if is_alone and failures >= LONE else outcome

    def confirmed(self, lane: str | int) -> None:
        self._confirmed += 1
        self.forget(lane)

    def forget(self, lane: str | int) -> None:
        """Its event does not fail any more: it was sent, or recorded."""
        if self._lone:
            self._lone.pop(lane, None)

    async def failed(
        self, outcome: RetryLater, now: float, sent_at: float, lanes: Iterable[object] = ()
    ) -> None:
        """`lanes`: whose messages failed. `sent_at`: when they were sent.
        The destination was unreachable by then, however late that was found.
        Several batches that were in flight are one attempt."""
        self._failed.update(lanes)
        if self.is_open and sent_at < self._opened_at:
            return
        self._attempts += 1
        if self._attempts == 1:
            self._since, self._opened_at = sent_at, now
        wanted = self._retry.delay(self._attempts) if outcome.after is None else outcome.after
        self.until = self._soon = now + min(wanted, LONGEST)
        if outcome.after is None:  # nobody has asked to wait
            self._soon = now + self._retry.delay(1)
        telemetry.emit(
            "relay.away",
            level=logging.WARNING if self._attempts == 1 else logging.DEBUG,
            subscription=self._cursor.name,
            error=outcome.reason,
            attempt=self._attempts,
            next_try_in=round(self.until - now, 3),
        )
        with contextlib.suppress(DatabaseError):
            await self._cursor.say_trouble(f"the destination is unreachable: {outcome.reason}")

    async def worked(self) -> None:
        if self._attempts:
            away = time.monotonic() - self._since
            self._attempts = 0
            self._failed.clear()
            self._away += away
            telemetry.emit("relay.back", subscription=self._cursor.name, away=round(away, 3))
