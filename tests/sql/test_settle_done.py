"""The quick way to settle: one guarded DELETE for a batch of plain completions, and what it leaves to the usual way."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.conftest import within
from tests.sql.support import (
    Conn,
    end,
    enqueue,
    later,
    load,
    one,
    put,
    register,
    run,
    status,
    sweep_all,
    take,
    take_one,
    until_blocked,
)

from holdfast.model.breaker import Breaker, Watch
from holdfast.model.job import ClaimedJob, NewRow, Owned
from holdfast.model.outcome import NOTHING, Completed, Outcome, Released, Settlement
from holdfast.model.queue import QueueRules
from holdfast.sql import query_in
from holdfast.store import chains, queues
from holdfast.store.settle import is_plain, settle_batch, settle_done
from holdfast.store.settle_last import settle_last
from holdfast.store.statement import REFUSED, Last
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def done(
    conn: Conn, jobs: list[ClaimedJob], worker: str = "w", *, keep: bool | None = None
) -> set[tuple[str, int]]:
    """Id and generation of those that the quick way ended."""
    ended = run(conn, settle_done([Settlement(job, NOTHING, keep=keep) for job in jobs], worker))
    return {(job.id_text, job.generation) for job in jobs} if ended is None else ended


def places(conn: Conn) -> dict[str, int]:
    tables = ("work", "archive", "dead_letters")
    return {name: one(conn, f"SELECT count(*) FROM holdfast.{name}") for name in tables}


# Who may --------------------------------------------------------------------------------------------------------


def test_a_whole_batch_leaves_for_the_archive(conn: Conn, worker: str) -> None:
    enqueue(conn, 300)
    jobs = take(conn, worker, 300)
    assert run(conn, settle_done([Settlement(job, NOTHING) for job in jobs], worker)) is None
    assert places(conn) == {"work": 0, "archive": 300, "dead_letters": 0}


def swept(kit: Kit, conn: Conn, worker: str) -> ClaimedJob:
    old = take_one(conn, worker, lease=30)
    later(kit, 31, conn)
    sweep_all(conn)
    return old


def reclaimed(kit: Kit, conn: Conn, worker: str) -> ClaimedJob:
    old = swept(kit, conn, worker)
    assert take_one(conn, worker).generation == 2
    return old


def older_generation(kit: Kit, conn: Conn, worker: str) -> ClaimedJob:
    """The token is right: only the number tells."""
    old = reclaimed(kit, conn, worker)
    token = one(conn, "SELECT claim_token FROM holdfast.work WHERE id = %s", old.id)
    return old._replace(token_text=str(token))


def other_token(kit: Kit, conn: Conn, worker: str) -> ClaimedJob:
    return take_one(conn, worker)._replace(token_text=str(uuid4()))


def given_back(kit: Kit, conn: Conn, worker: str) -> ClaimedJob:
    """The row keeps generation and token, but nobody runs it."""
    old = take_one(conn, worker)
    assert end(conn, old.grant, Released()) == "pending"
    return old


def finished(kit: Kit, conn: Conn, worker: str) -> ClaimedJob:
    old = take_one(conn, worker)
    assert end(conn, old.grant, Completed("1")) == "completed"
    return old


@pytest.mark.parametrize(("place", "keep"), [(0, None), (1, None), (2, None), (1, False)])
@pytest.mark.parametrize("become", [swept, reclaimed, older_generation, other_token, given_back, finished])
def test_a_stale_owner_settles_nothing_and_the_others_of_its_batch_do(
    kit: Kit, conn: Conn, worker: str, become: Callable[..., ClaimedJob], place: int, keep: bool | None
) -> None:
    enqueue(conn)
    stale = become(kit, conn, worker)
    before = one(conn, "SELECT coalesce(jsonb_agg(to_jsonb(w)), '[]') FROM holdfast.work w")
    kept = places(conn)["archive"]
    conn.execute(
        "UPDATE holdfast.work SET available_at = available_at + interval '1 hour' WHERE status = 'pending'"
    )
    enqueue(conn, 2)
    others = take(conn, worker, 2)
    assert stale.id not in [job.id for job in others]
    conn.execute(
        "UPDATE holdfast.work SET available_at = available_at - interval '1 hour' WHERE status = 'pending'"
    )
    batch = [*others]
    batch.insert(place, stale)
    assert done(conn, batch, worker, keep=keep) == {(job.id_text, job.generation) for job in others}
    assert one(conn, "SELECT coalesce(jsonb_agg(to_jsonb(w)), '[]') FROM holdfast.work w") == before
    assert places(conn)["archive"] == kept + (0 if keep is False else 2)


def test_another_queues_name_settles_nothing(conn: Conn, worker: str) -> None:
    """The table is the queue's own; the name is looked at as well."""
    run(conn, queues.create_queue("mail", rules=QueueRules()))
    enqueue(conn)
    (job,) = take(conn, worker, 1)
    assert done(conn, [job._replace(queue="mail")], worker) == set()
    statement = settle_done([Settlement(job, NOTHING)], worker)
    assert run(conn, replace(statement, params=("mail", *statement.params[1:]))) == set()
    assert status(conn, job.id) == "processing"


def test_one_job_twice_in_a_batch_is_ended_once(conn: Conn, worker: str) -> None:
    enqueue(conn, 2)
    first, second = take(conn, worker, 2)
    assert done(conn, [first, first, second], worker) == {(first.id_text, 1), (second.id_text, 1)}
    assert places(conn) == {"work": 0, "archive": 2, "dead_letters": 0}


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_generations_of_one_job_the_answer_names_the_one_that_ended(
    kit: Kit, conn: Conn, worker: str, turned: bool
) -> None:
    enqueue(conn)
    old = swept(kit, conn, worker)
    now = take_one(conn, worker)
    batch = [now, old] if turned else [old, now]
    assert done(conn, batch, worker) == {(now.id_text, 2)}


# What hangs on a job ----------------------------------------------------------------------------------------------


def test_jobs_with_a_group_or_follow_ups_are_left_to_the_usual_way(conn: Conn, worker: str) -> None:
    (plain,) = enqueue(conn)
    (before,) = put(conn, NewRow("work", "{}", follow_ups=(NewRow("after", "{}"),)))
    run(conn, chains.enqueue_group([NewRow("work", "{}")], [NewRow("last", "{}")], "completed"))
    jobs = take(conn, worker, 10)
    assert len(jobs) == 3
    assert [bool(job.rest) for job in jobs] == [False, True, True]
    assert not is_plain([Settlement(job, NOTHING) for job in jobs])
    assert is_plain([Settlement(jobs[0], NOTHING)])
    guessed_wrong = [job._replace(rest=None) for job in jobs]
    assert done(conn, guessed_wrong, worker) == {(str(plain), 1)}
    assert status(conn, before.id or UUID(int=0)) == "processing"
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE status = 'processing'") == 2

    left = [Settlement(job, NOTHING) for job in guessed_wrong[1:]]
    with conn.transaction(force_rollback=True):
        run(conn, settle_batch(left, worker))
        assert one(conn, "SELECT count(*) FROM holdfast.work WHERE task IN ('after', 'last')") == 2
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE task IN ('after', 'last')") == 0
    run(conn, settle_batch(left, worker))
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE task IN ('after', 'last')") == 2
    assert places(conn)["archive"] == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda job: Settlement(job, Completed("1")),
        lambda job: Settlement(job, Released()),
        lambda job: Settlement(job.grant, NOTHING),
        lambda job: Settlement(job._replace(queue="mail"), NOTHING),
        lambda job: Settlement(job._replace(rest="{}"), NOTHING),
        lambda job: Settlement(job, NOTHING, Watch("work", Breaker())),
    ],
    ids=["result", "outcome", "grant", "queue", "rest", "watch"],
)
def test_one_that_is_not_plain_sends_the_batch_the_usual_way(
    conn: Conn, worker: str, change: Callable[[ClaimedJob], Settlement]
) -> None:
    enqueue(conn, 2)
    first, second = take(conn, worker, 2)
    assert is_plain([Settlement(first, NOTHING), Settlement(second, NOTHING)])
    assert not is_plain([Settlement(first, NOTHING), change(second)])


# The same row, whichever way ---------------------------------------------------------------------------------------

_APART = ("id", "seq", "completed_at")


def kept_rows(conn: Conn) -> list[dict[str, Any]]:
    rows = conn.execute("SELECT to_jsonb(a) FROM holdfast.archive a ORDER BY seq").fetchall()
    return [{k: v for k, v in row[0].items() if k not in _APART} for row in rows]


def test_both_ways_write_the_same_row(conn: Conn, worker: str) -> None:
    load(
        conn,
        2,
        last_error="'ValueError: before'",
        tags="'{a,b}'::text[]",
        metadata="'{\"m\": 1}'::jsonb",
        parent_id="'00000000-0000-7000-8000-000000000001'::uuid",
        partition_key="'k'",
        attempts="2147483647",
        max_attempts="2147483647",
        crashes="2",
        version="3",
        lease_generation="41",
        payload="'{\"n\": [1, null]}'::jsonb",
        cancel_requested_at="holdfast.now()",
        available_at="holdfast.now() - interval '1 hour'",
    )
    first, second = take(conn, worker, 2)
    assert done(conn, [first], worker) == {(first.id_text, 42)}
    assert run(conn, settle_batch([Settlement(second, NOTHING)], worker)) == {}
    assert one(conn, "SELECT max(completed_at) - min(completed_at) < '10s' FROM holdfast.archive") is True
    quick, usual = kept_rows(conn)
    assert quick == usual
    assert quick["attempts"] == 2_147_483_647
    assert (quick["status"], quick["claimed_by"], quick["lease_generation"]) == ("completed", worker, 42)
    empty = {name for name, value in quick.items() if value is None}
    assert empty == {"group_id", "follow_ups", "result"}  # a result of null; the others are for the usual way
    assert one(conn, "SELECT bool_and(result = 'null') FROM holdfast.archive") is True


# A row that somebody holds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
def test_a_row_that_somebody_holds_ends_it_soon_with_nothing_done(
    conn: Conn, connect: Connect, worker: str, plans: str
) -> None:
    enqueue(conn, 20)
    jobs = take(conn, worker, 20)
    conn.execute(f"SET plan_cache_mode = {plans}".encode())
    other = connect()
    other.execute("BEGIN")
    other.execute("SELECT FROM holdfast.work WHERE id = %s FOR SHARE", [jobs[13].id])
    began = time.monotonic()
    with pytest.raises(psycopg.errors.LockNotAvailable):
        done(conn, jobs, worker)
    assert 0.04 < time.monotonic() - began < within(5)
    assert places(conn) == {"work": 20, "archive": 0, "dead_letters": 0}
    other.execute("ROLLBACK")
    assert len(done(conn, jobs, worker)) == 20


@pytest.mark.parametrize(
    "change", ["status = 'pending'", "claim_token = gen_random_uuid()", "lease_generation = 2"]
)
def test_a_row_that_is_let_go_in_time_is_looked_at_again(
    conn: Conn, connect: Connect, worker: str, change: str
) -> None:
    """READ COMMITTED: the DELETE waits, and then sees whose the row is by then."""
    enqueue(conn, 3)
    jobs = take(conn, worker, 3)
    patient = settle_done([Settlement(job, NOTHING) for job in jobs], worker)
    text = patient.text.replace("'50ms'", "'20s'")
    assert text != patient.text
    other, watch = connect(), connect()
    other.execute("BEGIN")
    other.execute(f"UPDATE holdfast.work SET {change} WHERE id = %s".encode(), [jobs[1].id])
    answer: list[Any] = []
    slow = replace(patient, text=text)
    thread = threading.Thread(target=lambda: answer.append(run(conn, slow)))
    thread.start()
    until_blocked(watch, conn)
    other.execute("COMMIT")
    thread.join(100)
    assert answer == [{(jobs[0].id_text, 1), (jobs[2].id_text, 1)}]
    assert one(conn, "SELECT id FROM holdfast.work") == jobs[1].id


@pytest.mark.parametrize("before", ["0", "7s"])
def test_no_limit_of_time_is_left_behind(conn: Conn, connect: Connect, worker: str, before: str) -> None:
    conn.execute(f"SET lock_timeout = '{before}'".encode())
    enqueue(conn, 2)
    jobs = take(conn, worker, 2)
    assert len(done(conn, jobs[:1], worker)) == 1
    assert one(conn, "SHOW lock_timeout") == before
    other = connect()
    other.execute("BEGIN")
    other.execute("SELECT FROM holdfast.work FOR UPDATE")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        done(conn, jobs[1:], worker)
    other.execute("ROLLBACK")
    assert one(conn, "SHOW lock_timeout") == before


# One job, at the end of its handler's transaction -------------------------------------------------------------------


def end_alone(conn: Conn, job: ClaimedJob, worker: str = "w", **other: Any) -> None:
    values = {"id": job.id_text, "generation": job.generation, "token": job.token_text, **other}
    with psycopg.RawCursor(conn) as cursor:
        text = query_in("settle_one", job.queue).encode()
        cursor.execute(text, [job.queue, *values.values(), worker, None, "null"])


def test_the_end_in_a_transaction_writes_the_same_row(conn: Conn, worker: str) -> None:
    load(
        conn,
        2,
        last_error="'ValueError: before'",
        tags="'{a,b}'::text[]",
        metadata="'{\"m\": 1}'::jsonb",
        parent_id="'00000000-0000-7000-8000-000000000001'::uuid",
        partition_key="'k'",
        attempts="2147483647",
        max_attempts="2147483647",
        crashes="2",
        version="3",
        available_at="holdfast.now() - interval '1 hour'",
    )
    first, second = take(conn, worker, 2)
    end_alone(conn, first, worker)
    assert run(conn, settle_batch([Settlement(second, NOTHING)], worker)) == {}
    alone, usual = kept_rows(conn)
    assert alone == usual
    assert one(conn, "SELECT bool_and(result = 'null') FROM holdfast.archive") is True
    assert alone["attempts"] == 2_147_483_647


@pytest.mark.parametrize(
    "other", [{"id": str(uuid4())}, {"generation": 2}, {"token": str(uuid4())}], ids=lambda o: next(iter(o))
)
def test_the_end_in_a_transaction_is_refused_to_whoever_does_not_own_the_job(
    conn: Conn, worker: str, other: dict[str, Any]
) -> None:
    enqueue(conn, 1)
    job = take_one(conn, worker)
    with pytest.raises(psycopg.errors.InvalidTextRepresentation, match=REFUSED):
        end_alone(conn, job, worker, **other)
    assert places(conn) == {"work": 1, "archive": 0, "dead_letters": 0}


@pytest.mark.parametrize(
    "change",
    ["status = 'pending'", "group_id = gen_random_uuid()", "follow_ups = '[]'"],
    ids=["waits", "group", "follow-up"],
)
def test_the_end_in_a_transaction_leaves_what_is_not_plain_to_the_usual_way(
    conn: Conn, worker: str, change: str
) -> None:
    enqueue(conn, 1)
    job = take_one(conn, worker)
    conn.execute(f"UPDATE holdfast.work SET {change}".encode())
    with pytest.raises(psycopg.errors.InvalidTextRepresentation, match=REFUSED):
        end_alone(conn, job, worker)
    assert places(conn) == {"work": 1, "archive": 0, "dead_letters": 0}


def test_which_jobs_end_with_one_statement(conn: Conn, worker: str) -> None:
    load(conn, 1)
    load(conn, 1, metadata="'{\"m\": 1}'::jsonb")
    load(conn, 1, lease_generation="1")
    found = {(job.rest is None, job.generation): job for job in take(conn, worker, 3)}
    plain = found[True, 1]

    def is_one(job: Owned, outcome: Outcome) -> bool:
        return isinstance(settle_last(Settlement(job, outcome), worker), Last)

    assert is_one(plain, Completed("1"))
    assert not is_one(plain, Completed("1", beside=True))
    assert not is_one(plain.grant, Completed("1"))
    assert not is_one(found[False, 1], Completed("1"))
    assert not is_one(found[True, 2], Completed("1"))


def test_the_end_in_a_transaction_waits_for_a_row_that_somebody_holds(
    conn: Conn, connect: Connect, worker: str
) -> None:
    enqueue(conn, 1)
    job = take_one(conn, worker)
    other = connect()
    other.execute("BEGIN")
    other.execute("UPDATE holdfast.work SET cancel_requested_at = holdfast.now()")
    waiting = threading.Thread(target=end_alone, args=(conn, job, worker))
    waiting.start()
    until_blocked(connect(), conn)
    other.execute("COMMIT")
    waiting.join(50)
    assert places(other) == {"work": 0, "archive": 1, "dead_letters": 0}
