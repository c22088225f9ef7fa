"""A fleet of real processes on a queue with affinity: keys stay, and move when a worker dies or leaves."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash.process import DEAD_AFTER
from tests.crash.ring_app import app
from tests.crash.ring_fleet import Fleet

from holdfast.operate.operator import Operator
from holdfast.testing import Kit

KEYS = [f"customer:{n}" for n in range(60)]


@pytest.fixture
def fleet(holdfast_kit: Callable[..., Kit], tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(holdfast_kit(app, replace(QUICK, dead_after=10.0, lease=20.0)), tmp_path, "mail")
    yield fleet
    fleet.end()


def test_keys_stay_in_a_steady_fleet_and_move_when_a_worker_is_killed_or_told_to_stop(fleet: Fleet) -> None:
    """Not by the takeover, which is ten minutes here."""
    first, second, third = three = fleet.start(3, dead_after=DEAD_AFTER)
    fleet.until_agreed(three)
    owned = {key: worker.pid for worker in three for key in fleet.mine(worker, KEYS)}
    for numbers in (range(10), range(10, 20)):
        fleet.enqueue(KEYS, numbers)
        fleet.until_finished()
    found = Operator(fleet.kit.database, "ann").affinities("mail")["mail"]
    assert (found.jobs, found.keys) == (1200, 60)
    steady = [key for key, pids in fleet.ran_on().items() if pids == {owned[key]}]
    assert len(steady) >= 0.95 * len(KEYS)
    assert found.share is not None
    assert found.share >= 0.95

    orphans = fleet.mine(second, KEYS)
    fleet.enqueue(orphans, range(20, 21), gate="never")
    wait_until(lambda: len([r for r in fleet.runs() if r["number"] == 20]) >= 4, "it runs some of them")
    second.kill(signal.SIGKILL)
    second.wait()
    fleet.open("never")
    fleet.enqueue(KEYS, range(21, 22))
    fleet.until_finished()
    after = [line for line in fleet.runs() if line["number"] == 21 and line["key"] in orphans]
    assert {line["pid"] for line in after} == {first.pid, third.pid}

    theirs = fleet.mine(third, KEYS)
    fleet.enqueue(theirs[:1], range(22, 23), gate="go")
    wait_until(lambda: any(line["number"] == 22 for line in fleet.runs()), "its job runs")
    third.kill(signal.SIGTERM)
    fleet.until_agreed([first])
    fleet.enqueue(theirs, range(23, 24))
    ended = [("end", 23, first.pid)] * len(theirs)
    wait_until(
        lambda: (
            [
                (r["kind"], r["number"], r["pid"])
                for r in fleet.runs()
                if (r["kind"], r["number"]) == ("end", 23)
            ]
            == ended
        ),
        "the last one has all of its keys while it still finishes",
    )
    fleet.open("go")
    assert third.wait() == 0
    fleet.until_finished()
    assert fleet.kit.sql("SELECT 1 AS one FROM holdfast.archive WHERE attempts <> 1") == []
