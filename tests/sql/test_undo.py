"""An act is undone by its entry in the audit: a redrive as far as nothing has started, a cancel of what waited, a pause."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.sql.support import BOOM, Conn, end, enqueue, one, register, row_of, run, status, take, take_one

from holdfast.cli.refusals import words
from holdfast.db.database import Database
from holdfast.errors import ConfigurationError
from holdfast.model.job import NewRow
from holdfast.model.outcome import Completed, DeadLettered, Failed
from holdfast.operate.dead import redrive_verb
from holdfast.operate.edit import Changes
from holdfast.operate.job_acts import RETRY, cancel_verb
from holdfast.operate.operations import carry_on
from holdfast.operate.operator import Operator
from holdfast.operate.undo import STARTED, UNPARKED
from holdfast.store.chains import enqueue_group
from holdfast.store.dead import DeadFilter, prune_redriven
from holdfast.store.search import JobFilter


@pytest.fixture
def ann(database: Database) -> Operator:
    return Operator(database, "ann")


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def bury_some(conn: Conn, worker: str, count: int, **options: Any) -> list[UUID]:
    made = enqueue(conn, count, **options)
    for job in take(conn, worker, limit=count):
        end(conn, job.grant, DeadLettered(BOOM), worker)
    return made


def dead(conn: Conn) -> Any:
    return one(conn, "SELECT jsonb_agg(to_jsonb(d) - 'seq' ORDER BY d.id) FROM holdfast.dead_letters d")


def redriven(ann: Operator, wanted: DeadFilter | None = None, rate: float | None = None) -> int:
    verb = redrive_verb(rate)
    done = ann.act_on_all(verb, ann.select_dead(wanted or DeadFilter()))
    assert done.audit is not None
    return done.audit


def refused(ann: Operator, entry: int) -> str:
    with pytest.raises(ConfigurationError) as caught:
        ann.undo(entry)
    return words(caught.value)


@pytest.mark.parametrize("rate", [None, 0.001])
def test_what_has_not_started_is_dead_as_it_was(
    conn: Conn, ann: Operator, worker: str, rate: float | None
) -> None:
    bury_some(conn, worker, 12, tags=("a",), max_attempts=3)
    conn.execute("UPDATE holdfast.dead_letters SET crashes = 2, gives_up_at = now()")
    before = dead(conn)
    entry = redriven(ann, rate=rate)
    assert dead(conn) is None
    done = ann.undo(entry)
    assert (done.count, done.results, done.left) == (12, {"buried_again": 12}, {})
    differs = {"available_at", "claim_token"}  # when it would have run; nobody holds it
    assert [{k: v for k, v in row.items() if k not in differs} for row in dead(conn)] == [
        {k: v for k, v in row.items() if k not in differs} for row in before
    ]
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 0
    line = ann.list_audit(limit=1).entries[0]
    assert (line.action, line.selection, line.count) == (
        "undo",
        {"entry": entry, "undone": "dead redrive"},
        12,
    )
    assert "nothing is left to undo" in refused(ann, entry)
    assert len(ann.list_audit().entries) == 2


def test_what_has_started_stays(conn: Conn, ann: Operator, worker: str) -> None:
    bury_some(conn, worker, 6, max_attempts=9)
    entry = redriven(ann)
    runs, done, failed = (take_one(conn, worker) for _ in range(3))
    end(conn, done.grant, Completed(), worker)
    end(conn, failed.grant, Failed(BOOM, 3600.0), worker)
    undone = ann.undo(entry)
    assert (undone.count, undone.left) == (3, {STARTED: 3})
    states = [status(conn, job.grant.id) for job in (runs, done, failed)]
    assert states == ["processing", "completed", "scheduled"]
    assert "3 started since, or changed" in refused(ann, entry)


def test_only_what_the_act_put_back(conn: Conn, ann: Operator, worker: str) -> None:
    """Another redrive, a retry and new jobs are not touched, nor what an older act put back and a newer one again."""
    first, second, third = bury_some(conn, worker, 3)
    older = ann.act_on(redrive_verb(), [first])
    other = ann.act_on(redrive_verb(), [second])
    ann.act_on(RETRY, [third])
    (fresh,) = enqueue(conn)
    assert older.audit is not None
    assert other.audit is not None
    assert ann.undo(older.audit).count == 1
    again = ann.act_on(redrive_verb(), [first])
    assert "nothing is left to undo" in refused(ann, older.audit)
    assert [status(conn, job) for job in (first, second, third, fresh)] == ["pending"] * 4
    assert again.audit is not None
    assert ann.undo(again.audit).count == ann.undo(other.audit).count == 1
    assert [status(conn, job) for job in (first, second, third)] == ["dead_letter", "dead_letter", "pending"]


def test_what_was_edited_meanwhile_stays_so(conn: Conn, ann: Operator, worker: str) -> None:
    (job_id,) = bury_some(conn, worker, 1)
    entry = redriven(ann)
    ann.edit_job(job_id, Changes({"n": 77}, priority=5))
    ann.undo(entry)
    (row,) = dead(conn)
    assert (row["payload"]["n"], row["priority"]) == (77, 5)


def test_a_key_that_was_parked_for_it_has_gone_on(
    conn: Conn, database: Database, ann: Operator, worker: str
) -> None:
    (job_id,) = bury_some(conn, worker, 1, partition_key="k")
    conn.execute("INSERT INTO holdfast.parked_keys VALUES ('inbox', 'k', %s, now())", [job_id])
    entry = redriven(ann)
    assert f"1 {UNPARKED.text}" in refused(ann, entry)
    assert status(conn, job_id) == "pending"


def test_an_operation_is_undone_when_it_has_ended(conn: Conn, ann: Operator, worker: str) -> None:
    bury_some(conn, worker, 5)
    begun = ann.begin_operation(redrive_verb(), DeadFilter())
    said = refused(ann, begun.audit)
    assert said.endswith(f"still puts them back. Stop it first: holdfast operations stop {begun.id}")
    ann.run(carry_on("w", uuid4(), begun.id))
    assert ann.undo(begun.audit).count == 5
    assert len(dead(conn)) == 5


def test_a_cancel_of_what_waited(conn: Conn, ann: Operator, worker: str) -> None:
    """It waits for what it waited for, with the attempts that it has spent."""
    retried, later = enqueue(conn, 2, max_attempts=9)
    end(conn, take_one(conn, worker).grant, Failed(BOOM, 3600.0), worker)
    ann.edit_job(later, Changes(run_after=timedelta(hours=2)))
    before = {job: row_of(conn, job) for job in (retried, later)}
    done = ann.act_on(cancel_verb("by mistake"), [retried, later])
    assert done.audit is not None
    assert ann.undo(done.audit).results == {"revived": 2}
    for job, was in before.items():
        now = row_of(conn, job)
        for name in ("available_at", "attempts", "last_error", "payload", "priority", "status"):
            assert now[name] == was[name], name
    assert "is not cancelled: it is scheduled" in refused(ann, done.audit)


def test_a_cancel_that_is_not_this_one_stays(conn: Conn, ann: Operator, worker: str) -> None:
    (job_id,) = enqueue(conn)
    first = ann.act_on(cancel_verb(), [job_id])
    assert first.audit is not None
    ann.undo(first.audit)
    ann.act_on(cancel_verb("for good"), [job_id])
    assert "was cancelled again" in refused(ann, first.audit)
    assert status(conn, job_id) == "cancelled"


def cancelled(ann: Operator, *job_ids: UUID) -> int:
    done = ann.act_on(cancel_verb(), job_ids)
    assert done.audit is not None
    return done.audit


def test_a_cancel_of_what_did_not_wait(conn: Conn, ann: Operator, worker: str) -> None:
    """A job that is as good as dead, or that ran, does not come back; nor does one beside it."""
    waits, blocked, bad = enqueue(conn, 3)
    conn.execute(
        "UPDATE holdfast.work SET status = 'blocked', hold_reason = 'x', attempts = 5, crashes = 2 WHERE id = %s",
        [blocked],
    )
    conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [bad])
    entry = cancelled(ann, waits, blocked, bad)
    line = ann.list_audit(limit=1).entries[0]
    assert line.before == {"states": {"pending": 1, "blocked": 1, "quarantined": 1}}
    assert "only jobs that waited come back" in refused(ann, entry)
    assert [status(conn, job) for job in (waits, blocked, bad)] == ["cancelled"] * 3
    (runs,) = enqueue(conn)
    take_one(conn, worker)
    assert "1 processing" in refused(ann, cancelled(ann, runs))
    (late,) = enqueue(conn)
    old = cancelled(ann, late)
    conn.execute("UPDATE holdfast.audit SET before = NULL")
    assert "does not have the states of its jobs" in refused(ann, old)
    assert status(conn, late) == "cancelled"


def test_a_cancel_of_a_suspect(conn: Conn, ann: Operator) -> None:
    """It still runs apart from others, its crashes are known, and what is due when something happens is not due now."""
    apart, plain = enqueue(conn, 2)
    conn.execute("UPDATE holdfast.work SET crashes = 2, suspect = 1, attempts = 1 WHERE id = %s", [apart])
    conn.execute("UPDATE holdfast.work SET crashes = 1, available_at = '9999-12-31Z' WHERE id = %s", [plain])
    before = {job: row_of(conn, job) for job in (apart, plain)}
    ann.undo(cancelled(ann, apart, plain))
    for job, was in before.items():
        now = row_of(conn, job)
        for name in ("crashes", "suspect", "attempts", "available_at", "status"):
            assert now[name] == was[name], name


@pytest.mark.parametrize("wanted", ["finished", "completed"])
def test_a_cancel_that_a_group_counted(conn: Conn, ann: Operator, wanted: str) -> None:
    group, one_, other = run(conn, enqueue_group([NewRow("work", "{}")] * 2, [], wanted))
    assert one_.id is not None
    assert other.id is not None
    (alone,) = enqueue(conn)
    entry = cancelled(ann, one_.id, alone)
    if wanted == "completed":  # it is waited for still
        assert ann.undo(entry).count == 2
        assert row_of(conn, one_.id)["group_id"] == str(group.id)
        return
    said = refused(ann, entry)
    assert said == f"nothing was undone: the group of job {one_.id} has counted its cancel, or is over"
    assert [status(conn, job) for job in (one_.id, alone)] == ["cancelled"] * 2
    cancelled(ann, other.id)
    conn.execute("DELETE FROM holdfast.groups")
    assert "has counted its cancel, or is over" in refused(ann, entry)


def test_a_pause_and_what_has_no_undo(conn: Conn, ann: Operator) -> None:
    ann.pause_queue("inbox")
    ann.pause_task("work")
    task, queue = (line.id for line in ann.list_audit().entries)
    assert ann.undo(queue).results == {"resumed": 1}
    assert ann.undo(task).results == {"resumed": 1}
    assert "nothing is left to undo" in refused(ann, queue)
    resumed = ann.list_audit(limit=1).entries[0].id
    assert "is task resume, which has no undo (these have: dead redrive," in refused(ann, resumed)
    assert refused(ann, 10**9).endswith("no longer kept. The list: holdfast audit")


def test_a_cancel_by_filters_is_undone(conn: Conn, ann: Operator) -> None:
    made = enqueue(conn, 3)
    verb = cancel_verb("a slip")
    done = ann.act_on_all(verb, ann.select(verb, JobFilter(task="work")))
    assert (done.count, done.audit is not None) == (3, True)
    (line,) = ann.list_audit(target=str(made[1])).entries
    assert (line.selection["ids"], line.selection["task"]) == (sorted(map(str, made), reverse=True), "work")
    assert ann.undo(done.audit or 0).results == {"revived": 3}
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 3


def test_a_cancel_by_filters_in_several_steps_names_no_jobs(
    conn: Conn, ann: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of an act is not undone for the whole of it."""
    monkeypatch.setattr("holdfast.operate.bulk.BATCH", 2)
    enqueue(conn, 5)
    verb = cancel_verb()
    done = ann.act_on_all(verb, ann.select(verb, JobFilter(task="work")))
    assert "in several steps" in refused(ann, done.audit or 0)
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 0


@pytest.mark.parametrize("again", ["ann", "bob"])
def test_a_later_pause_stays(conn: Conn, database: Database, ann: Operator, again: str) -> None:
    """Also one by the same person."""
    ann.pause_queue("inbox")
    ann.pause_task("work")
    task, queue = (line.id for line in ann.list_audit().entries)
    ann.resume_queue("inbox")
    ann.resume_task("work")
    other = Operator(database, again)
    other.pause_queue("inbox")
    other.pause_task("work")
    for entry in (queue, task):
        assert refused(ann, entry) == f"entry {entry} is not undone: it was paused again since, by {again}"
    assert one(conn, "SELECT paused_by FROM holdfast.queues WHERE name = 'inbox'") == again
    assert one(conn, "SELECT paused_by FROM holdfast.paused_tasks") == again
    later = ann.list_audit(limit=2).entries
    assert [ann.undo(line.id).count for line in later] == [1, 1]


def test_an_undo_of_a_pause_closes_no_breaker(conn: Conn, ann: Operator) -> None:
    ann.pause_task("work")
    (entry,) = (line.id for line in ann.list_audit().entries)
    conn.execute("INSERT INTO holdfast.breakers (task, state, opened_at) VALUES ('work', 'open', now())")
    conn.execute("INSERT INTO holdfast.paused_tasks VALUES ('work', now(), NULL, true)")
    assert ann.undo(entry).count == 1
    assert one(conn, "SELECT state FROM holdfast.breakers") == "open"
    assert one(conn, "SELECT by_breaker FROM holdfast.paused_tasks")
    assert "nothing is left to undo" in refused(ann, entry)


def test_what_was_put_back_is_forgotten_after_a_day(
    conn: Conn, database: Database, ann: Operator, worker: str
) -> None:
    bury_some(conn, worker, 3)
    entry = redriven(ann)
    oldest = one(conn, "SELECT min(job_id::text) FROM holdfast.redriven")
    conn.execute("UPDATE holdfast.redriven SET at = at - interval '25 hours' WHERE job_id = %s", [oldest])
    assert database.run(lambda: prune_redriven(7, 100)) == 1
    assert ann.undo(entry).count == 2
