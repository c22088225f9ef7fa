"""Pace: the starts of one worker keep to a rate, however late some of them are."""

import random
import time

import pytest
from tests.sql.test_limit_starts import most_beyond

from holdfast.model.job import ClaimedJob
from holdfast.model.queue import QueueRules, Rate
from holdfast.runtime.inflight import InFlight
from holdfast.runtime.pace import Meter, Pace


@pytest.mark.parametrize("rate", [Rate(20, burst=1), Rate(20, burst=7), Rate(100, burst=1)])
def test_what_was_late_does_not_start_all_at_once(rate: Rate) -> None:
    """The event loop stands still at times, and whatever has its token by then could start in one go."""
    meter, chance, now = Meter(rate), random.Random(5), 1000.0
    starts: list[float] = []
    for n in range(200):
        token_at = 1000.0 + n / rate.per_second
        now = max(now, token_at) + chance.choice([0.0, 0.0, 0.001, 0.4])
        now += meter.wait(now)
        meter.started(now)
        starts.append(now)
    assert most_beyond(starts, rate.per_second, rate.size) <= 0.5 + 1e-6


def test_a_start_that_was_a_little_late_costs_the_rate_nothing() -> None:
    rate, chance = Rate(20, burst=1), random.Random(5)
    meter, now = Meter(rate), 1000.0
    for n in range(400):
        now = max(now, 1000.0 + n / 20) + chance.uniform(0.0, 0.01)
        now += meter.wait(now)
        meter.started(now)
    assert 399 / (now - 1000.0) >= 0.95 * 20


def test_a_job_waits_for_its_token() -> None:
    """The start is by the database's clock, and the claim says what time it was there."""
    pace, sent = Pace({"q": QueueRules(rate=Rate(1, burst=1))}), time.monotonic()
    jobs = [_claimed(n, now=5_000.0) for n in range(2)]
    pace.add(jobs, [5_000.0, 5_600.0], sent)
    first, second = pace.mark(InFlight().add(jobs, sent))
    assert pace.early(first) <= 0
    assert 500 < pace.early(second) <= 600


def _claimed(n: int, *, now: float) -> ClaimedJob:
    return ClaimedJob(str(n), 1, n, "work", 1, "{}", None, 0, 0, 5, now, False, 0, None, "q", "t", now, 1, 1)
