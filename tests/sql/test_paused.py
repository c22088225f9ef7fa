"""Pauses in SQL: what a claim leaves alone, what is set aside, what comes back, and that it costs nobody else anything."""

import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import wait_until
from tests.sql.support import Conn, enqueue, load, make_queue, one, register, run, status, take, until_blocked
from tests.sql.test_plans import BATCH, buffers, check, explain, searched

from holdfast.db.executors import drive
from holdfast.errors import ConfigurationError, UnknownQueue
from holdfast.operate.operator import Operator
from holdfast.store import audit, jobs, pause
from holdfast.store.audit import AuditFilter
from holdfast.store.claim import claim, claim_these, find_held, find_suspects
from holdfast.store.statement import Flow
from holdfast.testing import Kit

REASON = "task work is paused"


def these(conn: Conn, worker: str, *ids: Any) -> list[Any]:
    return [j.id for j in run(conn, claim_these("inbox", worker, uuid4(), lease=60, job_ids=list(ids)))]


def reasons(conn: Conn) -> set[str | None]:
    return {row[0] for row in conn.execute("SELECT hold_reason FROM holdfast.work").fetchall()}


def acts(conn: Conn) -> list[tuple[str, dict[str, Any], int]]:
    found, _ = run(conn, audit.list_audit(AuditFilter(), None, 50))
    return [(a.action, a.selection, a.count) for a in reversed(found)]


# Queues ------------------------------------------------------------------------------------------------------------


def test_nothing_is_claimed_from_a_paused_queue(kit: Kit, conn: Conn) -> None:
    worker = register(conn)
    waiting, held = enqueue(conn, 2)
    conn.execute("UPDATE holdfast.work SET status = 'held', hold_reason = 'x' WHERE id = %s", [held])
    (suspect,) = enqueue(conn)
    conn.execute("UPDATE holdfast.work SET suspect = 1 WHERE id = %s", [suspect])
    assert Operator(kit.database, "ann").pause_queue("inbox").changed
    assert take(conn, worker) == []
    assert these(conn, worker, waiting, held, suspect) == []
    assert run(conn, find_held("inbox", [("work", 1)], 10)) == []
    assert run(conn, find_suspects("inbox", 10)) == []
    assert Operator(kit.database, "ann").resume_queue("inbox").changed
    assert [job.id for job in take(conn, worker)] == [waiting]
    assert these(conn, worker, held, suspect) == [held, suspect]


def test_another_queue_goes_on(kit: Kit, conn: Conn) -> None:
    worker = register(conn)
    make_queue(conn, "mail")
    enqueue(conn)
    (mail,) = enqueue(conn, queue="mail")
    Operator(kit.database, "ann").pause_queue("inbox")
    assert take(conn, worker) == []
    assert [job.id for job in take(conn, worker, queue="mail")] == [mail]


def test_pausing_twice_says_since_when_and_by_whom(kit: Kit, conn: Conn) -> None:
    first = Operator(kit.database, "ann").pause_queue("inbox")
    kit.clock.advance(60)
    second = Operator(kit.database, "bob").pause_queue("inbox")
    assert (first.changed, second.changed) == (True, False)
    assert second.pause.at == first.pause.at
    assert second.pause.by == "ann"
    assert second.pause.seconds is not None
    assert second.pause.seconds >= 60
    assert Operator(kit.database, "ann").resume_queue("inbox").changed
    again = Operator(kit.database, "ann").resume_queue("inbox")
    assert (again.changed, again.pause.at, again.pause.by) == (False, None, None)
    assert acts(conn) == [("queue pause", {"queue": "inbox"}, 1), ("queue resume", {"queue": "inbox"}, 1)]


def test_a_queue_that_does_not_exist(kit: Kit, conn: Conn) -> None:
    operator = Operator(kit.database, "ann")
    for act in (operator.pause_queue, operator.resume_queue):
        with pytest.raises(UnknownQueue, match=r"queue 'inbx' does not exist .* Did you mean 'inbox'"):
            act("inbx")
    assert acts(conn) == []


# Tasks -------------------------------------------------------------------------------------------------------------


def test_nothing_of_a_paused_task_is_claimed_and_what_is_due_is_set_aside(kit: Kit, conn: Conn) -> None:
    worker = register(conn)
    due, later = enqueue(conn, 1) + enqueue(conn, 1, delay=3600.0)
    (other,) = enqueue(conn, task="other")
    (low,) = enqueue(conn, priority=-5)
    done = Operator(kit.database, "ann").pause_task("work")
    assert (done.changed, done.moved, done.left) == (True, 2, None)
    assert [status(conn, i) for i in (due, low, later, other)] == ["held", "held", "scheduled", "pending"]
    assert one(conn, "SELECT hold_reason FROM holdfast.work WHERE id = %s", due) == REASON
    assert run(conn, find_held("inbox", [("work", 1)], 10)) == []
    assert these(conn, worker, due, low, later) == []
    assert [job.id for job in take(conn, worker, priorities=(0, -5))] == [other]


def test_a_claim_skips_a_paused_task_before_its_jobs_are_set_aside(conn: Conn) -> None:
    worker = register(conn)
    (waiting,) = enqueue(conn)
    (suspect,) = enqueue(conn)
    conn.execute("UPDATE holdfast.work SET suspect = 1 WHERE id = %s", [suspect])
    run(conn, pause.pause_task("work", "me"))
    (late,) = enqueue(conn)
    assert take(conn, worker) == []
    assert these(conn, worker, waiting, suspect, late) == []
    assert run(conn, find_suspects("inbox", 10)) == []
    assert run(conn, pause.hold_paused("inbox")) == 2
    assert [status(conn, i) for i in (waiting, late, suspect)] == ["held", "held", "pending"]


def test_resume_brings_back_what_the_pause_set_aside_and_nothing_else(kit: Kit, conn: Conn) -> None:
    worker = register(conn)
    make_queue(conn, "mail")
    first, second = enqueue(conn, 2)
    (mail,) = enqueue(conn, queue="mail")
    (other,) = enqueue(conn, task="other")
    Operator(kit.database, "ann").pause_task("work")
    Operator(kit.database, "ann").pause_task("other")
    (unknown,) = enqueue(conn)
    conn.execute(
        "UPDATE holdfast.work SET status = 'held', hold_reason = 'no worker here knows it' WHERE id = %s",
        [unknown],
    )
    done = Operator(kit.database, "ann").resume_task("work")
    assert (done.changed, done.moved, done.pause) == (True, 3, None)
    states = [status(conn, i) for i in (first, second, mail, other, unknown)]
    assert states == ["pending", "pending", "pending", "held", "held"]
    assert [job.id for job in take(conn, worker)] == [first, second]
    again = Operator(kit.database, "ann").resume_task("work")
    assert (again.changed, again.moved) == (False, 0)
    assert acts(conn) == [
        ("task pause", {"task": "work"}, 1),
        ("task pause", {"task": "other"}, 1),
        ("task resume", {"task": "work"}, 1),
    ]


def test_pausing_a_paused_task_keeps_who_and_when(kit: Kit) -> None:
    first = Operator(kit.database, "ann").pause_task("work")
    second = Operator(kit.database, "bob").pause_task("work")
    assert second.changed is False
    assert first.pause
    assert second.pause
    assert (second.pause.paused_at, second.pause.paused_by) == (first.pause.paused_at, "ann")


def test_a_task_name_that_cannot_be(kit: Kit) -> None:
    operator = Operator(kit.database, "ann")
    for act in (operator.pause_task, operator.resume_task):
        with pytest.raises(ConfigurationError, match="a task name must be 1 to 200 letters"):
            act("a b\n")


def test_paused_jobs_may_be_cancelled_and_keep_their_place(kit: Kit, conn: Conn) -> None:
    (job,) = enqueue(conn)
    before = one(conn, "SELECT available_at FROM holdfast.work WHERE id = %s", job)
    Operator(kit.database, "ann").pause_task("work")
    Operator(kit.database, "ann").resume_task("work")
    assert one(conn, "SELECT available_at FROM holdfast.work WHERE id = %s", job) == before
    Operator(kit.database, "ann").pause_task("work")
    assert run(conn, jobs.cancel(job, "inbox"))
    assert status(conn, job) == "cancelled"
    assert Operator(kit.database, "ann").resume_task("work").moved == 0


# Races -------------------------------------------------------------------------------------------------------------


def test_a_resume_waits_for_whoever_sets_jobs_aside_and_then_brings_those_back_too(
    kit: Kit, connect: Callable[[], Conn], conn: Conn
) -> None:
    (job,) = enqueue(conn)
    run(conn, pause.pause_task("work", "me"))
    holder = connect()
    holder.execute("BEGIN")
    assert run(holder, pause.hold_paused("inbox")) == 1
    thread = threading.Thread(target=lambda: Operator(kit.database, "ann").resume_task("work"))
    thread.start()
    try:
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        wait_until(lambda: one(conn, blocked), "the resume waits")
    finally:
        holder.execute("COMMIT")
        thread.join(100)
    assert status(conn, job) == "pending"


def test_nothing_is_set_aside_after_a_resume_committed(connect: Callable[[], Conn], conn: Conn) -> None:
    """The one who sets aside began while the task was paused, and waits for the resume."""
    (job,) = enqueue(conn)
    run(conn, pause.pause_task("work", "me"))
    resumer, holder = connect(), connect()
    resumer.execute("BEGIN")
    assert run(resumer, pause.resume_task("work"))
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(run(holder, pause.hold_paused("inbox"))))
    thread.start()
    try:
        until_blocked(conn, holder)
    finally:
        resumer.execute("COMMIT")
        thread.join(100)
    assert answers == [0]
    assert status(conn, job) == "pending"


def test_a_job_locked_by_a_claim_is_left_to_it(connect: Callable[[], Conn], conn: Conn) -> None:
    worker = register(conn)
    first, second = enqueue(conn, 2)
    claimer = connect()
    claimer.execute("BEGIN")
    (taken,) = take(claimer, worker, 1)
    run(conn, pause.pause_task("work", "me"))
    assert run(conn, pause.hold_paused("inbox")) == 1
    claimer.execute("COMMIT")
    assert [status(conn, i) for i in (first, second)] == ["processing", "held"]
    assert taken.id == first


def test_a_straggler_held_after_the_resume_is_found_by_a_worker_that_knows_it(conn: Conn) -> None:
    worker = register(conn)
    (job,) = enqueue(conn)
    conn.execute("UPDATE holdfast.work SET status = 'held', hold_reason = %s", [REASON])
    assert run(conn, find_held("inbox", [("work", 1)], 10)) == [job]
    assert these(conn, worker, job) == [job]


def test_a_task_paused_again_while_it_is_resumed_stays_set_aside(conn: Conn) -> None:
    enqueue(conn, 3)
    run(conn, pause.pause_task("work", "me"))
    run(conn, pause.hold_paused("inbox"))
    run(conn, pause.resume_task("work"))
    run(conn, pause.pause_task("work", "you"))
    assert run(conn, pause.release_paused("inbox", "work")) == 0
    assert reasons(conn) == {REASON}


def test_a_bad_row_keeps_nobody_from_pausing(kit: Kit, conn: Conn, bad_rows: Callable[[str], None]) -> None:
    enqueue(conn, task="bad")
    bad_rows("bad")
    done = Operator(kit.database, "ann").pause_task("bad")
    assert done.changed
    assert done.left is not None
    assert "this row is bad" in done.left
    assert take(conn, register(conn)) == []


def cost_of(conn: Conn, flow: Flow[int]) -> dict[str, Any]:
    """The plan of the flow's second statement, under what the first one set."""
    with conn.transaction():
        first = next(flow)
        drive(conn, first)
        return explain(conn, flow.send(None))


# Cost --------------------------------------------------------------------------------------------------------------


def test_100_000_paused_jobs_ahead_cost_a_claim_nothing(kit: Kit, conn: Conn) -> None:
    conn.execute("ALTER TABLE holdfast.inbox SET (autovacuum_enabled = off)")
    load(conn, 100)
    worker = register(conn)

    def cost() -> int:
        what = claim("inbox", worker, uuid4(), lease=60, limit=BATCH, marks=[(0, None)])
        return searched(explain(conn, what))

    cost()
    before = cost()
    load(conn, 100_000, task="'slow'", available_at="holdfast.now() - interval '1 day'")
    run(conn, pause.pause_task("slow", "me"))
    assert cost() > 20 * (before + 40)  # not set aside yet: every claim passes all of them
    assert Operator(kit.database, "ann").pause_task("slow").moved == 100_000
    conn.execute("VACUUM holdfast.inbox")  # as autovacuum does after 2,000 dead rows
    assert min(cost() for _ in range(5)) <= before + 40


def test_looking_for_paused_jobs_costs_nothing_while_no_task_is_paused(conn: Conn) -> None:
    load(conn, 20_000)
    assert run(conn, pause.queues_to_hold()) == []
    plan = cost_of(conn, pause.hold_paused("inbox"))
    assert buffers(plan) < 10


def analyzed_when_empty(conn: Conn) -> None:
    conn.execute("ANALYZE holdfast.inbox, holdfast.work")
    load(conn, 20_000)


def analyzed_when_all_was_held(conn: Conn) -> None:
    load(conn, 10_000, status="'held'", hold_reason="'unknown'")
    conn.execute("VACUUM ANALYZE holdfast.inbox")
    conn.execute("UPDATE holdfast.work SET status = 'pending', hold_reason = NULL")
    conn.execute("VACUUM holdfast.inbox")


@pytest.mark.parametrize("shape", [analyzed_when_empty, analyzed_when_all_was_held])
def test_setting_aside_and_putting_back_look_at_a_bounded_front(
    conn: Conn, shape: Callable[[Conn], None]
) -> None:
    conn.execute("ALTER TABLE holdfast.inbox SET (autovacuum_enabled = off)")
    shape(conn)
    load(conn, 5_000, task="'slow'", available_at="holdfast.now() - interval '1 day'")
    run(conn, pause.pause_task("slow", "me"))
    check(cost_of(conn, pause.hold_paused("inbox", BATCH)), "hold_paused")
    run(conn, pause.hold_paused("inbox"))
    run(conn, pause.resume_task("slow"))
    check(cost_of(conn, pause.release_paused("inbox", "slow", BATCH)), "release_paused")


def test_a_front_of_scheduled_or_other_jobs_hides_no_paused_ones(conn: Conn) -> None:
    load(conn, 50, priority="9", available_at="holdfast.now() + interval '1 day'")
    load(conn, 5, task="'slow'")
    run(conn, pause.pause_task("slow", "me"))
    assert run(conn, pause.hold_paused("inbox", 10)) == 5


def test_suspects_at_the_front_hide_no_paused_jobs(conn: Conn) -> None:
    """A claim does not pass them; set aside they would lose their isolation."""
    load(conn, 20, suspect="1", available_at="holdfast.now() - interval '1 day'", task="'slow'")
    load(conn, 5, task="'slow'")
    run(conn, pause.pause_task("slow", "me"))
    assert run(conn, pause.hold_paused("inbox", 10)) == 5
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE suspect > 0 AND status = 'pending'") == 20
