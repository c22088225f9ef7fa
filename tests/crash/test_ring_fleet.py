"""Fleets of real processes: keys stay with their worker, and move when one comes, leaves or dies."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash.process import DEAD_AFTER
from tests.crash.ring_app import app
from tests.crash.ring_fleet import Fleet

from holdfast.model.bucket import BUCKETS
from holdfast.operate.operator import Operator
from holdfast.testing import Kit

KEYS = [f"customer:{n}" for n in range(60)]


@pytest.fixture
def fleet(holdfast_kit: Callable[..., Kit], tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(holdfast_kit(app, replace(QUICK, dead_after=10.0, lease=20.0)), tmp_path)
    yield fleet
    fleet.end()


def test_in_a_steady_fleet_a_key_stays_and_one_who_joins_takes_one_share(fleet: Fleet) -> None:
    three = fleet.start(3)
    before = fleet.until_agreed(three)
    assert {w.buckets for w in before.workers} <= {BUCKETS // 3, BUCKETS // 3 + 1}
    fleet.enqueue(KEYS, range(20))
    fleet.until_finished()
    fleet.check_order(1200)
    found = Operator(fleet.kit.database, "ann").affinities()["streams"]
    assert (found.jobs, found.keys) == (1200, 60)
    assert found.share is not None
    assert found.share >= 0.99
    for worker in three:
        for key in fleet.mine(worker, KEYS):
            assert fleet.ran_on()[key] == {worker.pid}

    owned = {key: worker.pid for worker in three for key in fleet.mine(worker, KEYS)}
    (fourth,) = fleet.start()
    after = fleet.until_agreed([*three, fourth])
    new = next(w for w in after.workers if w.pid == fourth.pid)
    old = sum(w.buckets for w in after.workers if w.pid != fourth.pid)
    assert new.buckets <= 1.3 * BUCKETS / 4
    assert old + new.buckets == BUCKETS
    moved = fleet.mine(fourth, KEYS)
    assert moved
    for worker in three:
        assert all(owned[key] == worker.pid for key in fleet.mine(worker, KEYS))
    fleet.enqueue(KEYS, range(20, 22))
    fleet.until_finished()
    for key in KEYS:
        assert fleet.ran_on()[key] == ({owned[key], fourth.pid} if key in moved else {owned[key]})


def test_the_keys_of_a_killed_worker_are_served_by_the_others(fleet: Fleet) -> None:
    """Not by the takeover, which is ten minutes here: the ring learns that it is dead."""
    first, second = workers = fleet.start(2, dead_after=DEAD_AFTER)
    fleet.until_agreed(workers)
    orphans = fleet.mine(second, KEYS)
    assert orphans
    second.kill(signal.SIGKILL)
    second.wait()
    fleet.enqueue(KEYS, range(2))
    fleet.until_finished()
    assert {pid for key in orphans for pid in fleet.ran_on()[key]} == {first.pid}
    fleet.check_order(120)
    assert not fleet.kit.sql("SELECT 1 AS one FROM holdfast.archive WHERE attempts <> 1")


def test_one_that_is_told_to_stop_is_out_of_the_ring_while_it_still_finishes(fleet: Fleet) -> None:
    first, second = workers = fleet.start(2)
    fleet.until_agreed(workers)
    key, *others = fleet.mine(second, KEYS)
    seat = next(w.seat for w in fleet.ring().workers if w.pid == second.pid)
    fleet.enqueue([key], range(1), gate="go")
    wait_until(lambda: fleet.ran_on()[key] == {second.pid}, "its job runs")
    second.kill(signal.SIGTERM)
    fleet.until_agreed([first])
    assert second.is_running
    fleet.enqueue(others, range(1))
    wait_until(lambda: all(fleet.ran_on()[k] == {first.pid} for k in others), "the other serves its keys")
    (third,) = fleet.start()
    fleet.until_agreed([first, third])
    assert next(w.seat for w in fleet.ring().workers if w.pid == third.pid) == seat
    assert key in fleet.mine(third, KEYS)
    assert second.is_running
    assert fleet.kit.sql("SELECT status FROM holdfast.jobs WHERE partition_key = %s", [key]) == [
        {"status": "processing"}
    ]
    fleet.open("go")
    assert second.wait() == 0
    fleet.until_finished()
    (row,) = fleet.kit.sql(
        "SELECT attempts, lease_generation FROM holdfast.archive WHERE partition_key = %s", [key]
    )
    assert row == {"attempts": 1, "lease_generation": 1}


def test_what_a_stuck_worker_does_not_take_is_taken_by_others_after_a_while(fleet: Fleet) -> None:
    takeover = 1.0
    first, second = workers = fleet.start(2, concurrency=2, takeover=takeover)
    fleet.until_agreed(workers)
    a, b, *others = fleet.mine(second, KEYS)
    assert len(others) > 5
    fleet.enqueue([a, b], range(1), gate="go")
    wait_until(lambda: fleet.ran_on()[a] | fleet.ran_on()[b] == {second.pid}, "both its slots are taken")
    fleet.enqueue(others, range(2))
    # What it had claimed ahead it hands back after two seconds.
    wait_until(lambda: all(fleet.ran_on()[k] == {first.pid} for k in others), "the other takes its keys")
    fleet.open("go")
    fleet.until_finished()
    fleet.check_order(2 + 2 * len(others))
    rows = fleet.kit.sql(
        "SELECT claimed_at - available_at AS waited FROM holdfast.archive WHERE payload->>'number' = '0'"
        " AND partition_key = ANY (%s)",
        [others],
    )
    assert min(row["waited"].total_seconds() for row in rows) >= takeover
