"""Two sessions at once: replacing a job while it is claimed, and the last two members of a group."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.sql.support import (
    BOOM,
    Conn,
    configure,
    end,
    enqueue,
    later,
    make_queue,
    one,
    put,
    register,
    row_of,
    run,
    status,
    sweep_all,
    take,
    take_one,
    until_blocked,
)

from holdfast.db.executors import drive
from holdfast.model.job import ClaimedJob, NewRow
from holdfast.model.outcome import Cancelled, Completed, DeadLettered, Failed, Released, Settlement
from holdfast.store import chains, housekeeping, jobs, sweep
from holdfast.store.chains import GroupBusy
from holdfast.store.settle import settle, settle_in
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]
AFTER = NewRow("after", "{}")


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def replacing(n: int, key: str = "k", **options: Any) -> NewRow:
    return NewRow("work", json.dumps({"n": n}), replace_key=key, **options)


def payloads(conn: Conn) -> list[int]:
    return [n for (n,) in conn.execute("SELECT (payload->>'n')::int FROM holdfast.work ORDER BY seq")]


# Replace ------------------------------------------------------------------------------------------------------------


def test_a_waiting_job_is_changed_in_place_and_keeps_its_place(conn: Conn, worker: str) -> None:
    (first,) = put(conn, replacing(1, tags=("a",), follow_ups=(AFTER,)))
    enqueue(conn)
    before = row_of(conn, first.id) if first.id else {}
    (second,) = put(
        conn, replacing(2, version=3, priority=5, max_attempts=9, metadata='{"m": 1}', delay=60.0)
    )
    assert (first.created, second.created, second.id) == (True, False, first.id)
    after = row_of(conn, second.id) if second.id else {}
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert set(changed) == {
        "payload", "version", "priority", "max_attempts", "metadata", "available_at", "tags", "follow_ups",
    }  # fmt: skip
    assert after["payload"] == {"n": 2}


def test_attempts_start_again_and_the_generation_goes_on(conn: Conn, worker: str) -> None:
    (first,) = put(conn, replacing(1))
    assert first.id is not None
    assert end(conn, take_one(conn, worker).grant, Failed(BOOM, 0.0)) == "pending"
    assert row_of(conn, first.id)["attempts"] == 1
    put(conn, replacing(2))
    row = row_of(conn, first.id)
    assert (row["attempts"], row["lease_generation"], row["last_error"]) == (0, 1, "ValueError: boom")


def test_a_held_job_is_changed_and_waits_again(conn: Conn) -> None:
    (first,) = put(conn, replacing(1))
    conn.execute("UPDATE holdfast.work SET status = 'held', hold_reason = 'no worker here knows it'")
    (second,) = put(conn, replacing(2))
    assert second.id == first.id
    assert one(conn, "SELECT (status, hold_reason) FROM holdfast.work") == ("pending", None)


@pytest.mark.parametrize("how", ["runs", "completed", "dead", "cancelled", "to be cancelled", "quarantined"])
def test_a_job_that_no_longer_waits_is_left_and_a_new_one_is_made(conn: Conn, worker: str, how: str) -> None:
    (first,) = put(conn, replacing(1))
    assert first.id is not None
    if how == "cancelled":
        run(conn, jobs.cancel(first.id, "inbox"))
    elif how == "quarantined":
        conn.execute(
            "INSERT INTO holdfast.quarantine (id, queue, reason) SELECT id, queue, 'bad' FROM holdfast.work"
        )
    else:
        job = take_one(conn, worker)
        if how == "to be cancelled":
            run(conn, jobs.cancel(first.id, "inbox"))
            end(conn, job.grant, Released())
        elif how != "runs":
            end(conn, job.grant, Completed() if how == "completed" else DeadLettered(BOOM))
    before = status(conn, first.id)
    (second,) = put(conn, replacing(2))
    assert (second.created, second.id != first.id, second.conflict) == (True, True, None)
    assert status(conn, first.id) == before
    (third,) = put(conn, replacing(3))  # the key belongs to the new one from now on
    assert (third.id, third.created) == (second.id, False)


@pytest.mark.parametrize("other", [{"task": "other"}, {"partition_key": "p"}], ids=["task", "partition key"])
def test_a_job_of_another_kind_is_a_conflict_and_nothing_is_written(
    conn: Conn, other: dict[str, Any]
) -> None:
    (first,) = put(conn, replacing(1))
    values: dict[str, Any] = {"task": "work", **other}
    task = values.pop("task")
    answers = put(
        conn, replacing(5, "new"), NewRow(task, "{}", replace_key="k", **values), NewRow("work", "{}")
    )
    assert [(a.id, a.created, a.conflict) for a in answers] == [
        (None, False, None), (first.id, False, "replace"), (None, False, None),
    ]  # fmt: skip
    assert payloads(conn) == [1]
    assert one(conn, "SELECT array_agg(key) FROM holdfast.replacements") == ["k"]


def test_of_one_key_in_one_call_the_last_wins(conn: Conn) -> None:
    answers = put(conn, replacing(1), replacing(2), replacing(3), replacing(4, "other"))
    assert [a.created for a in answers] == [False, False, True, True]
    assert answers[0].id == answers[1].id == answers[2].id
    assert payloads(conn) == [3, 4]
    answers = put(conn, replacing(5), replacing(6))
    assert [a.created for a in answers] == [False, False]
    assert payloads(conn) == [6, 4]
    clash = put(conn, replacing(7, "new"), NewRow("other", "{}", replace_key="new"))
    assert [a.conflict for a in clash] == ["replace", None]
    assert len(payloads(conn)) == 2


def test_the_same_key_in_another_queue_is_another_key(conn: Conn) -> None:
    make_queue(conn, "mail")
    put(conn, replacing(1))
    (other,) = put(conn, replacing(2, queue="mail"))
    assert other.created


@pytest.mark.parametrize("verdict", ["commit", "rollback"])
def test_two_enqueues_under_a_new_key_make_one_job(
    connect: Connect, conn: Conn, pool: ThreadPoolExecutor, verdict: str
) -> None:
    first, second = connect(), connect()
    first.autocommit = False
    (mine,) = put(first, replacing(1))
    racing = pool.submit(put, second, replacing(2))
    until_blocked(conn, second)
    first.commit() if verdict == "commit" else first.rollback()
    (other,) = racing.result(100)
    assert (other.created, other.id == mine.id) == ((False, True) if verdict == "commit" else (True, False))
    assert payloads(conn) == [2]


@pytest.mark.parametrize("verdict", ["commit", "rollback"])
def test_a_replacement_waits_for_a_claim_and_makes_a_new_job_if_it_stands(
    connect: Connect, conn: Conn, pool: ThreadPoolExecutor, worker: str, verdict: str
) -> None:
    (first,) = put(conn, replacing(1))
    claimer, second = connect(), connect()
    claimer.autocommit = False
    (claimed,) = take(claimer, worker, 1)
    racing = pool.submit(put, second, replacing(2))
    until_blocked(conn, second)
    claimer.commit() if verdict == "commit" else claimer.rollback()
    (other,) = racing.result(100)
    assert claimed.payload == '{"n": 1}'
    if verdict == "commit":
        assert (other.created, payloads(conn)) == (True, [1, 2])
    else:
        assert (other.created, other.id, payloads(conn)) == (False, first.id, [2])


def test_a_claim_takes_no_job_that_is_being_replaced(connect: Connect, conn: Conn, worker: str) -> None:
    put(conn, replacing(1))
    producer = connect()
    producer.autocommit = False
    put(producer, replacing(2))
    assert take(conn, worker) == []
    producer.commit()
    assert [job.payload for job in take(conn, worker)] == ['{"n": 2}']


def test_a_claim_that_saw_the_job_before_it_was_put_off_leaves_it(
    connect: Connect, conn: Conn, pool: ThreadPoolExecutor, worker: str
) -> None:
    """Its snapshot is older than the replacement, its look at the row is not."""
    (job,) = put(conn, replacing(1))
    producer, claimer = connect(), connect()
    producer.autocommit = False
    put(producer, replacing(2, delay=3600.0))
    # As a claim without SKIP LOCKED: it found the old row due, waits for the lock, and looks at it again.
    query = """SELECT id FROM holdfast.work WHERE queue = 'inbox' AND status = 'pending' AND available_at <= holdfast.now()
               FOR NO KEY UPDATE"""
    racing = pool.submit(lambda: claimer.execute(query).fetchall())
    until_blocked(conn, claimer)
    producer.commit()
    assert racing.result(100) == []
    assert take(conn, worker) == []
    assert job.id is not None
    assert status(conn, job.id) == "scheduled"


def test_keys_of_two_calls_in_other_orders_do_not_deadlock(
    connect: Connect, conn: Conn, pool: ThreadPoolExecutor
) -> None:
    put(conn, *[replacing(0, key) for key in "abc"])
    first, second = connect(), connect()
    for _ in range(5):
        both = [
            pool.submit(put, session, *[replacing(n, key) for key in keys])
            for n, (session, keys) in enumerate([(first, "abc"), (second, "cba")])
        ]
        assert all(answer.conflict is None for racing in both for answer in racing.result(100))
    assert len(payloads(conn)) == 3


def test_a_serializable_transaction_gets_a_serialization_failure_not_a_lost_update(
    connect: Connect, conn: Conn
) -> None:
    put(conn, replacing(1))
    slow = connect()
    slow.autocommit = False
    slow.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    slow.execute("SELECT 1 FROM holdfast.work")
    put(conn, replacing(2))
    with pytest.raises(psycopg.errors.SerializationFailure):
        put(slow, replacing(3))
    slow.rollback()
    assert payloads(conn) == [2]


def test_keys_of_jobs_that_are_gone_are_forgotten_and_others_are_kept(
    kit: Kit, conn: Conn, worker: str
) -> None:
    put(conn, replacing(1, "done"))
    end(conn, take_one(conn, worker).grant, Completed())
    put(conn, replacing(2, "waits", delay=7200.0))
    place, gone = run(conn, housekeeping.prune("replacements", 7, 100, None))
    assert (place, gone) == (None, 0)  # too young to judge
    later(kit, 3601, conn)
    assert run(conn, housekeeping.prune("replacements", 7, 100, None)) == (None, 1)
    assert one(conn, "SELECT array_agg(key) FROM holdfast.replacements") == ["waits"]


def test_a_key_that_has_just_come_to_another_job_is_not_forgotten(
    kit: Kit, connect: Connect, conn: Conn, worker: str, pool: ThreadPoolExecutor
) -> None:
    """The tidier's snapshot does not see the new job; the key's new time is what saves it."""
    put(conn, replacing(1))
    end(conn, take_one(conn, worker).grant, Completed())
    producer, tidier = connect(), connect()
    later(kit, 3601, conn, producer, tidier)
    producer.autocommit = False
    put(producer, replacing(2))
    assert run(tidier, housekeeping.prune("replacements", 7, 100, None)) == (None, 0)
    producer.commit()
    (again,) = put(conn, replacing(3))
    assert (again.created, payloads(conn)) == (False, [3])


def test_sql_callers_replace_too(conn: Conn) -> None:
    query = (
        "SELECT id, created, conflict FROM holdfast.enqueue(%s, %s, replace_key => 'k', delay => '5 minutes')"
    )
    first = conn.execute(query, ["work", '{"n": 1}']).fetchone()
    second = conn.execute(query, ["work", '{"n": 2}']).fetchone()
    third = conn.execute(query, ["other", "{}"]).fetchone()
    assert first is not None
    assert first[1:] == (True, None)
    assert second == (first[0], False, None)
    assert third == (first[0], False, "replace")
    assert payloads(conn) == [2]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="do not go together"):
        conn.execute("SELECT holdfast.enqueue('work', replace_key => 'a', idempotency_key => 'b')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="replace_key is 600 bytes"):
        conn.execute("SELECT holdfast.enqueue('work', replace_key => repeat('x', 600))")


# Follow-ups ---------------------------------------------------------------------------------------------------------


def chained(conn: Conn, worker: str) -> ClaimedJob:
    put(conn, NewRow("work", "{}", follow_ups=(AFTER,)))
    return take_one(conn, worker)


def afters(conn: Conn) -> int:
    return int(one(conn, "SELECT count(*) FROM holdfast.jobs WHERE task = 'after'"))


def test_a_stale_owner_enqueues_nothing(kit: Kit, conn: Conn, worker: str) -> None:
    stale = chained(conn, worker)
    later(kit, 120, conn)
    sweep_all(conn)
    fresh = take_one(conn, register(conn))
    assert fresh.id == stale.id
    assert end(conn, stale.grant, Completed()) == "lost"
    assert run(conn, settle_in(Settlement(stale.grant, Completed()), worker)) is False
    assert afters(conn) == 0
    assert end(conn, fresh.grant, Completed()) == "completed"
    assert afters(conn) == 1


def test_a_completion_that_is_repeated_enqueues_once(conn: Conn, worker: str) -> None:
    job = chained(conn, worker)
    assert [end(conn, job.grant, Completed()) for _ in range(3)] == ["completed"] * 3
    assert afters(conn) == 1


def test_jobs_without_follow_ups_cost_no_statement_more(conn: Conn, worker: str) -> None:
    enqueue(conn, 3)
    flow = settle([Settlement(job.grant, Completed()) for job in take(conn, worker)], worker)
    names = []
    answer: Any = None
    while True:
        try:
            statement = flow.send(answer)
        except StopIteration:
            break
        names.append(statement.name)
        answer = drive(conn, statement)
    assert names == ["settle_finish"]


def test_a_rolled_back_settle_leaves_neither_the_completion_nor_the_follow_up(
    conn: Conn, worker: str
) -> None:
    job = chained(conn, worker)
    with pytest.raises(RuntimeError, match="power"), conn.transaction():
        drive(conn, settle([Settlement(job.grant, Completed())], worker))
        assert afters(conn) == 1
        raise RuntimeError("power")
    assert (status(conn, job.id), afters(conn)) == ("processing", 0)


BAD_SPECS = {
    "no list": ("{}", "not a list of jobs"),
    "empty": ("[]", "0 jobs in one list, 1 to 100 are possible"),
    "no task": ('[{"payload": {}}]', "task name NULL is not usable"),
    "payload": ('[{"task": "t", "payload": 1}]', "payload of t is no object"),
    "priority": ('[{"task": "t", "priority": 101}]', "a number of t is out of range"),
    "attempts": ('[{"task": "t", "max_attempts": "x"}]', "a number of t is out of range"),
    "half": ('[{"task": "t", "version": 1.5}]', "a number of t is out of range"),
    "time": ('[{"task": "t", "run_at": "soon"}]', "run_at of t is no time with a zone"),
    "tags": ('[{"task": "t", "tags": "a"}]', "tags of t are no list"),
    "key": (json.dumps([{"task": "t", "replace_key": "k" * 513}]), "a key of t is more than 512 bytes"),
    "keys": ('[{"task": "t", "replace_key": "k", "idempotency_key": "k"}]', "take one of them"),
    "nested": ('[{"task": "t", "then": [{"task": "no good"}]}]', "task name 'no good' is not usable"),
    "deep": ('[{"task": "t", "then": ' * 21 + "null" + "}]" * 21, "more than 20 jobs follow"),
}


@pytest.mark.parametrize("case", BAD_SPECS)
def test_sql_callers_are_told_what_is_wrong_with_their_follow_ups(conn: Conn, case: str) -> None:
    spec, text = BAD_SPECS[case]
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        conn.execute("SELECT holdfast.enqueue('work', follow_ups => %s)", [spec])
    assert text in str(caught.value)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        conn.execute("SELECT * FROM holdfast.enqueue_group('[]', %s)", [spec])


def test_sql_callers_chain_and_group(conn: Conn, worker: str) -> None:
    conn.execute(
        """SELECT holdfast.enqueue('work', follow_ups => '[{"task": "after", "delay": 0, "payload": {"x": 1},
                                                           "then": [{"task": "last"}]}]')"""
    )
    rows = conn.execute(
        """SELECT ordinal, created, conflict FROM holdfast.enqueue_group('[{"task": "work"}, {"task": "work"}]',
                                                                         '[{"task": "report"}]', 'finished')"""
    ).fetchall()
    assert rows == [(0, True, None), (1, True, None), (2, True, None)]
    while claimed := take(conn, worker):
        for job in claimed:
            end(conn, job.grant, Completed())
    assert one(conn, "SELECT array_agg(task ORDER BY seq) FROM holdfast.archive") == [
        "work", "work", "work", "after", "report", "last",
    ]  # fmt: skip


# Groups -------------------------------------------------------------------------------------------------------------


def group_of(conn: Conn, members: int, wanted: str = "completed") -> UUID:
    made = run(conn, chains.enqueue_group([NewRow("work", "{}")] * members, [AFTER], wanted))
    assert made[0].id is not None
    return made[0].id


def state_of(conn: Conn, group: UUID) -> tuple[int, str]:
    found = run(conn, chains.group_status(group))
    assert found is not None
    return found.open, found.state


@pytest.mark.parametrize("verdict", ["commit", "rollback"])
def test_the_last_two_members_in_two_transactions_are_followed_once(
    connect: Connect, conn: Conn, pool: ThreadPoolExecutor, worker: str, verdict: str
) -> None:
    group = group_of(conn, 2)
    one_, two = take(conn, worker)
    first, second = connect(), connect()
    first.autocommit = False
    assert drive(first, settle_in(Settlement(one_.grant, Completed()), worker))
    first.execute("SET CONSTRAINTS ALL IMMEDIATE")  # as in the middle of its commit
    racing = pool.submit(run, second, settle_in(Settlement(two.grant, Completed()), worker))
    until_blocked(conn, second)
    first.commit() if verdict == "commit" else first.rollback()
    assert racing.result(100) is True
    if verdict == "rollback":
        assert (state_of(conn, group), afters(conn)) == ((1, "open"), 0)
        assert end(conn, one_.grant, Completed()) == "completed"
    assert (state_of(conn, group), afters(conn)) == ((0, "finished"), 1)


def test_a_settle_of_many_does_not_wait_for_a_group_and_names_its_members(
    connect: Connect, conn: Conn, worker: str
) -> None:
    group = group_of(conn, 2)
    enqueue(conn, 2)
    claimed = take(conn, worker)
    stranger = connect()
    stranger.autocommit = False
    stranger.execute("SELECT 1 FROM holdfast.groups FOR UPDATE")
    members = {job.id for job in claimed if job.group_id == group}
    with pytest.raises(GroupBusy) as caught:
        run(conn, settle([Settlement(job.grant, Completed()) for job in claimed], worker))
    assert caught.value.job_ids == members
    assert {status(conn, job.id) for job in claimed} == {"processing"}
    dying = [Settlement(job.grant, DeadLettered(BOOM)) for job in claimed]
    assert {a.state for a in run(conn, settle(dying, worker))} == {"dead_letter"}  # it counts no dead ones


def test_a_member_that_a_sweep_buries_counts_where_any_end_does(
    kit: Kit, connect: Connect, conn: Conn
) -> None:
    group = group_of(conn, 1, "finished")
    worker = register(conn)
    take(conn, worker)
    later(kit, 120, conn)
    run(conn, sweep.fence_workers(60))
    run(conn, sweep.revoke_expired(500))
    (revoked,) = run(conn, sweep.revoked_claims(500))
    conn.execute("UPDATE holdfast.work SET crashes = 1, suspect = 1")
    stranger = connect()
    stranger.autocommit = False
    stranger.execute("SELECT 1 FROM holdfast.groups FOR UPDATE")
    with pytest.raises(GroupBusy):
        run(conn, sweep.take_back(revoked, revoked.job_ids, 1))
    stranger.rollback()
    run(conn, sweep.take_back(revoked, revoked.job_ids, 1))
    assert (state_of(conn, group), afters(conn)) == ((0, "finished"), 1)


@pytest.mark.parametrize(
    ("wanted", "opens"), [("completed", [3, 3, 2]), ("finished", [2, 1, 0])], ids=["completed", "finished"]
)
def test_what_counts_as_an_end(conn: Conn, worker: str, wanted: str, opens: list[int]) -> None:
    group = group_of(conn, 3, wanted)
    seen = []
    for job, outcome in zip(take(conn, worker), (DeadLettered(BOOM), Cancelled(), Completed()), strict=True):
        end(conn, job.grant, outcome)
        seen.append(state_of(conn, group)[0])
    assert seen == opens


def test_a_retry_of_a_member_counts_nothing(conn: Conn, worker: str) -> None:
    group = group_of(conn, 1, "finished")
    assert end(conn, take_one(conn, worker).grant, Failed(BOOM, 0.0)) == "pending"
    assert end(conn, take_one(conn, worker).grant, Released()) == "pending"
    assert state_of(conn, group) == (1, "open")
    assert end(conn, take_one(conn, worker).grant, Completed()) == "completed"
    assert (state_of(conn, group), afters(conn)) == ((0, "finished"), 1)


def test_groups_are_forgotten_when_nothing_can_come_of_them(kit: Kit, conn: Conn, worker: str) -> None:
    done, dead, waits = (group_of(conn, 1) for _ in range(3))
    by_group = {job.group_id: job for job in take(conn, worker)}
    end(conn, by_group[done].grant, Completed())
    end(conn, by_group[dead].grant, DeadLettered(BOOM))
    end(conn, by_group[waits].grant, Released())

    def left() -> set[UUID]:
        run(conn, housekeeping.prune("groups", 7, 100, None))
        return set(one(conn, "SELECT array_agg(id) FROM holdfast.groups") or ())

    assert left() == {done, dead, waits}
    later(kit, 8 * 86_400, conn)
    assert left() == {dead, waits}
    conn.execute("DELETE FROM holdfast.dead_letters")
    assert left() == {waits}


def test_a_producer_with_execute_alone_makes_groups(kit: Kit, conn: Conn, connect: Connect) -> None:
    conn.execute("DROP ROLE IF EXISTS chain_producer")
    conn.execute("CREATE ROLE chain_producer NOLOGIN")
    try:
        conn.execute("GRANT USAGE ON SCHEMA holdfast TO chain_producer")
        session = connect()
        session.execute("SET ROLE chain_producer")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            group_of(session, 1)
        conn.execute("GRANT EXECUTE ON FUNCTION holdfast.enqueue_group TO chain_producer")
        group_of(session, 1)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SELECT holdfast.jobs_ended('{}', '{}', '{}', '{}')")
        session.execute("RESET ROLE")
        configure(session, kit)
        assert one(conn, "SELECT count(*) FROM holdfast.work WHERE group_id IS NOT NULL") == 1
    finally:
        conn.execute("DROP OWNED BY chain_producer; DROP ROLE chain_producer")


# Keys of follow-ups ---------------------------------------------------------------------------------------------------


def test_a_settle_does_not_wait_for_the_key_of_a_follow_up(
    conn: Conn, connect: Connect, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it would wait for here, it would wait for without end."""
    monkeypatch.setattr(chains, "_BRIEF", "0")
    make_queue(conn, "orders", ordering="key")
    put(
        conn,
        *[
            NewRow("work", "{}", follow_ups=(NewRow("after", "{}", queue="orders", partition_key=key),))
            for key in ("held", "free", "held", "other")
        ],
    )
    taken = take(conn, worker, 4)
    with connect() as stranger, stranger.transaction():
        stranger.execute("SELECT holdfast.enqueue('note', queue => 'orders', partition_key => 'held')")
        batch = [Settlement(job.grant, Completed()) for job in taken]
        with pytest.raises(GroupBusy) as caught:
            run(conn, settle(batch, worker))
        assert caught.value.job_ids == {taken[0].id, taken[2].id}
        done = run(conn, settle([batch[1], batch[3]], worker))
        assert [settled.state for settled in done] == ["completed", "completed"]
    done = run(conn, settle([batch[0], batch[2]], worker))
    assert [settled.state for settled in done] == ["completed", "completed"]
    keys = conn.execute("SELECT partition_key FROM holdfast.work ORDER BY seq").fetchall()
    assert keys == [("held",), ("free",), ("other",), ("held",), ("held",)]


def test_a_settle_locks_no_stream_before_the_other_keys_of_a_follow_up(
    conn: Conn, connect: Connect, worker: str
) -> None:
    """Idempotency keys come before streams: whoever has one may wait for the stream."""
    make_queue(conn, "orders", ordering="key")
    after = NewRow(
        "after", "{}", queue="orders", partition_key="a", idempotency_key="k", idempotency_lifetime=60.0
    )
    put(conn, NewRow("work", "{}", follow_ups=(after,)))
    (job,) = take(conn, worker, 1)
    with connect() as stranger, stranger.transaction():
        stranger.execute("SELECT holdfast.enqueue('note', queue => 'orders', partition_key => 'a')")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            run(conn, settle([Settlement(job.grant, Completed())], worker))
    assert end(conn, job.grant, Completed(), worker) == "completed"
