"""Durations as text: one grammar, wherever a number of seconds is taken."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import (
    Backoff,
    Breaker,
    ConfigurationError,
    InvalidOption,
    Rate,
    Registry,
    Settings,
    TaskDefinitionError,
)
from holdfast.model.duration import UNITS, parse_duration, seconds
from holdfast.settings import load_settings
from holdfast.tasks.batching import gather
from holdfast.tasks.options import enqueue_values, task_settings
from holdfast.tasks.queueing import queue_rules

TEXTS = {
    "250ms": 0.25,
    "90s": 90.0,
    "15m": 900.0,
    "1h30m": 5400.0,
    "1h 30m": 5400.0,
    "2d": 172_800.0,
    "1w": 604_800.0,
    "1.5h": 5400.0,
    "1 h": 3600.0,
    " 90 ": 90.0,
    "0s": 0.0,
    "1w2d3h4m5s6ms": 788_645.006,
}
WRONG = [
    "",
    " ",
    "soon",
    "-5m",
    "+5m",
    "10 parsecs",
    "m",
    "1,5h",
    "nan",
    "inf",
    "1e5",
    "0x10",
    "10m!",
    "1h 30",
    "5M",
    "²s",
    "9" * 101,
]


def test_texts() -> None:
    assert {text: seconds(text) for text in TEXTS} == TEXTS


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_text_is_named_with_its_argument(text: str) -> None:
    with pytest.raises(
        ValueError, match=r'^Snooze\(after=\) must be a duration like "90s", "15m" or "1h30m", not '
    ):
        seconds(text, "Snooze(after=)")


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(list(UNITS))), min_size=1, max_size=5))
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert parse_duration(text) == sum(float(number) * UNITS[unit] for number, unit in parts)


@given(st.text())
def test_no_text_raises(text: str) -> None:
    number = parse_duration(text)
    assert number is None or number >= 0


@given(st.floats() | st.integers() | st.timedeltas() | st.text() | st.none() | st.booleans() | st.binary())
def test_a_value_is_seconds_or_refused(value: Any) -> None:
    try:
        number = seconds(value, "x")
    except (TypeError, ValueError) as error:
        assert str(error).startswith("x must be ")  # noqa: PT017 either way is right
    else:
        assert 0 <= number < float("inf")


def test_text_is_taken_wherever_a_number_is() -> None:
    assert Backoff(first="2s", cap="1h").cap == 3600.0
    breaker = Breaker(within="1m", cooldown="30s", cap="5m")
    assert (breaker.within, breaker.cooldown, breaker.cap) == (60.0, 30.0, 300.0)
    assert Rate(100, per="1m") == Rate(100, per=timedelta(minutes=1)) == Rate(100, per=60.0)
    options = task_settings({"lease": "2m", "timeout": "1m30s"})
    assert (options.lease, options.timeout) == (120.0, 90.0)
    assert enqueue_values({"run_after": "10m", "idempotency_lifetime": "2d"}) == {
        "run_after": 600.0,
        "idempotency_lifetime": 172_800.0,
    }
    assert gather(10, "200ms", {}).wait == 0.2
    assert queue_rules({"aging": "1h"}).aging == 3600.0
    assert Settings(lease="2m", poll=timedelta(seconds=2)).lease == 120.0  # type: ignore[arg-type]
    assert load_settings({"HOLDFAST_LEASE": "1m30s", "HOLDFAST_POLL": "500ms"}).lease == 90.0


def test_a_schedule_takes_an_interval_as_text() -> None:
    registry = Registry()

    @registry.task
    def nightly() -> None: ...

    registry.schedule("1h30m", nightly.job(), name="a")
    registry.schedule(timedelta(minutes=90), nightly.job(), name="b")
    a, b = registry._things["schedules"].values()
    assert a.timing == b.timing
    with pytest.raises(
        TaskDefinitionError, match=r"an interval must be whole seconds, from 1 second to 366 days, not 0\.25"
    ):
        registry.schedule("250ms", nightly.job(), name="c")
    with pytest.raises(TaskDefinitionError, match="cron 'soon' cannot be read"):
        registry.schedule("soon", nightly.job(), name="d")


REFUSED: list[tuple[Any, str]] = [
    (lambda: Backoff(first="soon"), "Backoff(first=) must be a duration"),
    (lambda: Breaker(within="soon"), "Breaker(within=) must be a duration"),
    (lambda: Rate(1, per="soon"), "per of a Rate must be a duration"),
    (lambda: Rate(1, per="0s"), "per of a Rate must be a number greater than 0"),
    (lambda: task_settings({"timeout": "soon"}), "timeout must be a duration"),
    (lambda: enqueue_values({"run_after": "soon"}), "run_after must be a duration"),
    (lambda: gather(10, "soon", {}), "wait must be a duration"),
    (lambda: queue_rules({"aging": "soon"}), "aging must be a duration"),
    (lambda: Settings(lease="soon"), "lease must be a duration"),  # type: ignore[arg-type]
    (
        lambda: load_settings({"HOLDFAST_LEASE": "soon"}),
        "HOLDFAST_LEASE must be seconds or a duration like 90s",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_a_wrong_text_is_refused_where_it_is_given(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TaskDefinitionError, InvalidOption, ConfigurationError)) as caught:
        call()
    assert message in str(caught.value)
    assert "soon" in str(caught.value) or "0" in str(caught.value)
