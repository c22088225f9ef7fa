"""Ends that were counted: by claim, of one timeline, until they were told."""

from holdfast.model.job import ClaimedJob
from holdfast.runtime.endings import Endings


def job(token: str, timeline: int = 1) -> ClaimedJob:
    return ClaimedJob(
        "id", 1, 1, "work", 1, "{}", None, 0, 0, 5, 0.0, False, 0, None, "inbox", token, 0.0, timeline, 1
    )


def test_ends_are_counted_by_claim_until_they_are_forgotten() -> None:
    endings = Endings()
    endings.add([job("a"), job("b"), job("a")])
    endings.add([job("b")])
    assert endings.counted() == (1, {"a": 2, "b": 2})
    endings.forget(["a", "unknown"])
    assert endings.counted() == (1, {"b": 2})


def test_what_ended_before_a_standby_was_promoted_does_not_count() -> None:
    endings = Endings()
    endings.add([job("old")])
    endings.add([job("old"), job("new", timeline=2)])  # which of both servers ended them, nobody knows
    assert endings.counted() == (2, {})
    endings.add([job("old")])
    endings.add([job("new", timeline=2)])
    assert endings.counted() == (2, {"new": 1})
