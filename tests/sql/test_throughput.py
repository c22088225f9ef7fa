"""The sums by minute: added up whatever comes together, and forgotten in time."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.sql.support import DAY, Conn, later, one, run, until_blocked

from holdfast.db.database import Database
from holdfast.model.actor import Actor
from holdfast.model.tally import Sums
from holdfast.operate.operator import Operator
from holdfast.runtime.sweep import Sweeper
from holdfast.store import housekeeping
from holdfast.store.audit import audit
from holdfast.store.tally import tally, tally_state
from holdfast.testing import Kit

pytestmark = pytest.mark.versions


def rows(conn: Conn, columns: str) -> list[tuple[Any, ...]]:
    return conn.execute(f"SELECT {columns} FROM holdfast.throughput ORDER BY 1, 2, 3".encode()).fetchall()


def mid_minute(kit: Kit, *conns: Conn) -> None:
    """Move the clock to the middle of a minute, so that no minute ends in the test."""
    later(kit, (90 - float(one(conns[0], "SELECT extract(second FROM holdfast.now())"))) % 60, *conns)


def test_reports_add_up_and_the_longest_is_kept(conn: Conn, kit: Kit) -> None:
    key = ("inbox", "work")
    mid_minute(kit, conn)
    minute = one(conn, "SELECT date_trunc('minute', holdfast.now())")
    run(conn, tally({key: Sums(1, 2, 3, 4, 5.0, 6.0, 7.0, 8.0), ("mail", "work"): Sums(completed=1)}))
    run(conn, tally({key: Sums(10, 20, 30, 40, 50.0, 60.0, 6.5, 80.0)}))
    found = conn.execute(
        """SELECT queue, task, sum(completed), sum(failed), sum(dead), sum(cancelled), sum(run_seconds), sum(wait_seconds),
                  max(max_run), max(max_wait), min(minute) FROM holdfast.throughput GROUP BY queue, task ORDER BY queue"""
    ).fetchall()
    assert [r[:-1] for r in found] == [
        ("inbox", "work", 11, 22, 33, 44, 55.0, 66.0, 7.0, 80.0),
        ("mail", "work", 1, 0, 0, 0, 0.0, 0.0, 0.0, 0.0),
    ]
    assert {r[-1] for r in found} == {minute}


def test_the_next_minute_has_its_own_sums(conn: Conn, kit: Kit) -> None:
    run(conn, tally({("inbox", "work"): Sums(completed=1)}))
    later(kit, 60, conn)
    run(conn, tally({("inbox", "work"): Sums(completed=2)}))
    assert [r[2] for r in rows(conn, "minute, queue, completed")] == [1, 2]


def test_the_answer_names_the_transaction(conn: Conn) -> None:
    xid = run(conn, tally({("inbox", "work"): Sums(completed=1)}))
    assert run(conn, tally_state(xid)) == "committed"


def test_two_reports_never_wait_for_each_other_in_a_circle(connect: Callable[[], Conn], kit: Kit) -> None:
    """Each has what the other wants, in the opposite order; written in one order, one of them simply waits."""
    first, second, watch = connect(), connect(), connect()
    mid_minute(kit, first, second, watch)
    done: list[str] = []

    def report() -> None:
        done.append(
            run(second, tally({("inbox", "b"): Sums(completed=1), ("inbox", "a"): Sums(completed=1)}))
        )

    thread = threading.Thread(target=report)
    with first.transaction():
        run(first, tally({("inbox", "a"): Sums(completed=1)}))
        thread.start()
        until_blocked(watch, second)
        run(first, tally({("inbox", "b"): Sums(completed=1)}))
    thread.join(100)
    assert len(done) == 1
    assert rows(watch, "queue, task, completed") == [("inbox", "a", 2), ("inbox", "b", 2)]


def test_a_report_gives_up_soon_on_a_table_that_somebody_holds(connect: Callable[[], Conn]) -> None:
    """By its lock's limit, long before the statement's: its session is needed for more."""
    holder, reporter = connect(), connect()
    with holder.transaction():
        holder.execute("LOCK TABLE holdfast.throughput")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            run(reporter, tally({("inbox", "work"): Sums(completed=1)}))
    assert one(holder, "SELECT count(*) FROM holdfast.throughput") == 0


def test_throughput_past_retention_goes_in_bounded_batches(conn: Conn, kit: Kit) -> None:
    mid_minute(kit, conn)
    conn.execute(
        """INSERT INTO holdfast.throughput (minute, queue, task)
           SELECT date_trunc('minute', holdfast.now()) - n * interval '1 day', 'inbox', 'work'
           FROM generate_series(0, 11) n"""
    )
    assert run(conn, housekeeping.prune_throughput(7, 3)) == 3
    assert one(conn, "SELECT min(minute) > holdfast.now() - interval '9 days' FROM holdfast.throughput")
    assert (
        run(conn, housekeeping.prune_throughput(7, 3)) == 2
    )  # the eighth day and the seventh, which is past by seconds
    assert run(conn, housekeeping.prune_throughput(7, 3)) == 0
    assert one(conn, "SELECT count(*) FROM holdfast.throughput") == 7


def test_the_audit_is_kept_for_a_year(conn: Conn, kit: Kit) -> None:
    for _ in range(3):
        run(conn, audit(Actor("ann"), "queue pause", {"queue": "inbox"}, 1))
    later(kit, 364 * DAY, conn)
    run(conn, audit(Actor("bob"), "queue resume", {"queue": "inbox"}, 1))
    assert run(conn, housekeeping.prune_audit(1000)) == 0
    later(kit, 2 * DAY, conn)
    assert run(conn, housekeeping.prune_audit(2)) == 2
    assert run(conn, housekeeping.prune_audit(1000)) == 1
    assert one(conn, "SELECT string_agg(actor, ',') FROM holdfast.audit") == "bob"


async def test_any_worker_forgets_both_while_it_tidies_up(conn: Conn, akit: Kit, database: Database) -> None:
    run(conn, tally({("inbox", "work"): Sums(completed=1)}))
    run(conn, audit(Actor("ann"), "queue pause", {"queue": "inbox"}, 1))
    later(akit, 366 * DAY, conn)
    sweeper = Sweeper(database, lambda: None)
    await sweeper.tidier.tidy_once(7, 60.0)
    await sweeper.finish()
    assert (
        one(conn, "SELECT (SELECT count(*) FROM holdfast.throughput) + (SELECT count(*) FROM holdfast.audit)")
        == 0
    )


def test_histograms_of_workers_are_added_up_and_give_percentiles(conn: Conn, database: Database) -> None:
    """Also where a worker of the release before, which has none, was the first of its minute."""
    conn.execute(
        """INSERT INTO holdfast.throughput (minute, queue, task, completed)
           VALUES (date_trunc('minute', holdfast.now()), 'inbox', 'work', 7)"""
    )
    quick, slow = Sums(completed=90), Sums(completed=10)
    for _ in range(90):
        quick.attempt(0.012, 0.1)
    for _ in range(10):
        slow.attempt(3.0, 100.0)
    for sums in (quick, slow, Sums(cancelled=1)):
        run(conn, tally({("inbox", "work"): sums}))
    run(conn, tally({("inbox", "other"): Sums(cancelled=1)}))
    found = Operator(database, "ann").stats()
    (queue,) = found.queues
    line, other = found.tasks
    for one_of in (queue, line):
        assert one_of.completed == 107
        assert one_of.run is not None
        assert one_of.wait is not None
        assert 0.0078 <= one_of.run.p50 < 0.016
        assert 2 <= one_of.run.p95 <= one_of.run.p99 <= 3
        assert 0.06 < one_of.wait.p50 < 0.13
        assert 64 <= one_of.wait.p95 <= 100
    assert (other.run, other.wait) == (None, None)
