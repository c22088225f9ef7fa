"""What any worker tidies up, takes back and leaves alone, and what a producer may do."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.sql.support import (
    BOOM,
    DAY,
    Conn,
    configure,
    end,
    enqueue,
    keyed,
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

from holdfast import Holdfast
from holdfast.model.outcome import Completed, DeadLettered, Held, Settlement
from holdfast.runtime.claim.claimer import Ask
from holdfast.runtime.claim.queues import Queues
from holdfast.runtime.sweep import Sweeper
from holdfast.settings import Settings
from holdfast.store import housekeeping, jobs, owner, sweep, workers
from holdfast.store.claim import claim_these, find_held, hold_unknown, quarantine
from holdfast.store.renew import Ended, heartbeat, renew
from holdfast.store.settle import settle
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


@pytest.fixture
async def sweeper(akit: Kit) -> AsyncIterator[Sweeper]:
    made = Sweeper(akit.database, lambda: None)
    yield made
    await made.stop()


@pytest.fixture
async def claimer(app: Holdfast, akit: Kit) -> AsyncIterator[Queues]:
    @app.task(name="work")
    def work(n: int) -> None: ...

    made = Queues(akit.database, app.tasks, {"inbox": 60.0})
    yield made
    await made.close()


def tidy(kit: Kit) -> None:
    """Tidy up once, as a worker does."""

    async def main() -> None:
        sweeper = Sweeper(kit.database, lambda: None)
        await sweeper.tidier.tidy_once(7, 60.0)
        await sweeper.stop()

    asyncio.run(main())


def complete_one(conn: Conn, worker: str) -> UUID:
    (job_id,) = enqueue(conn)
    assert end(conn, take_one(conn, worker).grant, Completed("1")) == "completed"
    return job_id


def count(conn: Conn, table: str) -> int:
    return int(one(conn, f"SELECT count(*) FROM holdfast.{table}"))


# Idempotency keys and the registry --------------------------------------------------------------------------------


def test_only_expired_idempotency_keys_are_forgotten(kit: Kit, conn: Conn) -> None:
    put(conn, keyed("short", life=60), keyed("long", life=600))
    assert run(conn, housekeeping.prune("idempotency", 7, 100, None))[1] == 0
    later(kit, 61, conn)
    assert run(conn, housekeeping.prune("idempotency", 7, 100, None))[1] == 1
    assert one(conn, "SELECT key FROM holdfast.idempotency") == "long"
    assert count(conn, "work") == 2


def test_expiry_works_in_bounded_batches_and_waits_for_nobody(kit: Kit, connect: Connect, conn: Conn) -> None:
    put(conn, *[keyed(str(n), life=60) for n in range(10)])
    later(kit, 61, conn)
    assert run(conn, housekeeping.prune("idempotency", 7, 4, None))[1] == 4
    busy = connect()
    conn.execute("SET lock_timeout = '3s'")
    with busy.transaction():
        busy.execute("SELECT FROM holdfast.idempotency LIMIT 1 FOR UPDATE")
        assert run(conn, housekeeping.prune("idempotency", 7, 100, None))[1] == 5
    assert run(conn, housekeeping.prune("idempotency", 7, 100, None))[1] == 1


def test_a_key_taken_over_while_it_expires_stays(kit: Kit, conn: Conn) -> None:
    put(conn, keyed("k", life=60))
    later(kit, 61, conn)
    (fresh,) = put(conn, keyed("k", life=60))
    assert fresh.created
    assert run(conn, housekeeping.prune("idempotency", 7, 100, None))[1] == 0
    assert put(conn, keyed("k", life=60))[0].id == fresh.id


def test_the_registry_forgets_only_workers_gone_for_a_day_that_hold_nothing(kit: Kit, conn: Conn) -> None:
    alive, draining, holding, gone = (register(conn, name) for name in ("a", "d", "h", "g"))
    enqueue(conn)
    take_one(conn, holding, lease=30 * DAY)
    run(conn, workers.drain(draining))
    for worker in (holding, gone):
        run(conn, workers.leave(worker))
    later(kit, DAY - 60, conn)
    assert run(conn, housekeeping.prune_workers(100)) == 0
    later(kit, 120, conn)
    assert run(conn, housekeeping.prune_workers(100)) == 1
    left = one(conn, "SELECT array_agg(id ORDER BY id) FROM holdfast.workers")
    assert left == sorted([alive, draining, holding])


# The archive's ring of days ---------------------------------------------------------------------------------------


def slot_today(conn: Conn) -> int:
    return int(one(conn, "SELECT holdfast.archive_slot(holdfast.now())"))


def test_an_archive_slot_is_truncated_when_its_day_is_past_retention(
    kit: Kit, conn: Conn, worker: str
) -> None:
    job_id = complete_one(conn, worker)
    slot = slot_today(conn)
    file = f"SELECT pg_relation_filenode('holdfast.archive_{slot:02}')"
    tidy(kit)
    before = one(conn, file)
    later(kit, 7 * DAY, conn)
    tidy(kit)
    assert status(conn, job_id) == "completed"
    assert run(conn, jobs.job_status(job_id, "inbox")).state == "completed"
    later(kit, DAY, conn)
    fresh = complete_one(conn, worker)
    tidy(kit)
    assert status(conn, job_id) == "missing"
    assert run(conn, jobs.job_status(job_id, "inbox")).state == "gone"
    assert one(conn, file) != before
    assert status(conn, fresh) == "completed"
    assert one(conn, "SELECT day FROM holdfast.archive_slots WHERE slot = %s", slot) is None


def test_when_the_ring_comes_round_untidied_only_old_rows_are_deleted(
    kit: Kit, conn: Conn, worker: str
) -> None:
    old = complete_one(conn, worker)
    slot = slot_today(conn)
    tidy(kit)
    later(kit, 32 * DAY, conn)
    fresh = complete_one(conn, worker)
    assert slot_today(conn) == slot
    tidy(kit)
    assert (status(conn, old), status(conn, fresh)) == ("missing", "completed")
    noted = one(conn, "SELECT day FROM holdfast.archive_slots WHERE slot = %s", slot)
    assert noted == one(conn, "SELECT (holdfast.now() AT TIME ZONE 'UTC')::date")


def test_a_settle_never_fails_for_want_of_tidying(kit: Kit, conn: Conn, worker: str) -> None:
    done = []
    for _ in range(24):
        done.append(complete_one(conn, worker))
        later(kit, 3 * DAY, conn)
    assert run(conn, jobs.job_status(done[-1], "inbox")).state == "completed"
    assert one(conn, "SELECT count(DISTINCT slot) FROM holdfast.archive") > 20
    tidy(kit)
    last = complete_one(conn, worker)
    assert status(conn, last) == "completed"


def test_a_slot_that_somebody_reads_is_left_for_later_and_the_rest_is_tidied(
    kit: Kit, connect: Connect, conn: Conn, worker: str
) -> None:
    job_id = complete_one(conn, worker)
    put(conn, keyed("k", life=60))
    tidy(kit)
    slot = slot_today(conn)
    later(kit, 10 * DAY, conn)
    backup = connect()
    with backup.transaction():
        backup.execute(f"LOCK TABLE holdfast.archive_{slot:02} IN ACCESS SHARE MODE".encode())
        tidy(kit)
        assert status(conn, job_id) == "completed"
        assert count(conn, "idempotency") == 0
    tidy(kit)
    assert status(conn, job_id) == "missing"


def test_only_one_worker_tidies_per_interval(connect: Connect, conn: Conn) -> None:
    with ThreadPoolExecutor(6) as pool:
        turns = list(pool.map(lambda c: run(c, housekeeping.tidy_begin(60)), [connect() for _ in range(6)]))
    assert sorted(turns, key=str) == [7, None, None, None, None, None]
    assert run(conn, housekeeping.tidy_begin(60)) is None


def test_what_finished_jobs_left_behind_goes_and_what_live_and_dead_ones_need_stays(
    kit: Kit, conn: Conn, worker: str
) -> None:
    done, dead, live = enqueue(conn, 3)
    claimed = {job.id: job for job in take(conn, worker, lease=100 * DAY)}
    for job in claimed.values():
        run(conn, owner.once_put(job.grant, "step", "1"))
        run(conn, owner.progress([(job.grant, 0.5, "")]))
        run(conn, owner.guard(job.grant, "ledger", job.fence))
        conn.execute(
            "INSERT INTO holdfast.errors VALUES (%s, 'inbox', 1, 1, holdfast.now(), 'w', 'E', 'm', '')",
            [job.id],
        )
    end(conn, claimed[done].grant, Completed())
    end(conn, claimed[dead].grant, DeadLettered(BOOM))
    later(kit, 6 * DAY, conn)
    assert sum(run(conn, housekeeping.prune(t, 7, 1000, None))[1] for t in housekeeping.FROM_MARK) == 0
    later(kit, 2 * DAY, conn)
    sum(run(conn, housekeeping.prune(t, 7, 1000, None))[1] for t in housekeeping.FROM_MARK)
    for table in ("once", "errors"):
        kept = one(conn, f"SELECT array_agg(DISTINCT job_id) FROM holdfast.{table}")
        assert set(kept) == {dead, live}, table
    assert one(conn, "SELECT array_agg(job_id) FROM holdfast.progress") == [live]
    assert one(conn, "SELECT array_agg(stream) FROM holdfast.fences") == [str(live)]


# Claim rows go lazily ---------------------------------------------------------------------------------------------


def test_settling_one_of_five_and_tidying_never_strands_the_other_four(
    kit: Kit, conn: Conn, worker: str
) -> None:
    enqueue(conn, 5)
    first, *others = take(conn, worker, lease=30)
    end(conn, first.grant, Completed())
    run(conn, renew(worker, [], 30))  # nothing in use: tidies whatever may go
    assert count(conn, "claims") == 1
    later(kit, 31, conn)
    assert {s.id for s in sweep_all(conn)} == {job.id for job in others}
    assert count(conn, "claims") == 0


def test_a_claim_row_goes_once_nobody_needs_it(conn: Conn, worker: str) -> None:
    enqueue(conn, 5)
    held = take(conn, worker)
    other = register(conn)
    enqueue(conn)
    take(conn, other)
    for job in held:
        end(conn, job.grant, Completed())
    run(conn, renew(worker, [], 30))
    assert one(conn, "SELECT array_agg(worker) FROM holdfast.claims") == [other]


def test_a_claim_whose_ends_were_all_counted_goes_without_a_look_at_its_jobs(conn: Conn, worker: str) -> None:
    """Here they have not ended, so that a look would show."""
    enqueue(conn, 6)
    counted, others = take(conn, worker, 3), take(conn, worker, 3)
    run(conn, renew(worker, [], 30, Ended(counted[0].timeline, {counted[0].token_text: 3})))
    assert one(conn, "SELECT array_agg(token::text) FROM holdfast.claims") == [others[0].token_text]


@pytest.mark.parametrize(
    ("fewer", "later_timeline"), [(1, 0), (-1, 0), (0, 1)], ids=["too few", "too many", "another timeline"]
)
def test_a_count_that_proves_nothing_strands_no_job(
    conn: Conn, worker: str, fewer: int, later_timeline: int
) -> None:
    enqueue(conn, 3)
    first, *others = take(conn, worker)
    end(conn, first.grant, Completed())
    known = Ended(first.timeline + later_timeline, {first.token_text: len(others) + 1 - fewer})
    run(conn, renew(worker, [], 30, known))
    assert count(conn, "claims") == 1


def test_where_commits_may_be_lost_in_a_crash_a_count_proves_nothing(conn: Conn, worker: str) -> None:
    enqueue(conn, 3)
    first, *_ = take(conn, worker)
    conn.execute("SET synchronous_commit = off")
    run(conn, renew(worker, [], 30, Ended(first.timeline, {first.token_text: 3})))
    assert count(conn, "claims") == 1


def test_a_claim_row_still_in_use_stays(conn: Conn, worker: str) -> None:
    enqueue(conn)
    job = take_one(conn, worker)
    end(conn, job.grant, Completed())
    run(conn, renew(worker, [job.grant], 30))
    assert count(conn, "claims") == 1


def test_a_sweep_that_skips_a_locked_job_keeps_the_claim_row(
    kit: Kit, connect: Connect, conn: Conn, worker: str
) -> None:
    enqueue(conn, 2)
    locked, free = take(conn, worker, lease=30)
    handler = connect()
    with pytest.raises(ZeroDivisionError), handler.transaction():
        run(handler, settle([Settlement(locked.grant, Completed())], worker))
        later(kit, 31, conn)
        conn.execute("SET lock_timeout = '3s'")
        assert [s.id for s in sweep_all(conn)] == [free.id]
        assert count(conn, "claims") == 1
        raise ZeroDivisionError
    assert status(conn, locked.id) == "processing"
    assert [s.id for s in sweep_all(conn)] == [locked.id]
    assert count(conn, "claims") == 0


def test_a_claim_whose_answer_was_lost_is_given_back(conn: Conn, worker: str) -> None:
    enqueue(conn, 3)
    token = uuid4()
    take(conn, worker, token=token)
    assert run(conn, sweep.disown("somebody else", [token])) == []
    assert run(conn, sweep.disown(worker, [token])) == [token]
    assert len(sweep_all(conn)) == 3
    rows = conn.execute("SELECT DISTINCT suspect, crashes, attempts FROM holdfast.work").fetchall()
    assert rows == [(0, 0, 0)]


# Quarantine -------------------------------------------------------------------------------------------------------


def refused(job_id: UUID) -> str:
    """A trigger that refuses every write to one row."""
    return f"""
        CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'this row is bad'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON holdfast.inbox FOR EACH ROW
            WHEN (OLD.id = '{job_id}') EXECUTE FUNCTION public.refuse()"""


async def test_a_claim_takes_the_others_and_quarantines_the_bad_row(
    claimer: Queues, conn: Conn, worker: str
) -> None:
    ids = enqueue(conn, 9)
    conn.execute(refused(ids[4]).encode())
    claimed = await claimer.claim(Ask(worker, 9))
    assert {job.id for job in claimed} == set(ids) - {ids[4]}
    assert one(conn, "SELECT id FROM holdfast.quarantine") == ids[4]
    assert "this row is bad" in one(conn, "SELECT reason FROM holdfast.quarantine")
    assert status(conn, ids[4]) == "quarantined"
    (after,) = enqueue(conn)
    assert [job.id for job in await claimer.claim(Ask(worker, 1))] == [after]


async def test_a_sweep_takes_the_others_and_quarantines_the_bad_row(
    akit: Kit, sweeper: Sweeper, conn: Conn, worker: str
) -> None:
    ids = enqueue(conn, 9)
    take(conn, worker, lease=30)
    conn.execute(refused(ids[4]).encode())
    later(akit, 31, conn)
    conn.execute("UPDATE holdfast.workers SET last_seen_at = holdfast.now()")
    assert await sweeper.sweep_once() == 8
    assert one(conn, "SELECT id FROM holdfast.quarantine") == ids[4]
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE status = 'pending'") == 8
    assert await sweeper.sweep_once() == 0
    assert count(conn, "claims") == 0


def test_a_quarantined_row_is_left_alone_by_every_way_in(conn: Conn, worker: str) -> None:
    bad, good = enqueue(conn, 2)
    run(conn, quarantine(bad, "inbox", "test"))
    assert [job.id for job in take(conn, worker)] == [good]
    assert run(conn, claim_these("inbox", worker, uuid4(), lease=60, job_ids=[bad])) == []
    assert run(conn, hold_unknown("inbox", [], 100)) == 0


def test_a_sweep_leaves_a_quarantined_row_alone(kit: Kit, conn: Conn, worker: str) -> None:
    bad, good = enqueue(conn, 2)
    take(conn, worker, lease=30)
    run(conn, quarantine(bad, "inbox", "test"))
    later(kit, 31, conn)
    assert [s.id for s in sweep_all(conn)] == [good]
    assert one(conn, "SELECT status FROM holdfast.work WHERE id = %s", bad) == "processing"
    assert count(conn, "claims") == 0


def test_a_quarantined_held_row_does_not_hide_the_held_ones_behind_it(conn: Conn, worker: str) -> None:
    enqueue(conn, 2)
    held = take(conn, worker)
    for job in held:
        assert end(conn, job.grant, Held("unknown")) == "held"
    run(conn, quarantine(held[0].id, "inbox", "test"))
    assert run(conn, find_held("inbox", [("work", 1)], 1)) == [held[1].id]


async def test_a_bad_held_row_stops_no_other_held_job(claimer: Queues, conn: Conn, worker: str) -> None:
    ids = enqueue(conn, 3)
    for job in take(conn, worker):
        end(conn, job.grant, Held("unknown"))
    conn.execute(refused(ids[0]).encode())
    got = [job.id for job in await claimer.claim(Ask(worker, 1))]
    claimer.look_again()
    got += [job.id for job in await claimer.claim(Ask(worker, 1))]
    claimer.look_again()
    got += [job.id for job in await claimer.claim(Ask(worker, 1))]
    assert set(got) == set(ids[1:])


# The sweep's turn, and the grace after an outage --------------------------------------------------------------------


def test_only_one_sweep_per_interval(kit: Kit, connect: Connect, conn: Conn) -> None:
    conn.execute("UPDATE holdfast.engine SET last_sweep_at = holdfast.now()")
    assert run(conn, sweep.sweep_begin(2, 60, 5)) is False
    kit.clock.advance(3)
    sessions = [connect() for _ in range(6)]
    barrier = threading.Barrier(6)

    def ask(session: Conn) -> bool | None:
        barrier.wait(100)
        return run(session, sweep.sweep_begin(2, 60, 5))

    with ThreadPoolExecutor(6) as pool:
        turns = list(pool.map(ask, sessions))
    assert sorted(turns, key=str) == [False] * 5 + [True]


def test_after_an_outage_sweeping_waits_for_the_grace(kit: Kit, conn: Conn) -> None:
    conn.execute("UPDATE holdfast.engine SET last_sweep_at = holdfast.now()")
    later(kit, 3, conn)
    assert run(conn, sweep.sweep_begin(2, 60, 5)) is True
    later(kit, 600, conn)
    assert run(conn, sweep.sweep_begin(2, 60, 5)) is False
    later(kit, 3, conn)
    assert run(conn, sweep.sweep_begin(2, 60, 5)) is False
    later(kit, 3, conn)
    assert run(conn, sweep.sweep_begin(2, 60, 5)) is True


async def test_after_an_outage_living_owners_keep_their_jobs(akit: Kit, conn: Conn) -> None:
    living, dead = register(conn, "living"), register(conn, "dead")
    enqueue(conn, 2)
    kept, lost = take_one(conn, living), take_one(conn, dead)
    conn.execute("UPDATE holdfast.engine SET last_sweep_at = holdfast.now()")
    akit.database.settings = Settings()  # beats of 4 s, so a grace of 8 s; dead after 12 s
    sweeper = Sweeper(akit.database, lambda: None)
    later(akit, 600, conn)
    await sweeper.tick()
    assert {status(conn, kept.id), status(conn, lost.id)} == {"processing"}
    for _ in range(4):
        assert run(conn, heartbeat(living)) == "alive"
        assert run(conn, renew(living, [kept.grant], 60)) == ([], [])
        later(akit, 2.1, conn)
        await sweeper.tick()
    await sweeper.stop()
    assert (status(conn, kept.id), status(conn, lost.id)) == ("processing", "pending")
    assert end(conn, kept.grant, Completed()) == "completed"


async def test_a_stranger_who_holds_the_engines_row_does_not_stop_sweeping(
    akit: Kit, sweeper: Sweeper, connect: Connect, conn: Conn, worker: str
) -> None:
    (job_id,) = enqueue(conn)
    take_one(conn, worker, lease=30)
    stranger = connect()
    with stranger.transaction():
        stranger.execute("SELECT FROM holdfast.engine FOR UPDATE")
        later(akit, 3600, conn)
        await sweeper.tick()  # the row cannot say whether there was an outage: the grace is counted
        assert status(conn, job_id) == "processing"

        async with asyncio.timeout(10):
            while status(conn, job_id) != "pending":
                await sweeper.tick()


def test_a_stranger_who_holds_the_engines_row_for_a_moment_costs_one_turn(
    kit: Kit, connect: Connect, conn: Conn
) -> None:
    conn.execute("UPDATE holdfast.engine SET last_sweep_at = holdfast.now()")
    stranger = connect()
    with stranger.transaction():
        stranger.execute("SELECT FROM holdfast.engine FOR UPDATE")
        conn.execute("SET lock_timeout = '3s'")
        later(kit, 3, conn)
        assert run(conn, sweep.sweep_begin(2, 60, 5)) is False
        later(kit, 10, conn)
        assert run(conn, sweep.sweep_begin(2, 60, 5)) is True
        later(kit, 60, conn)
        assert run(conn, sweep.sweep_begin(2, 60, 5)) is None
        assert run(conn, housekeeping.tidy_begin(60)) is None


def test_a_worker_that_is_fenced_while_it_drains_goes_on_leaving(kit: Kit, conn: Conn, worker: str) -> None:
    run(conn, workers.drain(worker))
    later(kit, 60, conn)
    assert run(conn, sweep.fence_workers(12)) == [worker]
    assert run(conn, heartbeat(worker)) == "draining"  # and not `gone`, which makes a process start over
    assert one(conn, "SELECT status || ' ' || ended FROM holdfast.workers") == "gone left"


def test_a_fenced_worker_never_comes_back(kit: Kit, conn: Conn, worker: str) -> None:
    later(kit, 60, conn)
    assert run(conn, sweep.fence_workers(12)) == [worker]
    assert run(conn, heartbeat(worker)) == "gone"
    enqueue(conn)
    assert take(conn, worker) == []


# Suspects ---------------------------------------------------------------------------------------------------------


def test_an_expired_lease_of_a_living_worker_makes_no_suspects(kit: Kit, conn: Conn, worker: str) -> None:
    enqueue(conn)
    take_one(conn, worker, lease=30)
    later(kit, 31, conn)
    sweep_all(conn)
    rows = conn.execute("SELECT suspect, crashes FROM holdfast.work").fetchall()
    assert rows == [(0, 0)]


# Least privilege --------------------------------------------------------------------------------------------------


@pytest.fixture
def producer(kit: Kit, conn: Conn, connect: Connect) -> Iterator[Conn]:
    """A session of a role that may enqueue."""
    role = f"producer_{uuid4().hex[:12]}"
    conn.execute(f"CREATE ROLE {role} NOLOGIN".encode())
    conn.execute(f"GRANT USAGE ON SCHEMA holdfast TO {role}".encode())
    session = connect()
    session.execute(f"SET ROLE {role}".encode())
    yield session
    session.execute("RESET ROLE")
    conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def grant_enqueue(conn: Conn, producer: Conn) -> None:
    role = one(producer, "SELECT current_user")
    for function in ("enqueue", "enqueue_many"):
        conn.execute(f"GRANT EXECUTE ON FUNCTION holdfast.{function} TO {role}".encode())


def test_a_producer_needs_execute_on_enqueue(producer: Conn) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        put(producer, keyed("k"))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        producer.execute("SELECT holdfast.enqueue('work')")


def test_a_producer_can_enqueue(conn: Conn, producer: Conn) -> None:
    grant_enqueue(conn, producer)
    (first,) = put(producer, keyed("k"))
    (again,) = put(producer, keyed("k"))
    (other,) = put(producer, keyed("k", {"other": 1}))
    assert (first.created, again.id, other.conflict) == (True, first.id, "payload")
    assert producer.execute(
        "SELECT created FROM holdfast.enqueue('work', '{}', tags => '{a}')"
    ).fetchall() == [(True,)]
    assert count(conn, "work") == 2


def test_a_producer_can_do_nothing_else(conn: Conn, producer: Conn) -> None:
    grant_enqueue(conn, producer)
    relations = one(
        conn,
        """SELECT array_agg(oid::regclass::text) FROM pg_class
           WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'p', 'v')""",
    )
    assert len(relations) > 40
    allowed = one(
        producer,
        """SELECT array_agg(r || ' ' || p) FROM unnest(%s::text[]) r,
           unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) p
           WHERE has_table_privilege(r, p)
              OR (p IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES') AND has_any_column_privilege(r, p))""",
        relations,
    )
    assert allowed is None
    callable_ = one(
        producer,
        """SELECT array_agg(DISTINCT proname::text ORDER BY proname::text) FROM pg_proc
           WHERE pronamespace = 'holdfast'::regnamespace AND has_function_privilege(oid, 'EXECUTE')""",
    )
    pure = {"archive_slot", "archive_slots_of", "bucket", "clock_offset", "fingerprint", "now", "uuid7"}
    pure |= {"sharded_key", "uuid7_time"}
    assert set(callable_) - pure == {"enqueue", "enqueue_many"}
    for statement in (
        "SELECT FROM holdfast.work",
        "SELECT FROM holdfast.inbox",
        "SELECT FROM holdfast.jobs",
        "INSERT INTO holdfast.work (id, queue, task, payload) VALUES (gen_random_uuid(), 'inbox', 't', '{}')",
        "SELECT holdfast.create_queue('mine')",
        "SELECT holdfast.empty_archive_slot(0, 1)",
        "SELECT nextval('holdfast.work_seq')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            producer.execute(statement.encode())


def test_enqueue_is_not_led_astray_by_the_callers_search_path(conn: Conn, producer: Conn) -> None:
    grant_enqueue(conn, producer)
    role = one(producer, "SELECT current_user")
    conn.execute(f"CREATE SCHEMA trap AUTHORIZATION {role}".encode())
    producer.execute(
        "CREATE FUNCTION trap.sha256(bytea) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$"
    )
    producer.execute("SET search_path = trap, pg_catalog")
    assert put(producer, keyed("k"))[0].created


# Isolation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_stricter_default_isolation_does_not_break_our_sessions(
    app: Holdfast, kit: Kit, conn: Conn, level: str
) -> None:
    name = one(conn, "SELECT current_database()")
    conn.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'".encode())
    with psycopg.connect(kit.url) as other:
        assert one(other, "SHOW transaction_isolation") == level
    seen: list[Any] = []

    @app.task
    def work(n: int) -> None:
        seen.append(n)

    app.enqueue_many(work.job(n=n) for n in range(40))

    async def two_workers() -> None:
        try:
            await asyncio.gather(kit.arun_worker(concurrency=2), kit.arun_worker(concurrency=2))
        finally:
            await kit.database.aclose()

    asyncio.run(two_workers())
    assert sorted(seen) == list(range(40))
    assert {row["lease_generation"] for row in kit.jobs()} == {1}


def test_claims_of_our_sessions_race_without_serialization_failures(
    kit: Kit, connect: Connect, conn: Conn
) -> None:
    name = one(conn, "SELECT current_database()")
    conn.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'".encode())
    enqueue(conn, 200)
    sessions = [(connect(), register(conn)) for _ in range(4)]
    for session, _ in sessions:
        configure(session, kit)
    barrier = threading.Barrier(4)

    def consume(pair: tuple[Conn, str]) -> int:
        barrier.wait(100)
        got = 0
        while claimed := take(*pair, 3):
            run(pair[0], settle([Settlement(j.grant, Completed()) for j in claimed], pair[1]))
            got += len(claimed)
        return got

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(consume, sessions)) == 200
