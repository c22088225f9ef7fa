"""Bars on one time, as a page of the dashboard draws them."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.pages import Bar, Bars
from holdfast.web.charts import bars_chart

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("since", [-5.0, 0.0, 0.25, 60.0])
def test_every_bar_is_in_the_picture_also_one_that_began_after_the_page_was_asked_for(since: float) -> None:
    late = NOW + timedelta(seconds=since)
    bars = [Bar("first", NOW - timedelta(seconds=1), NOW, "done"), Bar("late", late, None, "run")]
    chart = bars_chart(Bars(bars, NOW))
    for row in chart.rows:
        assert 0 <= row.rect.x <= chart.width
        assert row.rect.width > 0
        assert row.rect.x + row.rect.width <= chart.width
