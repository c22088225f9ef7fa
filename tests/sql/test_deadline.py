"""A deadline by age: since when a job has been tried, what resets that and what does not, and what people see of it."""

import re
from collections.abc import Callable

import pytest
from tests.sql.keyed import QUEUE, ordered, put_key, take_key
from tests.sql.support import (
    BOOM,
    Conn,
    end,
    enqueue,
    later,
    one,
    put,
    register,
    run,
    status,
    sweep_all,
    take,
    take_one,
)
from typer.testing import CliRunner

from holdfast.cli import app as cli
from holdfast.model.job import NewRow
from holdfast.model.outcome import Cancelled, Failed, Held, Misfit, Outcome, Released, Settlement, Snoozed
from holdfast.store.settle import settle
from holdfast.testing import Kit

HOUR = 3600.0
FAILS = Failed(BOOM, 60.0, HOUR)  # an attempt of a task whose jobs are tried for an hour
FIRST_DUE = "SELECT first_due FROM holdfast.work"


def tried(conn: Conn, outcome: Outcome = FAILS) -> str:
    worker = register(conn)
    return end(conn, take_one(conn, worker).grant, outcome, worker)


def due_now(conn: Conn) -> None:
    """The command line does not know the test's clock."""
    conn.execute("UPDATE holdfast.work SET available_at = holdfast.now()")


def call(kit: Kit, *words: str) -> str:
    result = CliRunner().invoke(cli, [*words, "-d", kit.url])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.versions
def test_an_attempt_that_fails_after_the_deadline_is_the_last(kit: Kit, conn: Conn) -> None:
    (job,) = enqueue(conn, max_attempts=100)
    due = one(conn, "SELECT available_at FROM holdfast.work WHERE id = %s", job)
    for _ in range(3):
        assert tried(conn) == "pending"
        later(kit, HOUR / 4, conn)
    assert one(conn, FIRST_DUE) == due
    later(kit, HOUR / 4, conn)
    assert tried(conn) == "dead_letter"
    row = conn.execute(
        "SELECT attempts, max_attempts, gives_up_at - %s, died_at >= gives_up_at FROM holdfast.dead_letters",
        [due],
    ).fetchone()
    assert row is not None
    assert (row[0], row[1], row[2].total_seconds(), row[3]) == (4, 100, HOUR, True)


def test_it_counts_from_when_a_job_is_due_not_from_when_it_was_enqueued(kit: Kit, conn: Conn) -> None:
    enqueue(conn, delay=10 * HOUR)
    later(kit, 10 * HOUR + 1, conn)
    assert tried(conn) == "pending"
    later(kit, HOUR, conn)
    assert tried(conn) == "dead_letter"


def test_without_a_deadline_age_ends_nothing(kit: Kit, conn: Conn) -> None:
    enqueue(conn)
    for _ in range(3):
        assert tried(conn, Failed(BOOM, 1.0)) == "pending"
        later(kit, 1000 * HOUR, conn)
    assert one(conn, "SELECT gives_up_at FROM holdfast.work") is None


def test_attempts_end_a_job_before_its_deadline(kit: Kit, conn: Conn) -> None:
    enqueue(conn, max_attempts=2)
    assert tried(conn) == "pending"
    later(kit, 61, conn)
    assert tried(conn) == "dead_letter"


def test_the_deadline_of_now_counts(kit: Kit, conn: Conn) -> None:
    """A release that gives a task a longer deadline, or none, is heard by jobs that have failed before."""
    enqueue(conn, max_attempts=100)
    assert tried(conn) == "pending"
    later(kit, 2 * HOUR, conn)
    assert tried(conn, Failed(BOOM, 1.0, 10 * HOUR)) == "pending"
    later(kit, 20 * HOUR, conn)
    assert tried(conn, Failed(BOOM, 1.0)) == "pending"
    assert one(conn, "SELECT gives_up_at FROM holdfast.work") is None
    later(kit, 2, conn)
    assert tried(conn) == "dead_letter"


def test_jobs_of_one_settle_have_a_deadline_each(kit: Kit, conn: Conn) -> None:
    enqueue(conn, 3, max_attempts=100)
    worker = register(conn)
    later(kit, 2 * HOUR, conn)
    worker = register(conn)
    ends = [Failed(BOOM, 1.0, HOUR), Failed(BOOM, 1.0), Failed(BOOM, 1.0, 3 * HOUR)]
    taken = take(conn, worker, 3)
    done = run(conn, settle([Settlement(j.grant, o) for j, o in zip(taken, ends, strict=True)], worker))
    assert [settled.state for settled in done] == ["dead_letter", "pending", "pending"]
    left = conn.execute("SELECT id, extract(epoch FROM gives_up_at - first_due)::int FROM holdfast.work")
    assert dict(left.fetchall()) == {taken[1].id: None, taken[2].id: 3 * HOUR}


# What happens to a job between two attempts ------------------------------------------------------------------------


def nothing(kit: Kit, conn: Conn) -> None: ...


def snoozed(kit: Kit, conn: Conn) -> None:
    assert tried(conn, Snoozed(5.0)) == "pending"
    later(kit, 6, conn)


def released(kit: Kit, conn: Conn) -> None:
    assert tried(conn, Released()) == "pending"


def held(kit: Kit, conn: Conn) -> None:
    assert tried(conn, Held("unknown")) == "held"
    conn.execute("UPDATE holdfast.work SET status = 'pending', hold_reason = NULL")


def misfit(kit: Kit, conn: Conn) -> None:
    assert tried(conn, Misfit("no", "abc")) == "held"
    conn.execute("UPDATE holdfast.work SET status = 'pending', hold_reason = NULL")


def crashed(kit: Kit, conn: Conn) -> None:
    take_one(conn, register(conn), lease=1.0)
    later(kit, 10, conn)
    assert [settled.state for settled in sweep_all(conn, dead_after=5.0)] == ["pending"]


def paused(kit: Kit, conn: Conn) -> None:
    call(kit, "task", "pause", "work")
    later(kit, 5, conn)
    call(kit, "task", "resume", "work")


BETWEEN = [nothing, snoozed, released, held, misfit, crashed, paused]


@pytest.mark.parametrize("between", BETWEEN, ids=lambda function: function.__name__)
def test_nothing_that_happens_to_a_job_resets_its_age(
    kit: Kit, conn: Conn, between: Callable[[Kit, Conn], None]
) -> None:
    """Before its first failure and after it."""
    (job,) = enqueue(conn, max_attempts=100)
    due = one(conn, "SELECT available_at FROM holdfast.work WHERE id = %s", job)
    between(kit, conn)
    later(kit, 60, conn)
    assert tried(conn) == "pending"
    assert one(conn, FIRST_DUE) == due
    later(kit, 61, conn)
    between(kit, conn)
    assert one(conn, FIRST_DUE) == due
    later(kit, HOUR, conn)
    assert tried(conn) == "dead_letter"


def replaced(kit: Kit, conn: Conn) -> None:
    (answer,) = put(conn, NewRow("work", '{"n": 2}', replace_key="k"))
    assert not answer.created


def redriven(kit: Kit, conn: Conn) -> None:
    later(kit, HOUR, conn)
    assert tried(conn) == "dead_letter"
    (job,) = [row[0] for row in conn.execute("SELECT id FROM holdfast.dead_letters")]
    call(kit, "dead", "redrive", str(job))


def brought_back(kit: Kit, conn: Conn) -> None:
    assert tried(conn, Cancelled("no")) == "cancelled"
    (job,) = [row[0] for row in conn.execute("SELECT id FROM holdfast.archive")]
    call(kit, "jobs", "retry", str(job))


@pytest.mark.parametrize("fresh", [replaced, redriven, brought_back], ids=lambda function: function.__name__)
@pytest.mark.parametrize("before", [FAILS, Snoozed(60.0)], ids=["failed", "snoozed"])
def test_a_fresh_set_of_attempts_has_a_fresh_deadline(
    kit: Kit, conn: Conn, fresh: Callable[[Kit, Conn], None], before: Outcome
) -> None:
    put(conn, NewRow("work", '{"n": 1}', max_attempts=100, replace_key="k"))
    assert tried(conn, before) == "pending"
    later(kit, HOUR / 2, conn)
    fresh(kit, conn)
    assert conn.execute("SELECT first_due, gives_up_at, attempts FROM holdfast.work").fetchall() == [
        (None, None, 0)
    ]
    due_now(conn)
    later(kit, HOUR / 2 + 60, conn)
    assert tried(conn) == "pending"
    later(kit, HOUR, conn)
    assert tried(conn) == "dead_letter"


def test_a_key_that_is_blocked_starts_afresh_when_it_is_retried(kit: Kit, conn: Conn) -> None:
    ordered(conn, "block")
    (job,) = put_key(conn, "a", max_attempts=100)
    later(kit, 2 * HOUR, conn)
    (taken,) = take_key(conn, register(conn), "a")
    assert end(conn, taken.grant, FAILS) == "blocked"
    assert re.search(
        r"It failed for good in attempt 1 of 100, which failed after its deadline of 20.+ UTC, and its key waits for it",
        call(kit, "explain", str(job)),
    )
    call(kit, "keys", "release", QUEUE, "a", "--retry")
    assert conn.execute("SELECT first_due, gives_up_at, attempts FROM holdfast.work").fetchall() == [
        (None, None, 0)
    ]
    due_now(conn)
    later(kit, HOUR / 2, conn)
    (taken,) = take_key(conn, register(conn), "a")
    assert end(conn, taken.grant, FAILS) == "pending"


def test_people_see_when_it_gives_up_and_why_it_did(kit: Kit, conn: Conn) -> None:
    (job,) = enqueue(conn, max_attempts=5)
    assert tried(conn) == "pending"
    until = f"{one(conn, 'SELECT gives_up_at FROM holdfast.work'):%Y-%m-%d %H:%M:%S}"
    said = f"failed, and gives up with the first one that fails after {until} UTC: ValueError: boom"
    assert said in " ".join(call(kit, "explain", str(job)).split())
    assert re.search(
        rf"gives up +with the first attempt that fails after {until}", call(kit, "jobs", "show", str(job))
    )
    later(kit, HOUR, conn)
    assert tried(conn) == "dead_letter"
    assert status(conn, job) == "dead_letter"
    said = f"after attempt 2 of 5, which failed after its deadline of {until} UTC: ValueError: boom"
    assert said in " ".join(call(kit, "explain", str(job)).split())
