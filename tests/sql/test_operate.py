"""What operators see and do: bounded looks, honest lists, and a redrive that forgets nothing."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.sql.support import (
    BOOM,
    NOBODY,
    Conn,
    end,
    enqueue,
    load,
    one,
    register,
    row_of,
    run,
    take,
    take_one,
)

from holdfast.db.database import Database
from holdfast.errors import ConfigurationError, EnqueueError
from holdfast.model.outcome import Cancelled, Completed, DeadLettered, Failed, Held
from holdfast.operate import dead, jobs, queues
from holdfast.operate.overview import overview
from holdfast.operate.workers import list_workers
from holdfast.sql import query
from holdfast.store import operate, owner
from holdfast.store.operate import CAP, Count
from holdfast.store.redrive import DeadLine

pytestmark = pytest.mark.versions


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def bury(conn: Conn, worker: str, **options: Any) -> UUID:
    """One dead letter."""
    (job_id,) = enqueue(conn, **options)
    assert end(conn, take_one(conn, worker).grant, DeadLettered(BOOM), worker) == "dead_letter"
    return job_id


def bury_many(conn: Conn, count: int, queue: str = "inbox", task: str = "work") -> None:
    conn.execute(
        """
        INSERT INTO holdfast.dead_letters
            (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, died_at, attempts,
             max_attempts, version, crashes, priority, queue, task, payload, last_error)
        SELECT holdfast.uuid7(), gen_random_uuid(), nextval('holdfast.work_seq'), 5, at, at, at,
               at - n / 7 * interval '1 ms', 5, 5, 1, 0, 0, %s, %s, '{}', 'ValueError: boom'
        FROM generate_series(1, %s) n, LATERAL (SELECT holdfast.now() AS at) t
        """,
        [queue, task, count],
    )


def archive_many(conn: Conn, count: int, ago: str = "interval '1 second'") -> None:
    conn.execute(
        f"""
        INSERT INTO holdfast.archive
            (slot, id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, completed_at,
             attempts, max_attempts, version, crashes, priority, queue, status, task, payload)
        SELECT holdfast.archive_slot(at), holdfast.uuid7(), gen_random_uuid(), n, 1, at, at, at, at,
               1, 5, 1, 0, 0, 'inbox', 'completed', 'work', jsonb_build_object('text', repeat('x', 800))
        FROM generate_series(1, {count}) n, LATERAL (SELECT holdfast.now() - {ago} AS at) t
        """.encode()
    )


def one_of_each(conn: Conn, worker: str) -> dict[str, UUID]:
    """A job in every state."""
    found = {}
    for state, outcome in (
        ("completed", Completed("1")),
        ("cancelled", Cancelled("no")),
        ("dead_letter", DeadLettered(BOOM)),
        ("held", Held("unknown")),
    ):
        (found[state],) = enqueue(conn)
        end(conn, take_one(conn, worker).grant, outcome, worker)
    (found["processing"],) = enqueue(conn)
    take_one(conn, worker)
    (found["quarantined"],) = enqueue(conn)
    conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [found["quarantined"]])
    (found["scheduled"],) = enqueue(conn, delay=60.0)
    (found["pending"],) = enqueue(conn)
    return found


# Overview ---------------------------------------------------------------------------------------------------------


def test_overview_has_each_job_once(conn: Conn, database: Database, worker: str) -> None:
    one_of_each(conn, worker)
    found = overview(database)
    (inbox,) = found.queues
    assert (inbox.pending, inbox.scheduled, inbox.processing) == (Count(1), Count(1), Count(1))
    assert (inbox.held, inbox.quarantined) == (Count(1), Count(1))
    assert inbox.oldest_due_seconds is not None
    assert 0 <= inbox.oldest_due_seconds < 60
    assert found.dead_letters == Count(1)
    assert found.dead_letters_by_queue == {"inbox": Count(1)}
    assert (found.finished_last_minute, found.finished_is_estimate) == (2, False)
    assert (found.workers.alive, found.workers.draining, found.workers.late) == (1, 0, 0)
    assert found.schema_version == 1


def test_an_empty_queue_has_no_oldest_job(database: Database) -> None:
    (inbox,) = queues.list_queues(database)
    assert (inbox.pending, inbox.oldest_due_seconds) == (Count(0), None)


def test_counts_stop_at_the_cap_and_say_so(conn: Conn, database: Database) -> None:
    load(conn, CAP + 5, priority="n % 3")
    load(conn, CAP, available_at="holdfast.now() + interval '1 day'")
    bury_many(conn, CAP + 5)
    found = overview(database)
    assert found.queues[0].pending == Count(CAP, True)
    assert found.queues[0].scheduled == Count(CAP, False)
    assert found.dead_letters == Count(CAP, True)
    assert found.dead_letters_by_queue["inbox"].capped


def test_the_oldest_due_job_may_have_the_lowest_priority(conn: Conn, database: Database) -> None:
    load(conn, 20, priority="50", available_at="holdfast.now() - interval '1 minute'")
    load(conn, 1, priority="-50", available_at="holdfast.now() - interval '1 hour'")
    (inbox,) = queues.list_queues(database)
    assert inbox.oldest_due_seconds == pytest.approx(3600, abs=60)


def test_dead_letters_of_a_queue_that_is_no_more_are_seen(conn: Conn, database: Database) -> None:
    bury_many(conn, 3, queue="lost")
    assert overview(database).dead_letters_by_queue == {"lost": Count(3)}


def test_a_worker_not_heard_of_is_late(conn: Conn, database: Database, worker: str) -> None:
    conn.execute("UPDATE holdfast.workers SET last_seen_at = holdfast.now() - interval '1 minute'")
    found = overview(database).workers
    assert (found.alive, found.late) == (0, 1)


def test_throughput_counts_the_last_minute_only(conn: Conn, database: Database) -> None:
    archive_many(conn, 50, "interval '2 minutes'")
    archive_many(conn, 30)
    found = overview(database)
    assert (found.finished_last_minute, found.finished_is_estimate) == (30, False)


def test_high_throughput_is_estimated_from_the_end_of_the_archive(conn: Conn, database: Database) -> None:
    archive_many(conn, 6000, "(6001 - n) * interval '1 ms'")  # 1000 a second, for six seconds
    found = overview(database)
    assert found.finished_is_estimate
    assert 20_000 < found.finished_last_minute <= 66_000


# Lists ------------------------------------------------------------------------------------------------------------


def test_each_state_lists_its_job(conn: Conn, database: Database, worker: str) -> None:
    expected = one_of_each(conn, worker)
    for state in jobs.STATES:
        page = jobs.list_jobs(database, state=state)
        assert [(j.id, j.state) for j in page.jobs] == [(expected[state], state)], state
        assert (page.next, page.cut) == (None, False)
        assert jobs.list_jobs(database, state=state, task="other").jobs == []
        assert jobs.list_jobs(database, state=state, queue="other").jobs == []
    everything = jobs.list_jobs(database)
    assert {j.state: j.id for j in everything.jobs} == expected
    assert [j.id for j in everything.jobs] == sorted(expected.values(), reverse=True)


def test_pages_leave_nothing_out_and_repeat_nothing(
    conn: Conn, database: Database, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = []
    for n in range(21):  # live, finished and dead jobs interleaved
        (job_id,) = enqueue(conn, task="odd" if n % 2 else "work")
        expected.append(job_id)
        if n % 3:
            outcome = Completed() if n % 3 == 1 else DeadLettered(BOOM)
            end(conn, take_one(conn, worker).grant, outcome, worker)
        else:
            conn.execute("UPDATE holdfast.work SET priority = 50 WHERE id = %s", [job_id])
    for limit, look in itertools.product((1, 3, 7, 50), (2, 100)):
        monkeypatch.setattr(operate, "LOOK", look)
        for task in (None, "odd", "work"):
            seen: list[UUID] = []
            after = None
            while True:
                page = jobs.list_jobs(database, task=task, after=after, limit=limit)
                seen += [j.id for j in page.jobs]
                after = page.next
                if after is None:
                    break
                assert len(seen) <= len(expected)
            wanted = [i for n, i in enumerate(expected) if task is None or (n % 2 == 1) == (task == "odd")]
            assert seen == sorted(wanted, reverse=True), (limit, look, task)


def test_a_long_search_stops_and_says_where(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn, task="rare")
    enqueue(conn, 30)
    monkeypatch.setattr(operate, "LOOK", 10)
    monkeypatch.setattr(jobs, "PATIENCE", -1.0)
    first = jobs.list_jobs(database, task="rare")
    assert (first.jobs, first.cut) == ([], True)
    assert first.next is not None
    monkeypatch.setattr(jobs, "PATIENCE", 10.0)
    rest = jobs.list_jobs(database, task="rare", after=first.next)
    assert ([j.task for j in rest.jobs], rest.next) == (["rare"], None)


def test_a_list_that_makes_no_sense_is_refused(database: Database) -> None:
    for options in ({"state": "done"}, {"limit": 0}, {"limit": 1001}):
        with pytest.raises(ConfigurationError):
            jobs.list_jobs(database, **options)


def test_workers_with_what_they_run(conn: Conn, database: Database, worker: str) -> None:
    gone = register(conn, "elsewhere")
    conn.execute("UPDATE holdfast.workers SET status = 'gone' WHERE id = %s", [gone])
    enqueue(conn, 3)
    first, *_ = take(conn, worker)
    end(conn, first.grant, Completed(), worker)
    (found,) = list_workers(database)
    assert (found.id, found.status, found.running, found.queues) == (worker, "alive", 2, ["inbox"])
    assert [w.id for w in list_workers(database, with_gone=True)] == [worker, gone]


# One job ----------------------------------------------------------------------------------------------------------


def test_show_tells_who_holds_a_job_and_until_when(conn: Conn, database: Database, worker: str) -> None:
    (job_id,) = enqueue(conn, partition_key="order:9182", metadata='{"a": 1}', tags=("x",))
    claimed = take_one(conn, worker, lease=30.0)
    run(conn, owner.progress([(claimed.grant, 0.5, "half")]))
    run(conn, owner.once_put(claimed.grant, "email", "1"))
    report = jobs.show_job(database, job_id)
    assert report is not None
    job = report.job
    assert (job.state, job.claimed_by, job.generation, job.fence) == ("processing", worker, 1, claimed.fence)
    assert job.lease_left_seconds == pytest.approx(30, abs=5)
    assert (job.partition_bucket, job.payload, job.metadata, job.tags) == (751, {"n": 0}, {"a": 1}, ["x"])
    assert report.progress is not None
    assert (report.progress.fraction, report.progress.message) == (0.5, "half")
    assert [step.name for step in report.steps] == ["email"]


def test_show_has_every_failed_attempt(conn: Conn, database: Database, worker: str) -> None:
    (job_id,) = enqueue(conn, max_attempts=3)
    for _ in range(3):
        end(conn, take_one(conn, worker).grant, Failed(BOOM, 0.0), worker)
    report = jobs.show_job(database, job_id)
    assert report is not None
    assert (report.job.state, report.job.attempts, report.job.fence) == ("dead_letter", 3, None)
    assert [(e.attempt, e.generation, e.kind, e.trace) for e in report.errors] == [
        (n, n, "ValueError", BOOM.trace) for n in (1, 2, 3)
    ]


def test_show_knows_finished_jobs_and_says_when_there_is_none(
    conn: Conn, database: Database, worker: str
) -> None:
    (job_id,) = enqueue(conn)
    end(conn, take_one(conn, worker).grant, Completed('{"ok": true}'), worker)
    report = jobs.show_job(database, job_id)
    assert report is not None
    assert (report.job.state, report.job.result, report.job.claimed_by) == ("completed", {"ok": True}, worker)
    assert jobs.show_job(database, uuid4()) is None


# Dead letters -----------------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_by_death_and_paged(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.redrive.LOOK", 4)
    bury_many(conn, 20, task="odd")  # seven at a time died at the same moment
    bury_many(conn, 20, queue="lost")
    for filters, count in (({}, 40), ({"task": "odd"}, 20), ({"queue": "lost"}, 20), ({"task": "none"}, 0)):
        seen: list[DeadLine] = []
        after = None
        while True:
            page = dead.list_dead(database, after=after, limit=3, **filters)
            seen += page.dead_letters
            after = page.next
            if after is None:
                break
        assert len({d.id for d in seen}) == len(seen) == count
        assert [(d.died_at, d.id) for d in seen] == sorted([(d.died_at, d.id) for d in seen], reverse=True)


def test_redrive_keeps_the_generation_and_gives_fresh_attempts(
    conn: Conn, database: Database, worker: str
) -> None:
    (job_id,) = enqueue(conn, max_attempts=2, partition_key="k", priority=0, metadata='{"a": 1}', tags=("t",))
    before = row_of(conn, job_id)
    for _ in range(2):
        last = take_one(conn, worker)
        end(conn, last.grant, Failed(BOOM, 0.0), worker)
    conn.execute("UPDATE holdfast.dead_letters SET crashes = 2")
    assert dead.redrive(database, [job_id, job_id]).ids == [job_id]
    after = row_of(conn, job_id)
    fresh = {
        "attempts": 0,
        "crashes": 0,
        "suspect": 0,
        "claim_token": str(NOBODY),
        "status": "pending",
        "lease_generation": 2,
    }
    assert {key: after[key] for key in fresh} == fresh
    moved = {"available_at", "claimed_at", "lease_generation", "last_error"}
    assert {k: v for k, v in after.items() if k not in moved} == {
        k: v for k, v in before.items() if k not in moved
    }
    assert after["last_error"] == "ValueError: boom"
    assert one(conn, "SELECT count(*) FROM holdfast.dead_letters") == 0
    again = take_one(conn, worker)
    assert (again.grant.generation, again.attempt) == (3, 1)
    assert again.fence > last.fence
    assert end(conn, again.grant, Failed(BOOM, 0.0), worker) == "pending"  # two attempts again, not none


def test_redrive_by_id_moves_all_or_none(conn: Conn, database: Database, worker: str) -> None:
    first, second, stranger = bury(conn, worker), bury(conn, worker), uuid4()
    with pytest.raises(EnqueueError, match=f"nothing was redriven: {stranger} is no dead letter"):
        dead.redrive(database, [first, stranger])
    conn.execute("UPDATE holdfast.dead_letters SET queue = 'lost' WHERE id = %s", [second])
    with pytest.raises(
        EnqueueError, match=r"queue lost does not exist\. Create it: holdfast queue create lost"
    ):
        dead.redrive(database, [first, second])
    assert one(conn, "SELECT count(*) FROM holdfast.dead_letters") == 2
    queues.create_queue(database, "lost")
    assert dead.redrive(database, [first, second]).ids == sorted([first, second])
    assert row_of(conn, second)["queue"] == "lost"


def test_redrive_all_takes_a_task_or_everything_and_leaves_lost_queues(
    conn: Conn, database: Database
) -> None:
    bury_many(conn, 1200)
    bury_many(conn, 10, task="other")
    bury_many(conn, 7, queue="lost")
    assert dead.count_dead(database) == Count(1217)
    assert dead.count_dead(database, "other") == Count(10)
    assert len(dead.redrive_all(database, "other").ids) == 10
    steps: list[int] = []
    done = dead.redrive_all(database, on_batch=steps.append)
    assert (len(done.ids), done.left, steps[-1]) == (1200, {"lost": 7}, 1200)
    assert len(steps) > 1
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE status = 'pending'") == 1210
    assert dead.redrive_all(database).ids == []


def test_what_dies_during_a_redrive_is_not_taken_again(conn: Conn, database: Database) -> None:
    bury_many(conn, 3)
    later = dead.list_dead(database).dead_letters[0].id
    conn.execute(
        "UPDATE holdfast.dead_letters SET died_at = died_at + interval '1 hour' WHERE id = %s", [later]
    )
    assert len(dead.redrive_all(database).ids) == 2


def test_redrives_at_the_same_time_move_each_job_once(conn: Conn, database: Database) -> None:
    bury_many(conn, 3000)
    with ThreadPoolExecutor(4) as pool:
        moved = [i for done in pool.map(lambda _: dead.redrive_all(database), range(4)) for i in done.ids]
    assert len(moved) == len(set(moved))
    moved += dead.redrive_all(database).ids  # what was locked by one that had passed it
    assert len(set(moved)) == len(moved) == 3000
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 3000


# Plans ------------------------------------------------------------------------------------------------------------


LOOKS: list[tuple[str, tuple[Any, ...]]] = [
    ("queue_load", ("inbox", CAP + 1)),
    ("search_live", (None, 100_000, None, None, None, 50)),
    ("search_live", (UUID(int=2**127), 100_000, "inbox", "rare", ["pending"], 50)),
    ("search_archive", (None, 100_000, None, None, None, 50)),
    ("search_dead", (None, 100_000, None, None, 50)),
    ("search_held", (None, None, None, 50, 100_000)),
    ("list_dead", (None, None, 100_000, None, None, 50)),
    ("show_job", (UUID(int=7),)),
]


def test_no_look_scans_or_sorts_a_table(conn: Conn) -> None:
    load(conn, 3000, priority="n % 3")
    archive_many(conn, 500)
    bury_many(conn, 1000)
    conn.execute("ANALYZE holdfast.work, holdfast.archive, holdfast.dead_letters")
    for name, params in LOOKS:
        with conn.transaction(), psycopg.RawCursor(conn) as cursor:
            run(conn, operate.prefer_indexes())
            cursor.execute(f"EXPLAIN (FORMAT JSON) {query(name)}".encode(), params)
            row: Any = cursor.fetchone()
        for node in _nodes(row[0][0]["Plan"]):
            big = str(node.get("Relation Name", "")).startswith(("inbox", "archive", "dead_letters"))
            assert not (big and node["Node Type"] in ("Seq Scan", "Bitmap Heap Scan")), (name, node)
            # The ids of held jobs are sorted once they are found; nothing else is.
            assert node["Node Type"] != "Sort" or name == "search_held", (name, node)


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", ()) for node in _nodes(child))]


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
