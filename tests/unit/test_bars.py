"""Bars on one time, as a page of the dashboard draws them."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.pages import Bar, Bars
from holdfast.web.charts import bars_chart

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_wait_that_is_longer_than_all_work_is_folded() -> None:
    """Steps of a run that waited for days are as wide as if it had waited for a moment."""
    at = [NOW - timedelta(days=3) + timedelta(seconds=n) for n in (0, 1, 2, 3)]
    steps = [Bar("one", at[0], at[1], "done"), Bar("two", at[2], at[3], "done")]
    wait = Bar("waits", at[3], None, "sched")
    chart = bars_chart(Bars([*steps, wait], NOW))
    (fold,) = chart.folds
    assert fold.title == "2 d 23 h, folded"
    one, two, waits = (row.rect for row in chart.rows)
    assert min(one.width, two.width) > 150
    assert one.x + one.width < two.x
    assert two.x + two.width <= waits.x + 1
    assert waits.x <= fold.x + 1
    assert waits.width == pytest.approx(fold.width, abs=1)
    assert waits.x + waits.width <= chart.width
    first, *_, last = (mark.label for mark in chart.along)
    assert (first.endswith("12:00"), last) == (True, "12:00:00")


def test_a_run_that_only_waits_or_only_works_has_its_time_as_it_was() -> None:
    long_ago = NOW - timedelta(hours=1)
    assert not bars_chart(Bars([Bar("waits", long_ago, None, "sched")], NOW)).folds
    assert not bars_chart(Bars([Bar("works", long_ago, NOW, "done")], NOW)).folds
    short = NOW + timedelta(seconds=600)
    worked = [Bar("works", long_ago, NOW, "done"), Bar("waits", NOW, short, "sched")]
    assert not bars_chart(Bars(worked, short)).folds


@pytest.mark.parametrize("since", [-5.0, 0.0, 0.25, 60.0])
def test_every_bar_is_in_the_picture_also_one_that_began_after_the_page_was_asked_for(since: float) -> None:
    late = NOW + timedelta(seconds=since)
    bars = [Bar("first", NOW - timedelta(seconds=1), NOW, "done"), Bar("late", late, None, "run")]
    chart = bars_chart(Bars(bars, NOW))
    for row in chart.rows:
        assert 0 <= row.rect.x <= chart.width
        assert row.rect.width > 0
        assert row.rect.x + row.rect.width <= chart.width
