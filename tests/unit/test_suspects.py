"""How many suspects a worker takes, and whether each runs in a child."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from holdfast.model.job import ClaimedJob
from holdfast.model.outcome import Completed, Released
from holdfast.runtime.child_ends import NotApart
from holdfast.runtime.claim import suspects
from holdfast.runtime.claim.suspects import Suspects
from holdfast.runtime.inflight import Running
from holdfast.settings import Settings

NOBODY: Any = None  # the session, which only a death asks
CHILDREN: Any = object()


class Hands:
    """The clock that suspects look at, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(suspects, "time", hands)
    return hands


def a_suspect() -> Running:
    claimed = ClaimedJob(
        str(uuid4()), 1, 1, "t", 1, "{}", None, 0, 0, 5, 0.0, False, 1, None, "inbox", str(uuid4()), 0.0, 1, 1
    )  # fmt: skip
    now = time.monotonic()
    return Running(claimed, now, now)


def made(slots: int, children: Any = CHILDREN) -> Suspects:
    return Suspects(NOBODY, Settings(), lambda: children, slots)


def take_all(held: Suspects, free: int, *, spare: bool = False) -> list[Running]:
    """As a worker does: until there is no more room."""
    taken: list[Running] = []
    while room := held.due(free - len(taken), spare=spare):
        jobs = [a_suspect() for _ in range(room)]
        held.took(jobs)
        taken += jobs
    return taken


def end(held: Suspects, jobs: Sequence[Running]) -> None:
    held.ended([running.claimed for running in jobs])


@pytest.mark.parametrize(
    ("slots", "part", "everything"), [(1, 1, 1), (2, 1, 2), (3, 1, 3), (10, 5, 10), (100, 16, 16)]
)
def test_half_of_the_slots_while_others_wait_and_what_is_free_while_none_does(
    slots: int, part: int, everything: int
) -> None:
    held = made(slots)
    assert len(take_all(held, slots)) == part
    assert part + len(take_all(held, slots - part, spare=True)) == everything
    assert held.room(slots, spare=False) == 0


@pytest.mark.parametrize("slots", [1, 2, 10, 100])
def test_one_at_a_time_where_no_child_can_import_the_app(slots: int) -> None:
    held = made(slots, None)
    (first,) = take_all(held, slots)
    assert first.apart is None
    assert not take_all(held, slots - 1, spare=True)


def test_the_only_slot_is_for_others_after_a_suspect_for_as_long_as_it_took(clock: Hands) -> None:
    held = made(1)
    job = take_all(held, 1)
    clock.now += 3.0
    end(held, job)
    assert held.room(1, spare=False) == 0
    assert held.room(1, spare=True) == 1  # nobody wants it
    held.others_came()
    clock.now += 2.9
    assert held.room(1, spare=False) == 0
    clock.now += 0.2
    assert held.room(1, spare=False) == 0  # time alone is no turn: none came since
    held.others_came()
    assert held.room(1, spare=False) == 1


def test_a_child_that_could_not_start_is_tried_again_after_a_minute(clock: Hands) -> None:
    held = made(10)

    def judged(running: Running, outcome: Any) -> Any:
        end(held, [running])
        return asyncio.run(held.judge(running, outcome, "w"))

    first, *others = take_all(held, 10)
    assert first.apart is CHILDREN
    assert isinstance(judged(first, NotApart("no memory")), Released)
    end(held, others)
    (here,) = take_all(held, 10)
    assert here.apart is None
    end(held, [here])
    clock.now += suspects._TRY_AGAIN + 1.0
    (trial,) = take_all(held, 10)  # one, until it is known to run
    assert trial.apart is CHILDREN
    judged(trial, NotApart("no memory"))
    (here,) = take_all(held, 10)
    assert here.apart is None
    end(held, [here])
    clock.now += suspects._TRY_AGAIN + 1.0
    (trial,) = take_all(held, 10)
    clock.now += suspects._TRIAL + 1.0
    assert all(running.apart is CHILDREN for running in take_all(held, 9))
    assert held.room(10, spare=False) == 0
    done = Completed(None)
    assert judged(trial, done) is done
