"""A worker whose only due jobs wait behind held, blocked or parked keys sleeps as deeply as an idle one."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable

import pytest
from tests.conftest import await_until
from tests.sql.keyed import fail_key
from tests.wake.conftest import Notes, until_asleep, working
from tests.wake.test_wake_pulse import STILL
from tests.wake.test_wake_pulse import counted as counted

from holdfast import Holdfast
from holdfast.operate.operator import Operator
from holdfast.store.wake import next_due
from holdfast.testing import Kit

QUEUES = ["fair", "orders", "blocking", "parking"]
Expect = Callable[..., float | None]


@pytest.fixture
def stuck(app: Holdfast, holdfast_kit: Callable[..., Kit], notes: Notes) -> Kit:
    """In each queue a job is due, and none of them may be claimed."""
    app.queue("fair", fair=True)
    app.queue("orders", ordering="key")
    app.queue("blocking", ordering="key", on_dead_letter="block")
    app.queue("parking", ordering="key", on_dead_letter="park")
    kit = holdfast_kit(app, STILL)
    operator = Operator(kit.database, "ann")
    for n, queue in enumerate(QUEUES):
        put(kit, queue, 10 + n)
        put(kit, queue, n)
    with kit.connect(autocommit=True) as conn:
        for queue in ("blocking", "parking"):
            fail_key(conn, "k", queue=queue)
    for queue in ("fair", "orders"):
        kit.sql("DELETE FROM holdfast.work WHERE queue = %s AND (payload ->> 'n')::int > 9", [queue])
        operator.hold_keys(queue, ["k"], seconds=3600)
    return kit


def put(kit: Kit, queue: str, n: int, *, delay: float = 0.0, key: str = "k") -> None:
    kit.sql(
        """SELECT id FROM holdfast.enqueue('note', %s, queue => %s, partition_key => %s,
                                           delay => make_interval(secs => %s))""",
        [json.dumps({"n": n}), queue, key, delay],
    )


async def test_it_asks_once_per_heartbeat_and_starts_what_is_released(
    stuck: Kit, notes: Notes, counted: Counter[str]
) -> None:
    operator = Operator(stuck.database, "ann")
    async with working(stuck, queues=QUEUES):
        await until_asleep(stuck, len(QUEUES))
        assert await is_still(counted)
        assert notes.ran == []
        operator.lift_keys("fair", ["k"])
        await notes.until(0)
        operator.lift_keys("orders", ["k"])
        await notes.until(0, 1)
        operator.release_keys("blocking", ["k"], "skip")
        await notes.until(0, 1, 2)
        operator.release_keys("parking", ["k"])
        await notes.until(0, 1, 2, 3)
    await stuck.database.aclose()


async def test_a_hold_that_ends_wakes_it(stuck: Kit, notes: Notes) -> None:
    Operator(stuck.database, "ann").hold_keys("fair", ["k"], seconds=3)
    async with working(stuck, queues=QUEUES):
        await until_asleep(stuck, len(QUEUES))
        await notes.until(0)
    await stuck.database.aclose()


async def test_the_end_of_a_hold_without_jobs_wakes_it_once(
    stuck: Kit, notes: Notes, counted: Counter[str]
) -> None:
    async with working(stuck, queues=QUEUES):
        await until_asleep(stuck, len(QUEUES))
        Operator(stuck.database, "ann").hold_keys("fair", ["nothing"], seconds=4)
        put(stuck, "fair", 7, key="free")
        await notes.until(7)  # it looks at what is held
        await await_until(lambda: not held(stuck, "nothing"), "the hold is over")
        assert await is_still(counted)
    await stuck.database.aclose()


async def is_still(counted: Counter[str]) -> bool:
    """In one of some short times it asks once per heartbeat."""
    for _ in range(6):
        counted.clear()
        await asyncio.sleep(3 * STILL.heartbeat)
        if set(counted) == {"pulse"} and counted["pulse"] <= 5:
            return True
    return False


def held(kit: Kit, key: str) -> bool:
    query = "SELECT FROM holdfast.key_holds WHERE partition_key = %s AND until > now()"
    return bool(kit.sql(query, [key]))


async def test_a_hold_that_waits_for_a_decision_is_not_asked_about(
    stuck: Kit, notes: Notes, counted: Counter[str]
) -> None:
    """Its trial has ended. Until somebody decides there is nothing to do."""
    operator = Operator(stuck.database, "ann")
    operator.hold_keys("fair", ["k"], seconds=0.001, trial=True)
    async with working(stuck, queues=QUEUES):
        await notes.until(0)
        put(stuck, "fair", 4)
        await until_asleep(stuck, len(QUEUES))
        await asyncio.sleep(2 * STILL.heartbeat)
        counted.clear()
        await asyncio.sleep(6 * STILL.heartbeat)
        assert not counted.keys() & {"hold_news", "due_trials", "due_streams", "find_held"}
        operator.lift_keys("fair", ["k"])
        await notes.until(0, 4)
    await stuck.database.aclose()


# What such a worker can expect ------------------------------------------------------------------------------------------


@pytest.fixture
def expect(stuck: Kit) -> Expect:
    def look(within: float = 100.0) -> float | None:
        return stuck.database.run(lambda: next_due(QUEUES, [("note", 1)], within)).due_in

    return look


def due(expect: Expect) -> float:
    found = expect()
    assert found is not None
    return found


@pytest.mark.versions
def test_nothing_is_expected_of_keys_that_are_not_free(stuck: Kit, expect: Expect) -> None:
    assert expect() is None
    put(stuck, "fair", 5, key="free")
    assert due(expect) <= 0
    stuck.sql("DELETE FROM holdfast.work WHERE partition_key = 'free'")
    put(stuck, "orders", 5, key="free", delay=50)
    assert 40 < due(expect) <= 50
    stuck.sql("DELETE FROM holdfast.work WHERE partition_key = 'free'")
    for queue in QUEUES:
        stuck.sql("DELETE FROM holdfast.key_holds WHERE queue = %s", [queue])
        stuck.sql("DELETE FROM holdfast.parked_keys WHERE queue = %s", [queue])
        stuck.sql("DELETE FROM holdfast.work WHERE queue = %s AND status = 'blocked'", [queue])
        assert due(expect) <= 0, queue
        stuck.sql("DELETE FROM holdfast.work WHERE queue = %s", [queue])
        assert expect() is None


@pytest.mark.versions
def test_a_key_is_expected_when_its_hold_ends_or_its_first_job_is_due(stuck: Kit, expect: Expect) -> None:
    Operator(stuck.database, "ann").hold_keys("fair", ["k"], seconds=60)
    assert 50 < due(expect) <= 60
    put(stuck, "orders", 5, key="later", delay=30)
    put(stuck, "orders", 6, key="later")
    assert 20 < due(expect) <= 30


@pytest.mark.versions
def test_what_comes_behind_many_of_one_key_is_expected_at_its_time(stuck: Kit, expect: Expect) -> None:
    stuck.sql(
        """SELECT holdfast.enqueue('note', '{"n": 1}', queue => 'fair', partition_key => 'k')
           FROM generate_series(1, 150)"""
    )
    put(stuck, "fair", 5, key="free", delay=1)
    looks = [expect(5.0) for _ in range(20)]  # about once a minute it is looked at what is behind them
    assert any(found is not None and found > 0 for found in looks), looks


@pytest.mark.versions
def test_what_nobody_was_told_of_is_found_behind_many_of_one_key(stuck: Kit, expect: Expect) -> None:
    stuck.sql(
        """SELECT holdfast.enqueue('note', '{"n": 1}', queue => 'fair', partition_key => 'k')
           FROM generate_series(1, 150)"""
    )
    looks = [expect(0.001) for _ in range(5)]
    assert None in looks
    put(stuck, "fair", 5, key="free")
    looks = [expect(0.001) for _ in range(5)]
    assert None not in looks


@pytest.mark.versions
def test_a_trial_whose_job_came_back_is_expected_again(stuck: Kit, expect: Expect) -> None:
    """Its worker died, so nobody decides it. Whoever missed the notification finds it by looking."""
    for back, wanted in ((False, False), (True, True)):
        stuck.sql(
            """UPDATE holdfast.key_holds SET trial = true, until = now() - interval '1 s', decided = false,
                      trial_token = '11111111-1111-1111-1111-111111111111',
                      trial_id = (SELECT w.id FROM holdfast.work w WHERE w.queue = 'fair')
               WHERE queue = 'fair'"""
        )
        token = "22222222" if back else "11111111"
        stuck.sql(
            """UPDATE holdfast.work SET claim_token = %s, lease_generation = 1, claimed_at = now() - interval '1 h'
               WHERE queue = 'fair'""",
            [f"{token}-1111-1111-1111-111111111111"],
        )
        found = expect()
        assert (found is not None and found <= 0) == wanted, found
