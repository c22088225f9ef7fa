"""Samples: how each queue stood in each minute, taken once, at a bounded cost, kept for thirty days."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.sql.keyed import QUEUE, fail_key, ordered, put_key
from tests.sql.support import DAY, Conn, end, enqueue, later, load, one, register, run, take

from holdfast.db.database import Database
from holdfast.errors import ConfigurationError, UnknownQueue
from holdfast.model.outcome import ErrorText, Failed, Held
from holdfast.operate.operator import Operator
from holdfast.runtime.tidy import Tidier
from holdfast.shapes.samples.checks import is_unusual
from holdfast.shapes.samples.service import Sampler
from holdfast.shapes.samples.shape import SHAPE
from holdfast.store import samples as store
from holdfast.store.samples import Sample, Usual
from holdfast.testing import Kit

BOOM = ErrorText("ValueError", "no", "")


def sample(conn: Conn, queue: str = "inbox") -> Sample:
    """Take one, in a minute of its own."""
    conn.execute("DELETE FROM holdfast.samples")
    assert run(conn, store.take_sample(30.0))
    (found,) = [s for s in run(conn, store.samples(queue, 3600.0, 1, 10)) if s.queue == queue]
    return found


def test_a_sample_says_how_a_queue_stands(conn: Conn, kit: Kit) -> None:
    worker = register(conn)
    empty = sample(conn)
    assert (empty.due, empty.running, empty.oldest, empty.workers, empty.minutes) == (0, 0, None, 1, 1)
    enqueue(conn, 5)
    enqueue(conn, delay=3600.0)
    later(kit, 30, conn)
    first, second, _ = take(conn, worker, 3)
    end(conn, first.grant, Held("unknown"), worker)
    end(conn, second.grant, Failed(BOOM, 3600.0), worker)
    conn.execute("UPDATE holdfast.workers SET last_seen_at = holdfast.now()")
    found = sample(conn)
    assert (found.due, found.behind, found.running, found.held, found.blocked, found.workers) == (
        2,
        0,
        1,
        1,
        0,
        1,
    )
    assert found.oldest == pytest.approx(30, abs=20)


def test_the_oldest_is_one_that_could_run(conn: Conn, kit: Kit) -> None:
    """In order, jobs behind one that is blocked, backs off or is held wait by design, however long."""
    ordered(conn, "block")
    put_key(conn, "blocked", 3)
    fail_key(conn, "blocked")
    later(kit, 100, conn)
    put_key(conn, "retried", 3)
    fail_key(conn, "retried", Failed(BOOM, 3600.0))
    later(kit, 100, conn)
    put_key(conn, "held")
    held = "INSERT INTO holdfast.key_holds (queue, partition_key, until, held_at) VALUES (%s, 'held', 'infinity', now())"
    conn.execute(held, [QUEUE])
    later(kit, 100, conn)
    found = sample(conn, QUEUE)
    assert (found.due, found.behind, found.blocked, found.oldest) == (5, 5, 1, None)
    put_key(conn, "free")
    later(kit, 20, conn)
    found = sample(conn, QUEUE)
    assert (found.due, found.behind) == (6, 5)
    assert found.oldest == pytest.approx(20, abs=15)


def test_counts_stop_at_the_cap_and_no_priority_hides_the_oldest(conn: Conn, kit: Kit) -> None:
    enqueue(conn, priority=-5)
    later(kit, 500, conn)
    load(conn, 12_000, available_at="holdfast.now()")
    found = sample(conn)
    assert found.due == 10_000
    assert found.oldest == pytest.approx(500, abs=60)


def test_a_minute_has_one_sample_whoever_takes_it(conn: Conn, kit: Kit, database: Database) -> None:
    taken: list[bool] = []

    def work() -> None:
        taken.append(database.run(lambda: store.take_sample(30.0)))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken.count(True) in (1, 2), "two only where a minute ended in between"
    assert one(conn, "SELECT count(*) = count(DISTINCT (minute, queue)) FROM holdfast.samples")
    later(kit, 60, conn)
    assert database.run(lambda: store.take_sample(30.0))


async def test_every_worker_takes_them_and_thirty_days_are_kept(
    conn: Conn, akit: Kit, database: Database
) -> None:
    sampler = Sampler(database)
    assert await sampler.tick() <= 60
    assert one(conn, "SELECT count(*) FROM holdfast.samples") == 1
    later(akit, 29 * DAY, conn)
    session = database.session("tidy")
    tidier = Tidier(session, SHAPE.prunes)
    await tidier.tidy_once(7, 5.0)
    assert one(conn, "SELECT count(*) FROM holdfast.samples") == 1
    later(akit, 2 * DAY, conn)
    await tidier.tidy_once(7, 5.0)
    await session.close()
    assert one(conn, "SELECT count(*) FROM holdfast.samples") == 0


def fill(conn: Conn, days: int, due: int, oldest: float) -> None:
    """Each minute of an hour around this time, on the days before today."""
    conn.execute(
        """INSERT INTO holdfast.samples (minute, queue, due, behind, running, held, blocked, oldest, workers)
           SELECT date_trunc('minute', holdfast.now()) - make_interval(days => d, mins => m), 'inbox',
                  %s + (abs(m) %% 4 = 0)::int, 0, 1, 0, 0, %s, 2
           FROM generate_series(1, %s) d CROSS JOIN generate_series(-29, 29) m""",
        [due, oldest, days],
    )


def test_what_is_usual_at_this_time_of_day(conn: Conn, database: Database) -> None:
    ann = Operator(database, "ann")
    assert ann.usual() == []
    fill(conn, 5, 10, 2.0)
    conn.execute(
        """INSERT INTO holdfast.samples
           SELECT minute + interval '12 hours', 'inbox', 9000, 0, 1, 0, 0, 60, 2 FROM holdfast.samples"""
    )
    enqueue(conn, 3)
    run(conn, store.take_sample(30.0))
    (found,) = ann.usual()
    assert (found.due, found.most_due, found.days, found.due_now) == (10, 11, 5, 3)
    assert (found.oldest, found.most_oldest) == (2.0, 2.0), "the hours around it do not count"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, True),
        ({"due_now": 99}, False),
        ({"due_now": 500, "most_due": 100}, False),
        ({"behind_now": 950}, False),
        ({"days": 2}, False),
        ({"due_now": None}, False),
        ({"most_due": None}, False),
    ],
)
def test_what_is_unusual(change: dict[str, Any], said: bool) -> None:
    values: dict[str, Any] = {"due": 10, "most_due": 11, "oldest": 1.0, "most_oldest": 2.0, "days": 5}
    values |= {"due_now": 1000, "behind_now": 0, "oldest_now": 60.0, "workers_now": 1}
    assert is_unusual(Usual("inbox", **(values | change))) is said


def test_history_in_steps(conn: Conn, database: Database) -> None:
    fill(conn, 3, 10, 2.0)
    ann = Operator(database, "ann")
    assert ann.samples().samples == []
    found = ann.samples(queue="inbox", since=timedelta(days=4))
    assert found.step_minutes == 24
    assert sum(s.minutes for s in found.samples) == 3 * 59
    assert {(s.workers, s.queue) for s in found.samples} == {(2, "inbox")}
    assert {s.due for s in found.samples if s.minutes > 4} == {11}, "the most of each step"
    fine = ann.samples(since="4d", step_minutes=1)
    assert len(fine.samples) == 3 * 59
    assert {s.due for s in fine.samples} == {10, 11}
    with pytest.raises(UnknownQueue):
        ann.samples(queue="nothing")
    for since, said in ((1.0, "not 1 seconds"), (31 * DAY, "not 2,678,400 seconds")):
        with pytest.raises(ConfigurationError, match=f"since must be between 1 minute and 30 days, {said}"):
            ann.samples(since=since)
    with pytest.raises(ConfigurationError, match="step_minutes must be between 1 and 1440, not 2000"):
        ann.samples(step_minutes=2000)
