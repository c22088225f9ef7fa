"""Jobs that are stranded, stuck, set aside, paused or dead: made so, found, mended by the printed command, and gone."""

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.conftest import wait_until
from tests.doctor.case import Case, transaction
from tests.sql.keyed import fail_key, ordered, put_key
from tests.sql.support import BOOM, Conn, end, enqueue, register, run, take, take_one

from holdfast.model.job import NewRow
from holdfast.model.outcome import DeadLettered, Misfit
from holdfast.store import jobs
from holdfast.store.claim import hold_unknown, quarantine
from holdfast.store.doctor import free_stranded
from holdfast.store.holds import hold_keys, mark_trials
from holdfast.store.streams import claim_streams


@pytest.fixture
def conn(case: Case) -> Any:
    with psycopg.connect(case.url, autocommit=True) as conn:
        yield conn


def state(case: Case, job_id: UUID) -> str:
    (row,) = case.sql("SELECT status FROM holdfast.jobs WHERE id = %s", [job_id])
    return str(row["status"])


def test_stranded(case: Case, conn: Conn) -> None:
    ids = enqueue(conn, 3)
    worker = register(conn)
    grants = [job.grant for job in take(conn, worker, 3)]
    conn.execute("DELETE FROM holdfast.claims")
    (kept,) = enqueue(conn)
    take_one(conn, worker)
    finding = case.cure("stranded")
    assert finding["level"] == "error"
    assert finding["what"].startswith("3 jobs processing without a claim")
    rows = case.sql("SELECT id, status, attempts, lease_generation FROM holdfast.work ORDER BY id")
    assert [tuple(r.values()) for r in rows] == [
        *((i, "pending", 0, 1) for i in ids),
        (kept, "processing", 0, 1),
    ]
    (entry,) = case.sql("SELECT actor, action, selection, count FROM holdfast.audit")
    assert (entry["actor"], entry["action"], entry["count"]) == ("tester", "doctor fix", 3)
    assert entry["selection"] == {"fix": "stranded", "queue": "inbox", "ids": [str(i) for i in ids]}
    # The owner that lost its claim finds the door closed.
    assert end(conn, grants[0], DeadLettered(BOOM), worker) == "lost"


def test_a_stranded_job_that_somebody_holds_is_left(case: Case, conn: Conn) -> None:
    ids = enqueue(conn, 2)
    take(conn, register(conn), 2)
    conn.execute("DELETE FROM holdfast.claims")
    with transaction(case.url, f"UPDATE holdfast.work SET attempts = 4 WHERE id = '{ids[0]}'"):
        assert "back to waiting: 1 job of queue inbox" in case.doctor("--fix", "stranded").stdout
        left = case.found("stranded")
        assert left is not None
        assert left["what"] == "1 job processing without a claim: nobody would ever take it back"
    assert [state(case, i) for i in ids] == ["processing", "pending"]


def test_a_job_that_has_a_claim_is_never_freed(case: Case, conn: Conn) -> None:
    """What was seen without a claim a moment ago may have one by now."""
    claimed, waiting = enqueue(conn, 2)
    take_one(conn, register(conn))
    assert run(conn, free_stranded("inbox", [claimed, waiting])) == []
    assert [state(case, i) for i in (claimed, waiting)] == ["processing", "pending"]


def test_unswept_claims(case: Case, conn: Conn) -> None:
    """Nobody is there to sweep: the printed command starts a worker, which does."""
    (job_id,) = enqueue(conn, task="greet")
    worker = register(conn)
    take_one(conn, worker)
    conn.execute("UPDATE holdfast.workers SET last_seen_at = now() - interval '1 hour'")
    conn.execute(
        "UPDATE holdfast.claims SET lease_expires_at = now() - interval '1 hour', claimed_at = now() - interval '1 hour'"
    )
    finding = case.cure("unswept_claims", "-a", "doctor_app:app")
    assert finding["level"] == "error"
    assert finding["what"] == (
        "1 job of 1 claim should have been taken back by a sweep, and no live worker is there to sweep"
    )
    assert finding["fix"] == ["holdfast worker doctor_app:app --queue inbox"]
    assert (
        f"worker {worker} (alive, last heard of 1 h ago, lease over for 1 h), such as {job_id}"
        in finding["details"][0]
    )
    wait_until(lambda: state(case, job_id) != "processing", "the job was taken back")


def test_what_a_sweep_cannot_take_is_held_by_somebody(case: Case, conn: Conn) -> None:
    (job_id,) = enqueue(conn)
    worker = register(conn)
    take_one(conn, worker)
    conn.execute("UPDATE holdfast.workers SET last_seen_at = now() + interval '1 hour'")
    conn.execute("UPDATE holdfast.claims SET lease_expires_at = now() - interval '1 hour'")
    limit = ("--limit", "stuck=0")
    # Both write to the same tables for long, and neither is in the way.
    with (
        transaction(case.url, "SELECT holdfast.enqueue('other')") as other,
        transaction(case.url, "SELECT count(*), pg_current_xact_id() FROM holdfast.work") as reader,
    ):
        held = {
            "the job": f"SELECT FROM holdfast.work WHERE id = '{job_id}' FOR UPDATE",
            "the job, by a change": f"SAVEPOINT s; UPDATE holdfast.work SET priority = 5 WHERE id = '{job_id}'",
            "the claim": "SELECT FROM holdfast.claims FOR UPDATE",
            "the table": "SELECT pg_current_xact_id(); LOCK TABLE holdfast.inbox IN EXCLUSIVE MODE NOWAIT",
        }
        for name, text in held.items():
            if name == "the table":
                other.rollback()
            with transaction(case.url, text) as lunch:
                finding = case.found("unswept_claims", *limit)
                assert finding is not None
                wanted = f"holdfast doctor --fix horizon:{lunch.info.backend_pid}"
                assert finding["fix"] == [f"{wanted} --limit=horizon=0 --limit=stuck=0"], name
                case.run(finding["fix"][0])
                with pytest.raises(psycopg.OperationalError):
                    lunch.execute("SELECT 1")
        finding = case.found("unswept_claims", *limit)
        assert finding is not None
        assert finding["fix"] == ["holdfast doctor --only horizon"]
        reader.execute("SELECT 1")
    (entries,) = case.sql("SELECT count(*) AS n, sum(count) AS ended FROM holdfast.audit")
    assert entries == {"n": 4, "ended": 4}


def test_cancel_ignored(case: Case, conn: Conn, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    case.start("doctor_app:app", "--concurrency", "1")
    rows = [NewRow("deaf", f'{{"path": "{gate}"}}')]
    ((job_id, _, _),) = [(e.id, e.created, e.conflict) for e in run(conn, jobs.enqueue(rows))]
    assert job_id is not None
    wait_until(lambda: state(case, job_id) == "processing", "the job runs")
    run(conn, jobs.cancel(job_id, "inbox"))
    assert case.found("cancel_ignored") is None
    finding = case.cure("cancel_ignored", "--limit", "cancel=0")
    assert finding["level"] == "warning"
    assert finding["fix"][0].startswith("holdfast workers drain ")
    assert f"{job_id} (deaf, queue inbox), running for " in finding["details"][0]
    gate.touch()


def test_long_running(case: Case, conn: Conn) -> None:
    (job_id,) = enqueue(conn)
    worker = register(conn)
    grant = take_one(conn, worker).grant
    conn.execute("UPDATE holdfast.workers SET last_seen_at = now() + interval '1 hour'")
    finding = case.cure("long_running", "--limit", "running=0")
    assert (finding["level"], finding["fix"]) == ("info", [f"holdfast jobs cancel {job_id}"])
    (asked,) = case.sql("SELECT cancel_requested_at IS NOT NULL AS asked FROM holdfast.work")
    assert asked["asked"]
    assert case.found("cancel_ignored", "--limit", "cancel=0") is not None  # unless it obeys
    end(conn, grant, DeadLettered(BOOM), worker)
    assert case.found("cancel_ignored", "--limit", "cancel=0") is None


USUALLY = "INSERT INTO holdfast.throughput (minute, queue, task, completed, run_seconds) VALUES (now(), 'inbox', %s, 10, %s)"
AGED = "UPDATE holdfast.work SET claimed_at = now() - interval '1 hour' WHERE id = %s"


def test_forgotten(case: Case, conn: Conn) -> None:
    case.start("doctor_app:app", "--concurrency", "1")
    case.sql(USUALLY, ["vanish", 5])
    (job_id,) = enqueue(conn, task="vanish")
    wait_until(lambda: state(case, job_id) == "processing", "the job was claimed")
    assert case.found("forgotten") is None  # not for long
    case.sql(AGED, [job_id])
    wait_until(lambda: case.sql("SELECT 1 FROM holdfast.workers WHERE holds = '{}'"), "the worker reports")
    finding = case.cure("forgotten")
    assert finding["level"] == "error"
    assert finding["what"] == (
        "1 job processing for 10 times the usual time, on a live worker that does not run it"
    )
    (worker,) = case.sql("SELECT id FROM holdfast.workers")
    assert finding["fix"] == [f"holdfast workers drain {worker['id']}"]
    assert finding["details"] == [
        f"{job_id} (vanish, queue inbox), claimed 1 h ago by {worker['id']}, usually 0.5 s"
    ]
    case.start("doctor_app:app", "--concurrency", "1")
    again = "SELECT 1 FROM holdfast.work WHERE id = %s AND lease_generation = 2"  # it is taken in no time
    wait_until(lambda: case.sql(again, [job_id]), "the job was given back")


def test_a_job_that_its_worker_runs_is_not_forgotten(case: Case, conn: Conn, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    case.start("doctor_app:app", "--concurrency", "1")
    rows = [NewRow("deaf", f'{{"path": "{gate}"}}')]
    (job_id,) = [e.id for e in run(conn, jobs.enqueue(rows))]
    assert job_id is not None
    wait_until(
        lambda: case.sql("SELECT 1 FROM holdfast.workers WHERE holds = ARRAY[%s::uuid]", [job_id]),
        "the worker reports it",
    )
    case.sql(AGED, [job_id])
    assert case.found("forgotten", "--limit", "usual=0") is None
    gate.touch()
    wait_until(lambda: case.sql("SELECT 1 FROM holdfast.workers WHERE holds = '{}'"), "and that it is done")


def test_a_job_is_forgotten_by_what_is_usual_and_by_workers_that_report(case: Case, conn: Conn) -> None:
    (job_id,) = enqueue(conn)
    take_one(conn, register(conn))
    conn.execute("UPDATE holdfast.workers SET last_seen_at = now() + interval '1 hour'")
    case.sql(AGED, [job_id])
    assert case.found("forgotten") is None  # a release that does not report
    case.sql("UPDATE holdfast.workers SET holds = '{}'")
    assert case.found("forgotten") is not None
    case.sql(USUALLY, ["work", 10 * 600])
    assert case.found("forgotten") is None
    assert case.found("forgotten", "--limit", "usual=5") is not None


def test_quarantined(case: Case, conn: Conn) -> None:
    (job_id,) = enqueue(conn)
    run(conn, quarantine(job_id, "inbox", "claim: bad\x1b[31m row"))
    finding = case.cure("quarantined")
    assert finding["level"] == "error"
    assert finding["what"] == "1 job in quarantine, because it made a claim or a sweep fail"
    assert finding["details"] == [f"{job_id} (work, queue inbox): claim: bad\\x1b[31m row"]
    assert finding["fix"] == [f"holdfast jobs retry {job_id}"]
    run(conn, quarantine(job_id, "inbox", "again"))
    again = case.found("quarantined")
    assert again is not None
    case.run(again["otherwise"][0])
    assert case.found("quarantined") is None


def test_unknown_tasks(case: Case, conn: Conn) -> None:
    enqueue(conn, 2, task="greet", version=1)
    run(conn, hold_unknown("inbox", [("work", 1)], 100))
    finding = case.cure("unknown_tasks", "-a", "doctor_app:app")
    assert finding["level"] == "warning"
    assert finding["details"] == [
        "queue inbox: 2 jobs of greet version 1; live workers that know the task: none"
    ]
    assert finding["fix"] == ["holdfast worker doctor_app:app --queue inbox"]


def test_an_app_that_does_not_know_the_task_is_not_named(case: Case, conn: Conn) -> None:
    enqueue(conn, 1, task="future", version=1)
    run(conn, hold_unknown("inbox", [("work", 1)], 100))
    finding = case.found("unknown_tasks", "-a", "doctor_app:app")
    assert finding is not None
    assert finding["fix"] == ["holdfast worker MODULE:APP --queue inbox"]
    assert finding["otherwise"] == ["holdfast jobs discard --state held --task future --yes"]


def test_unserved_queue(case: Case, conn: Conn) -> None:
    assert case.found("unserved_queue", "--limit", "stuck=0") is None
    case.sql("SELECT holdfast.enqueue('greet', '{\"name\": \"you\"}')")
    soon = case.found("unserved_queue")
    assert soon is not None
    assert soon["level"] == "warning"  # said at once, and no error yet: a deploy may take its time
    finding = case.cure("unserved_queue", "--limit", "stuck=0", "-a", "doctor_app:app")
    assert finding["level"] == "error"
    assert finding["details"][0].startswith("queue inbox: due for ")
    assert finding["fix"] == ["holdfast worker doctor_app:app --queue inbox"]


def test_many_quarantined_jobs_are_named_by_their_state(case: Case, conn: Conn) -> None:
    for job_id in enqueue(conn, 21):
        run(conn, quarantine(job_id, "inbox", "claim: bad"))
    finding = case.found("quarantined")
    assert finding is not None
    assert finding["fix"] == ["holdfast jobs retry --state quarantined --yes"]
    case.run(finding["fix"][0])
    assert case.found("quarantined") is None


def test_unknown_tasks_may_be_thrown_away(case: Case, conn: Conn) -> None:
    enqueue(conn, 2, task="from.the.future", version=3)
    worker = register(conn)
    conn.execute(
        "UPDATE holdfast.workers SET tasks = '{from.the.future}', last_seen_at = now() + interval '1 hour'"
    )
    run(conn, hold_unknown("inbox", [("from.the.future", 1)], 100))
    finding = case.found("unknown_tasks")
    assert finding is not None
    assert finding["details"][0].endswith(f"version 3; live workers that know the task: {worker}")
    assert finding["otherwise"] == ["holdfast jobs discard --state held --task from.the.future --yes"]
    case.run(finding["otherwise"][0])
    assert case.found("unknown_tasks") is None


def test_misfits(case: Case, conn: Conn) -> None:
    worker = register(conn)
    enqueue(conn, 2, task="greet", version=1)
    conn.execute("""UPDATE holdfast.work SET payload = '{"name": "x"}'""")
    for job in take(conn, worker):
        end(conn, job.grant, Misfit("greet has no parameter 'name'", "0a1b"))
    finding = case.cure("misfits", "-a", "doctor_app:app")
    assert finding["fix"] == ["holdfast worker doctor_app:app --queue inbox"]


def test_misfits_may_be_thrown_away(case: Case, conn: Conn) -> None:
    worker = register(conn)
    enqueue(conn, 2, task="greet", version=1)
    for job in take(conn, worker):
        end(conn, job.grant, Misfit("greet has no parameter 'b' (known: a)", "0a1b"))
    assert case.found("unknown_tasks") is None
    finding = case.found("misfits")
    assert finding is not None
    assert finding["level"] == "warning"
    assert finding["what"] == "2 jobs set aside: their payloads do not fit the workers that tried"
    assert finding["details"] == [
        "queue inbox: 2 jobs of greet version 1, refused by 1 signature: greet has no parameter 'b' (known: a)"
    ]
    assert finding["fix"] == ["holdfast worker MODULE:APP --queue inbox"]
    case.run(finding["otherwise"][0])
    assert case.found("misfits") is None


def test_paused_queue(case: Case) -> None:
    case.run("holdfast queue pause inbox")
    assert case.found("paused_queue") is None
    finding = case.cure("paused_queue", "--limit", "paused=0")
    assert (finding["level"], finding["fix"]) == ("info", ["holdfast queue resume inbox"])
    assert finding["details"][0].endswith(", by tester")


def test_paused_task(case: Case) -> None:
    case.run("holdfast task pause work")
    assert case.found("paused_task") is None
    finding = case.cure("paused_task", "--limit", "paused=0")
    assert (finding["level"], finding["fix"]) == ("info", ["holdfast task resume work"])


def test_dead_letters(case: Case, conn: Conn) -> None:
    enqueue(conn, 3, task="charge")
    worker = register(conn)
    for job in take(conn, worker, 3):
        end(conn, job.grant, DeadLettered(BOOM), worker)
    assert case.found("dead_letters") is None
    finding = case.cure("dead_letters", "--limit", "dead=3")
    assert (finding["level"], finding["what"]) == ("warning", "3 dead letters in the last hour")
    assert finding["details"] == ["charge: 3, the last with ValueError: boom"]
    assert finding["fix"] == ["holdfast dead redrive --task charge --newer-than 1h --rate 50/s --yes"]
    assert finding["otherwise"] == ["holdfast dead list"]


def test_archive_overdue(case: Case) -> None:
    case.sql(
        "UPDATE holdfast.archive_slots SET day = current_date - 12 "
        "WHERE slot = holdfast.archive_slot(now() - interval '12 days')"
    )
    finding = case.cure("archive_overdue")
    assert finding["level"] == "warning"
    assert finding["what"] == "1 day of finished jobs kept past the 7 days of retention"
    assert case.sql("SELECT FROM holdfast.archive_slots WHERE day IS NOT NULL") == []


# Keys --------------------------------------------------------------------------------------------------------------


def test_blocked_keys(case: Case, conn: Conn) -> None:
    ordered(conn, "block")
    for key in ("a", "-b"):
        put_key(conn, key, 3)
    first, _ = fail_key(conn, "a"), fail_key(conn, "-b")
    finding = case.cure("blocked_keys")
    assert finding["level"] == "warning"
    assert finding["what"] == ("2 keys blocked by a dead letter: nothing of them runs until somebody decides")
    assert finding["details"][0].startswith("queue orders: key a since ")
    assert finding["details"][0].endswith(f", by {first} (work), 2 jobs behind it: ValueError: boom")
    assert finding["fix"] == ["holdfast keys release --retry -- orders -b a"]
    assert state(case, first) == "pending"
    fail_key(conn, "a")
    assert case.found("unknown_tasks") is None  # not for want of a worker
    again = case.found("blocked_keys")
    assert again is not None
    case.run(again["otherwise"][0])
    assert state(case, first) == "dead_letter"
    assert case.found("blocked_keys") is None


def test_parked_keys(case: Case, conn: Conn) -> None:
    ordered(conn, "park")
    put_key(conn, "a", 2)
    job = fail_key(conn, "a")
    finding = case.cure("parked_keys")
    assert (finding["level"], finding["fix"]) == ("warning", ["holdfast keys release --retry orders a"])
    assert state(case, job) == "pending"


def test_a_trial_that_nobody_decided_on(case: Case, conn: Conn) -> None:
    ordered(conn, "skip")
    put_key(conn, "a", 2)
    run(conn, hold_keys("orders", ["a"], 1, reason="down", trial=True))
    conn.execute("UPDATE holdfast.key_holds SET until = now() - interval '6 minutes'")
    worker = register(conn)
    (job,) = run(conn, claim_streams("orders", worker, uuid4(), lease=60, keys=["a"], run=1, trial=True))
    run(conn, mark_trials("orders", [job], UUID(job.token_text)))
    assert case.found("undecided_trials") is None  # it runs
    end(conn, job.grant, DeadLettered(BOOM), worker)
    conn.execute("UPDATE holdfast.key_holds SET until = now() - interval '4 minutes'")
    assert case.found("undecided_trials") is None  # somebody may be about to decide
    conn.execute("UPDATE holdfast.key_holds SET until = now() - interval '6 minutes'")
    finding = case.cure("undecided_trials")
    assert finding["level"] == "warning"
    assert finding["what"] == (
        "1 key held after a trial that nobody decided on: nothing of it runs until the hold is lifted"
    )
    assert finding["details"][0].endswith(f" (down), tried with {job.id}")
    assert finding["fix"] == ["holdfast keys lift orders a"]


def test_many_parked_keys_are_released_together(case: Case, conn: Conn) -> None:
    ordered(conn, "park")
    for n in range(21):
        put_key(conn, f"k{n}", 2)
        fail_key(conn, f"k{n}")
    finding = case.cure("parked_keys")
    assert finding["fix"] == ["holdfast keys release --retry --all --yes orders"]
    assert finding["otherwise"] == ["holdfast keys release --skip --all --yes orders"]
