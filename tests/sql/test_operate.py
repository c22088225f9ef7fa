"""What operators see of the whole: bounded, honest looks."""

import psycopg
import pytest
from tests.sql.rows import archive_many, bury_many, one_of_each
from tests.sql.support import Conn, end, enqueue, load, one, register, take

from holdfast.db import migrate
from holdfast.db.database import Database
from holdfast.model.outcome import Completed
from holdfast.operate.operator import Operator
from holdfast.sql import query
from holdfast.store.queue_load import CAP, Count

pytestmark = pytest.mark.versions


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


# Overview ---------------------------------------------------------------------------------------------------------


def test_overview_has_each_job_once(conn: Conn, database: Database, worker: str) -> None:
    one_of_each(conn, worker)
    found = Operator(database, "ann").overview()
    (inbox,) = found.queues
    assert (inbox.pending, inbox.scheduled, inbox.processing) == (Count(1), Count(1), Count(1))
    assert (inbox.held, inbox.quarantined) == (Count(1), Count(1))
    assert inbox.oldest_due_seconds is not None
    assert 0 <= inbox.oldest_due_seconds < 60
    assert found.dead_letters == Count(1)
    assert found.dead_letters_by_queue == {"inbox": Count(1)}
    assert (found.finished_last_minute, found.finished_is_estimate) == (2, False)
    assert (found.workers.alive, found.workers.draining, found.workers.late) == (1, 0, 0)
    assert found.schema_version == migrate.required_version()


def test_an_empty_queue_has_no_oldest_job(database: Database) -> None:
    (inbox,) = Operator(database, "ann").list_queues()
    assert (inbox.pending, inbox.oldest_due_seconds) == (Count(0), None)


def test_counts_stop_at_the_cap_and_say_so(conn: Conn, database: Database) -> None:
    load(conn, CAP + 5, priority="n % 3")
    load(conn, CAP, available_at="holdfast.now() + interval '1 day'")
    bury_many(conn, CAP + 5)
    found = Operator(database, "ann").overview()
    assert found.queues[0].pending == Count(CAP, True)
    assert found.queues[0].scheduled == Count(CAP, False)
    assert found.dead_letters == Count(CAP, True)
    assert found.dead_letters_by_queue["inbox"].capped


def test_the_oldest_due_job_may_have_the_lowest_priority(conn: Conn, database: Database) -> None:
    load(conn, 20, priority="50", available_at="holdfast.now() - interval '1 minute'")
    load(conn, 1, priority="-50", available_at="holdfast.now() - interval '1 hour'")
    (inbox,) = Operator(database, "ann").list_queues()
    assert inbox.oldest_due_seconds == pytest.approx(3600, abs=60)


def test_dead_letters_of_a_queue_that_is_no_more_are_seen(conn: Conn, database: Database) -> None:
    bury_many(conn, 3, queue="lost")
    assert Operator(database, "ann").overview().dead_letters_by_queue == {"lost": Count(3)}


def test_a_worker_not_heard_of_is_late(conn: Conn, database: Database, worker: str) -> None:
    conn.execute("UPDATE holdfast.workers SET last_seen_at = holdfast.now() - interval '1 minute'")
    found = Operator(database, "ann").overview().workers
    assert (found.alive, found.late) == (0, 1)


def test_throughput_counts_the_last_minute_only(conn: Conn, database: Database) -> None:
    archive_many(conn, 50, "interval '2 minutes'")
    archive_many(conn, 30)
    found = Operator(database, "ann").overview()
    assert (found.finished_last_minute, found.finished_is_estimate) == (30, False)


def test_high_throughput_is_estimated_from_the_end_of_the_archive(conn: Conn, database: Database) -> None:
    archive_many(conn, 6000, "(6001 - n) * interval '1 ms'")  # 1000 a second, for six seconds
    found = Operator(database, "ann").overview()
    assert found.finished_is_estimate
    assert 20_000 < found.finished_last_minute <= 66_000


def test_workers_with_what_they_run(conn: Conn, database: Database, worker: str) -> None:
    gone = register(conn, "elsewhere")
    conn.execute("UPDATE holdfast.workers SET status = 'gone' WHERE id = %s", [gone])
    enqueue(conn, 3)
    first, *_ = take(conn, worker)
    end(conn, first.grant, Completed(), worker)
    (found,) = Operator(database, "ann").list_workers()
    assert (found.id, found.status, found.running, found.queues) == (worker, "alive", 2, ["inbox"])
    assert [w.id for w in Operator(database, "ann").list_workers(with_gone=True)] == [worker, gone]


# Plans ------------------------------------------------------------------------------------------------------------


def test_only_the_end_of_the_archive_is_read(conn: Conn) -> None:
    archive_many(conn, 500)
    with psycopg.RawCursor(conn) as cursor:
        cursor.execute(
            f"EXPLAIN {query('recent_finished')}".encode(),
            (one(conn, "SELECT holdfast.archive_slot(holdfast.now())"), 10),
        )
        text = "\n".join(str(row[0]) for row in cursor.fetchall())
    assert "Tid Range Scan" in text
    assert text.count("Scan on") == 1
