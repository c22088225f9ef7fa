"""How many jobs a worker wants: what its slots need, and ahead of them what quick handlers do in a moment."""

import time

import pytest

from holdfast.runtime.slots import Slots


def ran(slots: Slots, jobs: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many jobs, each in a slot for so long."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for _ in range(jobs):
        slots.started()
        slots.finished(now - seconds)


def test_at_first_it_holds_the_prefetch_ahead() -> None:
    slots = Slots(10, 2)
    assert slots.want(0) == 12


@pytest.mark.parametrize(
    ("seconds", "ahead"),
    [(0.00001, 2000), (0.001, 500), (0.01, 50), (0.1, 5), (0.4, 2), (0.6, 0), (60.0, 0)],
)
def test_ahead_is_what_handlers_do_in_a_twentieth_of_a_second(
    seconds: float, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(10, 2)
    ran(slots, 100, seconds, monkeypatch)
    assert slots.want(0) == pytest.approx(10 + ahead, abs=1)


def test_a_few_quick_jobs_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(10, 2)
    ran(slots, 9, 0.00001, monkeypatch)
    assert slots.want(0) == 12


def test_nothing_is_held_ahead_without_a_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(10, 0)
    ran(slots, 100, 0.00001, monkeypatch)
    assert slots.want(0) == 10


def test_one_long_job_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(10, 2)
    ran(slots, 100, 0.00001, monkeypatch)
    ran(slots, 1, 60.0, monkeypatch)
    assert slots.want(0) == 10


def test_a_claim_is_made_when_a_quarter_of_it_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(10, 2)
    ran(slots, 100, 0.00001, monkeypatch)
    for _ in range(10):
        slots.started()
    assert [slots.want(ready) for ready in (2000, 1500, 1499, 0)] == [0, 0, 501, 2000]


def test_few_ready_jobs_are_not_topped_up_one_by_one() -> None:
    slots = Slots(10, 2)
    for _ in range(10):
        slots.started()
    assert [slots.want(ready) for ready in (2, 1, 0)] == [0, 0, 2]


def test_what_waits_is_blocked_only_while_no_quick_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine with quick jobs is not blocked: handing back what waits would make it slower still."""
    slots = Slots(1, 2)
    ran(slots, 100, 0.001, monkeypatch)
    assert not slots.blocked, "a slot is free"
    slots.started()
    assert not slots.blocked, "one has just ended, and they are quick"
    monkeypatch.setattr(time, "monotonic", lambda: 1000.6)
    assert slots.blocked, "this one takes long"
    ran(slots, 1, 60.0, monkeypatch)
    assert slots.blocked, "the last one was long"
