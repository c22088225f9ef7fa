"""Pace: a job of a queue with a rate starts when its token is there, and not before.

A claim gives tokens that come within a moment, so that no time is lost between two claims, and says when each is there.
Late jobs must not start all at once either: the starts of this worker keep to the rate by themselves.
"""

import math
import time
from collections.abc import Sequence

from ..model.job import ClaimedJob
from ..model.queue import QueueRules, Rate
from .inflight import Running

_LATE = 0.005  # seconds: a start that was this late does not delay the next; with a slow rate, half of the time between two
_DRIFT = 1e-4  # seconds by which two clocks drift apart from one claim to the next, at most
_MOST_KEYS = 10_000  # keys whose starts are remembered


Meters = tuple[str, str | None]  # a queue, and where keys have a rate the key: the rates that apply to a job


class Meter:
    """The starts of this worker within a rate, as they happen."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._each = 1.0 / rate.per_second
        self._slack = (rate.size - 1) * self._each + max(0.5 * self._each, _LATE)
        self._full_at = -math.inf  # when the bucket is full again
        self.opens_at = -math.inf  # when the next one may start

    def wait(self, now: float) -> float:
        """Seconds until a job may start; 0: now."""
        return max(0.0, self.opens_at - now)

    def started(self, now: float) -> None:
        self._full_at = max(now, self._full_at) + self._each
        self.opens_at = self._full_at - self._slack


class Pace:
    def __init__(self, rules: dict[str, QueueRules]) -> None:
        self._rules = rules
        self._start: dict[str, float] = {}  # when jobs that were just claimed may start
        self._behind: dict[str, float] = {}  # queue -> by how much our clock is behind the database's
        self._meters: dict[Meters, Meter] = {}

    def add(self, jobs: Sequence[ClaimedJob], starts: Sequence[float], sent: float) -> None:
        """`starts` are by the database's clock; `sent` is when the claim was sent, by the local one.

        A round trip is slow at times, and that must not move the starts: the quickest recent one counts."""
        now, first = time.monotonic(), jobs[0]
        seen = first.now - sent
        behind = min(self._behind.get(first.queue, seen) + _DRIFT, seen)
        self._behind[first.queue] = behind
        for job, start in zip(jobs, starts, strict=True):
            self._start[job.id_text] = min(start - behind, now + start - first.now)

    def mark(self, held: list[Running]) -> list[Running]:
        """Note on each claimed job when it may start."""
        if self._start:
            for running in held:
                running.not_before = self._start.get(running.claimed.id_text, 0.0)
            self._start.clear()
        return held

    def meters(self, running: Running) -> Meters:
        job = running.claimed
        return job.queue, None if self._rules[job.queue].key_rate is None else job.partition_key

    def closed_for(self, queue: str) -> float:
        """Seconds until the queue may start a job; 0: now, by its own rate."""
        rate = self._rules[queue].rate
        return 0.0 if rate is None else self._meter((queue, None), rate).wait(time.monotonic())

    def early(self, running: Running) -> float:
        """Seconds until it may start; 0 or less: it starts now."""
        now, job = time.monotonic(), running.claimed
        rules, of_queue, of_key = self._rules[job.queue], None, None
        may_at = running.not_before
        if rules.rate is not None:
            of_queue = self._meter((job.queue, None), rules.rate)
            may_at = max(may_at, of_queue.opens_at)
        if rules.key_rate is not None:
            of_key = self._meter((job.queue, job.partition_key), rules.key_rate)
            may_at = max(may_at, of_key.opens_at)
        if may_at <= now:
            if of_queue is not None:
                of_queue.started(now)
            if of_key is not None:
                of_key.started(now)
        return may_at - now

    def _meter(self, key: Meters, rate: Rate) -> Meter:
        meter = self._meters.get(key)
        if meter is None or meter.rate is not rate:
            meter = self._meters[key] = self._changed(meter, rate)
        return meter

    def _changed(self, meter: Meter | None, rate: Rate) -> Meter:
        if meter is not None and meter.rate == rate:
            meter.rate = rate  # read again: unchanged
            return meter
        if len(self._meters) >= _MOST_KEYS:
            now = time.monotonic()
            self._meters = {k: m for k, m in self._meters.items() if m.wait(now) > 0}
        return Meter(rate)
