"""Jobs that are here before their token is: each starts at its moment, at a cost that does not grow with how many wait."""

import itertools
import random
from typing import Any

import pytest

from holdfast.model.job import ClaimedJob
from holdfast.model.queue import QueueRules, Rate
from holdfast.runtime import pace as pace_module
from holdfast.runtime import token_wait as early_module
from holdfast.runtime.inflight import Running
from holdfast.runtime.pace import Pace
from holdfast.runtime.token_wait import TokenWait


class Here:
    """A clock moved by hand, and what is asked and started."""

    def __init__(self, **rules: Any) -> None:
        self.now = 1000.0
        self.pace = Pace({"q": QueueRules(**rules)})
        self.early = TokenWait(self.pace)
        self.asked = 0
        self.started: list[tuple[float, int]] = []
        self._ask, self.pace.early = self.pace.early, self._counted  # type: ignore[method-assign]

    def monotonic(self) -> float:
        return self.now

    def _counted(self, running: Running) -> float:
        self.asked += 1
        return self._ask(running)

    def come(self, running: Running) -> None:
        if not self.early.keep(running):
            self.started.append((self.now, running.claimed.seq))

    def look(self) -> list[int]:
        """As the starter does, with a slot for everything."""
        found: list[int] = []
        while (running := self.early.next()) is not None:
            found.append(running.claimed.seq)
        self.started += [(self.now, n) for n in found]
        return found


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(**rules: Any) -> Here:
        made = Here(**rules)
        monkeypatch.setattr(early_module, "time", made)
        monkeypatch.setattr(pace_module, "time", made)
        return made

    return make


def a_job(n: int, at: float, key: str | None = None) -> Running:
    claimed = ClaimedJob(str(n), 1, n, "work", 1, "{}", key, 0, 0, 5, at, False, 0, None, "q", "t", at, 1, 1)
    running = Running(claimed, at, at)
    running.not_before = at
    return running


def _most_beyond(starts: list[float], rate: float) -> float:
    """By how many starts the worst window is beyond what a rate without burst allows in it."""
    ahead = [n - rate * at for n, at in enumerate(starts)]
    least = itertools.accumulate(ahead, min)
    return max(last - first for last, first in zip(ahead, least, strict=True))


@pytest.mark.parametrize("per_second", [500, 4000])
@pytest.mark.parametrize("keys", [0, 1, 200])
def test_the_questions_grow_with_the_jobs_and_not_with_those_that_wait(
    here: Any, per_second: int, keys: int
) -> None:
    """The event loop is late at times, and then hundreds have their token at once."""
    rules: dict[str, Any] = {"rate": Rate(per_second, burst=1)}
    if keys:
        rules["key_rate"] = Rate(per_second, burst=1)
    scene, chance, count, came = here(**rules), random.Random(7), 5 * per_second, 0
    began = scene.now
    while len(scene.started) < count:
        while came < count and came / per_second < scene.now - began + 0.25:  # a claim takes so much ahead
            scene.come(a_job(came, began + came / per_second, f"k{came % keys}" if keys else None))
            came += 1
        scene.look()
        assert scene.now < began + 60
        scene.now += 0.1 if chance.random() < 0.01 else 0.001
    assert sorted(n for _, n in scene.started) == list(range(count))
    assert scene.asked <= 5 * count
    if keys < 2:
        assert [n for _, n in scene.started] == list(range(count))
    assert _most_beyond([at for at, _ in scene.started], per_second) <= 0.005 * per_second + 0.001
    assert not len(scene.early)
    assert not scene.early._lines
    assert not scene.early._of_queue


def test_a_key_that_is_early_holds_up_no_other(here: Any) -> None:
    scene = here(key_rate=Rate(1, burst=1))
    for n in range(3):
        scene.come(a_job(n, scene.now, "busy"))
    scene.come(a_job(3, scene.now + 0.1, "calm"))
    scene.come(a_job(4, scene.now, "new"))
    assert [n for _, n in scene.started] == [0, 4]
    scene.now += 0.1
    assert scene.look() == [3]
    scene.now += 0.5
    assert scene.look() == [1]


def test_equal_moments_keep_their_order(here: Any) -> None:
    scene = here(rate=Rate(1000, burst=100))
    for n in range(50):
        scene.come(a_job(n, 1001.0))
    assert scene.look() == []
    assert scene.early.next_at == pytest.approx(1001.0)
    scene.now = 1001.0
    assert scene.look() == list(range(50))


@pytest.mark.parametrize("keys", [0, 5])
def test_those_that_leave_hold_up_nobody(here: Any, keys: int) -> None:
    rules = {"rate": Rate(10, burst=1)} | ({"key_rate": Rate(10, burst=1)} if keys else {})
    scene = here(**rules)
    jobs = [a_job(n, 1000.1 + n / 10, f"k{n % keys}" if keys else None) for n in range(20)]
    for job in jobs:
        scene.come(job)
    assert scene.early.drop(jobs[0])
    assert not scene.early.drop(jobs[0])
    jobs[1].claimed_at = 900.0
    assert scene.early.stale(950.0) == [jobs[1]]
    jobs[2].stop = "lost"
    scene.now = 1000.301
    assert scene.look() == [2]  # it is told of, and takes no token
    scene.now = 1000.401
    assert scene.look() == [3]
    assert list(scene.early) == jobs[4:]
    assert scene.early.clear() == jobs[4:]
    assert not len(scene.early)
    scene.now = 1010.0
    assert scene.look() == []
    scene.come(a_job(99, 1011.0, "k0" if keys else None))
    scene.now = 1011.0
    assert scene.look() == [99]
