"""What an enqueue locks, and in which order: duplicates, large calls, groups."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import psycopg
import pytest
from tests.sql.support import (
    Conn,
    end,
    keyed,
    later,
    make_queue,
    one,
    put,
    register,
    run,
    take,
    until_blocked,
)

from holdfast.db.executors import drive
from holdfast.model.job import Enqueued, NewRow
from holdfast.model.outcome import Completed, Settlement
from holdfast.store import chains
from holdfast.store.settle import settle, settle_in
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]
WAIT = 60


@pytest.fixture
def impatient(connect: Connect) -> Connect:
    """A session in an open transaction that fails where it would wait."""

    def make() -> Conn:
        session = connect()
        session.execute("SET lock_timeout = '3s'")
        session.autocommit = False
        return session

    return make


def open_session(connect: Connect) -> Conn:
    session = connect()
    session.autocommit = False
    return session


# Duplicates ---------------------------------------------------------------------------------------------------------


def test_duplicates_in_opposite_order_neither_wait_nor_deadlock(conn: Conn, impatient: Connect) -> None:
    (a,), (b,) = put(conn, keyed("a")), put(conn, keyed("b"))
    one_, two = impatient(), impatient()
    found = [put(one_, keyed("a")), put(two, keyed("b")), put(one_, keyed("b")), put(two, keyed("a"))]
    assert [answer.id for (answer,) in found] == [a.id, b.id, b.id, a.id]
    assert not any(answer.created for (answer,) in found)


def test_a_duplicate_writes_nothing_and_locks_no_row(conn: Conn, impatient: Connect) -> None:
    rows = [keyed(f"k{n}") for n in range(20)]
    put(conn, *rows)
    session = impatient()
    put(session, *rows)
    assert one(session, "SELECT pg_current_xact_id_if_assigned()") is None


def test_duplicates_of_an_open_enqueue_wait_for_it_and_not_for_each_other(
    conn: Conn, connect: Connect, pool: ThreadPoolExecutor
) -> None:
    first, two, three = (open_session(connect) for _ in range(3))
    (made,) = put(first, keyed("k"))
    waiting = [pool.submit(put, session, keyed("k")) for session in (two, three)]
    until_blocked(conn, two, three)
    first.commit()
    answers = [w.result(WAIT)[0] for w in waiting]  # both transactions are still open
    assert [(a.id, a.created) for a in answers] == [(made.id, False)] * 2


@pytest.mark.parametrize("verdict", ["commit", "rollback"])
def test_an_expired_key_is_taken_over_by_one_and_the_others_get_its_job(
    kit: Kit, conn: Conn, connect: Connect, pool: ThreadPoolExecutor, verdict: str
) -> None:
    (old,) = put(conn, keyed("k", life=60.0))
    later(kit, 120, conn)
    first, two, three = (open_session(connect) for _ in range(3))
    (made,) = put(first, keyed("k"))
    assert made.created
    assert made.id != old.id
    waiting = {pool.submit(put, session, keyed("k")): session for session in (two, three)}
    until_blocked(conn, two, three)
    if verdict == "commit":
        first.commit()
        assert [w.result(WAIT)[0].id for w in waiting] == [made.id] * 2
        return
    first.rollback()
    winner = _done_first(waiting)
    (won,) = winner.result(WAIT)
    assert won.created
    waiting.pop(winner).commit()
    (loser,) = (w.result(WAIT)[0] for w in waiting)
    assert (loser.id, loser.created) == (won.id, False)


def _done_first(waiting: dict["Future[list[Enqueued]]", Conn]) -> "Future[list[Enqueued]]":
    done, _ = wait(waiting, WAIT, FIRST_COMPLETED)
    return done.pop()


def test_an_expired_key_that_somebody_holds_is_waited_for(
    kit: Kit, conn: Conn, connect: Connect, pool: ThreadPoolExecutor
) -> None:
    put(conn, keyed("k", life=60.0))
    later(kit, 120, conn)
    holder, session = open_session(connect), connect()
    holder.execute("SELECT FROM holdfast.idempotency FOR UPDATE")
    waiting = pool.submit(put, session, keyed("k"))
    until_blocked(conn, session)
    holder.rollback()
    assert waiting.result(WAIT)[0].created


def test_a_repeatable_read_duplicate_of_a_committed_key_succeeds(conn: Conn, impatient: Connect) -> None:
    (first,) = put(conn, keyed("k"))
    session, other = impatient(), impatient()
    session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    session.execute("SELECT 1 FROM holdfast.queues")
    put(other, keyed("k"))
    other.commit()
    conn.execute("UPDATE holdfast.idempotency SET expires_at = expires_at + interval '1 hour'")
    (again,) = put(session, keyed("k"))
    assert (again.id, again.created) == (first.id, False)


# Large calls --------------------------------------------------------------------------------------------------------


def many(count: int, name: str = "k") -> list[NewRow]:
    return [NewRow("work", "{}", queue="skip", partition_key=f"{name}{n}") for n in range(count)]


@pytest.fixture
def ordered(conn: Conn) -> None:
    make_queue(conn, "skip", ordering="key", on_dead_letter="skip")


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize("count", [65, 128, 129, 5000])
def test_transactions_without_a_common_key_do_not_deadlock_over_large_calls(
    conn: Conn, impatient: Connect, connect: Connect, pool: ThreadPoolExecutor, count: int
) -> None:
    one_, two = impatient(), open_session(connect)
    put(one_, *many(1, "a"))
    put(two, *many(1, "b"))
    put(one_, *many(count, "x"))  # the other's key is in one of its stripes, and it does not wait for it
    second = pool.submit(put, two, *many(count, "y"))
    one_.commit()
    assert len(second.result(WAIT)) == count
    two.commit()
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 2 * count + 2


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize("count", [65, 5000])
def test_a_large_call_that_waits_for_a_key_holds_up_no_other_key(
    conn: Conn, connect: Connect, impatient: Connect, pool: ThreadPoolExecutor, count: int
) -> None:
    holder, bulk, other = open_session(connect), connect(), impatient()
    (first,) = put(holder, *many(8)[7:])
    waiting = pool.submit(put, bulk, *many(count))
    until_blocked(conn, bulk)
    for n in range(300):  # in every stripe
        put(other, *many(1, f"elsewhere{n}"))
    other.commit()
    holder.commit()
    last = waiting.result(WAIT)[7]
    assert one(conn, "SELECT array_agg(id ORDER BY seq) FROM holdfast.work WHERE partition_key = 'k7'") == [
        first.id,
        last.id,
    ]


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize("count", [1, 128, 129, 5000])
def test_a_call_takes_a_bounded_number_of_locks_and_keeps_its_keys(
    conn: Conn, connect: Connect, count: int
) -> None:
    session, beside = open_session(connect), open_session(connect)
    put(beside, *many(3, "beside"))
    put(session, *many(count))
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
    assert one(conn, query, session.info.backend_pid) <= (257 if count <= 128 else 385)
    conn.execute("SET lock_timeout = '300ms'")
    for n in {0, count // 2, count - 1}:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            put(conn, *many(n + 1)[n:])


@pytest.mark.usefixtures("ordered")
def test_bulks_of_other_keys_do_not_deadlock(conn: Conn, connect: Connect, pool: ThreadPoolExecutor) -> None:
    """The second waits for the stripes of the first, and must not have any that the first wants next."""
    for n in range(3):
        first, second = open_session(connect), connect()
        put(first, *many(140, f"first {n}"))
        waiting = pool.submit(put, second, *many(140, f"second {n}"))
        until_blocked(conn, second)
        assert all(answer.created for answer in put(first, *many(140, f"third {n}")))
        first.commit()
        assert all(answer.created for answer in waiting.result(WAIT))


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize("holds", ["a key", "the queue", "the whole queue"])
def test_locks_of_the_release_before_are_waited_for(
    conn: Conn, connect: Connect, pool: ThreadPoolExecutor, holds: str
) -> None:
    """It locked the queue and then keys, or the whole queue, and knew no stripes."""
    before, session = open_session(connect), connect()
    shared = "" if holds == "the whole queue" else "_shared"
    before.execute(f"SELECT pg_advisory_xact_lock{shared}(7236838, hashtext('skip'))".encode())
    if holds == "a key":
        before.execute(r"SELECT pg_advisory_xact_lock(hashtextextended('skip' || E'\x1f' || 'k7', 7236837))")
    waiting = pool.submit(put, session, *many(1 if holds == "the whole queue" else 300))
    until_blocked(conn, session)
    before.rollback()
    assert all(answer.created for answer in waiting.result(WAIT))


# Groups -------------------------------------------------------------------------------------------------------------


def in_group(conn: Conn, members: int, callback_key: str) -> None:
    callback = NewRow("after", "{}", queue="skip", partition_key=callback_key)
    made = run(conn, chains.enqueue_group([NewRow("work", "{}")] * members, [callback], "completed"))
    assert made[0].created


def open_members(conn: Conn) -> int:
    (group,) = run(conn, chains.list_groups(only_open=False, limit=2))
    return group.open


@pytest.mark.usefixtures("ordered")
def test_key_then_group_and_group_then_key_do_not_deadlock(
    conn: Conn, connect: Connect, pool: ThreadPoolExecutor
) -> None:
    worker = register(conn)
    in_group(conn, 3, "callback")
    first, second, _ = take(conn, worker)
    one_, two = open_session(connect), open_session(connect)
    put(one_, *many(1))
    assert drive(two, settle_in(Settlement(second.grant, Completed()), worker))
    waiting = pool.submit(put, two, *many(1))
    until_blocked(conn, two)
    assert drive(one_, settle_in(Settlement(first.grant, Completed()), worker))
    one_.commit()
    assert waiting.result(WAIT)[0].created
    two.commit()
    assert open_members(conn) == 1
    assert one(conn, "SELECT count(*) FROM holdfast.group_ends") == 0


AFTER = "SELECT array_agg(task ORDER BY seq) FROM holdfast.work WHERE queue = 'skip'"


@pytest.mark.usefixtures("ordered")
def test_a_callback_whose_key_is_held_waits_and_holds_up_nobody(conn: Conn, connect: Connect) -> None:
    worker = register(conn)
    in_group(conn, 1, "k0")
    (job,) = take(conn, worker)
    holder, settler = open_session(connect), connect()
    put(holder, *many(1))
    with settler.transaction():
        assert drive(settler, settle_in(Settlement(job.grant, Completed()), worker))
        before = settler.execute("SHOW lock_timeout").fetchone()
    assert settler.execute("SHOW lock_timeout").fetchone() == before
    fault = "SELECT fault FROM holdfast.groups"
    assert one(conn, fault) == "another transaction holds a key that its callback goes to"
    assert [tuple(row)[1] for row in run(conn, chains.retry_groups(10))] == [
        False
    ]  # and does not wait either
    holder.commit()
    assert [tuple(row)[1] for row in run(conn, chains.retry_groups(10))] == [True]
    assert (open_members(conn), one(conn, AFTER), one(conn, fault)) == (0, ["work", "after"], None)


@pytest.mark.usefixtures("ordered")
def test_a_settle_goes_round_a_group_whose_callback_is_held_up(conn: Conn, connect: Connect) -> None:
    worker = register(conn)
    in_group(conn, 2, "k0")
    put(conn, NewRow("work", "{}"))
    first, last, stranger = take(conn, worker)
    holder = open_session(connect)
    put(holder, *many(1))
    # One that is not the last of its group has nothing to do with the callback.
    assert end(conn, first.grant, Completed()) == "completed"
    both = [Settlement(job.grant, Completed()) for job in (last, stranger)]
    with pytest.raises(chains.GroupBusy) as busy:
        run(conn, settle(both, worker))
    assert busy.value.job_ids == {last.id}
    assert end(conn, stranger.grant, Completed()) == "completed"
    holder.commit()
    assert end(conn, last.grant, Completed()) == "completed"
    assert (open_members(conn), one(conn, AFTER)) == (0, ["work", "after"])


@pytest.mark.usefixtures("ordered")
def test_keys_of_follow_ups_and_of_callbacks_do_not_deadlock(
    conn: Conn, connect: Connect, pool: ThreadPoolExecutor
) -> None:
    """The first holds the key of its follow-up and wants that of its callback, the second the other way round."""
    worker = register(conn)
    sessions = []
    for follow_up, callback in (("k1", "k2"), ("k2", "k1")):
        after = NewRow("after", "{}", queue="skip", partition_key=follow_up)
        last = NewRow("after", "{}", queue="skip", partition_key=callback)
        run(conn, chains.enqueue_group([NewRow("work", "{}", follow_ups=(after,))], [last], "completed"))
        (job,) = take(conn, worker)
        sessions.append(open_session(connect))
        assert drive(sessions[-1], settle_in(Settlement(job.grant, Completed()), worker))
    for done in [pool.submit(session.commit) for session in sessions]:
        done.result(WAIT)
    run(conn, chains.retry_groups(10))
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE task = 'after'") == 4


def test_groups_of_one_transaction_are_counted_together_at_its_commit(conn: Conn, connect: Connect) -> None:
    worker = register(conn)
    run(conn, chains.enqueue_group([NewRow("work", "{}")] * 2, [NewRow("after", "{}")], "completed"))
    first, second = take(conn, worker)
    session = open_session(connect)
    for job in (first, second):
        assert drive(session, settle_in(Settlement(job.grant, Completed()), worker))
    assert open_members(session) == 2
    session.execute("SAVEPOINT s")
    session.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert open_members(session) == 0
    session.execute("ROLLBACK TO s")
    session.commit()
    assert open_members(conn) == 0
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE task = 'after'") == 1


def test_a_settle_enqueues_follow_ups_before_it_locks_groups(conn: Conn) -> None:
    worker = register(conn)
    after = NewRow("after", "{}")
    run(conn, chains.enqueue_group([NewRow("work", "{}", follow_ups=(after,))], [after], "completed"))
    (job,) = take(conn, worker)
    names: list[str] = []

    def spy(flow: Any) -> Any:
        answer = None
        while True:
            try:
                statement = flow.send(answer)
            except StopIteration as stop:
                return stop.value
            names.append(statement.name)
            answer = yield statement

    run(conn, spy(settle([Settlement(job.grant, Completed())], worker)))
    assert names[-4:] == ["brief_locks", "jobs_ended", "busy_groups", "jobs_ended"]
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE task = 'after'") == 2
    assert end(conn, take(conn, worker)[0].grant, Completed()) == "completed"
