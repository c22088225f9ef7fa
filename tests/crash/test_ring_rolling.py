"""A rolling restart of a whole fleet under load, on an ordered queue. Run it with -s for the figures of docs/ring.md."""

import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash.ring_app import app
from tests.crash.ring_fleet import Fleet

from holdfast.testing import Kit

WORKERS = 10
KEYS = [f"customer:{n}" for n in range(80)]
Span = tuple[float, float]


@pytest.fixture
def fleet(holdfast_kit: Callable[..., Kit], tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(holdfast_kit(app, replace(QUICK, dead_after=10.0, lease=20.0)), tmp_path)
    yield fleet
    fleet.end()


class Producer(threading.Thread):
    """A few jobs of random keys every 50 ms, until it is told to stop."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet
        self._enough = threading.Event()
        self._next: dict[str, int] = defaultdict(int)

    def run(self) -> None:
        while not self._enough.wait(0.05):
            batch = []
            for key in random.sample(KEYS, 8):
                batch.append(self._fleet.job(key, self._next[key], seconds=0.02))
                self._next[key] += 1
            self._fleet.kit.app.enqueue_many(batch)

    def stop(self) -> int:
        """Answers how many jobs there are."""
        self._enough.set()
        self.join()
        return sum(self._next.values())


def gaps(rows: list[dict[str, Any]]) -> list[float]:
    """Of each bucket: the longest time in which a job of it was due and none of it was taken."""
    due: dict[int, list[Span]] = defaultdict(list)
    taken: dict[int, list[Span]] = defaultdict(list)
    for row in rows:
        due[row["bucket"]].append((row["due"], row["finished"]))
        taken[row["bucket"]].append((row["taken"], row["finished"]))
    return [max(_uncovered(_union(due[b]), _union(taken[b]))) for b in due]


def _union(spans: list[Span]) -> list[Span]:
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _uncovered(due: list[Span], taken: list[Span]) -> Iterator[float]:
    for begin, end in due:
        at = begin
        for first, last in taken:
            if first < end and last > at:
                yield max(0.0, first - at)
                at = last
        yield max(0.0, end - at)


def test_the_gaps_are_computed() -> None:
    rows = [
        {"bucket": 1, "due": 0.0, "taken": 1.0, "finished": 2.0},
        {"bucket": 1, "due": 0.5, "taken": 5.0, "finished": 6.0},  # from 2 to 5 nobody took it
        {"bucket": 1, "due": 10.0, "taken": 10.5, "finished": 11.0},  # from 6 to 10 nothing was due
        {"bucket": 2, "due": 0.0, "taken": 0.0, "finished": 9.0},
    ]
    assert gaps(rows) == [3.0, 0.0]


def test_a_rolling_restart_of_a_fleet_keeps_order_spends_no_attempt_and_hands_over_every_bucket(
    fleet: Fleet,
) -> None:
    """With the look of one second that is the default. The takeover of ten minutes has no part in it."""
    fleet_now = fleet.start(WORKERS, ring=1.0)
    fleet.until_agreed(fleet_now)
    producer = Producer(fleet)
    producer.start()
    try:
        for number in range(WORKERS):
            before = len(fleet.runs())
            wait_until(lambda seen=before: len(fleet.runs()) > seen + 20, "work goes on")  # type: ignore[misc]
            leaver = fleet_now[number]
            leaver.kill(signal.SIGTERM)
            (fleet_now[number],) = fleet.start(ring=1.0)
            assert leaver.wait() == 0
    finally:
        count = producer.stop()
    fleet.until_finished()
    fleet.check_order(count)
    rows = fleet.kit.sql(
        "SELECT holdfast.bucket(partition_key) AS bucket, extract(epoch FROM available_at)::float8 AS due,"
        " extract(epoch FROM claimed_at)::float8 AS taken, extract(epoch FROM completed_at)::float8 AS finished,"
        " attempts, crashes FROM holdfast.archive"
    )
    assert len(rows) == count
    assert {(row["attempts"], row["crashes"]) for row in rows} == {(1, 0)}
    longest = sorted(gaps(rows))
    print(
        f"\n{WORKERS} workers restarted under {count} jobs of {len(KEYS)} keys: "
        f"the longest time a bucket was due and not served is {longest[-1]:.2f} s, "
        f"its median over {len(longest)} buckets {longest[len(longest) // 2]:.2f} s"
    )
    assert longest[-1] < 15.0  # on any machine; what it takes on a quiet one is in docs/ring.md
