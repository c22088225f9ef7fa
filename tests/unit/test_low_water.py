"""Where the next plain claim begins: behind what was taken, but for the last moments."""

import gc
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.model.job import ClaimedJob
from holdfast.runtime.claim.low_water import LowWater
from holdfast.runtime.gc_tuning import tuned_gc
from holdfast.store.claim import Mark

DUE = datetime(2026, 1, 1, tzinfo=UTC)


def claimed(seq: int, *, priority: int = 0, due: datetime = DUE, waited: float = 60.0) -> ClaimedJob:
    return ClaimedJob(
        "0" * 32, 1, seq, "t", 1, "{}", None, priority, 0, 5, due.timestamp(), False, 0, None, "inbox", "1" * 32,
        due.timestamp() + waited, 1, 1,
    )  # fmt: skip


def test_a_mark_is_a_place_among_jobs_that_are_due_at_one_moment() -> None:
    marks = LowWater()
    marks.moved([claimed(1), claimed(2)])
    assert marks.ordered() == [(0, Mark(DUE, 2))]
    marks.moved([claimed(7)])
    assert marks.ordered() == [(0, Mark(DUE, 7))]


def test_a_mark_never_goes_back() -> None:
    marks = LowWater()
    marks.moved([claimed(7)])
    marks.moved([claimed(3), claimed(1, due=DUE - timedelta(seconds=1))])
    assert marks.ordered() == [(0, Mark(DUE, 7))]


def test_each_priority_has_its_own() -> None:
    marks = LowWater()
    marks.moved([claimed(9, priority=5), claimed(4)])
    assert marks.ordered() == [(5, Mark(DUE, 9)), (0, Mark(DUE, 4))]


def test_in_the_last_moments_it_stays_behind() -> None:
    """A transaction that began earlier may commit a job before this one."""
    marks = LowWater()
    marks.moved([claimed(7, waited=0.05)])
    assert marks.ordered() == [(0, Mark(DUE - timedelta(seconds=0.15), -1))]


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("holdfast.runtime.claim.low_water.time.monotonic", lambda: self.now)

    def due_in(self, marks: LowWater) -> float:
        return round(marks.full_at - self.now, 3)


def test_a_full_scan_is_due_every_second_and_sooner_where_nothing_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, marks = Clock(monkeypatch), LowWater()
    assert marks.full_scan_due()
    marks.scanned(0.001)
    assert clock.due_in(marks) == 1.0
    marks.found_nothing()
    assert clock.due_in(marks) == 0.2
    clock.now += 0.3
    marks.found_nothing()
    assert marks.full_scan_due()


def test_full_scans_take_at_most_a_twentieth_of_the_time_but_what_they_saved_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, marks = Clock(monkeypatch), LowWater()
    marks.scanned(0.2)  # five seconds without one have earned it
    marks.found_nothing()
    assert clock.due_in(marks) == 0.2
    clock.now += 0.2
    marks.scanned(0.2)
    marks.found_nothing()
    assert clock.due_in(marks) == 2.8  # 2 * 0.2 * 20 since the first, but for the five seconds before it
    clock.now += 3600.0
    marks.scanned(2.0)
    assert clock.due_in(marks) == 35.0  # an hour without one earns no more than five seconds


def test_a_process_of_its_own_looks_for_cycles_less_often_and_leaves_things_as_they_were() -> None:
    before = gc.get_threshold()
    with tuned_gc():
        assert gc.get_threshold()[0] >= 50_000
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
