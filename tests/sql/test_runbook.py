"""The support queries, each on a prepared incident: exactly the rows that a person needs to see."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.conftest import wait_until
from tests.sql.support import (
    BOOM,
    Conn,
    end,
    enqueue,
    later,
    load,
    make_queue,
    one,
    register,
    run,
    sweep_all,
    take,
    take_one,
)
from tests.sql.test_plans import buffers, explain, nodes
from typer.testing import CliRunner

from holdfast.cli import app as cli
from holdfast.cli.refusals import words
from holdfast.db.database import Database
from holdfast.errors import ConfigurationError, DatabaseError, UnknownQueue
from holdfast.model.outcome import DeadLettered, ErrorText, Failed
from holdfast.model.tally import Sums
from holdfast.operate import runbook
from holdfast.operate.doctor.run import CHECKS
from holdfast.operate.doctor.thresholds import Limits
from holdfast.operate.operator import Operator
from holdfast.store import runbook as store
from holdfast.store.renew import heartbeat, renew
from holdfast.store.runbook import QUESTIONS
from holdfast.store.tally import tally
from holdfast.store.workers import leave
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Line = dict[str, Any]


def look(conn: Conn, name: str, queue: str | None = None, limit: int = 50) -> list[Line]:
    return run(conn, store.ask(QUESTIONS[name], queue, limit))


def about(seconds: float) -> Any:
    return pytest.approx(seconds, abs=30)


def of(rows: list[Line], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[c] for c in columns) for row in rows]


@pytest.fixture
def two_workers(conn: Conn, kit: Kit) -> dict[str, Any]:
    """Two workers took jobs; 100 seconds later one still beats and renews, the other was not heard of again."""
    living, dead = register(conn, "one"), register(conn, "two")
    kept = enqueue(conn, 1, partition_key="a")
    mine = take(conn, living)
    left = enqueue(conn, 2, partition_key="b")
    assert len(take(conn, dead)) == 2
    later(kit, 100, conn)
    run(conn, heartbeat(living))
    run(conn, renew(living, [job.grant for job in mine], 60))
    return {"living": living, "dead": dead, "kept": kept, "left": left}


# The views ----------------------------------------------------------------------------------------------------------


def test_an_empty_database_has_nothing_to_show(conn: Conn) -> None:
    for name in QUESTIONS.keys() - {"oldest-due", "storage", "horizon"}:
        assert look(conn, name) == [], name
    assert of(look(conn, "oldest-due"), "queue", "age_seconds", "paused", "due_at", "job_id", "task") == [
        ("inbox", None, False, None, None, None)
    ]
    assert [r for r in look(conn, "horizon") if r["kind"] != "session"] == []


def test_oldest_due_is_the_longest_wait_of_each_queue_over_all_priorities(conn: Conn, kit: Kit) -> None:
    for queue in ("mail", "slow", "empty"):
        make_queue(conn, queue)
    (oldest,) = enqueue(conn, queue="mail", priority=-50, task="letter")
    later(kit, 300, conn)
    enqueue(conn, 3, queue="mail", priority=50)
    enqueue(conn, queue="mail", delay=600.0, priority=90)
    (waits,) = enqueue(conn, queue="slow")
    conn.execute("UPDATE holdfast.queues SET paused_at = holdfast.now() WHERE name = 'slow'")
    worker = register(conn)
    enqueue(conn)
    take(conn, worker)  # running: no longer waiting
    (bad,) = enqueue(conn)
    conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [bad])
    (held,) = enqueue(conn, task="unknown")
    conn.execute("UPDATE holdfast.work SET status = 'held', hold_reason = 'x' WHERE id = %s", [held])
    later(kit, 60, conn)

    rows = look(conn, "oldest-due")
    assert of(rows, "queue", "age_seconds", "paused", "job_id", "task") == [
        ("mail", about(360), False, oldest, "letter"),
        ("slow", about(60), True, waits, "work"),
        ("empty", None, False, None, None),
        ("inbox", None, False, None, None),
    ]
    assert look(conn, "oldest-due", "slow") == [
        {**rows[1], "age_seconds": pytest.approx(rows[1]["age_seconds"], abs=30)}
    ]


def test_expired_claims_are_those_of_the_worker_that_died(conn: Conn, two_workers: dict[str, Any]) -> None:
    (row,) = look(conn, "expired-claims")
    assert sorted(row.pop("job_ids")) == sorted(two_workers["left"])
    assert row == {
        "queue": "inbox",
        "worker": two_workers["dead"],
        "worker_status": "alive",  # nobody has swept yet
        "silent_seconds": about(100),
        "expired_seconds": about(40),
        "revoked_at": None,
        "jobs": 2,
    }
    assert look(conn, "expired-claims", "inbox") != []
    sweep_all(conn, dead_after=60)
    assert look(conn, "expired-claims") == []


def test_a_revoked_claim_shows_until_its_jobs_are_taken_and_settled_ones_do_not(conn: Conn, kit: Kit) -> None:
    worker = register(conn)
    enqueue(conn, 2)
    jobs_ = take(conn, worker)
    end(conn, jobs_[0].grant, Failed(BOOM, 60.0), worker)
    conn.execute("UPDATE holdfast.claims SET revoked_at = holdfast.now()")
    (row,) = look(conn, "expired-claims")
    assert (row["job_ids"], row["jobs"], row["expired_seconds"] < 0) == ([jobs_[1].grant.id], 1, True)
    conn.execute("DELETE FROM holdfast.workers")
    (row,) = look(conn, "expired-claims")
    assert (row["worker"], row["worker_status"], row["silent_seconds"]) == (worker, None, None)
    end(conn, jobs_[1].grant, Failed(BOOM, 60.0), worker)
    assert one(conn, "SELECT count(*) FROM holdfast.claims") == 1  # goes later, and is no symptom
    assert look(conn, "expired-claims") == []


def test_worker_jobs_is_what_each_holds(conn: Conn, two_workers: dict[str, Any]) -> None:
    rows = look(conn, "worker-jobs")
    columns = ("worker", "worker_status", "job_id", "partition_key", "silent_seconds", "held_seconds")
    assert sorted(of(rows, *columns, "lease_left_seconds")) == sorted(
        [
            (two_workers["living"], "alive", two_workers["kept"][0], "a", about(0), about(100), about(60)),
            *[
                (two_workers["dead"], "alive", job, "b", about(100), about(100), about(-40))
                for job in two_workers["left"]
            ],
        ],
        key=lambda row: row[:3],
    )
    assert {(r["queue"], r["task"], r["attempts"]) for r in rows} == {("inbox", "work", 0)}
    conn.execute("DELETE FROM holdfast.workers WHERE id = %s", [two_workers["dead"]])
    assert {r["worker_status"] for r in look(conn, "worker-jobs") if r["worker"] == two_workers["dead"]} == {
        None
    }


def test_stranded_jobs_are_those_that_no_claim_holds(conn: Conn, two_workers: dict[str, Any]) -> None:
    assert look(conn, "stranded-jobs") == []
    conn.execute("DELETE FROM holdfast.claims WHERE worker = %s", [two_workers["dead"]])
    rows = look(conn, "stranded-jobs")
    assert sorted(r["id"] for r in rows) == sorted(two_workers["left"])
    assert {(r["queue"], r["task"]) for r in rows} == {("inbox", "work")}
    conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [two_workers["left"][0]])
    assert [r["id"] for r in look(conn, "stranded-jobs")] == [two_workers["left"][1]]


def test_dead_letters_by_task_and_key_with_the_latest_error(conn: Conn, kit: Kit) -> None:
    worker = register(conn)

    def bury(key: str | None, message: str, task: str = "charge") -> UUID:
        (job,) = enqueue(conn, task=task, partition_key=key)
        later(kit, 10, conn)
        assert (
            end(conn, take_one(conn, worker).grant, DeadLettered(ErrorText("E", message)), worker)
            == "dead_letter"
        )
        return job

    bury("a", "z: the first")
    latest = bury("a", "a: the last")  # not the greatest text
    other = bury("b", "other")
    none = bury(None, "no key", task="mail")
    rows = look(conn, "dead-letters")
    assert of(rows, "queue", "task", "partition_key", "dead", "latest_job_id", "latest_error") == [
        ("inbox", "charge", "a", 2, latest, "E: a: the last"),
        ("inbox", "mail", None, 1, none, "E: no key"),
        ("inbox", "charge", "b", 1, other, "E: other"),
    ]
    assert [(r["last_died_at"] - r["first_died_at"]).total_seconds() for r in rows] == [about(10), 0, 0]
    assert of(look(conn, "dead-letters", limit=1), "partition_key") == [("a",)]


def test_attempts_of_live_jobs_and_what_crashed(conn: Conn, kit: Kit) -> None:
    worker, victim = register(conn), register(conn, "dies")
    (alone,) = enqueue(conn, task="boom")
    assert [job.grant.id for job in take(conn, victim)] == [alone]
    enqueue(conn, 3, max_attempts=2, task="charge")
    first, second, third = take(conn, worker)
    for job in (first, second):
        end(conn, job.grant, Failed(BOOM, 500.0), worker)
    end(conn, third.grant, Failed(BOOM, 0.0), worker)
    take(conn, worker, lease=600)  # the third again
    enqueue(conn, 4, task="charge")  # have not failed
    later(kit, 100, conn)
    run(conn, heartbeat(worker))
    sweep_all(conn, dead_after=50)

    rows = look(conn, "attempts")
    columns = ("queue", "task", "attempts", "max_attempts", "jobs", "processing", "suspects", "most_crashes")
    assert of(rows, *columns, "latest_error") == [
        ("inbox", "boom", 0, 5, 1, 0, 0, 1, None),  # a first death makes no suspect
        ("inbox", "charge", 1, 2, 3, 1, 0, 0, BOOM.summary),
    ]
    query = "SELECT min(available_at) FROM holdfast.work WHERE attempts > 0 AND status = 'pending'"
    assert rows[1]["next_at"] == one(conn, query)


def test_the_latest_error_of_attempts_is_of_the_last_one_tried(conn: Conn, kit: Kit) -> None:
    worker = register(conn)
    for message in ("z: the first", "a: the last"):
        enqueue(conn)
        end(conn, take_one(conn, worker).grant, Failed(ErrorText("E", message), 500.0), worker)
        later(kit, 5, conn)
    (row,) = look(conn, "attempts")
    assert (row["jobs"], row["latest_error"]) == (2, "E: a: the last")


def test_throughput_by_minute_and_queue(conn: Conn, kit: Kit) -> None:
    run(conn, tally({("inbox", "old"): Sums(completed=1)}))
    later(kit, 3700, conn)
    later(kit, (90 - float(one(conn, "SELECT extract(second FROM holdfast.now())"))) % 60, conn)
    run(
        conn,
        tally(
            {
                ("inbox", "a"): Sums(8, 2, 1, 3, 20.0, 50.0, 5.0, 9.0),
                ("inbox", "b"): Sums(10, 0, 0, 0, 20.0, 50.0, 5.0, 7.0),
            }
        ),
    )
    later(kit, 60, conn)
    run(conn, tally({("mail", "c"): Sums(cancelled=1), ("inbox", "a"): Sums(completed=1)}))
    rows = look(conn, "throughput")
    columns = ("queue", "completed", "failed", "dead", "cancelled", "mean_run", "mean_wait", "max_wait")
    assert of(rows, *columns) == [
        ("inbox", 1, 0, 0, 0, 0.0, 0.0, 0.0),
        ("mail", 0, 0, 0, 1, None, None, 0.0),
        ("inbox", 18, 2, 1, 3, 2.0, 5.0, 9.0),
    ]
    assert (rows[0]["minute"] - rows[2]["minute"]).total_seconds() == 60
    assert of(look(conn, "throughput", "mail"), "queue") == [("mail",)]
    assert (
        one(conn, "SELECT count(*) FROM holdfast.throughput_per_minute") == 4
    )  # the view has the older ones too


def test_lost_workers_are_those_that_vanished_not_those_that_left(conn: Conn, kit: Kit) -> None:
    register(conn, "long gone")
    sweep_all(conn, dead_after=0)
    later(kit, 3700, conn)
    for _ in range(3):
        register(conn, "loops")
    left = register(conn, "leaves")
    run(conn, leave(left))
    lasted = register(conn, "lasted")
    later(kit, 200, conn)
    run(conn, heartbeat(lasted))
    later(kit, 100, conn)
    register(conn, "fine")
    sweep_all(conn, dead_after=50)
    rows = look(conn, "lost-workers")
    assert of(rows, "host", "release", "lost", "mean_life_seconds") == [
        ("loops", "test", 3, 0.0),
        ("lasted", "test", 1, about(200)),
    ]


def test_keys_shows_the_hot_one_the_held_one_and_the_failing_one(conn: Conn, kit: Kit) -> None:
    worker = register(conn)
    (failing,) = enqueue(conn, partition_key="failing")
    end(conn, take_one(conn, worker).grant, Failed(ErrorText("E", "again"), 500.0), worker)
    held = enqueue(conn, 2, partition_key="held", task="unknown")
    conn.execute("UPDATE holdfast.work SET status = 'held', hold_reason = 'x' WHERE task = 'unknown'")
    hot = enqueue(conn, 5, partition_key="hot")
    take(conn, worker, 1)
    enqueue(conn, partition_key="hot", delay=900.0)
    enqueue(conn, 9)  # no key
    rows = look(conn, "keys")
    columns = (
        "partition_key",
        "waiting",
        "due",
        "processing",
        "held",
        "most_attempts",
        "first_job_id",
        "latest_error",
    )
    assert of(rows, *columns) == [
        ("hot", 5, 4, 1, 0, 0, hot[0], None),
        ("held", 0, 0, 0, 2, 0, held[0], None),
        ("failing", 1, 0, 0, 0, 1, failing, "E: again"),
    ]
    oldest = one(
        conn, "SELECT min(available_at) FROM holdfast.work WHERE partition_key = 'hot' AND status = 'pending'"
    )
    assert of(rows, "oldest_due_at") == [(oldest,), (None,), (None,)]


def test_storage_names_every_table_the_largest_first_and_the_days_of_the_archive(conn: Conn) -> None:
    load(conn, 2000)
    day = one(conn, "UPDATE holdfast.archive_slots SET day = '2026-05-01' WHERE slot = 7 RETURNING day")
    conn.execute("VACUUM ANALYZE holdfast.inbox")
    rows = look(conn, "storage", limit=1000)
    assert rows[0]["relation"] == "inbox"
    assert [r["bytes"] for r in rows] == sorted((r["bytes"] for r in rows), reverse=True)
    by_name = {r["relation"]: r for r in rows}
    assert by_name["inbox"]["about_rows"] == 2000
    assert by_name["inbox"]["vacuumed_at"] is not None
    assert {n: r["archive_day"] for n, r in by_name.items() if r["archive_day"]} == {"archive_07": day}
    tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r'"
    assert len(rows) == one(conn, tables)


def test_horizon_names_an_open_transaction_and_a_slot_nobody_reads(
    conn: Conn, connect: Callable[[], Conn]
) -> None:
    holder = connect()
    slot = f"hf_{uuid4().hex[:12]}"
    conn.execute("SELECT pg_create_physical_replication_slot(%s, true)", [slot])
    try:
        holder.execute("SET application_name = 'forgotten'")
        with holder.transaction():
            holder.execute("SELECT pg_current_xact_id()")
            rows = look(conn, "horizon", limit=1000)
    finally:
        conn.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    (session,) = [r for r in rows if r["application"] == "forgotten"]
    assert (session["kind"], session["name"]) == ("session", str(holder.info.backend_pid))
    assert session["state"] == "idle in transaction"
    assert session["seconds"] == about(0)
    assert session["xid_age"] >= 1
    (found,) = [r for r in rows if r["name"] == slot]
    assert (found["kind"], found["state"]) == ("replication slot", "inactive")
    assert found["wal_bytes"] >= 0
    assert not [r for r in look(conn, "horizon", limit=1000) if r["application"] == "forgotten"]


# How they are asked -------------------------------------------------------------------------------------------------


def test_the_printed_sql_is_what_is_asked(conn: Conn, two_workers: dict[str, Any]) -> None:
    assert two_workers
    for question in QUESTIONS.values():
        for queue in (None, "inbox") if question.by_queue else (None,):
            text = runbook.sql_of(question.name, queue=queue, limit=2)
            assert "$" not in text
            assert question.view in text
            cursor = conn.execute(text.encode())
            assert [c.name for c in cursor.description or ()] == list(question.columns)
            # Time goes on, and every transaction of the whole server ages every table.
            steady = [c for c in question.columns if not c.endswith(("seconds", "xid_age"))]

            def same(question=question, queue=queue, text=text, steady=steady) -> bool:  # type: ignore[no-untyped-def]
                found = conn.execute(text.encode())
                printed = [dict(zip(question.columns, row, strict=True)) for row in found]
                return of(printed, *steady) == of(look(conn, question.name, queue, 2), *steady)

            if question.name != "horizon":  # other sessions come and go
                wait_until(same, f"{question.name}: both are the same, while nobody counts rows in between")


def test_what_is_not_by_queue_takes_none() -> None:
    for question in QUESTIONS.values():
        if not question.by_queue:
            with pytest.raises(ConfigurationError) as caught:
                runbook.sql_of(question.name, queue="inbox")
            assert words(caught.value) == f"{question.name} is not about a queue. Leave --queue out"


def test_a_look_cannot_change_anything(conn: Conn) -> None:
    flow = store.ask(QUESTIONS["oldest-due"], None, 1)
    with conn.transaction():
        run(conn, next(flow))
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), conn.transaction():
            conn.execute("DELETE FROM holdfast.work")


def test_a_look_that_takes_too_long_ends_with_a_word(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_TIMEOUT", 0.1)
    with conn.transaction():
        conn.execute("LOCK TABLE holdfast.claims")
        with pytest.raises(DatabaseError, match=r"holdfast\.expired_claims gave no answer within a minute"):
            Operator(database, "ann").ask("expired-claims")


def test_the_looks_that_are_quick_read_no_queue_from_end_to_end(conn: Conn) -> None:
    """Whatever the statistics say: here they are of an empty table."""
    conn.execute("ANALYZE holdfast.inbox")
    load(conn, 20_000, priority="n % 3")
    enqueue(conn, 10, priority=50)
    take(conn, register(conn), priorities=(50,))
    quick = [question for question in QUESTIONS.values() if question.by_index]
    assert {q.name for q in quick} == {"oldest-due", "worker-jobs", "expired-claims"}
    for question in quick:
        flow = store.ask(question, None, 50)
        with conn.transaction():
            run(conn, next(flow))
            plan = explain(conn, flow.send(None))
        scanned = [
            n for n in nodes(plan) if n.get("Relation Name") == "inbox" and n["Node Type"] == "Seq Scan"
        ]
        assert scanned == [], question.name
        assert buffers(plan) < 100, question.name


# Judgement ----------------------------------------------------------------------------------------------------------


def test_nothing_is_wrong_with_an_empty_database(database: Database) -> None:
    for name in QUESTIONS:
        answer = Operator(database, "ann").ask(name)
        assert answer.good, answer
        assert answer.found
        assert answer.expected


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("oldest-due", "waiting for 1 min in inbox"),
        ("worker-jobs", "2 jobs held by a worker that is gone or late with its lease: {dead}"),
        ("expired-claims", "2 jobs in 1 claim, expired for up to 40 s"),
    ],
)
def test_what_is_wrong_is_said(
    conn: Conn, kit: Kit, database: Database, two_workers: dict[str, Any], name: str, found: str
) -> None:
    conn.execute(
        """INSERT INTO holdfast.work (id, queue, task, payload, available_at)
           VALUES (holdfast.uuid7(), 'inbox', 'work', '{}', holdfast.now() - interval '100 s')"""
    )
    answer = Operator(database, "ann").ask(name)
    assert not answer.good
    assert answer.found.replace("41 s", "40 s") == found.format(**two_workers)


def test_what_is_wrong_is_said_of_failures(conn: Conn, kit: Kit, database: Database) -> None:
    worker = register(conn)
    enqueue(conn, 2, partition_key="k", max_attempts=3)
    for _ in range(2):
        for job in take(conn, worker):
            end(conn, job.grant, Failed(BOOM, 0.0), worker)
    assert (
        Operator(database, "ann").ask("attempts").found == "2 jobs of work one failure from the dead letters"
    )
    assert Operator(database, "ann").ask("keys").found == "held or failing again and again: k in inbox"
    (job, _) = take(conn, worker)
    end(conn, job.grant, Failed(BOOM, 0.0), worker)
    assert Operator(database, "ann").ask("dead-letters").found == "1 of work"
    run(conn, tally({("inbox", "work"): Sums(completed=90, failed=10)}))
    assert Operator(database, "ann").ask("throughput").found == "10 of 100 attempts failed"
    conn.execute("DELETE FROM holdfast.claims")
    assert Operator(database, "ann").ask("stranded-jobs").found.startswith("1 job, the first ")
    later(kit, 30, conn)
    sweep_all(conn, dead_after=20)
    assert Operator(database, "ann").ask("lost-workers").found == "1 on host (alive for 0.0 s)"


def test_failures_that_are_few_are_no_symptom(conn: Conn, database: Database) -> None:
    run(conn, tally({("inbox", "work"): Sums(completed=96, failed=4)}))
    assert Operator(database, "ann").ask("throughput").good
    enqueue(conn, partition_key="k")
    end(conn, take_one(conn, register(conn)).grant, Failed(BOOM, 0.0))
    for name in ("attempts", "keys"):
        answer = Operator(database, "ann").ask(name)
        assert (answer.good, len(answer.rows)) == (True, 1)


def test_a_table_full_of_dead_rows_and_a_slot_nobody_reads_are_said() -> None:
    row = {"relation": "inbox", "about_rows": 5, "dead_rows": 100_000, "xid_age": 10}
    limits = Limits()
    assert runbook._storage([row], limits) == "many dead rows in inbox"
    assert runbook._storage([{**row, "dead_rows": 99_999}], limits) is None
    old = {**row, "dead_rows": None, "xid_age": 1_000_000_000}
    assert runbook._storage([old], limits) == "not frozen for too long: inbox"
    session = {
        "kind": "session",
        "name": "12",
        "state": "idle in transaction",
        "seconds": 400.0,
        "xid_age": 2_000_000,
        "wal_bytes": None,
    }
    slot = {
        "kind": "replication slot",
        "name": "old",
        "state": "inactive",
        "seconds": None,
        "xid_age": None,
        "wal_bytes": 2**30,
    }
    assert runbook._horizon([session, slot], limits) == (
        "session 12 open for 6 min, replication slot old inactive and far behind, keeps 1,073,741,824 bytes of WAL"
    )
    assert runbook._horizon([{**session, "seconds": 10.0}, {**slot, "wal_bytes": 5000}], limits) is None


def test_runbook_and_doctor_have_one_opinion(conn: Conn, database: Database) -> None:
    """A due job, dead rows, old rows and a long transaction: both say good under one limit and not good under the other."""
    operator = Operator(database, "ann")
    (job,) = enqueue(conn)
    conn.execute("UPDATE holdfast.work SET available_at = now() - interval '100 s' WHERE id = %s", [job])
    with psycopg.connect(database.dsn) as lunch:
        lunch.execute("UPDATE holdfast.engine SET retention_days = retention_days")
        for name, check, few, many in (
            ("oldest-due", "workers", {"stuck": 50.0}, {"stuck": 500.0}),
            ("storage", "vacuum", {"xid_age": 1.0}, {"xid_age": 2.0**31, "dead_rows": 2.0**31}),
            ("horizon", "horizon", {"horizon": 0.0}, {"horizon": 600.0}),
        ):
            for limits, good in ((Limits(**few), False), (Limits(**many), True)):
                answer = operator.ask(name, limits=limits)
                assert (answer.good, answer.checks) == (good, (check,)), answer
                found = operator.doctor(only=[check], limits=limits)
                late = [
                    finding for finding in found.findings if finding.level != "warning" or check != "workers"
                ]
                assert (not late) == good, (check, limits)  # that nobody works is said at once, as a warning


def test_every_question_names_checks_that_the_doctor_makes(database: Database) -> None:
    known = {check.name for check in CHECKS}
    for name in store.QUESTIONS:
        assert set(runbook._JUDGES[name].checks) <= known


def test_a_queue_that_does_not_exist_is_no_good_news(database: Database) -> None:
    with pytest.raises(
        UnknownQueue, match=r"queue 'inbx' does not exist \(known: inbox\). Did you mean 'inbox'\?"
    ):
        Operator(database, "ann").ask("dead-letters", queue="inbx")


def test_dead_letters_of_a_queue_that_is_no_more_are_shown(conn: Conn, database: Database) -> None:
    make_queue(conn, "old")
    enqueue(conn, queue="old")
    (job,) = take(conn, register(conn), queue="old")
    end(conn, job.grant, DeadLettered(BOOM))
    conn.execute("DELETE FROM holdfast.queues WHERE name = 'old'")
    assert of(Operator(database, "ann").ask("dead-letters", queue="old").rows, "queue", "dead") == [
        ("old", 1)
    ]


# A role that may only look ------------------------------------------------------------------------------------------


@pytest.fixture
def monitor(conn: Conn) -> Iterator[str]:
    """The role that docs/runbook.md makes, under a name of this test's own."""
    text = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")
    (grants,) = re.findall(r"```sql\n(CREATE ROLE .*?)```", text, re.DOTALL)
    role = f"monitor_{uuid4().hex[:12]}"
    conn.execute(grants.replace("holdfast_monitor", role).encode())
    yield role
    conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_the_documented_role_may_look_at_every_view_and_at_nothing_else(conn: Conn, monitor: str) -> None:
    may: list[tuple[str]] = conn.execute(
        """SELECT c.relname::text FROM pg_class c
           WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
             AND has_table_privilege(%s, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')""",
        [monitor],
    ).fetchall()
    views = {question.view.removeprefix("holdfast.") for question in QUESTIONS.values()}
    assert {name for (name,) in may} == views | {"migrations"}
    writes = (
        "SELECT bool_or(has_table_privilege(%s, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')) FROM pg_class c"
    )
    assert not one(
        conn, f"{writes} WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind <> 'i'", monitor
    )


def test_the_documented_role_needs_no_more(
    conn: Conn, kit: Kit, monitor: str, two_workers: dict[str, Any]
) -> None:
    conn.execute(f"REVOKE pg_monitor FROM {monitor}".encode())
    url = make_conninfo(kit.url, options=f"-c role={monitor}")
    with psycopg.connect(url, autocommit=True) as looking:
        for name in QUESTIONS:
            looking.execute(runbook.sql_of(name).encode())
        for text in (
            "SELECT FROM holdfast.jobs",
            "SELECT FROM holdfast.work",
            "SELECT holdfast.enqueue('x')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                looking.execute(text.encode())
    done = CliRunner().invoke(cli, ["runbook", "worker-jobs", "--json", "-d", url])
    assert done.exit_code == 0, done.output
    held = {row["job_id"] for row in json.loads(done.stdout)["rows"]}
    assert held == {str(job) for job in two_workers["kept"] + two_workers["left"]}
    done = CliRunner().invoke(cli, ["runbook", "keys", "--queue", "nowhere", "-d", url])
    assert isinstance(done.exception, UnknownQueue)
