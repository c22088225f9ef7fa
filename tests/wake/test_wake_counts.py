"""How many sleep in a queue is counted whatever statement lays them down or gets them up: producers ask for nothing else."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from tests.sql.support import until_blocked
from tests.wake.conftest import Ear
from tests.wake.test_wake_sql import ENQUEUE, TOLD, ask, register

from holdfast.store import sweep, workers
from holdfast.store.wake import fall_asleep, get_up
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Conn = psycopg.Connection[Any]
WAIT = 60


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Asked for first: it is waited for when the sessions are closed."""
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def connect(sleepy: Kit) -> Iterator[Callable[[], Conn]]:
    opened: list[Conn] = []

    def make() -> Conn:
        opened.append(psycopg.connect(sleepy.url, autocommit=True))
        return opened[-1]

    yield make
    for conn in opened:
        conn.close()


def counted(kit: Kit) -> dict[str, int]:
    """By queue, and there is one row for each."""
    found = kit.sql("SELECT queue, sleepers FROM holdfast.asleep")
    assert len({row["queue"] for row in found}) == len(found)
    true = kit.sql("SELECT queue, count(*) AS n FROM holdfast.sleepers GROUP BY queue")
    counts = {row["queue"]: row["sleepers"] for row in found if row["sleepers"]}
    assert counts == {row["queue"]: row["n"] for row in true}
    return counts


def lie(kit: Kit, worker: str, *queues: str, poll: float = 10.0) -> None:
    assert kit.database.run(lambda: fall_asleep(worker, queues, poll))


def test_whatever_lays_workers_down_or_gets_them_up_is_counted(sleepy: Kit) -> None:
    a, b, c, d, e = (register(sleepy) for _ in range(5))
    sleepy.sql("SELECT holdfast.create_queue('mail')")
    assert [r["queue"] for r in sleepy.sql("SELECT queue FROM holdfast.asleep ORDER BY 1")] == [
        "+events",
        "inbox",
        "mail",
    ]
    for worker in (a, b, c, d, e):
        lie(sleepy, worker, "inbox", "mail")
        lie(sleepy, worker, "inbox", "mail")  # again: it sleeps already
    assert counted(sleepy) == {"inbox": 5, "mail": 5}
    sleepy.database.run(lambda: get_up(a))
    sleepy.database.run(lambda: get_up(a))
    assert counted(sleepy) == {"inbox": 4, "mail": 4}
    sleepy.database.run(lambda: workers.drain(b))
    sleepy.database.run(lambda: workers.leave(c))
    assert counted(sleepy) == {"inbox": 2, "mail": 2}
    sleepy.sql("UPDATE holdfast.workers SET last_seen_at = now() - interval '1 hour' WHERE id = %s", [d])
    sleepy.database.run(lambda: sweep.fence_workers(10))
    assert counted(sleepy) == {"inbox": 1, "mail": 1}
    lie(sleepy, a, "mail")
    sleepy.database.run(lambda: workers.drain_workers([a, e]))
    assert counted(sleepy) == {}


@pytest.mark.parametrize("way", ["DELETE FROM holdfast.sleepers", "TRUNCATE holdfast.sleepers"])
def test_an_operator_may_empty_the_table(sleepy: Kit, ear: Ear, way: str) -> None:
    worker, other = register(sleepy), register(sleepy)
    for one in (worker, other):
        lie(sleepy, one, "inbox", "orders")
    sleepy.sql(way)
    assert counted(sleepy) == {}
    sleepy.sql(ENQUEUE, ["inbox"])
    assert ear.heard() == []
    lie(sleepy, worker, "inbox")
    assert counted(sleepy) == {"inbox": 1}
    sleepy.sql(ENQUEUE, ["inbox"])
    assert ear.heard() == TOLD


def test_a_count_that_is_gone_or_cannot_be_is_made_anew(sleepy: Kit) -> None:
    worker, other = register(sleepy), register(sleepy)
    lie(sleepy, worker, "inbox")
    sleepy.sql("DELETE FROM holdfast.asleep")
    lie(sleepy, other, "inbox")
    assert counted(sleepy) == {"inbox": 2}
    sleepy.sql("UPDATE holdfast.asleep SET sleepers = 0")
    sleepy.database.run(lambda: get_up(other))
    assert counted(sleepy) == {"inbox": 1}


def test_the_longest_poll_counts_until_nobody_sleeps(sleepy: Kit, ear: Ear) -> None:
    worker, other = register(sleepy), register(sleepy)
    later = "SELECT holdfast.enqueue('note', delay => interval '30 seconds')"
    lie(sleepy, worker, "inbox", poll=5.0)
    sleepy.sql(later)
    assert ear.heard() == []
    lie(sleepy, other, "inbox", poll=60.0)
    sleepy.sql(later)
    assert ear.heard() == TOLD
    for each in (worker, other):
        ask(sleepy, get_up(each))
    lie(sleepy, worker, "inbox", poll=5.0)
    sleepy.sql(later)
    assert ear.heard() == []


@pytest.mark.parametrize("verdict", ["commit", "rollback"])
def test_two_that_lie_down_at_once_are_two(
    pool: ThreadPoolExecutor, sleepy: Kit, connect: Callable[[], Conn], verdict: str
) -> None:
    first, second, looker = connect(), connect(), connect()
    first.autocommit = False
    insert = "INSERT INTO holdfast.sleepers VALUES ('inbox', %s, 10)"
    first.execute(insert, ["a"])
    waiting = pool.submit(second.execute, insert, ["b"])
    until_blocked(looker, second)
    first.commit() if verdict == "commit" else first.rollback()
    waiting.result(WAIT)
    assert counted(sleepy) == {"inbox": 2 if verdict == "commit" else 1}


def test_queues_are_locked_in_the_order_of_their_hashes(
    pool: ThreadPoolExecutor, sleepy: Kit, connect: Callable[[], Conn]
) -> None:
    """Not in that of their names: who lies down in two queues waits for the first before it has the second."""
    names = sleepy.sql(
        """SELECT a.name AS first, b.name AS second
           FROM unnest('{a,b,c,d,e,f}'::text[]) AS a(name), unnest('{a,b,c,d,e,f}'::text[]) AS b(name)
           WHERE a.name > b.name AND hashtext(a.name) < hashtext(b.name) LIMIT 1"""
    )[0]
    holder, both, other, looker = connect(), connect(), connect(), connect()
    holder.autocommit = False
    insert = "INSERT INTO holdfast.sleepers SELECT q, %s, 10 FROM unnest(%s::text[]) q"
    holder.execute(insert, ["holder", [names["first"]]])
    waiting = pool.submit(both.execute, insert, ["both", [names["second"], names["first"]]])
    until_blocked(looker, both)
    other.execute("SET lock_timeout = '20s'")
    other.execute(insert, ["other", [names["second"]]])
    holder.commit()
    waiting.result(WAIT)
    assert counted(sleepy) == {names["first"]: 2, names["second"]: 2}


def test_an_old_snapshot_ends_in_a_serialization_failure_never_in_a_wrong_count(
    sleepy: Kit, connect: Callable[[], Conn]
) -> None:
    slow = connect()
    slow.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    slow.autocommit = False
    slow.execute("SELECT 1 FROM holdfast.asleep")
    worker, other = register(sleepy), register(sleepy)
    lie(sleepy, worker, "inbox")
    lie(sleepy, other, "inbox")
    with pytest.raises(psycopg.errors.SerializationFailure):
        slow.execute("INSERT INTO holdfast.sleepers VALUES ('inbox', 'slow', 10)")
    slow.rollback()
    assert counted(sleepy) == {"inbox": 2}
