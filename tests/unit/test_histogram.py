"""Histograms: each time is in the bucket that holds it, and a percentile is within its bucket."""

import math
import random
from statistics import quantiles

import pytest

from holdfast.model.histogram import BUCKETS, Percentiles, bucket_of, end_of, percentiles
from holdfast.model.tally import Sums


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (-1.0, 0),
        (0.0, 0),
        (1e-9, 0),
        (0.0009, 0),
        (0.001, 1),
        (0.5, 10),
        (0.999, 10),
        (1.0, 11),
        (4095, 22),
        (4096, 23),
        (1e9, 23),
    ],
)
def test_the_bucket_of_a_time(seconds: float, bucket: int) -> None:
    assert bucket_of(seconds) == bucket
    if 0 < bucket < BUCKETS - 1:
        assert end_of(bucket - 1) <= seconds < end_of(bucket)


def test_nothing_has_no_percentiles() -> None:
    assert percentiles([], 0.0) is None
    assert percentiles([0] * BUCKETS, 9.0) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_percentile_is_within_the_bucket_of_the_true_one(seed: int) -> None:
    chance = random.Random(seed)
    times = [chance.lognormvariate(chance.uniform(-4, 3), chance.uniform(0.1, 2)) for _ in range(2000)]
    sums = Sums()
    for time in times:
        sums.attempt(time, 0.0)
    found = percentiles(sums.runs, sums.max_run)
    assert found is not None
    cuts = quantiles(times, n=100)
    for said, true in ((found.p50, cuts[49]), (found.p95, cuts[94]), (found.p99, cuts[98])):
        assert true / 2.05 <= said <= true * 2.05
        assert said <= sums.max_run


def test_all_of_one_length_and_the_longest_of_the_last_bucket() -> None:
    sums = Sums()
    for _ in range(100):
        sums.attempt(0.75, 10_000.0)
    assert percentiles(sums.runs, sums.max_run) == Percentiles(0.625, 0.7375, 0.7475)
    waited = percentiles(sums.waits, sums.max_wait)
    assert waited is not None
    assert 4096 < waited.p50 < waited.p99 < 10_000


def test_reports_that_are_taken_back_keep_their_histograms() -> None:
    one, other = Sums(), Sums()
    one.attempt(0.1, 2.0)
    other.attempt(0.1, 30.0)
    one.merge(other)
    assert (sum(one.runs), one.runs[bucket_of(0.1)]) == (2, 2)
    assert (one.waits[bucket_of(2.0)], one.waits[bucket_of(30.0)]) == (1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_many_at_once_count_as_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    odd = [0.0, -0.5, 2.0**-20, 0.5, 1.0, 2.0, 0.9999999999999999, 8192.0, math.inf]
    waits = [chance.choice(odd) if chance.random() < 0.1 else chance.lognormvariate(0, 3) for _ in range(200)]
    runs = [abs(wait) / 2 for wait in waits]
    alone, together = Sums(), Sums()
    for run, wait in zip(runs, waits, strict=True):
        alone.completed += 1
        alone.attempt(run, wait)
    together.attempts(runs, waits)
    assert together.run_seconds == pytest.approx(alone.run_seconds)
    assert together.wait_seconds == pytest.approx(alone.wait_seconds)
    together.run_seconds, together.wait_seconds = alone.run_seconds, alone.wait_seconds
    assert together == alone
    assert sum(together.waits) == 200
