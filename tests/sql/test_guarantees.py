"""The promises of the README, each tested literally, over real sessions that race."""

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.sql.support import (
    BOOM,
    DAY,
    EVERY_OUTCOME,
    NOBODY,
    Conn,
    configure,
    end,
    enqueue,
    keyed,
    later,
    load,
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

from holdfast import Backoff, Holdfast, Job, Transaction, failpoints, telemetry
from holdfast.db.faults import BadRow
from holdfast.errors import IdempotencyConflict, LeaseLost
from holdfast.model.job import ClaimedJob, Grant, NewRow
from holdfast.model.outcome import (
    Cancelled,
    Completed,
    DeadLettered,
    Failed,
    Released,
    Settlement,
    Snoozed,
)
from holdfast.runtime.settle import Settler
from holdfast.store import housekeeping, jobs, owner, sweep, workers
from holdfast.store.checked import lock_owned
from holdfast.store.renew import renew
from holdfast.store.settle import settle, settle_in
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def count(conn: Conn, table: str) -> int:
    return int(one(conn, f"SELECT count(*) FROM holdfast.{table}"))


# A duplicate enqueue makes one logical job ------------------------------------------------------------------------


def test_a_duplicate_enqueue_gets_the_first_jobs_id(conn: Conn) -> None:
    (first,) = put(conn, keyed("k", {"a": 1, "b": [1, 2]}))
    (again,) = put(conn, keyed("k", {"b": [1, 2], "a": 1}))
    assert (first.created, again.created) == (True, False)
    assert again.id == first.id
    assert again.conflict is None
    assert count(conn, "work") == 1


@pytest.mark.parametrize("verdict", ["commit", "rollback"])
def test_a_concurrent_duplicate_waits_and_gets_the_id_that_stands(
    connect: Connect, conn: Conn, pool: ThreadPoolExecutor, verdict: str
) -> None:
    first, second = connect(), connect()
    first.autocommit = False
    (mine,) = put(first, keyed("k"))
    racing = pool.submit(put, second, keyed("k"))
    until_blocked(conn, second)
    first.commit() if verdict == "commit" else first.rollback()
    (other,) = racing.result(100)
    assert other.conflict is None
    assert other.created is (verdict == "rollback")
    assert (other.id == mine.id) is (verdict == "commit")
    assert one(conn, "SELECT array_agg(id) FROM holdfast.work") == [other.id]


def test_a_concurrent_duplicate_with_another_payload_is_a_conflict(
    connect: Connect, conn: Conn, pool: ThreadPoolExecutor
) -> None:
    first, second = connect(), connect()
    first.autocommit = False
    (mine,) = put(first, keyed("k"))
    racing = pool.submit(put, second, keyed("k", {"a": 2}))
    until_blocked(conn, second)
    first.commit()
    (other,) = racing.result(100)
    assert (other.id, other.created, other.conflict) == (mine.id, False, "payload")
    assert count(conn, "work") == 1


def test_a_duplicate_of_a_finished_job_still_gets_its_id(conn: Conn, worker: str) -> None:
    (first,) = put(conn, keyed("k"))
    assert end(conn, take_one(conn, worker).grant, Completed("1")) == "completed"
    (again,) = put(conn, keyed("k"))
    assert (again.id, again.created) == (first.id, False)
    assert count(conn, "work") == 0


def test_many_concurrent_duplicates_make_one_job(
    connect: Connect, conn: Conn, pool: ThreadPoolExecutor
) -> None:
    sessions = [connect() for _ in range(8)]
    barrier = threading.Barrier(len(sessions))

    def produce(session: Conn) -> list[tuple[UUID | None, bool]]:
        answers = []
        for n in range(20):
            barrier.wait(100)
            (answer,) = put(session, keyed(f"k{n}"))
            answers.append((answer.id, answer.created))
        return answers

    rounds = zip(*pool.map(produce, sessions), strict=True)
    for answers in rounds:
        assert len({job_id for job_id, _ in answers}) == 1
        assert sum(created for _, created in answers) == 1
    assert count(conn, "work") == 20


def test_the_same_key_with_another_payload_leaves_the_callers_transaction_usable(
    connect: Connect, conn: Conn
) -> None:
    conn.execute("CREATE TABLE public.business (n int)")
    (first,) = put(conn, keyed("k", {"a": 1}))
    caller = connect()
    with caller.transaction():
        caller.execute("INSERT INTO public.business VALUES (1)")
        (answer,) = put(caller, keyed("k", {"a": 2}))
        assert (answer.id, answer.created, answer.conflict) == (first.id, False, "payload")
        caller.execute("INSERT INTO public.business VALUES (2)")
    assert one(conn, "SELECT count(*) FROM public.business") == 2
    assert count(conn, "work") == 1


def test_the_same_key_for_another_task_is_a_conflict(conn: Conn) -> None:
    put(conn, keyed("k"))
    other = keyed("k")
    (answer,) = put(
        conn,
        NewRow("other", other.payload, idempotency_key="k", idempotency_lifetime=other.idempotency_lifetime),
    )
    assert answer.conflict == "payload"


def test_an_idempotency_conflict_raises_in_python_and_the_transaction_goes_on(
    app: Holdfast, kit: Kit, conn: Conn
) -> None:
    @app.task
    def work(a: int) -> None: ...

    first = work.using(idempotency_key="k").enqueue(a=1)
    with conn.transaction():
        with pytest.raises(IdempotencyConflict) as caught:
            work.using(idempotency_key="k", conn=conn).enqueue(a=2)
        assert caught.value.job_id == first.id
        work.using(conn=conn).enqueue(a=3)
    assert [r["payload"] for r in kit.jobs()] == [{"a": 1}, {"a": 3}]


def test_an_expired_key_makes_a_new_job(kit: Kit, conn: Conn) -> None:
    (first,) = put(conn, keyed("k", life=60))
    later(kit, 59, conn)
    assert put(conn, keyed("k", life=60))[0].id == first.id
    later(kit, 2, conn)
    (second,) = put(conn, keyed("k", {"other": "payload"}, life=60))
    assert second.created
    assert second.id != first.id
    assert count(conn, "work") == 2


def test_the_scope_of_a_key_is_its_queue(conn: Conn) -> None:
    make_queue(conn, "mail")
    (here,) = put(conn, keyed("k"))
    (there,) = put(conn, keyed("k", {"other": 1}, queue="mail"))
    assert there.created
    assert there.id != here.id


def test_duplicates_inside_one_bulk_call_make_one_job(conn: Conn) -> None:
    answers = put(conn, keyed("k"), keyed("other"), keyed("k"), keyed("k"))
    assert [a.created for a in answers] == [True, True, False, False]
    assert answers[0].id == answers[2].id == answers[3].id
    assert count(conn, "work") == 2


def test_two_bulk_calls_with_keys_in_opposite_order_do_not_deadlock(
    connect: Connect, pool: ThreadPoolExecutor
) -> None:
    barrier = threading.Barrier(2)

    def produce(session: Conn, step: int) -> int:
        made = 0
        for n in range(4):
            rows = [keyed(f"{n}-{i:04}") for i in range(1000)][::step]
            barrier.wait(100)
            made += sum(a.created for a in put(session, *rows))
        return made

    forward = pool.submit(produce, connect(), 1)
    backward = pool.submit(produce, connect(), -1)
    assert forward.result(300) + backward.result(300) == 4000


def test_a_bulk_call_with_a_conflict_writes_nothing_at_all(conn: Conn) -> None:
    (first,) = put(conn, keyed("taken", {"a": 1}))
    answers = put(conn, keyed("new 1"), keyed("taken", {"a": 2}), keyed("new 2"), NewRow("work", "{}"))
    assert [a.conflict for a in answers] == [None, "payload", None, None]
    assert not any(a.created for a in answers)
    assert one(conn, "SELECT array_agg(id) FROM holdfast.work") == [first.id]
    assert one(conn, "SELECT array_agg(key) FROM holdfast.idempotency") == ["taken"]
    assert [a.created for a in put(conn, keyed("new 1"), keyed("new 2"))] == [True, True]


def test_a_bulk_call_with_an_unknown_queue_writes_nothing_at_all(conn: Conn) -> None:
    answers = put(conn, keyed("k"), NewRow("work", "{}", queue="nowhere"))
    assert [a.conflict for a in answers] == [None, "queue"]
    assert (count(conn, "work"), count(conn, "idempotency")) == (0, 0)


# Claims -----------------------------------------------------------------------------------------------------------


def test_concurrent_claims_never_share_a_job(connect: Connect, conn: Conn, pool: ThreadPoolExecutor) -> None:
    enqueue(conn, 600)
    sessions = [(connect(), register(conn, f"host{n}")) for n in range(8)]
    barrier = threading.Barrier(len(sessions))

    def consume(session: Conn, worker: str) -> list[ClaimedJob]:
        got: list[ClaimedJob] = []
        barrier.wait(100)
        while jobs := take(session, worker, 7):
            got += jobs
        return got

    claimed = [job for jobs in pool.map(consume, *zip(*sessions, strict=True)) for job in jobs]
    assert len(claimed) == 600
    assert len({job.id for job in claimed}) == 600
    assert {job.grant.generation for job in claimed} == {1}
    held = conn.execute("SELECT claim_token, array_agg(id ORDER BY id) FROM holdfast.work GROUP BY 1")
    by_token: dict[UUID, list[UUID]] = {}
    for job in claimed:
        by_token.setdefault(job.grant.token, []).append(job.id)
    assert {token: sorted(ids) for token, ids in by_token.items()} == dict(held.fetchall())


def test_a_claim_passes_over_jobs_that_another_claim_holds_open(
    connect: Connect, conn: Conn, worker: str
) -> None:
    first, second, third = enqueue(conn, 3)
    slow = connect()
    with slow.transaction():
        assert [j.id for j in take(slow, worker, 2)] == [first, second]
        assert [j.id for j in take(conn, worker, 2)] == [third]


def test_a_claim_that_never_commits_takes_nothing(connect: Connect, conn: Conn, worker: str) -> None:
    (job_id,) = enqueue(conn)
    doomed = connect()
    doomed.autocommit = False
    take_one(doomed, worker)
    conn.execute("SELECT pg_terminate_backend(%s, 5000)", [doomed.info.backend_pid])
    job = take_one(conn, worker)
    assert (job.id, job.grant.generation) == (job_id, 1)


@pytest.mark.parametrize("state", ["draining", "gone", "unknown"])
def test_a_worker_that_is_not_alive_claims_nothing(conn: Conn, worker: str, state: str) -> None:
    enqueue(conn)
    if state == "draining":
        run(conn, workers.drain(worker))
    elif state == "gone":
        run(conn, workers.leave(worker))
    assert take(conn, "nobody" if state == "unknown" else worker) == []
    assert count(conn, "claims") == 0


def test_a_worker_that_is_gone_is_not_drained(conn: Conn, worker: str) -> None:
    """It left while the operator looked at the list."""
    run(conn, workers.leave(worker))
    assert run(conn, workers.drain_workers([worker])) == []
    assert one(conn, "SELECT status FROM holdfast.workers") == "gone"


def test_an_expired_lease_goes_back_and_is_claimed_again(kit: Kit, conn: Conn, worker: str) -> None:
    (job_id,) = enqueue(conn)
    take_one(conn, worker, lease=30)
    later(kit, 29, conn)
    assert sweep_all(conn) == []
    later(kit, 2, conn)
    assert [s.state for s in sweep_all(conn)] == ["pending"]
    again = take_one(conn, worker)
    assert (again.id, again.grant.generation, again.attempts) == (job_id, 2, 0)


def test_a_renewed_lease_is_not_swept(kit: Kit, conn: Conn, worker: str) -> None:
    enqueue(conn)
    job = take_one(conn, worker, lease=30)
    for _ in range(3):
        later(kit, 25, conn)
        assert run(conn, renew(worker, [job.grant], 30)) == ([], [])
        assert sweep_all(conn) == []
    assert end(conn, job.grant, Completed()) == "completed"


def test_a_late_owner_that_nobody_challenged_may_renew_and_finish(kit: Kit, conn: Conn, worker: str) -> None:
    enqueue(conn)
    job = take_one(conn, worker, lease=30)
    later(kit, 300, conn)
    assert run(conn, renew(worker, [job.grant], 30)) == ([], [])
    assert sweep_all(conn) == []
    later(kit, 300, conn)
    assert end(conn, job.grant, Completed()) == "completed"


def test_a_revoked_claim_cannot_be_renewed(kit: Kit, conn: Conn, worker: str) -> None:
    enqueue(conn)
    job = take_one(conn, worker, lease=30)
    later(kit, 31, conn)
    assert run(conn, sweep.revoke_expired(10)) == [job.grant.token]
    before = one(conn, "SELECT lease_expires_at FROM holdfast.claims")
    run(conn, renew(worker, [job.grant], 30))
    assert one(conn, "SELECT lease_expires_at FROM holdfast.claims") == before
    assert [s.id for s in sweep_all(conn)] == [job.id]
    assert run(conn, renew(worker, [job.grant], 30)) == ([job.grant], [])


def test_a_sweep_takes_nothing_from_a_later_owner(kit: Kit, conn: Conn, worker: str) -> None:
    enqueue(conn)
    take_one(conn, worker, lease=30)
    later(kit, 31, conn)
    run(conn, sweep.revoke_expired(10))
    (slow,) = run(conn, sweep.revoked_claims(10))
    sweep_all(conn)
    now = take_one(conn, worker)
    assert run(conn, sweep.sweep_take(slow, slow.job_ids, 3)) == []
    assert end(conn, now.grant, Completed()) == "completed"


def test_a_job_at_the_last_number_of_attempts_completes(conn: Conn, worker: str) -> None:
    load(conn, 1, attempts="2147483647")
    assert end(conn, take_one(conn, worker).grant, Completed()) == "completed"
    assert one(conn, "SELECT attempts FROM holdfast.archive") == 2_147_483_647


# A stale owner changes nothing ------------------------------------------------------------------------------------


def everything(conn: Conn) -> Any:
    """All that an owner could change, of every table."""
    tables = ("work", "claims", "archive", "dead_letters", "errors", "once", "fences", "progress")
    return {
        name: one(
            conn, f"SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY to_jsonb(t)), '[]') FROM holdfast.{name} t"
        )
        for name in tables
    }


def reclaimed(kit: Kit, conn: Conn, worker: str) -> Grant:
    """Swept and claimed again, by the very same worker."""
    old = take_one(conn, worker, lease=30)
    later(kit, 31, conn)
    sweep_all(conn)
    assert take_one(conn, worker).grant.generation == 2
    return old.grant


def older_generation(kit: Kit, conn: Conn, worker: str) -> Grant:
    now = reclaimed(kit, conn, worker)
    token = one(conn, "SELECT claim_token FROM holdfast.work")
    return Grant(now.queue, now.id, now.generation, token)


def other_token(kit: Kit, conn: Conn, worker: str) -> Grant:
    held = take_one(conn, worker).grant
    return Grant(held.queue, held.id, held.generation, uuid4())


def given_back(kit: Kit, conn: Conn, worker: str) -> Grant:
    """Released: the row keeps generation and token, but nobody runs it."""
    held = take_one(conn, worker).grant
    assert end(conn, held, Released()) == "pending"
    assert row_of(conn, held.id)["claim_token"] == str(held.token)
    return held


def swept(kit: Kit, conn: Conn, worker: str) -> Grant:
    held = take_one(conn, worker, lease=30).grant
    later(kit, 31, conn)
    sweep_all(conn)
    return held


def finished(kit: Kit, conn: Conn, worker: str) -> Grant:
    held = take_one(conn, worker).grant
    assert end(conn, held, Completed("1")) == "completed"
    return held


STALE = [reclaimed, older_generation, other_token, given_back, swept, finished]


@pytest.mark.parametrize("become", STALE)
def test_a_stale_owner_settles_nothing(
    kit: Kit, conn: Conn, worker: str, become: Callable[..., Grant]
) -> None:
    enqueue(conn)
    stale = become(kit, conn, worker)
    before = everything(conn)
    for outcome in EVERY_OUTCOME:
        (answer,) = run(conn, settle([Settlement(stale, outcome)], worker))
        assert answer.already if become in (given_back, finished) else answer.state == "lost", outcome
        assert run(conn, settle_in(Settlement(stale, outcome), worker)) is False, outcome
        assert everything(conn) == before, outcome


@pytest.mark.parametrize("become", STALE)
def test_a_stale_owner_writes_nothing_beside_the_job(
    kit: Kit, conn: Conn, worker: str, become: Callable[..., Grant]
) -> None:
    enqueue(conn)
    stale = become(kit, conn, worker)
    before = everything(conn)
    assert run(conn, owner.once_put(stale, "charge", "1")) == (False, None)
    assert run(conn, owner.guard(stale, "ledger", "ffffffff")) is False
    assert run(conn, lock_owned(stale)) == []
    run(conn, owner.progress([(stale, 0.5, "half")]))
    assert everything(conn) == before


@pytest.mark.parametrize("become", STALE)
def test_a_stale_owner_learns_it_when_it_renews(
    kit: Kit, conn: Conn, worker: str, become: Callable[..., Grant]
) -> None:
    enqueue(conn)
    stale = become(kit, conn, worker)
    leases = everything(conn)["claims"] if become is reclaimed else None
    lost, cancel = run(conn, renew(worker, [stale], 999))
    assert (lost, cancel) == ([stale], [])
    if leases is not None:
        assert everything(conn)["claims"] == leases


def test_a_stale_pair_in_a_batch_with_the_valid_one_settles_only_the_valid_one(
    kit: Kit, conn: Conn, worker: str
) -> None:
    enqueue(conn, 2)
    held = take(conn, worker)
    crossed = [Settlement(Grant("inbox", job.id, 1, uuid4()), Completed()) for job in held[:1]]
    valid = [Settlement(job.grant, Completed()) for job in held[1:]]
    answers = {a.id: a.state for a in run(conn, settle([*crossed, *valid], worker))}
    assert answers == {held[0].id: "lost", held[1].id: "completed"}
    assert status(conn, held[0].id) == "processing"


async def test_the_settler_answers_for_each_of_two_generations_of_one_job(akit: Kit, conn: Conn) -> None:
    enqueue(conn)
    worker = register(conn)
    stale = reclaimed(akit, conn, worker)
    now = Grant("inbox", stale.id, 2, one(conn, "SELECT claim_token FROM holdfast.work"))
    answers: list[tuple[int, str]] = []
    settler = Settler(
        akit.database,
        lambda: worker,
        lambda ends, states: answers.extend(zip((s.grant.generation for s in ends), states, strict=True)),
    )
    settler.settle(Settlement(stale, Completed()))
    settler.settle(Settlement(now, Completed()))
    await settler.tick()
    await settler.stop()
    assert sorted(answers) == [(1, "lost"), (2, "completed")]


def test_a_stale_owner_cannot_complete_in_its_own_transaction(kit: Kit, conn: Conn, worker: str) -> None:
    conn.execute("CREATE TABLE public.business (n int)")
    enqueue(conn)
    old = take_one(conn, worker, lease=30)
    later(kit, 31, conn)
    sweep_all(conn)
    take_one(conn, worker)
    job = Job(old, kit.database, worker)
    with pytest.raises(LeaseLost), conn.transaction():
        conn.execute("INSERT INTO public.business VALUES (1)")
        job.complete(conn=conn)
    assert job.lost
    assert one(conn, "SELECT count(*) FROM public.business") == 0


def test_a_guard_holds_the_job_until_the_transaction_ends(
    kit: Kit, connect: Connect, conn: Conn, worker: str
) -> None:
    enqueue(conn)
    job = take_one(conn, worker, lease=30)
    handler = connect()
    with handler.transaction():
        assert run(handler, owner.guard(job.grant, "ledger", job.fence))
        later(kit, 31, conn)
        assert sweep_all(conn) == []
        assert count(conn, "claims") == 1
    assert [s.id for s in sweep_all(conn)] == [job.id]


def test_a_guard_refuses_a_lower_fence_than_the_resource_has_seen(conn: Conn, worker: str) -> None:
    enqueue(conn)
    job = take_one(conn, worker)
    assert run(conn, owner.guard(job.grant, "ledger", "00000002-x"))
    assert not run(conn, owner.guard(job.grant, "ledger", "00000001-x"))
    assert run(conn, owner.guard(job.grant, "ledger", "00000002-x"))
    assert run(conn, owner.guard(job.grant, "other", "00000001-x"))


def test_progress_of_an_older_attempt_never_overwrites_a_newer_one(kit: Kit, conn: Conn, worker: str) -> None:
    enqueue(conn)
    stale = reclaimed(kit, conn, worker)
    now = Grant("inbox", stale.id, 2, one(conn, "SELECT claim_token FROM holdfast.work"))
    run(conn, owner.progress([(now, 0.7, "new")]))
    run(conn, owner.progress([(stale, 0.9, "old")]))
    assert one(conn, "SELECT message FROM holdfast.progress") == "new"


def test_completing_in_a_transaction_waits_for_a_momentary_lock(
    connect: Connect, conn: Conn, worker: str, pool: ThreadPoolExecutor
) -> None:
    (job_id,) = enqueue(conn)
    job = take_one(conn, worker)
    holder, handler = connect(), connect()
    holder.autocommit = False
    holder.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [job_id])
    done = pool.submit(run, handler, settle_in(Settlement(job.grant, Completed()), worker))
    until_blocked(conn, handler)
    holder.rollback()
    assert done.result(100) is True
    assert status(conn, job_id) == "completed"


def test_a_batch_settle_never_waits_for_a_locked_row(connect: Connect, conn: Conn, worker: str) -> None:
    enqueue(conn, 2)
    locked, free = take(conn, worker)
    holder = connect()
    with holder.transaction():
        holder.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [locked.id])
        conn.execute("SET lock_timeout = '3s'")
        answers = run(conn, settle([Settlement(j.grant, Completed()) for j in (locked, free)], worker))
    assert {a.id: a.state for a in answers} == {locked.id: "busy", free.id: "completed"}
    assert end(conn, locked.grant, Completed()) == "completed"


def test_settling_twice_says_already(conn: Conn, worker: str) -> None:
    enqueue(conn, 3)
    outcomes = (Completed(), DeadLettered(BOOM), Snoozed(60))
    for job, outcome in zip(take(conn, worker), outcomes, strict=True):
        (first,) = run(conn, settle([Settlement(job.grant, outcome)], worker))
        (again,) = run(conn, settle([Settlement(job.grant, outcome)], worker))
        assert (first.already, again.already, again.state) == (False, True, first.state)


# Promise 1: an enqueue that committed is never lost ----------------------------------------------------------------


def test_promise_1_a_committed_job_is_always_in_exactly_one_place(conn: Conn, worker: str) -> None:
    ids = sorted(enqueue(conn, len(EVERY_OUTCOME)))

    def places() -> list[UUID]:
        return list(one(conn, "SELECT array_agg(id ORDER BY id) FROM holdfast.jobs"))

    assert places() == ids
    claimed = take(conn, worker)
    assert places() == ids
    for job, outcome in zip(claimed, EVERY_OUTCOME, strict=True):
        end(conn, job.grant, outcome)
        assert places() == ids, outcome


def test_promise_1_an_enqueue_exists_exactly_when_its_transaction_commits(
    connect: Connect, conn: Conn, worker: str
) -> None:
    caller = connect()
    caller.autocommit = False
    (lost,) = enqueue(caller)
    assert take(conn, worker) == []
    caller.rollback()
    (kept,) = enqueue(caller)
    caller.commit()
    assert [j.id for j in take(conn, worker)] == [kept]
    assert status(conn, lost) == "missing"


def test_promise_1_the_durability_it_depends_on_is_printed_at_start(
    app: Holdfast, kit: Kit, events: list[telemetry.Event]
) -> None:
    kit.run_worker()
    (line,) = [e.fields["promise"] for e in events if e.name == "durability"]
    assert line.startswith("fsync is off")


# Promise 2: at least once, one live owner at a time ----------------------------------------------------------------


def test_promise_2_a_job_whose_worker_died_runs_again(kit: Kit, conn: Conn, worker: str) -> None:
    (job_id,) = enqueue(conn)
    take_one(conn, worker)
    later(kit, 20, conn)
    assert [s.state for s in sweep_all(conn, dead_after=12)] == ["pending"]
    again = take_one(conn, register(conn))
    assert (again.id, again.attempts) == (job_id, 0)


def test_promise_2_a_claimed_job_is_nobody_elses(conn: Conn, worker: str) -> None:
    enqueue(conn, 5)
    assert len(take(conn, worker)) == 5
    assert take(conn, register(conn)) == []


def test_promise_2_every_enqueued_job_runs(app: Holdfast, kit: Kit) -> None:
    ran: list[int] = []

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    app.enqueue_many(work.job(n=n) for n in range(100))
    kit.run_worker()
    assert sorted(ran) == list(range(100))


# Promise 3: its writes, its follow-up jobs and its completion commit together or not at all -------------------------


def handler_transaction(kit: Kit, job: ClaimedJob, worker: str, failing: bool = False) -> None:
    """What a handler with a Transaction does: a write, a follow-up job, the completion."""

    def body(tx: Transaction) -> None:
        tx.execute("INSERT INTO public.business VALUES (%s)", [job.grant.generation])
        run(tx.connection, jobs.enqueue([NewRow("follow_up", "{}")]))
        if failing:
            raise ZeroDivisionError

    kit.database.transact(body, lambda _: settle_in(Settlement(job.grant, Completed()), worker))


@pytest.fixture
def business(conn: Conn) -> Callable[[], tuple[int, int, int]]:
    """(business rows, follow-up jobs, completed jobs)."""
    conn.execute("CREATE TABLE public.business (n int)")
    query = """SELECT ARRAY[(SELECT count(*) FROM public.business), (SELECT count(*) FROM holdfast.work
               WHERE task = 'follow_up'), (SELECT count(*) FROM holdfast.archive)]"""
    return lambda: tuple(one(conn, query))


def test_promise_3_writes_follow_ups_and_completion_commit_together(
    kit: Kit, conn: Conn, worker: str, business: Callable[[], tuple[int, int, int]]
) -> None:
    enqueue(conn)
    handler_transaction(kit, take_one(conn, worker), worker)
    assert business() == (1, 1, 1)


@pytest.mark.parametrize("where", ["in the handler", "before the commit"])
def test_promise_3_or_not_at_all(
    kit: Kit, conn: Conn, worker: str, business: Callable[[], tuple[int, int, int]], where: str
) -> None:
    (job_id,) = enqueue(conn)
    job = take_one(conn, worker)
    if where == "before the commit":
        failpoints.arm("transaction.commit", "raise")
    with pytest.raises((ZeroDivisionError, failpoints.FailpointError)):
        handler_transaction(kit, job, worker, failing=where == "in the handler")
    assert business() == (0, 0, 0)
    assert status(conn, job_id) == "processing"


def test_promise_3_of_two_owners_exactly_one_commits(
    kit: Kit, conn: Conn, worker: str, business: Callable[[], tuple[int, int, int]]
) -> None:
    enqueue(conn)
    first = take_one(conn, worker, lease=30)
    later(kit, 31, conn)
    sweep_all(conn)
    second = take_one(conn, worker)
    with pytest.raises(LeaseLost):
        handler_transaction(kit, first, worker)
    handler_transaction(kit, second, worker)
    with pytest.raises(LeaseLost):
        handler_transaction(kit, second, worker)
    assert business() == (1, 1, 1)
    assert one(conn, "SELECT n FROM public.business") == 2


# Promise 4: an owner that lost its lease can change nothing (see the stale owners above) ----------------------------


def test_promise_4_an_owner_swept_while_it_works_commits_nothing(
    kit: Kit, connect: Connect, conn: Conn, worker: str, business: Callable[[], tuple[int, int, int]]
) -> None:
    enqueue(conn)
    job = take_one(conn, worker, lease=30)

    def body(tx: Transaction) -> None:
        tx.execute("INSERT INTO public.business VALUES (1)")
        later(kit, 31, conn)
        assert [s.id for s in sweep_all(conn)] == [job.id]

    with pytest.raises(LeaseLost):
        kit.database.transact(body, lambda _: settle_in(Settlement(job.grant, Completed()), worker))
    assert business() == (0, 0, 0)
    assert status(conn, job.id) == "pending"


def test_promise_4_a_sweep_that_waits_behind_a_completion_takes_nothing_back(
    kit: Kit, connect: Connect, conn: Conn, worker: str
) -> None:
    enqueue(conn)
    job = take_one(conn, worker, lease=30)
    handler = connect()
    with handler.transaction():
        assert run(handler, settle_in(Settlement(job.grant, Completed()), worker))
        later(kit, 31, conn)
        assert sweep_all(conn) == []
    assert sweep_all(conn) == []
    assert status(conn, job.id) == "completed"
    assert count(conn, "claims") == 0


# Promise 5: order per key (test_streams.py has the rest) ------------------------------------------------------------


def test_promise_5_a_key_runs_in_commit_order_one_after_the_other(
    app: Holdfast, holdfast_kit: Callable[..., Kit]
) -> None:
    app.queue("orders", ordering="key")
    running: set[str] = set()
    ran: dict[str, list[int]] = {}

    @app.task(queue="orders", retry=Backoff(first=0.01, jitter=False))
    async def step(job: Job, key: str, n: int) -> None:
        assert key not in running
        running.add(key)
        try:
            await asyncio.sleep(0)
            if n % 5 == 0 and job.attempt == 1:
                raise ValueError(n)
            ran.setdefault(key, []).append(n)
        finally:
            running.discard(key)

    kit = holdfast_kit(app)
    app.enqueue_many(step.using(partition_key=f"k{n % 7}").job(key=f"k{n % 7}", n=n) for n in range(200))
    while kit.sql("SELECT id FROM holdfast.work"):
        kit.clock.advance(1)
        kit.run_worker()
    assert sum(map(len, ran.values())) == 200
    assert all(numbers == sorted(numbers) for numbers in ran.values())


# Promise 6: nothing bad stops anybody else's work --------------------------------------------------------------------


def run_among_good(app: Holdfast, kit: Kit, make_bad: Callable[[], object]) -> list[int]:
    """Good jobs before and after whatever `make_bad` puts there; which of the good ones ran."""
    ran: list[int] = []

    @app.task
    def good(n: int) -> None:
        ran.append(n)

    @app.task(name="bad", max_attempts=1)
    def bad(n: int) -> None:
        raise ValueError(n)

    app.enqueue_many(good.job(n=n) for n in range(10))
    make_bad()
    app.enqueue_many(good.job(n=n) for n in range(10, 20))
    kit.run_worker(concurrency=4)
    return sorted(ran)


POISON = {
    "text": '"text"',
    "list": "[1, 2]",
    "null": "null",
    "unknown argument": '{"n": 1, "x": 2}',
    "no argument": "{}",
    "wrong type": '{"n": {"deep": []}}',
    "huge number": '{"n": 1e100000}',
    "deep": '{"n": ' + "[" * 3000 + "]" * 3000 + "}",
    "odd text": json.dumps({"n": "\u202e\U0010ffff\u0001"}),
}


def test_promise_6_poison_payloads_stop_nobody(app: Holdfast, kit: Kit, conn: Conn) -> None:
    poison = [NewRow("bad", payload, max_attempts=1) for payload in POISON.values()]
    assert run_among_good(app, kit, lambda: put(conn, *poison)) == list(range(20))
    dead = conn.execute("SELECT last_error FROM holdfast.dead_letters WHERE task = 'bad'").fetchall()
    assert all(error for (error,) in dead)
    aside = conn.execute(
        "SELECT hold_reason FROM holdfast.work WHERE task = 'bad' AND status = 'held'"
    ).fetchall()
    assert len(dead) + len(aside) == len(poison)
    # What is nested deeply can be read from Python 3.12 on; there it does not fit, and waits as others that do not.
    assert len(dead) >= 4, "no signature can fit what is not a JSON object"


BAD_ROWS = {
    "most attempts": {"attempts": "2147483647"},
    "most generations": {"lease_generation": "9223372036854775807"},
    "most crashes": {"crashes": "2147483647"},
    "negative": {"seq": "-5", "attempts": "-7", "version": "-1"},
    "dead token": {"claim_token": "'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid"},
    "before Christ": {"available_at": "'0044-03-15 BC'::timestamptz"},
    "for ever ago": {"available_at": "'-infinity'::timestamptz"},
    "created never": {"created_at": "'infinity'::timestamptz"},
    "odd metadata": {"metadata": "'[1e999]'::jsonb"},
}


def test_promise_6_bad_rows_stop_nobody(app: Holdfast, kit: Kit, conn: Conn) -> None:
    def make_bad() -> None:
        for columns in BAD_ROWS.values():
            load(conn, 1, **{"max_attempts": "1", "task": "'bad'", "payload": "'{\"n\": 1}'", **columns})

    assert run_among_good(app, kit, make_bad) == list(range(20))
    bad = "SELECT count(*) FROM holdfast.jobs WHERE task = 'bad' AND status IN ('dead_letter', 'quarantined', 'held')"
    assert one(conn, bad) == len(BAD_ROWS)


def test_promise_6_a_time_no_client_can_read_is_not_stored(conn: Conn, worker: str) -> None:
    early = one(conn, "SELECT id FROM holdfast.enqueue('work', run_at => '0044-03-15 BC')")
    assert take_one(conn, worker).id == early
    arrays = "ARRAY['work'], ARRAY['{}'], ARRAY['inbox'], ARRAY[1], ARRAY[NULL], ARRAY[0], ARRAY[1]"
    for when in ("-infinity", "infinity"):
        conn.execute(
            f"""SELECT holdfast.enqueue_many({arrays}, ARRAY['{when}']::timestamptz[], ARRAY[0],
                ARRAY[NULL], ARRAY[NULL]::float8[], ARRAY[NULL], ARRAY[NULL])""".encode()
        )
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE isfinite(available_at)") == 3
    assert len(take(conn, worker)) == 1


@pytest.mark.parametrize("events", ["UPDATE", "DELETE", "UPDATE OR DELETE"])
def test_promise_6_a_row_that_refuses_to_be_written_stops_nobody(
    app: Holdfast, kit: Kit, conn: Conn, bad_rows: Callable[..., None], events: str
) -> None:
    bad_rows("bad", events)
    assert run_among_good(app, kit, lambda: enqueue(conn, 3, task="bad", max_attempts=1)) == list(range(20))
    assert {r["status"] for r in kit.jobs("bad")} == {"quarantined"}


def test_promise_6_unknown_tasks_stop_nobody(app: Holdfast, kit: Kit, conn: Conn) -> None:
    assert run_among_good(app, kit, lambda: enqueue(conn, 30, task="from.the.future")) == list(range(20))
    assert {r["status"] for r in kit.jobs("from.the.future")} == {"held"}
    assert {r["attempts"] for r in kit.jobs("from.the.future")} == {0}


def test_promise_6_a_crasher_costs_its_neighbours_no_attempt(kit: Kit, conn: Conn, worker: str) -> None:
    enqueue(conn, 10)
    take(conn, worker)
    later(kit, 60, conn)
    assert len(sweep_all(conn, dead_after=12)) == 10
    rows = conn.execute("SELECT DISTINCT attempts, crashes, status, suspect FROM holdfast.work").fetchall()
    assert rows == [(0, 1, "pending", 0)]


async def test_promise_6_a_lock_on_the_queue_outlasting_every_timeout_does_not_end_the_worker(
    app: Holdfast, akit: Kit, connect: Connect, events: list[telemetry.Event]
) -> None:
    from dataclasses import replace

    akit.database.settings = replace(akit.database.settings, statement_timeout=0.3)
    ran = asyncio.Event()

    @app.task
    async def work() -> None:
        ran.set()

    await work.aenqueue()
    stranger = connect()
    stranger.autocommit = False
    stranger.execute("LOCK TABLE holdfast.inbox IN ACCESS EXCLUSIVE MODE")
    running = asyncio.create_task(akit.arun_worker(until_idle=False))
    try:
        async with asyncio.timeout(20):
            while not [e for e in events if e.name == "claim.failed"]:
                assert not running.done()
                await asyncio.sleep(0.02)
            stranger.rollback()
            await ran.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# Promise 7: every repeat carries the same id and a higher fence --------------------------------------------------------


def test_promise_7_every_repeat_has_the_same_id_and_a_higher_fence(kit: Kit, conn: Conn, worker: str) -> None:
    (job_id,) = enqueue(conn, max_attempts=1000)

    def lose_lease() -> None:
        later(kit, 31, conn)
        sweep_all(conn)

    endings: list[Callable[[ClaimedJob], object]] = [
        lambda job: end(conn, job.grant, Released()),
        lambda job: end(conn, job.grant, Snoozed(0)),
        lambda job: end(conn, job.grant, Failed(BOOM, 0)),
        lambda job: lose_lease(),
        lambda job: conn.execute("UPDATE holdfast.work SET lease_generation = lease_generation * 16"),
    ]
    fences: list[str] = []
    for n in range(20):
        job = take_one(conn, worker, lease=30)
        assert job.id == job_id
        fences.append(job.fence)
        endings[n % 4](job)
        if n % 4 == 3:
            endings[4](job)
    assert fences == sorted(set(fences))
    assert len(fences) == 20


def test_promise_7_a_failed_handler_repeats_with_the_same_id_and_a_higher_fence(
    app: Holdfast, kit: Kit
) -> None:
    seen: list[tuple[UUID, str, int]] = []

    @app.task(max_attempts=3)
    def work(job: Job) -> None:
        seen.append((job.id, job.fence, job.attempt))
        raise ValueError("again")

    work.enqueue()
    for _ in range(3):
        kit.run_worker()
        kit.clock.advance(DAY)
    assert len({job_id for job_id, _, _ in seen}) == 1
    assert [attempt for _, _, attempt in seen] == [1, 2, 3]
    assert [fence for _, fence, _ in seen] == sorted({fence for _, fence, _ in seen})


# Exhausted jobs land in the dead letters --------------------------------------------------------------------------------


def test_an_exhausted_job_is_a_dead_letter_with_its_last_error(conn: Conn, worker: str) -> None:
    (job_id,) = enqueue(conn, max_attempts=3, partition_key="order:1", tags=("a",), metadata='{"m": 1}')
    states = [end(conn, take_one(conn, worker).grant, Failed(BOOM, 0), worker) for _ in range(3)]
    assert states == ["pending", "pending", "dead_letter"]
    assert take(conn, worker) == []
    row = one(conn, "SELECT to_jsonb(d) FROM holdfast.dead_letters d WHERE id = %s", job_id)
    assert (row["attempts"], row["max_attempts"], row["last_error"]) == (3, 3, "ValueError: boom")
    assert (row["payload"], row["partition_key"], row["claimed_by"]) == ({"n": 0}, "order:1", worker)
    assert (row["tags"], row["metadata"], row["lease_generation"]) == (["a"], {"m": 1}, 3)
    assert one(conn, "SELECT array_agg(attempt ORDER BY at) FROM holdfast.errors") == [1, 2, 3]


def test_a_dead_letter_on_demand_spends_no_further_attempt(conn: Conn, worker: str) -> None:
    (job_id,) = enqueue(conn, max_attempts=5)
    assert end(conn, take_one(conn, worker).grant, DeadLettered(BOOM)) == "dead_letter"
    assert status(conn, job_id) == "dead_letter"
    assert take(conn, worker) == []


def test_a_dead_letter_is_never_swept_or_tidied(kit: Kit, conn: Conn, worker: str) -> None:
    (job_id,) = enqueue(conn)
    end(conn, take_one(conn, worker).grant, DeadLettered(BOOM))
    later(kit, 100 * DAY, conn)
    sweep_all(conn)
    sum(run(conn, housekeeping.prune(t, 7, 1000, None))[1] for t in housekeeping.FROM_MARK)
    for slot in run(conn, housekeeping.expired_slots(7)):
        run(conn, housekeeping.empty_slot(slot, 7))
    assert status(conn, job_id) == "dead_letter"
    assert count(conn, "errors") == 1


def test_cancelling_ends_a_waiting_job_and_asks_a_running_one(conn: Conn, worker: str) -> None:
    waiting, running = enqueue(conn, 2)
    assert run(conn, jobs.cancel(waiting, "inbox", "not needed"))
    assert status(conn, waiting) == "cancelled"
    job = take_one(conn, worker)
    assert job.id == running
    assert run(conn, jobs.cancel(running, "inbox"))
    assert run(conn, renew(worker, [job.grant], 60)) == ([], [job.grant])
    assert end(conn, job.grant, Cancelled("asked")) == "cancelled"
    assert not run(conn, jobs.cancel(running, "inbox"))


def test_a_fresh_row_belongs_to_nobody(conn: Conn) -> None:
    (job_id,) = enqueue(conn)
    row = row_of(conn, job_id)
    assert (row["claim_token"], row["lease_generation"], row["status"]) == (str(NOBODY), 0, "pending")


def test_our_sessions_read_committed_and_wait_for_the_disk(kit: Kit, conn: Conn) -> None:
    conn.execute("SET synchronous_commit = off")
    configure(conn, kit)
    assert one(conn, "SHOW default_transaction_isolation") == "read committed"
    assert one(conn, "SHOW synchronous_commit") == "on"
    assert isinstance(conn, psycopg.Connection)


def test_one_key_with_two_payloads_in_one_call_names_no_job_that_was_never_written(
    app: Holdfast, kit: Kit
) -> None:
    @app.task
    def touch(n: int) -> None: ...

    keyed = touch.using(idempotency_key="k")
    with pytest.raises(
        IdempotencyConflict, match="was used by another job of this call with another payload"
    ):
        app.enqueue_many([keyed.job(1), keyed.job(2)])
    assert kit.jobs() == []
    assert app.enqueue_many([keyed.job(2)])[0].created


@pytest.mark.parametrize(
    "bad",
    [
        {"payload": '{"a": "' + "x" * 262_144 + '"}'},
        {"metadata": '{"a": "' + "x" * 8_192 + '"}'},
        {"task": "no spaces"},
        {"priority": 101},
        {"max_attempts": 0},
        {"version": 0},
        {"idempotency_key": "k", "idempotency_lifetime": 0.5},
    ],
    ids="-".join,
)
def test_the_limits_hold_in_sql_for_a_caller_without_our_library(kit: Kit, bad: dict[str, Any]) -> None:
    row = NewRow(**{"task": "t", "payload": "{}", **bad})
    plain = NewRow(task="t", payload="{}")
    with pytest.raises(BadRow, match="a job is out of the limits"):
        kit.database.run(lambda: jobs.enqueue([plain, row]))
    with pytest.raises(BadRow, match=r"out of the limits|must be|the limit is|not usable"):
        kit.database.run(lambda: jobs.enqueue([row]))
    assert kit.jobs() == []
