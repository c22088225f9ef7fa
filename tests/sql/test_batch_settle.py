"""A settle of many: each answer is for one job under one claim, and only what is odd is told."""

from uuid import uuid4

import psycopg
import pytest
from tests.sql.support import Conn, enqueue, one, register, run, take

from holdfast.model.job import Grant
from holdfast.model.outcome import Cancelled, Completed, ErrorText, Failed, Outcome, Released, Settlement
from holdfast.store.settle import settle, settle_batch
from holdfast.testing import Kit

pytestmark = pytest.mark.versions
BOOM = ErrorText("E", "boom")


def test_only_what_is_odd_is_told(conn: Conn) -> None:
    enqueue(conn, count=6)
    worker = register(conn)
    jobs = take(conn, worker, 6)
    stranger = Grant("inbox", jobs[3].id, jobs[3].generation, uuid4())
    ends: list[Outcome] = [
        Completed("1"),
        Cancelled("no"),
        Failed(BOOM, 0.0),
        Completed("null"),
        Released(),
        Completed(None),
    ]
    batch = [Settlement(job, end) for job, end in zip(jobs, ends, strict=True)]
    batch[3] = Settlement(stranger, ends[3])
    odd = run(conn, settle_batch(batch, worker))
    assert {place: answer.state for place, answer in odd.items()} == {2: "pending", 3: "lost", 4: "pending"}
    kept = conn.execute("SELECT id, status, result::text, last_error FROM holdfast.archive").fetchall()
    assert {row[0]: row[1:] for row in kept} == {
        jobs[0].id: ("completed", "1", None),
        jobs[1].id: ("cancelled", None, "no"),
        jobs[5].id: ("completed", None, None),
    }


def test_answers_come_in_the_order_of_the_batch(conn: Conn) -> None:
    enqueue(conn, count=40)
    worker = register(conn)
    jobs = list(reversed(take(conn, worker, 40)))
    ends = [Failed(BOOM, 0.0) if n % 3 else Completed("null") for n in range(40)]
    answers = run(conn, settle([Settlement(job, end) for job, end in zip(jobs, ends, strict=True)], worker))
    assert [answer.id for answer in answers] == [job.id for job in jobs]
    assert [answer.state for answer in answers] == ["pending" if n % 3 else "completed" for n in range(40)]


def test_two_generations_of_one_job_in_one_batch(conn: Conn, kit: Kit) -> None:
    """The stale one comes first, in the middle and last: the answer of the other is never taken for its own."""
    enqueue(conn, count=3)
    worker = register(conn)
    jobs = take(conn, worker, 3)
    stale = [Grant("inbox", job.id, 0, uuid4()) for job in jobs]
    batch = [
        Settlement(stale[0], Completed("null")),
        Settlement(jobs[0], Completed("null")),
        Settlement(jobs[1], Completed("null")),
        Settlement(stale[1], Completed("null")),
        Settlement(stale[2], Failed(BOOM, 0.0)),
        Settlement(jobs[2], Failed(BOOM, 0.0)),
    ]
    answers = run(conn, settle(batch, worker))
    assert [answer.state for answer in answers] == [
        "lost",
        "completed",
        "completed",
        "lost",
        "lost",
        "pending",
    ]


def test_a_row_that_somebody_holds_is_told_as_busy_and_the_others_are_settled(conn: Conn, kit: Kit) -> None:
    enqueue(conn, count=3)
    worker = register(conn)
    jobs = take(conn, worker, 3)
    with kit.connect() as other:
        other.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [jobs[1].id])
        odd = run(conn, settle_batch([Settlement(job, Completed("null")) for job in jobs], worker))
        other.rollback()
    assert {place: answer.state for place, answer in odd.items()} == {1: "busy"}
    assert one(conn, "SELECT count(*) FROM holdfast.archive") == 2


@pytest.mark.parametrize("result", ['"a\\"b\\\\c"', '"{1,2}"', '"NULL"', '"ü\\n"', '{"a": [1, null]}'])
def test_any_result_is_stored_as_it_is(conn: Conn, result: str) -> None:
    enqueue(conn, count=2)
    worker = register(conn)
    batch = [Settlement(job, Completed(result)) for job in take(conn, worker, 2)]
    assert run(conn, settle_batch(batch, worker)) == {}
    same = one(conn, "SELECT bool_and(result = %s::jsonb) FROM holdfast.archive", result)
    assert same is True


def test_a_result_that_is_no_json_settles_nothing(conn: Conn) -> None:
    enqueue(conn, count=2)
    worker = register(conn)
    jobs = take(conn, worker, 2)
    batch = [Settlement(jobs[0], Completed("1")), Settlement(jobs[1], Completed('1, "completed"'))]
    with pytest.raises(psycopg.errors.InvalidTextRepresentation), conn.transaction():
        run(conn, settle_batch(batch, worker))
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE status = 'processing'") == 2
