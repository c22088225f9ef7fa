"""What due jobs wait for: a pause, an open breaker, a limit. Made so, found, mended by the printed command, and gone."""

from typing import Any

import psycopg
import pytest
from tests.doctor.case import Case
from tests.sql.support import Conn, enqueue, register, take_one

NOW = ("--limit", "stuck=0")


@pytest.fixture
def conn(case: Case) -> Any:
    with psycopg.connect(case.url, autocommit=True) as conn:
        yield conn


def test_a_paused_queue_that_jobs_wait_for_is_a_warning(case: Case, conn: Conn) -> None:
    enqueue(conn, 3)
    case.run("holdfast queue pause inbox")
    assert case.found("paused_queue") is None  # not for long
    finding = case.cure("paused_queue", *NOW)
    assert (finding["level"], finding["what"]) == ("warning", "1 queue paused while 3 jobs wait behind")
    assert finding["details"][0].endswith(", by tester, 3 jobs due")
    assert finding["fix"] == ["holdfast queue resume inbox"]


def test_a_paused_task_that_jobs_wait_for_is_a_warning(case: Case, conn: Conn) -> None:
    enqueue(conn, 2)
    case.run("holdfast task pause work")
    finding = case.cure("paused_task", *NOW)
    assert (finding["level"], finding["what"]) == ("warning", "1 task paused while 2 jobs wait behind")
    assert finding["fix"] == ["holdfast task resume work"]


def open_breaker(case: Case, conn: Conn) -> None:
    enqueue(conn, 2)
    case.sql(
        "INSERT INTO holdfast.breakers (task, state, opened_at, retry_at, trials, last_error)"
        " VALUES ('work', 'open', now() - interval '10 minutes', now() + interval '330 seconds', 3, 'Boom: away')"
    )
    case.sql(
        "INSERT INTO holdfast.paused_tasks (task, paused_at, by_breaker) VALUES ('work', now() - interval '2 days', true)"
    )
    case.sql("UPDATE holdfast.work SET status = 'held', hold_reason = 'task work is paused'")


def test_open_breaker(case: Case, conn: Conn) -> None:
    open_breaker(case, conn)
    assert case.found("paused_task") is None  # nobody paused it
    finding = case.cure("open_breaker")
    assert finding["level"] == "warning"
    assert finding["what"] == "1 breaker open, 2 jobs wait behind: what the task calls keeps failing"
    assert finding["details"] == [
        "task work for 10 min, 2 jobs behind it, 3 trials failed, the next trial in 5 min: Boom: away"
    ]
    assert finding["fix"] == ["holdfast task resume work"]
    assert finding["otherwise"] == ["holdfast task list"]


def test_a_breaker_that_has_just_opened_may_close_by_itself(case: Case, conn: Conn) -> None:
    open_breaker(case, conn)
    case.sql("UPDATE holdfast.breakers SET opened_at = now() - interval '50 seconds'")
    assert case.found("open_breaker") is None
    case.sql("UPDATE holdfast.breakers SET state = 'closed', opened_at = now() - interval '1 hour'")
    assert case.found("open_breaker") is None


def served(case: Case, conn: Conn, slots: int) -> str:
    worker = register(conn)
    case.sql(f"UPDATE holdfast.workers SET last_seen_at = now() + interval '1 hour', concurrency = {slots}")
    return worker


def test_full_limit(case: Case, conn: Conn) -> None:
    enqueue(conn, 3)
    take_one(conn, served(case, conn, slots=4))
    assert case.found("full_limit", *NOW) is None
    case.run("holdfast queue set inbox --concurrency 1")
    assert case.found("full_limit") is None  # not for long
    finding = case.cure("full_limit", *NOW)
    assert (finding["level"], finding["what"]) == (
        "warning",
        "1 queue held back by a limit while 2 jobs wait",
    )
    assert finding["details"][0].startswith("queue inbox: 2 jobs due, the oldest for ")
    assert finding["details"][0].endswith("; 1 of 1 run, of 4 slots of live workers")
    assert finding["fix"] == ["holdfast queue set inbox --concurrency 2"]


def test_a_limit_is_not_in_the_way_of_workers_that_have_no_slot_for_more(case: Case, conn: Conn) -> None:
    enqueue(conn, 3)
    take_one(conn, served(case, conn, slots=1))
    case.run("holdfast queue set inbox --concurrency 1")
    assert case.found("full_limit", *NOW) is None


def test_a_rate_that_allows_no_start_for_now(case: Case, conn: Conn) -> None:
    case.run("holdfast queue set inbox --rate 1/h")
    enqueue(conn, 2)
    served(case, conn, slots=4)
    assert case.found("full_limit", *NOW) is None  # one may start
    case.sql("UPDATE holdfast.limits SET tokens = 0, refilled_at = now()")
    finding = case.found("full_limit", *NOW)
    assert finding is not None
    assert "; its rate, 1/h, allows the next start in " in finding["details"][0]
    assert finding["fix"] == ["holdfast queue set inbox --rate 2/h"]
    case.run(finding["fix"][0])


def test_deadly_jobs(case: Case, conn: Conn) -> None:
    (job_id,) = enqueue(conn)
    assert case.found("deadly_jobs") is None
    case.sql("UPDATE holdfast.work SET suspect = 1, crashes = 2")
    finding = case.cure("deadly_jobs")
    assert finding["level"] == "warning"
    assert finding["what"] == "1 job in two processes that died: it may be what kills workers"
    assert finding["details"] == [f"{job_id} (work, queue inbox), in 2 processes that died"]
    assert finding["fix"] == [f"holdfast jobs cancel {job_id}"]
