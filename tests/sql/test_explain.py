"""`holdfast explain`: one test per reason, each made for real, and the printed command run where there is one to run."""

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from psycopg import sql
from tests.sql.keyed import fail_key, ordered, put_key, take_key
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
from typer.testing import CliRunner, Result

from holdfast import operate
from holdfast.cli import app as cli
from holdfast.cli.advice import Shell
from holdfast.db.database import Database
from holdfast.model.bucket import bucket
from holdfast.model.job import ClaimedJob
from holdfast.model.outcome import Cancelled, Completed, DeadLettered, Failed, Held, Released, Snoozed
from holdfast.model.queue import Rate
from holdfast.model.ring import owners
from holdfast.operate.explain import Explanation
from holdfast.operate.operator import Operator
from holdfast.settings import Settings
from holdfast.store import jobs, workers
from holdfast.store.claim import claim, hold_unknown, quarantine
from holdfast.store.explain import Seen
from holdfast.store.explain import explain as flow
from holdfast.store.key_rules import set_key_rules
from holdfast.store.limits import Allowance, claim_shares, within
from holdfast.store.statement import Flow, Statement
from holdfast.testing import Kit, TestServer


@pytest.fixture
def why(kit: Kit) -> Iterator[Callable[[UUID], "Found"]]:
    """With the timings of production: a worker that a test registers once is live for ten seconds."""
    database = Database(kit.url, Settings(), kit.clock)
    yield lambda job_id: worded(Operator(database, "ann").explain(job_id))
    database.close()


@dataclass(frozen=True)
class Told:
    """A reason, with the commands that the command line prints as advice."""

    code: str
    sentence: str
    advice: list[str]


@dataclass(frozen=True)
class Found(Told):
    state: str | None
    reasons: list[Told]
    facts: dict[str, Any]


def worded(found: Explanation, app: str = "MODULE:APP") -> Found:
    shell = Shell(app)
    reasons = [Told(r.code, r.sentence, shell.lines(r.advice)) for r in found.reasons]
    return Found(found.code, found.sentence, reasons[0].advice, found.state, reasons, found.facts)


def codes(found: Found) -> list[str]:
    return [reason.code for reason in found.reasons]


def call(kit: Kit, *words: str) -> Result:
    result = CliRunner().invoke(cli, [*words, "-d", kit.url])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def obey(kit: Kit, advice: str) -> Result:
    """Run a printed command of ours."""
    program, *words = shlex.split(advice)
    assert program == "holdfast"
    result = call(kit, *words)
    assert result.exit_code == 0, result.output
    return result


Why = Callable[[UUID], Found]


# Nothing to wait for -----------------------------------------------------------------------------------------------


def test_no_such_job(kit: Kit, why: Why) -> None:
    unknown = uuid4()
    assert codes(why(unknown)) == ["no_such_job"]
    result = call(kit, "explain", str(unknown))
    assert result.exit_code == 2
    assert f"There is no job {unknown}" in result.stdout
    assert json.loads(call(kit, "explain", str(unknown), "--json").stdout)["code"] == "no_such_job"
    obey(kit, why(unknown).advice[0])


def test_completed(conn: Conn, why: Why, kit: Kit) -> None:
    (job_id,) = enqueue(conn)
    worker = register(conn)
    end(conn, take_one(conn, worker).grant, Completed('{"cents": 5}'), worker)
    found = why(job_id)
    assert (codes(found), found.state) == (["completed"], "completed")
    assert found.sentence.endswith(f"by worker {worker}.")  # its result may be a secret: jobs show has it
    obey(kit, found.advice[0])


def test_cancelled(conn: Conn, why: Why) -> None:
    waiting, running = enqueue(conn, 2, priority=0)
    run(conn, jobs.cancel(waiting, "inbox", "not needed"))
    assert codes(why(waiting)) == ["cancelled"]
    assert why(waiting).sentence.endswith(": not needed")
    worker = register(conn)
    end(conn, take_one(conn, worker).grant, Cancelled("asked"), worker)
    assert f"by worker {worker}: asked" in why(running).sentence


def test_dead(conn: Conn, why: Why, kit: Kit) -> None:
    (job_id,) = enqueue(conn, max_attempts=3)
    end(conn, take_one(conn, register(conn)).grant, DeadLettered(BOOM))
    found = why(job_id)
    assert (codes(found), found.state) == (["dead"], "dead_letter")
    assert "after attempt 1 of 3: ValueError: boom" in found.sentence
    obey(kit, found.advice[0])
    assert why(job_id).state == "pending"


# The schema --------------------------------------------------------------------------------------------------------


def test_migrations_missing(holdfast_server: TestServer) -> None:
    name = f"bare_{uuid4().hex[:8]}"
    with holdfast_server._admin() as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
    url = holdfast_server.url(name)
    try:
        database = Database(url, Settings())
        found = worded(Operator(database, "ann").explain(uuid4()))
        assert codes(found) == ["migrations_missing"]
        assert "The database has no schema of Holdfast" in found.sentence
        result = CliRunner().invoke(cli, ["explain", str(uuid4()), "-d", url])
        assert (result.exit_code, "next      holdfast migrate up" in result.stdout) == (1, True)
        assert CliRunner().invoke(cli, [*found.advice[0].split()[1:], "-d", url]).exit_code == 0
        assert codes(worded(Operator(database, "ann").explain(uuid4()))) == ["no_such_job"]
        database.close()
    finally:
        holdfast_server.drop(name)


def test_schema_newer(kit: Kit, conn: Conn, why: Why) -> None:
    conn.execute("INSERT INTO holdfast.migrations VALUES (9999, 'from_the_future')")
    found = why(uuid4())
    assert codes(found) == ["schema_newer"]
    assert "The database is at 9999" in found.sentence
    assert call(kit, "explain", str(uuid4())).exit_code == 1
    conn.execute("DELETE FROM holdfast.migrations WHERE number = 9999")
    assert codes(why(uuid4())) == ["no_such_job"]


# Not yet -----------------------------------------------------------------------------------------------------------


def test_scheduled(conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn, delay=3600.0)
    register(conn)
    found = why(job_id)
    assert (codes(found), found.state) == (["scheduled"], "scheduled")
    assert re.search(r"waits until 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC \(in 59 min\)", found.sentence)


def test_suspended(conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    conn.execute("UPDATE holdfast.work SET available_at = '9999-01-01Z' WHERE id = %s", [job_id])
    register(conn)
    found = why(job_id)
    assert codes(found) == ["suspended"]
    assert found.sentence.endswith("is not due until that happens.")


def test_backing_off(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn, max_attempts=5)
    end(conn, take_one(conn, register(conn)).grant, Failed(BOOM, 600.0))
    found = why(job_id)
    assert codes(found) == ["backing_off"]
    assert found.sentence.endswith("after attempt 1 of 5 failed: ValueError: boom")
    obey(kit, found.advice[0])
    assert codes(why(job_id)) == ["nothing_wrong"]


def test_snoozed_is_not_taken_for_backing_off(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    worker = register(conn)
    end(conn, take_one(conn, worker).grant, Failed(BOOM, 1.0))
    later(kit, 2, conn)
    end(conn, take_one(conn, worker).grant, Snoozed(600.0))
    assert codes(why(job_id)) == ["snoozed"]


def test_waits_after_a_redrive_at_a_rate(kit: Kit, conn: Conn, why: Why) -> None:
    """Its last attempt failed, but that is not what it waits for."""
    worker = register(conn)
    enqueue(conn, 2, max_attempts=5)
    for job in take(conn, worker, 2):
        end(conn, job.grant, DeadLettered(BOOM))
    call(kit, "dead", "redrive", "--all", "--yes", "--rate", "1/h")
    (second,) = [
        r[0] for r in conn.execute("SELECT id FROM holdfast.work WHERE available_at > holdfast.now()")
    ]
    found = why(second)
    assert codes(found) == ["waits"]
    assert re.fullmatch(r"It waits until .+ UTC \(in 59 min\)\.", found.sentence)
    obey(kit, found.advice[0])
    assert codes(why(second)) != ["waits"]


@pytest.mark.parametrize("before", ["new", "failed", "ran"])
def test_waits_because_somebody_said_when(kit: Kit, conn: Conn, why: Why, before: str) -> None:
    (job_id,) = enqueue(conn, max_attempts=5)
    worker = register(conn)
    if before != "new":
        end(conn, take_one(conn, worker).grant, Failed(BOOM, 1.0) if before == "failed" else Released())
    call(kit, "jobs", "edit", str(job_id), "--priority", "3")
    assert codes(why(job_id)) == (["backing_off"] if before == "failed" else ["nothing_wrong"])
    call(kit, "jobs", "edit", str(job_id), "--run-after", "2h")
    found = why(job_id)
    assert codes(found) == ["waits"]
    assert "backs off" not in found.sentence
    assert "asked for a pause" not in found.sentence


# Paused ------------------------------------------------------------------------------------------------------------


def test_queue_paused(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    register(conn)
    Operator(kit.database, "alice").pause_queue("inbox")
    found = why(job_id)
    assert codes(found) == ["queue_paused"]
    assert re.fullmatch(r"Queue inbox is paused since .+ UTC by alice\.", found.sentence)
    obey(kit, found.advice[0])
    assert codes(why(job_id)) == ["nothing_wrong"]


def test_task_paused(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    register(conn)
    Operator(kit.database, "bob").pause_task("work")
    found = why(job_id)
    assert (codes(found), found.state) == (["task_paused"], "held")
    assert re.fullmatch(r"Task work is paused since .+ UTC by bob\.", found.sentence)
    obey(kit, found.advice[0])
    assert codes(why(job_id)) == ["nothing_wrong"]


def test_several_reasons_the_decisive_one_first(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn, delay=60.0)
    Operator(kit.database, "ann").pause_queue("inbox")
    Operator(kit.database, "ann").pause_task("work")
    assert codes(why(job_id)) == ["scheduled", "queue_paused", "task_paused", "no_worker"]
    text = call(kit, "explain", str(job_id)).stdout
    first = " ".join(line.split()[0] for line in text.splitlines() if not line.startswith("To "))
    assert first == "job task state why next or also next also next also next"


# Nobody to run it --------------------------------------------------------------------------------------------------


def test_no_worker(kit: Kit, conn: Conn, why: Why) -> None:
    make_queue(conn, "mail")
    (job_id,) = enqueue(conn, queue="mail")
    found = why(job_id)
    assert codes(found) == ["no_worker"]
    assert found.sentence == "No live worker serves queue mail."
    assert found.advice == ["holdfast worker MODULE:APP --queue mail"]
    other = register(conn)
    assert why(job_id).sentence.endswith(f"Live workers of other queues: {other} (inbox).")
    assert worded(Operator(kit.database, "ann").explain(job_id), "shop:app").advice == [
        "holdfast worker shop:app --queue mail"
    ]


def test_a_worker_that_is_late_or_draining_is_no_live_worker(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    late = register(conn)
    later(kit, 30, conn)
    leaving = register(conn)
    run(conn, workers.drain(leaving))
    found = why(job_id)
    assert codes(found) == ["no_worker"]
    assert f"Not heard of: {late} for 30 s. Draining: {leaving}." in found.sentence


def test_held(conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn, task="from.the.future", version=3)
    worker = register(conn)
    assert run(conn, hold_unknown("inbox", [("work", 1)], 100)) == 1
    found = why(job_id)
    assert (codes(found), found.state) == (["held"], "held")
    assert (
        f"It is set aside: no worker here knows from.the.future version 3. "
        f"The live workers of queue inbox: {worker} (release test) knows work." in found.sentence
    )
    assert found.advice == ["holdfast worker MODULE:APP --queue inbox"]


def test_held_decides_and_nothing_that_would_be_refused_is_advised(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn, task="from.the.future", delay=3600.0)
    register(conn)
    conn.execute("UPDATE holdfast.work SET status = 'held', hold_reason = 'no worker here knows it'")
    found = why(job_id)
    assert codes(found) == ["held", "scheduled"]
    advice = [line for reason in found.reasons for line in reason.advice]
    assert not [line for line in advice if line.startswith("holdfast jobs retry")]
    conn.execute("UPDATE holdfast.work SET status = 'pending', hold_reason = NULL")
    assert f"holdfast jobs retry {job_id}" in why(job_id).advice


def test_held_for_its_version(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn, version=7)
    worker = register(conn)
    run(conn, hold_unknown("inbox", [("work", 1)], 100))
    found = why(job_id)
    assert codes(found) == ["held"]
    assert f"These live workers know the task: {worker} (release test)" in found.sentence
    later(kit, 30, conn)
    assert codes(why(job_id)) == ["held", "no_worker"]


def test_unknown_task(conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn, task="other")
    worker = register(conn)
    found = why(job_id)
    assert (codes(found), found.state) == (["unknown_task"], "pending")
    assert f"knows the task other: {worker} (release test) knows work." in found.sentence


def test_quarantined(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    register(conn)
    run(conn, quarantine(job_id, "inbox", "claim: this row is bad"))
    found = why(job_id)
    assert (codes(found), found.state) == (["quarantined"], "quarantined")
    assert found.sentence.endswith("claim: this row is bad")
    obey(kit, found.advice[0])
    assert codes(why(job_id)) == ["nothing_wrong"]


def test_suspect(kit: Kit, conn: Conn, why: Why) -> None:
    ids = enqueue(conn, 5)
    for _ in range(2):
        assert "suspect" not in codes(why(ids[0]))
        take(conn, register(conn), 5)
        later(kit, 100, conn)
        sweep_all(conn, dead_after=10)
    found = why(ids[0])
    assert codes(found) == ["no_worker", "suspect"]
    register(conn)
    found = why(ids[0])
    assert codes(found) == ["suspect"]
    assert "two processes that died or fell silent" in found.sentence


# Its turn ----------------------------------------------------------------------------------------------------------


@pytest.mark.versions
def test_slots_busy(conn: Conn, why: Why) -> None:
    worker = register(conn)
    enqueue(conn, 10)
    assert len(take(conn, worker, 10)) == 10
    enqueue(conn, 3, priority=5, delay=3600.0)  # scheduled: not before it
    enqueue(conn, 2, priority=5)
    first, second = enqueue(conn, 2)
    found = why(second)
    assert codes(found) == ["slots_busy"]
    assert "All 10 slots of the 1 live worker" in found.sentence
    assert "with 3 due jobs of the queue before it" in found.sentence
    assert (why(first).facts["jobs_ahead"], found.facts["jobs_ahead"]) == (2, 3)
    assert (found.facts["slots"], found.facts["free_slots"]) == (10, 0)


def test_slots_busy_when_there_is_one(conn: Conn, why: Why) -> None:
    worker = register(conn)
    conn.execute("UPDATE holdfast.workers SET concurrency = 1")
    enqueue(conn)
    take_one(conn, worker)
    (job_id,) = enqueue(conn)
    assert why(job_id).sentence == (
        "The only slot of the 1 live worker that knows the task is busy, with 0 due jobs of the queue before it."
    )


def test_jobs_ahead(conn: Conn, why: Why) -> None:
    register(conn)
    load(conn, 1500)
    (job_id,) = enqueue(conn)
    found = why(job_id)
    assert codes(found) == ["jobs_ahead"]
    assert found.sentence == "It waits its turn: 1,000+ due jobs of the queue before it, 10 of 10 slots free."
    assert found.facts["jobs_ahead_capped"]


def test_nothing_wrong(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    register(conn)
    found = why(job_id)
    assert codes(found) == ["nothing_wrong"]
    assert "within the poll interval" in found.sentence
    obey(kit, found.advice[0])


def test_affinity_names_the_worker_that_has_the_key(kit: Kit, conn: Conn, why: Why) -> None:
    make_queue(conn, "mail", affinity="key")
    workers = [register(conn) for _ in range(3)]
    conn.execute("UPDATE holdfast.workers SET queues = '{mail}', concurrency = 1")
    for seat, worker in enumerate(workers[:2]):
        conn.execute("INSERT INTO holdfast.seats VALUES ('mail', %s, %s)", [seat, worker])
    (keyless,) = enqueue(conn, queue="mail")
    assert "Its key" not in why(keyless).sentence
    conn.execute("DELETE FROM holdfast.work")
    (job_id,) = enqueue(conn, queue="mail", partition_key="customer:7")
    owner = workers[owners([0, 1])[bucket("customer:7")]]
    found = why(job_id)
    assert codes(found) == ["nothing_wrong"]
    assert (
        f" Its key customer:7 is with worker {owner}, which is expected to take it; any other may once it is due for 5 s, in"
        in found.sentence
    )
    obey(kit, found.advice[-1])
    enqueue(conn, queue="mail", partition_key="customer:8")
    take(conn, owner, 1, queue="mail")
    (job_id,) = enqueue(conn, queue="mail", partition_key="customer:7")
    later(kit, 6, conn)
    conn.execute("UPDATE holdfast.workers SET last_seen_at = holdfast.now()")
    found = why(job_id)
    assert codes(found) == ["owner_busy"]
    assert found.sentence == (
        f"Its key customer:7 is with worker {owner}, which has no free slot (1 jobs, 1 slots). "
        "Any other takes it once it is due for 5 s, from now on."
    )
    obey(kit, found.advice[0])
    conn.execute("UPDATE holdfast.workers SET status = 'draining' WHERE id = %s", [owner])
    other = next(worker for worker in workers[:2] if worker != owner)
    assert f"Its key customer:7 is with worker {other}" in why(job_id).sentence


# Running -----------------------------------------------------------------------------------------------------------


def test_claimed(conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    worker = register(conn)
    take_one(conn, worker)
    found = why(job_id)
    assert (codes(found), found.state) == (["claimed"], "processing")
    assert f"It is running: worker {worker} holds it until " in found.sentence
    assert re.search(r"\(5\d s left\) and was last heard of [\d.]+ s ago", found.sentence)


def test_cancel_requested(conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    take_one(conn, register(conn))
    run(conn, jobs.cancel(job_id, "inbox"))
    assert codes(why(job_id)) == ["cancel_requested", "claimed"]


@pytest.mark.versions
def test_taken_back(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    silent = register(conn)
    take_one(conn, silent, lease=20)
    later(kit, 11, conn)
    found = why(job_id)
    assert codes(found) == ["taken_back", "no_worker"]
    assert (
        f"Worker {silent} holds it and was last heard of 11 s ago; its lease has 8 s left." in found.sentence
    )
    assert found.sentence.endswith("A sweep of any live worker takes it back within 2 s.")
    assert found.advice == ["holdfast workers"]
    later(kit, 19, conn)
    register(conn)
    found = why(job_id)
    assert codes(found) == ["taken_back"]
    assert "its lease ran out 10 s ago. No sweep has taken it back, for 20 s now." in found.sentence
    obey(kit, found.advice[0])
    conn.execute("UPDATE holdfast.engine SET grace_until = holdfast.now() + interval '6 seconds'")
    assert re.search(r"takes it back within [78] s\.", why(job_id).sentence)
    sweep_all(conn, dead_after=10)
    assert why(job_id).state == "pending"


def test_stranded(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    take_one(conn, register(conn))
    conn.execute("DELETE FROM holdfast.claims")
    found = why(job_id)
    assert codes(found) == ["stranded"]
    obey(kit, found.advice[0])
    assert codes(why(job_id)) == ["nothing_wrong"]


# Around it ---------------------------------------------------------------------------------------------------------


def test_what_a_row_says_cannot_drive_the_terminal(kit: Kit, conn: Conn) -> None:
    (job_id,) = enqueue(conn)
    conn.execute(
        "UPDATE holdfast.work SET status = 'held', hold_reason = E'\\x1b[31mred', task = E'$(touch x)\\x07'"
    )
    text = call(kit, "explain", str(job_id)).stdout
    assert "\x1b" not in text
    assert "\x07" not in text
    pause_task_of = "INSERT INTO holdfast.paused_tasks VALUES (E'$(touch x)\\x07', holdfast.now(), NULL)"
    conn.execute(pause_task_of)
    assert "holdfast task resume '$(touch x)" in call(kit, "explain", str(job_id)).stdout


@pytest.mark.versions
def test_everything_is_read_in_one_snapshot(kit: Kit, conn: Conn) -> None:
    (job_id,) = enqueue(conn)
    register(conn)

    def meddled() -> Flow[Seen | None]:
        steps = flow(job_id)
        answer: Any = None
        for number in range(99):
            try:
                statement = steps.send(answer)
            except StopIteration as done:
                return cast("Seen | None", done.value)
            answer = yield statement
            if number == 2:  # the job was read: take everything away behind its back
                conn.execute("DELETE FROM holdfast.workers")
        return None

    seen = kit.database.run(meddled)
    assert seen is not None
    assert len(seen.workers) == 1
    assert one(conn, "SELECT count(*) FROM holdfast.workers") == 0


def test_json(kit: Kit, conn: Conn) -> None:
    (job_id,) = enqueue(conn)
    found = json.loads(call(kit, "explain", str(job_id), "--json").stdout)
    assert list(found) == ["job_id", "state", "code", "sentence", "advice", "reasons", "facts"]
    assert (found["code"], found["state"], found["facts"]["queue"]) == ("no_worker", "pending", "inbox")


def test_breaker_open(kit: Kit, conn: Conn, why: Why) -> None:
    (job_id,) = enqueue(conn)
    register(conn)
    one(conn, "SELECT holdfast.note_breaker('work', false, 1, '{}', '{}', 'E: it is down', 1, 60, 30, 300)")
    found = why(job_id)
    assert codes(found) == ["breaker_open"]
    assert "; next trial at" in found.sentence
    assert found.sentence.endswith(": E: it is down")
    conn.execute("UPDATE holdfast.breakers SET state = 'half_open'")
    assert why(job_id).sentence.endswith("; one job of the task is tried right now: E: it is down")
    obey(kit, found.advice[0])
    assert codes(why(job_id)) == ["nothing_wrong"]


def test_every_reason_has_a_test() -> None:
    source = Path(operate.__path__[0], "explain.py").read_text(encoding="utf-8")
    made = set(re.findall(r'Reason\(\s*"(\w+)"', source)) | {"no_such_job"}
    assert len(made) >= 20
    tests = {
        n.name
        for n in ast.walk(ast.parse(Path(__file__).read_text("utf-8")))
        if isinstance(n, ast.FunctionDef)
    }
    missing = [code for code in made if not any(name.startswith(f"test_{code}") for name in tests)]
    assert missing == []


# Its key ------------------------------------------------------------------------------------------------------------


def test_blocked(kit: Kit, conn: Conn, why: Why) -> None:
    ordered(conn, "block")
    first, _ = put_key(conn, "k", 2)
    fail_key(conn, "k")
    register_for(conn)
    found = why(first)
    assert (codes(found), found.state) == (["blocked"], "blocked")
    assert found.sentence == (
        "It failed for good in attempt 1 of 5, and its key waits for it: ValueError: boom"
    )
    assert found.advice == [f"holdfast jobs retry {first}", "holdfast keys release --skip orders k"]
    obey(kit, found.advice[1])
    assert why(first).code == "dead"


def test_behind_blocked(kit: Kit, conn: Conn, why: Why) -> None:
    ordered(conn, "block")
    first, second, third = put_key(conn, "k", 3)
    fail_key(conn, "k")
    register_for(conn)
    found = why(third)
    assert codes(found) == ["behind_blocked"]
    since = one(conn, "SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') FROM holdfast.errors")
    assert found.sentence == (
        f"It waits behind job {first} of its key k and 1 more of it, which is blocked since {since} UTC: ValueError: boom"
    )
    obey(kit, found.advice[0])
    assert codes(why(second)) == ["behind_key"]


def test_key_parked(kit: Kit, conn: Conn, why: Why) -> None:
    ordered(conn, "park")
    dead, second = put_key(conn, "-k", 2)
    fail_key(conn, "-k")
    register_for(conn)
    found = why(second)
    assert codes(found) == ["key_parked"]
    assert found.sentence.endswith(f", for dead letter {dead}.")
    assert found.advice == [
        "holdfast keys release --retry -- orders -k",
        "holdfast keys release -- orders -k",
    ]
    put_key(conn, "p", 2)
    other = fail_key(conn, "p")
    obey(kit, why(put_key(conn, "p")[0]).advice[1])
    assert (why(other).code, one(conn, "SELECT count(*) FROM holdfast.parked_keys")) == ("dead", 1)


def test_behind_scheduled_and_backing_off(kit: Kit, conn: Conn, why: Why) -> None:
    ordered(conn)
    (head,) = put_key(conn, "k", delay=3600.0)
    (second,) = put_key(conn, "k")
    register_for(conn)
    found = why(second)
    assert codes(found) == ["behind_scheduled"]
    assert re.fullmatch(
        rf"It waits behind job {head} of its key k, which waits until .* UTC \(in (59 min|1 h)\)\.",
        found.sentence,
    )
    obey(kit, found.advice[0])
    assert codes(why(second)) == ["behind_key"]
    fail_key(conn, "k", Failed(BOOM, 600.0))
    assert codes(why(second)) == ["behind_scheduled"]
    assert codes(why(head)) == ["backing_off"]


def test_behind_held_and_quarantined(conn: Conn, why: Why) -> None:
    ordered(conn)
    head, second = put_key(conn, "k", 2)
    fail_key(conn, "k", Held("no worker here knows it"))
    register_for(conn)
    found = why(second)
    assert codes(found) == ["behind_held"]
    assert (
        found.sentence
        == f"It waits behind job {head} of its key k, which is set aside: no worker here knows it"
    )
    assert found.advice == [f"holdfast explain {head}", "holdfast keys show orders k"]
    run(conn, quarantine(head, "orders", "claim: bad"))
    assert why(second).sentence.endswith("which is quarantined: claim: bad")


def test_behind_running(conn: Conn, why: Why) -> None:
    ordered(conn)
    head, second = put_key(conn, "k", 2)
    worker = register_for(conn)
    take_key(conn, worker, "k")
    found = why(second)
    assert codes(found) == ["behind_running"]
    assert found.sentence.startswith(f"It waits behind job {head} of its key k, which runs since ")
    assert found.sentence.endswith(f" on worker {worker}.")
    assert found.facts["stream"]["before"] == 1


def test_behind_key_is_the_reason_only_when_nothing_keeps_the_first_job(conn: Conn, why: Why) -> None:
    ordered(conn)
    head, second = put_key(conn, "k", 2)
    assert codes(why(second)) == ["no_worker"]
    register_for(conn)
    assert codes(why(second)) == ["behind_key"]
    assert codes(why(head)) == ["nothing_wrong"]


def test_a_key_of_a_queue_without_order_keeps_nobody(conn: Conn, why: Why) -> None:
    enqueue(conn, partition_key="k", delay=60.0)
    (second,) = enqueue(conn, partition_key="k")
    register(conn)
    assert codes(why(second)) == ["nothing_wrong"]


def register_for(conn: Conn) -> str:
    worker = register(conn)
    conn.execute("UPDATE holdfast.workers SET queues = '{orders}' WHERE id = %s", [worker])
    return worker


# Limits --------------------------------------------------------------------------------------------------------------


def _claim_within(conn: Conn, queue: str, keys: list[str], want: int = 1) -> int:
    worker = workers_of(conn, queue)

    def take(allowed: Allowance) -> Statement[list[ClaimedJob]]:
        if not keys:
            return claim(queue, worker, uuid4(), lease=60, limit=want, marks=[(0, None)], limited=1)
        shares = [(key, want) for key in keys]
        return claim_shares(queue, worker, uuid4(), lease=60, shares=shares, limit=want, limited=2)

    return len(run(conn, within(queue, keys, take)).jobs)


def workers_of(conn: Conn, queue: str) -> str:
    worker = register(conn)
    conn.execute("UPDATE holdfast.workers SET queues = ARRAY[%s] WHERE id = %s", [queue, worker])
    return worker


@pytest.mark.parametrize(
    ("rules", "keys", "code", "sentence", "advice"),
    [
        (
            {"concurrency": 2},
            [],
            "queue_full",
            r"It waits for the limit of its queue mail: 2 of 2 run\.",
            "holdfast queue set mail --concurrency 4",
        ),
        (
            {"rate": Rate(1, per=60, burst=2)},
            [],
            "queue_rate",
            r"The rate of queue mail, 1/m, allows the next start in \d+ s\.",
            "holdfast queue set mail --rate 2/m",
        ),
        (
            {"key_concurrency": 2},
            ["a"],
            "key_full",
            r"It waits for the limit of its key a: 2 of 2 run\.",
            "holdfast queue set mail --key-concurrency 4",
        ),
        (
            {"key_rate": Rate(1, per=60, burst=2)},
            ["a"],
            "key_rate",
            r"The rate of its key a, 1/m, allows the next start in \d+ s\.",
            "holdfast queue set mail --key-rate 2/m",
        ),
    ],
)
def test_a_limit_that_is_used_up_is_named_with_the_command_that_changes_it(
    kit: Kit,
    conn: Conn,
    why: Callable[[UUID], Found],
    rules: dict[str, Any],
    keys: list[str],
    code: str,
    sentence: str,
    advice: str,
) -> None:
    make_queue(conn, "mail", **rules)
    job = enqueue(conn, 5, queue="mail", partition_key="a")[-1]
    workers_of(conn, "mail")
    assert code not in codes(why(job))
    assert _claim_within(conn, "mail", keys, 2) == 2
    found = why(job)
    assert found.code == code
    assert re.fullmatch(sentence, found.sentence)
    assert found.advice == [advice, "holdfast queue show mail"]
    for line in found.advice:
        assert call(kit, *shlex.split(line)[1:]).exit_code == 0
    assert why(job).facts["limits"]["key"] == "a"


def test_a_key_at_a_number_of_its_own_is_named_with_the_command_that_changes_that(
    kit: Kit, conn: Conn, why: Callable[[UUID], Found]
) -> None:
    make_queue(conn, "mail", key_concurrency=9)
    run(conn, set_key_rules("mail", ["a"], 1))
    job = enqueue(conn, 5, queue="mail", partition_key="a")[-1]
    workers_of(conn, "mail")
    assert _claim_within(conn, "mail", ["a"], 1) == 1
    found = why(job)
    assert (found.code, found.sentence) == ("key_full", "It waits for the limit of its key a: 1 of 1 run.")
    assert found.advice == ["holdfast keys limit --concurrency 2 mail a", "holdfast queue show mail"]
    for line in found.advice:
        assert call(kit, *shlex.split(line)[1:]).exit_code == 0
    assert "key_full" not in codes(why(job))
