"""The flaws C1 to C31 of the published SQL this design started from, each shown not to be in ours.

The docstring of a test is the flaw. The last test fails when a number is neither tested nor listed with its reason.
"""

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.conftest import await_until, wait_until
from tests.sql.support import (
    BOOM,
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
)
from tests.sql.test_plans import check, explain, nodes

from holdfast import Backoff, Holdfast, Job, telemetry
from holdfast.errors import InvalidPayload, LeaseLost
from holdfast.model.fence import fence
from holdfast.model.outcome import Completed, ErrorText, Failed, Released, Settlement
from holdfast.model.worker import WorkerIdentity
from holdfast.sql import query, query_names
from holdfast.store import claim as claims
from holdfast.store import housekeeping, sweep, workers
from holdfast.store.renew import heartbeat, renew
from holdfast.store.settle import settle, settle_in
from holdfast.store.statement import Flow, Statement, ids
from holdfast.store.wake import fall_asleep
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]

LATER_PARTS = {
    10: "ordered queues: the guard of a stream's head. Until then an ordered queue cannot be declared",
    12: "ordered queues: commit order within a key. Without them no order is promised",
    14: "projections and relays: there is no cursor consumer yet; jobs are claimed and marked row by row",
    31: "ordered queues: what a dead letter does to its stream",
}


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def test_c01_an_old_task_of_the_same_worker_settles_nothing(kit: Kit, conn: Conn, worker: str) -> None:
    """Complete by id and worker: after a reclaim by the same worker the old task's complete and renew hit the row."""
    enqueue(conn)
    old = take_one(conn, worker, lease=30)
    later(kit, 31, conn)
    sweep_all(conn)
    new = take_one(conn, worker)
    assert end(conn, old.grant, Completed(), worker) == "lost"
    assert run(conn, renew(worker, [old.grant], 60)) == ([old.grant], [])
    assert end(conn, new.grant, Failed(BOOM, 0), worker) == "pending"
    last = take_one(conn, worker)
    conn.execute("UPDATE holdfast.work SET max_attempts = 1")
    assert end(conn, last.grant, Failed(BOOM, 0), worker) == "dead_letter"
    for stale in (old, new):
        assert end(conn, stale.grant, Completed(), worker) == "lost"
    assert status(conn, old.id) == "dead_letter"


def test_c02_an_identity_never_repeats_and_a_renewal_is_tied_to_its_claim(conn: Conn, worker: str) -> None:
    """A worker named host-pid repeats after a restart, and renews the claims of its predecessor."""
    assert WorkerIdentity.create().id != WorkerIdentity.create().id
    enqueue(conn, 2)
    first, second = take_one(conn, worker), take_one(conn, worker)
    assert first.grant.token != second.grant.token
    before = one(conn, "SELECT lease_expires_at FROM holdfast.claims WHERE token = %s", second.grant.token)
    run(conn, renew(worker, [first.grant], 9999))
    after = one(conn, "SELECT lease_expires_at FROM holdfast.claims WHERE token = %s", second.grant.token)
    assert before == after


def test_c03_attempts_end_at_max_attempts_and_the_error_is_stored(conn: Conn, worker: str) -> None:
    """Retries ignore max_attempts and the last error is not stored."""
    (job_id,) = enqueue(conn, max_attempts=3)
    states = []
    for n in range(1, 8):
        for job in take(conn, worker, 1):
            states.append(end(conn, job.grant, Failed(ErrorText("ValueError", f"try {n}"), 0), worker))
    assert states == ["pending", "pending", "dead_letter"]
    assert status(conn, job_id) == "dead_letter"
    assert one(conn, "SELECT last_error FROM holdfast.jobs") == "ValueError: try 3"


def test_c04_no_number_of_attempts_overflows_anything(kit: Kit, conn: Conn, worker: str) -> None:
    """2^attempts overflows from 31 on, and one such row stops every sweep."""
    for attempts in (0, 31, 32, 2_147_483_647):
        load(conn, 1, attempts=str(attempts), max_attempts="2147483647")
    take(conn, worker, lease=30)
    later(kit, 31, conn)
    assert len(sweep_all(conn)) == 4
    for job in take(conn, worker):
        expected = "dead_letter" if job.attempts == 2_147_483_647 else "pending"
        assert end(conn, job.grant, Failed(BOOM, Backoff().delay(job.attempt)), worker) == expected
    assert one(conn, "SELECT attempts FROM holdfast.dead_letters") == 2_147_483_647


def test_c05_expiry_decides_nothing_for_an_owner_nobody_challenged(kit: Kit, conn: Conn, worker: str) -> None:
    """Complete tests the expiry and fail does not: late success refused, late failure accepted."""
    enqueue(conn, 4)
    done, failed, kept, transacted = take(conn, worker, lease=30)
    later(kit, 300, conn)
    assert run(conn, renew(worker, [kept.grant], 30)) == ([], [])
    assert end(conn, done.grant, Completed()) == "completed"
    assert end(conn, failed.grant, Failed(BOOM, 0)) == "pending"
    assert run(conn, settle_in(Settlement(transacted.grant, Completed()), worker))
    for name in (
        "settle_finish",
        "settle_fail",
        "settle_back",
        "lock_owned",
        "check_owned",
        "once_put",
        "guard",
    ):
        assert "lease_expires_at" not in query(name)


def test_c06_an_outage_longer_than_every_lease_costs_no_living_owner_its_job(
    kit: Kit, conn: Conn, worker: str
) -> None:
    """The first sweep after an outage takes back every live job."""
    enqueue(conn)
    job = take_one(conn, worker, lease=30)
    conn.execute("UPDATE holdfast.engine SET last_sweep_at = holdfast.now()")
    later(kit, 600, conn)
    assert run(conn, sweep.sweep_begin(2, 12, 8)) is False
    assert run(conn, heartbeat(worker)) == "alive"
    assert run(conn, renew(worker, [job.grant], 30)) == ([], [])
    later(kit, 9, conn)
    assert run(conn, sweep.sweep_begin(2, 12, 8)) is True
    assert sweep_all(conn, dead_after=12) == []
    assert end(conn, job.grant, Completed()) == "completed"


def test_c07_a_heartbeat_never_turns_a_draining_worker_alive(conn: Conn, worker: str) -> None:
    """The heartbeat writes status = 'alive'."""
    enqueue(conn)
    run(conn, workers.drain(worker))
    assert run(conn, heartbeat(worker)) == "draining"
    assert take(conn, worker) == []
    run(conn, workers.leave(worker))
    assert run(conn, heartbeat(worker)) == "draining"  # it goes on leaving
    assert one(conn, "SELECT status FROM holdfast.workers") == "gone"
    assert not run(conn, workers.drain(worker))


def test_c08_a_claim_reads_its_index_in_order_and_sorts_no_backlog(conn: Conn, worker: str) -> None:
    """The claim's order is not the index's order: it sorts the whole backlog each time."""
    load(conn, 20_000)
    marks = [(0, None)]
    plan = explain(conn, claims.claim("inbox", worker, uuid4(), lease=60, limit=10, marks=marks))
    check(plan, "claim", 150)
    scans = [n for n in nodes(plan) if n.get("Index Name") == "inbox_claim"]
    assert [n["Actual Rows"] for n in scans] == [10]


def test_c09_a_fence_orders_owners_over_failovers_and_keys(kit: Kit, conn: Conn, worker: str) -> None:
    """The generation alone is no fence: a promoted copy issues it again, and it is per row, not per key."""
    enqueue(conn, 2, partition_key="order:1")
    first, second = take(conn, worker)
    timeline, seq, generation = (int(part, 16) for part in first.fence.split("-"))
    assert timeline == int(one(conn, "SELECT timeline_id FROM pg_control_checkpoint()"))
    assert (seq, generation) == (row_of(conn, first.id)["seq"], 1)
    for _ in range(3):
        end(conn, first.grant, Released())
        first = take_one(conn, worker)
    assert first.grant.generation > second.grant.generation
    assert first.fence < second.fence  # a later job of the key wins, whatever the generations
    triples = [(t, s, g) for t in (1, 2, 16, 255) for s in (1, 15, 16, 10**12) for g in (1, 9, 10, 10**15)]
    assert sorted(triples) == sorted(triples, key=lambda triple: fence(*triple))


def test_c11_no_lock_of_a_stranger_stops_housekeeping(
    kit: Kit, connect: Connect, conn: Conn, worker: str
) -> None:
    """Housekeeping holds one well-known advisory lock, which any role can take for ever."""
    stranger = connect()
    stranger.execute(
        "SELECT pg_advisory_lock(847291), pg_advisory_lock(7236837, hashtext('holdfast.create_queue'))"
    )
    assert not [name for name in query_names() if "advisory" in query(name)]
    enqueue(conn)
    take_one(conn, worker, lease=30)
    conn.execute("UPDATE holdfast.engine SET last_sweep_at = holdfast.now()")
    later(kit, 31, conn)
    assert run(conn, sweep.sweep_begin(2, 60, 5)) is True
    assert len(sweep_all(conn)) == 1
    assert run(conn, housekeeping.tidy_begin(60)) is not None


def test_c13_jobs_of_one_transaction_run_in_the_order_they_were_enqueued(
    app: Holdfast, kit: Kit, conn: Conn
) -> None:
    """Rows of one transaction share created_at, so their order is that of random ids."""
    ran: list[int] = []

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    with conn.transaction():
        for n in range(6):
            work.using(conn=conn).enqueue(n)
    app.enqueue_many(work.job(n=n) for n in range(6, 12))
    kit.run_worker(concurrency=1)
    assert ran == list(range(12))
    made = one(conn, "SELECT array_agg(id ORDER BY seq) FROM holdfast.archive")
    assert [str(i)[14] for i in made] == ["7"] * 12
    assert one(conn, "SELECT bool_and(holdfast.uuid7_time(id) <= clock_timestamp()) FROM holdfast.archive")


def test_c15_a_claim_answers_in_order_and_only_what_is_needed(conn: Conn, worker: str) -> None:
    """RETURNING * is unordered and pulls every column."""
    load(conn, 500, available_at="holdfast.now() - random() * interval '1 hour'")
    claimed = take(conn, worker, 25)
    assert len(claimed) == 25
    keys = [(job.available_at, row_of(conn, job.id)["seq"]) for job in claimed]
    assert keys == sorted(keys)
    assert "RETURNING *" not in query("claim")


def test_c16_no_trigger_notifies_and_no_key_travels_in_a_channel(
    connect: Connect, conn: Conn, worker: str
) -> None:
    """A row trigger sends the partition key by NOTIFY: long keys fail the insert and any role can listen."""
    triggers = """SELECT array_agg(DISTINCT c.relname::text ORDER BY c.relname::text)
                  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
                  WHERE c.relnamespace = 'holdfast'::regnamespace AND NOT t.tgisinternal"""
    assert one(conn, triggers) == ["group_ends", "groups", "sleepers", "webhook_endpoints", "work"]
    speaks = """SELECT count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
                WHERE c.relnamespace = 'holdfast'::regnamespace AND p.prosrc ~* 'notify'"""
    assert one(conn, speaks) == 0
    assert run(conn, fall_asleep(worker, ["inbox"], 60.0))
    listener = connect()
    listener.execute("LISTEN holdfast_inbox")
    enqueue(conn, 3, partition_key="customer:secret-42" + "x" * 400)
    heard = next(iter(listener.notifies(timeout=100, stop_after=1)))
    assert (heard.channel, heard.payload) == ("holdfast_inbox", "")


def test_c17_finished_jobs_leave_the_hot_table_and_a_renewal_touches_no_job(conn: Conn, worker: str) -> None:
    """Every transition rewrites every index, and completed rows stay in the way."""
    enqueue(conn, 10)
    claimed = take(conn, worker)
    rows = "SELECT array_agg(ctid ORDER BY id) FROM holdfast.work"
    before = one(conn, rows)
    run(conn, renew(worker, [j.grant for j in claimed], 60))
    assert one(conn, rows) == before
    run(conn, settle([Settlement(j.grant, Completed()) for j in claimed], worker))
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 0
    assert one(conn, "SELECT count(*) FROM holdfast.archive") == 10


def test_c18_no_foreign_key_ties_jobs_to_workers(kit: Kit, conn: Conn, worker: str) -> None:
    """A foreign key from jobs to workers locks the worker's row at each claim and makes pruning fail."""
    keys = """SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND connamespace = 'holdfast'::regnamespace
              AND (conrelid = 'holdfast.work'::regclass OR confrelid = 'holdfast.workers'::regclass)"""
    assert one(conn, keys) == 0
    enqueue(conn, 2)
    take_one(conn, worker)
    conn.execute("DELETE FROM holdfast.workers")
    assert take(conn, worker) == []
    later(kit, 61, conn)
    assert len(sweep_all(conn)) == 1


def test_c19_serialization_failures_are_retried_and_our_sessions_read_committed(kit: Kit, conn: Conn) -> None:
    """A role whose default is REPEATABLE READ makes every claim fail with 40001."""
    conn.execute("SET default_transaction_isolation = 'serializable'")
    configure(conn, kit)
    assert one(conn, "SHOW transaction_isolation") == "read committed"
    conn.execute("CREATE SEQUENCE public.tries")
    conn.execute(
        """CREATE FUNCTION public.flaky() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
               IF nextval('public.tries') < 4 THEN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END IF;
               RETURN currval('public.tries'); END $$"""
    )
    flaky: Statement[list[Any]] = Statement("flaky", "SELECT public.flaky()", (), ids)
    assert kit.database.run(lambda: flaky) == [4]


def test_c20_a_duplicate_key_aborts_nothing_and_gets_the_id(connect: Connect, conn: Conn) -> None:
    """A duplicate idempotency key aborts the business transaction, or answers NULL to the concurrent duplicate."""
    (first,) = put(conn, keyed("k"))
    with conn.transaction():
        (again,) = put(conn, keyed("k"))
        (other,) = put(conn, keyed("k", {"other": 1}))
        assert one(conn, "SELECT 1") == 1
    assert again.id == first.id
    assert (other.id, other.conflict) == (first.id, "payload")
    assert "EXCEPTION\n" not in one(conn, "SELECT prosrc FROM pg_proc WHERE proname = 'enqueue_many'")
    rival = connect()
    with ThreadPoolExecutor(1) as pool, connect() as watch:
        with conn.transaction():
            (mine,) = put(conn, keyed("new"))
            theirs = pool.submit(put, rival, keyed("new"))
            pid = rival.info.backend_pid
            wait_until(lambda: one(watch, "SELECT cardinality(pg_blocking_pids(%s))", pid), "it waits for us")
        assert theirs.result(100)[0].id == mine.id


def test_c21_a_key_lives_beside_the_job_for_its_lifetime_and_in_its_queue(
    kit: Kit, conn: Conn, worker: str
) -> None:
    """A key is unique while its row lives, forgotten with it, and shared by everybody."""
    make_queue(conn, "mail")
    (first,) = put(conn, keyed("k", life=600))
    assert put(conn, keyed("k", {"other": 1}, queue="mail", life=600))[0].created
    end(conn, take_one(conn, worker).grant, Completed())
    conn.execute("TRUNCATE holdfast.archive")
    assert put(conn, keyed("k", life=600))[0].id == first.id
    later(kit, 601, conn)
    assert put(conn, keyed("k", life=600))[0].created


async def test_c22_a_worker_claims_for_its_free_slots_only_and_counts_attempts_when_they_fail(
    app: Holdfast, akit: Kit, conn: Conn
) -> None:
    """A batch of 25 is claimed and run one by one, so the tail's lease runs out and a crash costs all an attempt."""
    go = asyncio.Event()
    started = 0

    @app.task
    async def work(n: int) -> None:
        nonlocal started
        started += 1
        await go.wait()

    akit.database.settings = replace(akit.database.settings, prefetch=1)
    await app.aenqueue_many(work.job(n=n) for n in range(25))
    running = asyncio.create_task(akit.arun_worker(concurrency=2))
    await await_until(lambda: started == 2, "both slots are taken")
    rows = conn.execute("SELECT status, attempts FROM holdfast.work").fetchall()
    assert len([1 for state, _ in rows if state == "processing"]) <= 3
    assert {attempts for _, attempts in rows} == {0}
    go.set()
    await running
    assert one(conn, "SELECT count(*) FROM holdfast.archive WHERE attempts = 1") == 25


def test_c23_a_sweep_waits_for_nobody_and_blocks_nobody(
    kit: Kit, connect: Connect, conn: Conn, worker: str
) -> None:
    """The sweep is one unbounded UPDATE that waits behind an open completion and blocks others meanwhile."""
    enqueue(conn, 4)
    held, *others = [take_one(conn, worker, lease=30) for _ in range(4)]
    handler = connect()
    handler.autocommit = False
    assert run(handler, settle_in(Settlement(held.grant, Completed()), worker))
    later(kit, 31, conn)
    conn.execute("SET lock_timeout = '3s'")
    assert len(run(conn, sweep.revoke_expired(2))) == 2
    assert {s.id for s in sweep_all(conn)} == {job.id for job in others}
    handler.commit()
    assert status(conn, held.id) == "completed"
    assert "FOR NO KEY UPDATE" in query("claim")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


POISONED = [
    ValueError("nul \x00"),
    ValueError("half \ud800 pair"),
    ValueError("x" * 50_000_000),
    Unprintable(),
]


def test_c24_no_error_text_makes_a_settle_fail(app: Holdfast, kit: Kit, conn: Conn) -> None:
    """NUL and lone surrogates in an error text make fail() itself fail, and in a payload the insert."""

    @app.task(max_attempts=1)
    def work(n: int) -> None:
        raise POISONED[n]

    app.enqueue_many(work.job(n=n) for n in range(len(POISONED)))
    kit.run_worker()
    dead = conn.execute("SELECT octet_length(last_error) FROM holdfast.dead_letters").fetchall()
    assert len(dead) == len(POISONED)
    assert all(0 < size <= 8192 for (size,) in dead)

    @app.task
    def note(text: str) -> None: ...

    with conn.transaction():
        for text in ("nul \x00", "half \ud800 pair"):
            with pytest.raises(InvalidPayload):
                note.using(conn=conn).enqueue(text)
        note.using(conn=conn).enqueue("fine")
    assert len(kit.jobs("note")) == 1


def test_c25_status_is_text_with_a_check(conn: Conn) -> None:
    """Status is an enum: a new value is unusable in the migration that adds it."""
    assert one(conn, "SELECT count(*) FROM pg_type WHERE typtype = 'e'") == 0
    with pytest.raises(psycopg.errors.CheckViolation):
        load(conn, 1, status="'invented'")
    with conn.transaction(force_rollback=True):
        conn.execute(
            """ALTER TABLE holdfast.work DROP CONSTRAINT work_status, ADD CONSTRAINT work_status
               CHECK (status IN ('pending', 'processing', 'held', 'blocked', 'invented'))"""
        )
        load(conn, 1, status="'invented'")


@pytest.mark.parametrize(("key", "bucket"), [("order:9182", 751), ("", 944), ("a\\b", 544), ("ключ", 483)])
def test_c26_the_bucket_is_computed_by_the_database(conn: Conn, key: str, bucket: int) -> None:
    """Producers compute buckets, so two hash functions give a key two owners."""
    (job_id,) = enqueue(conn, partition_key=key)
    assert row_of(conn, job_id)["partition_bucket"] == bucket
    with pytest.raises(psycopg.errors.GeneratedAlways):
        conn.execute("UPDATE holdfast.work SET partition_bucket = 1")


def test_c27_the_jobs_of_a_dead_worker_come_back_when_it_is_fenced(kit: Kit, conn: Conn, worker: str) -> None:
    """Recovery waits for the lease and then for a backoff, though the worker is known to be dead."""
    (job_id,) = enqueue(conn)
    take_one(conn, worker, lease=3600)
    due = row_of(conn, job_id)["available_at"]
    later(kit, 13, conn)
    assert [s.state for s in sweep_all(conn, dead_after=12)] == ["pending"]
    row = row_of(conn, job_id)
    assert (row["available_at"], row["attempts"]) == (due, 0)
    assert run(conn, claims.find_suspects("inbox", 10)) == []
    assert [job.id for job in take(conn, register(conn))] == [job_id]  # as any other


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_c28_a_lost_lease_reaches_the_handler(
    app: Holdfast, akit: Kit, conn: Conn, events: list[telemetry.Event], kind: str
) -> None:
    """LeaseLost is thrown in a timer and never reaches the handler."""
    begun = threading.Event()
    told: list[type[BaseException]] = []

    @app.task(name="patient")
    async def patient(job: Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            assert job.lost
            told.append(type(error))
            raise

    @app.task(name="stubborn")
    def stubborn(job: Job) -> None:
        begun.set()
        wait_until(lambda: job.lost, "the loss is told")
        try:
            job.check()
        except LeaseLost as error:
            told.append(type(error))
            raise

    await (patient if kind == "async" else stubborn).aenqueue()
    running = asyncio.create_task(akit.arun_worker(until_idle=False))
    await await_until(begun.is_set, "the handler runs")
    conn.execute("UPDATE holdfast.work SET claim_token = gen_random_uuid(), lease_generation = 99")
    await await_until(lambda: [e for e in events if e.name == "job.lost"], "the worker lets go of the job")
    assert told == [asyncio.CancelledError if kind == "async" else LeaseLost]
    assert one(conn, "SELECT lease_generation FROM holdfast.work") == 99
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_c29_a_flow_runs_on_one_connection_in_one_transaction(kit: Kit) -> None:
    """BEGIN, lock and update go through a pool and may use three connections."""

    def where() -> Statement[Any]:
        text = "SELECT pg_backend_pid(), pg_current_xact_id()::text"
        return Statement("where", text, (), lambda rows: rows[0])

    def flow() -> Flow[list[Any]]:
        found = []
        for _ in range(3):
            found.append((yield from where()))
        return found

    first, second, third = kit.database.run(flow)
    assert first == second == third


def test_c30_people_see_due_and_scheduled_apart_and_the_latest_error(conn: Conn, worker: str) -> None:
    """Lag counts jobs of the future, and the last error is the alphabetically greatest."""
    (due,) = enqueue(conn)
    job = take_one(conn, worker)
    end(conn, job.grant, Failed(ErrorText("ZebraError", "first"), 0), worker)
    end(conn, take_one(conn, worker).grant, Failed(ErrorText("AntError", "second"), 0), worker)
    (future,) = enqueue(conn, delay=3600.0)
    assert (status(conn, due), status(conn, future)) == ("pending", "scheduled")
    assert one(conn, "SELECT last_error FROM holdfast.jobs WHERE id = %s", due) == "AntError: second"


def test_every_flaw_has_a_test_or_a_reason() -> None:
    tested = {int(found[1]) for name in globals() if (found := re.match(r"test_c(\d\d)_", name))}
    assert not tested & set(LATER_PARTS)
    assert tested | set(LATER_PARTS) == set(range(1, 32))
    assert all(len(reason) > 20 for reason in LATER_PARTS.values())
