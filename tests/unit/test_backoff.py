"""How long a job waits before its next attempt."""

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Backoff

SOME = Backoff(steps=[5, "5m", timedelta(minutes=30)])


@pytest.mark.parametrize(
    ("attempt", "delay"), [(0, 5.0), (1, 5.0), (2, 300.0), (3, 1800.0), (4, 1800.0), (10**30, 1800.0)]
)
def test_a_step_for_each_attempt_and_the_last_from_then_on(attempt: int, delay: float) -> None:
    assert Backoff(steps=[5, "5m", timedelta(minutes=30)], jitter=False).delay(attempt) == delay


@given(st.integers(1, 10), st.integers())
def test_a_step_is_drawn_from_a_fifth_around_it(attempt: int, seed: int) -> None:
    full = SOME.steps[min(attempt, 3) - 1]
    assert 0.8 * full <= SOME.delay(attempt, random.Random(seed)) <= 1.2 * full


def test_steps_of_jobs_that_failed_together_differ() -> None:
    assert len({SOME.delay(2) for _ in range(20)}) > 10


@given(st.integers(1, 10**9), st.integers())
def test_without_steps_it_grows_to_the_cap(attempt: int, seed: int) -> None:
    full = min(2.0 ** min(attempt, 64), 3600.0)
    assert full / 2 <= Backoff().delay(attempt, random.Random(seed)) <= full
    assert Backoff(jitter=False).delay(attempt) == full


def test_it_says_what_it_does() -> None:
    assert repr(SOME) == "Backoff(steps=[5.0, 300.0, 1800.0], jitter=True)"
    assert repr(Backoff()) == "Backoff(first=2.0, factor=2.0, cap=3600.0, jitter=True)"
    until = Backoff(steps=["5m"], deadline="3d")
    assert repr(until) == "Backoff(steps=[300.0], jitter=True, deadline=259200.0)"
    assert until.deadline == Backoff(deadline=timedelta(days=3)).deadline == 259200.0
    assert Backoff().deadline is None


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"steps": []}, ValueError, "Backoff(steps=) must have at least one delay, and is empty"),
    (
        {"steps": "5m"},
        TypeError,
        """Backoff(steps=) must be a list of delays like [5, "5m", "2h"], not str '5m'""",
    ),
    ({"steps": 5}, TypeError, """Backoff(steps=) must be a list of delays like [5, "5m", "2h"], not int 5"""),
    (
        {"steps": [5, "soon"]},
        ValueError,
        """step 2 of Backoff(steps=) must be a duration like "90s", "15m" or "1h30m", not 'soon'""",
    ),
    (
        {"steps": [-1]},
        ValueError,
        "step 1 of Backoff(steps=) must be a finite number of at least 0 seconds, not -1",
    ),
    (
        {"steps": [5], "cap": 60},
        ValueError,
        "Backoff(steps=) says every delay: first=, factor= and cap= do not go with it. Leave them out",
    ),
    (
        {"deadline": 0},
        ValueError,
        "Backoff(deadline=) must be more than 0 and at most 3600 days, not 0. Leave it out for no deadline",
    ),
    (
        {"deadline": "3601d"},
        ValueError,
        "Backoff(deadline=) must be more than 0 and at most 3600 days, not '3601d'. Leave it out for no deadline",
    ),
    (
        {"deadline": "soon"},
        ValueError,
        """Backoff(deadline=) must be a duration like "90s", "15m" or "1h30m", not 'soon'""",
    ),
]


@pytest.mark.parametrize(("options", "kind", "text"), WRONG, ids=[text for _, _, text in WRONG])
def test_what_is_no_list_of_delays_or_no_deadline_is_refused(
    options: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        Backoff(**options)
    assert str(caught.value) == text
