"""Who is told, and who is not: what the database sends, as somebody who listens hears it."""

import contextlib
import json
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from tests.wake.conftest import Ear, sleepers

from holdfast.db import migrate
from holdfast.db.embedded import EmbeddedServer
from holdfast.model.job import Grant
from holdfast.model.outcome import Misfit, Settlement
from holdfast.model.worker import WorkerIdentity
from holdfast.store import sweep, workers
from holdfast.store.settle import settle
from holdfast.store.statement import Statement
from holdfast.store.wake import Prospect, fall_asleep, get_up, next_due, wake
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

ENQUEUE = "SELECT id FROM holdfast.enqueue('note', '{\"n\": 1}', queue => %s)"
# A plain job is written and told of by one function, any other by two.
KEYED = ENQUEUE[:-1] + ", idempotency_key => gen_random_uuid()::text)"
both = pytest.mark.parametrize("enqueue", [ENQUEUE, KEYED], ids=["plain", "keyed"])
T = TypeVar("T")
Expect = Callable[[], Prospect]
TOLD = [("holdfast_inbox", "")]


@pytest.fixture
def sleeper(sleepy: Kit) -> str:
    """A worker that sleeps in `inbox` and looks by itself every ten seconds. In the queue `mail` nobody sleeps."""
    worker = register(sleepy)
    sleepy.sql("SELECT holdfast.create_queue('mail')")
    assert sleepy.database.run(lambda: fall_asleep(worker, ["inbox"], 10.0))
    return worker


def register(kit: Kit) -> str:
    worker = WorkerIdentity.create()
    kit.database.run(
        lambda: workers.register(worker, queues=["inbox"], tasks=["note"], concurrency=1, release="test")
    )
    return worker.id


def ask(kit: Kit, statement: Statement[T]) -> T:
    return kit.database.run(lambda: statement)


def lie_down(kit: Kit, worker: str) -> bool:
    return ask(kit, fall_asleep(worker, ["inbox"], 1.0))


def test_nobody_sleeps_and_nothing_is_sent(sleepy: Kit, ear: Ear) -> None:
    sleepy.sql(ENQUEUE, ["inbox"])
    worker = register(sleepy)
    sleepy.database.run(lambda: fall_asleep(worker, ["inbox"], 10.0))
    sleepy.database.run(lambda: get_up(worker))
    sleepy.sql(ENQUEUE, ["inbox"])
    sleepy.database.run(lambda: wake(["inbox"]))
    assert ear.heard() == []


def test_one_for_each_queue_and_transaction_and_it_says_nothing(sleepy: Kit, ear: Ear, sleeper: str) -> None:
    other = register(sleepy)
    sleepy.database.run(lambda: fall_asleep(other, ["inbox", "mail"], 10.0))
    with sleepy.connect() as conn:
        for queue in ("inbox", "mail", "inbox", "inbox"):
            conn.execute(ENQUEUE, [queue])
        assert ear.heard() == []  # not before the commit
    assert sorted(ear.heard()) == [("holdfast_inbox", ""), ("holdfast_mail", "")]
    sleepy.sql(ENQUEUE, ["inbox"])
    assert ear.heard() == TOLD


def test_many_jobs_in_one_call_send_one(sleepy: Kit, ear: Ear, sleeper: str) -> None:
    sleepy.app.enqueue_many(sleepy.app._raw("note", {"n": n}, {}) for n in range(500))
    assert ear.heard() == TOLD


def test_a_queue_in_which_nobody_sleeps_sends_nothing(sleepy: Kit, ear: Ear, sleeper: str) -> None:
    sleepy.sql(ENQUEUE, ["mail"])
    assert ear.heard() == []


def test_what_is_rolled_back_sends_nothing(sleepy: Kit, ear: Ear, sleeper: str) -> None:
    with sleepy.connect() as conn:
        conn.execute(ENQUEUE, ["inbox"])
        conn.rollback()
        with pytest.raises(ZeroDivisionError), conn.transaction():
            conn.execute(ENQUEUE, ["inbox"])
            raise ZeroDivisionError
    assert ear.heard() == []


@pytest.mark.parametrize(
    ("delay", "told"), [("NULL", True), ("9", True), ("0", True), ("11", False), ("3600", False)]
)
def test_a_job_that_a_sleeper_finds_by_itself_in_time_sends_nothing(
    sleepy: Kit, ear: Ear, sleeper: str, delay: str, told: bool
) -> None:
    sleepy.sql(f"SELECT holdfast.enqueue('note', run_at => now() + {delay} * interval '1 second')")
    if delay != "NULL":
        sleepy.sql(f"SELECT holdfast.enqueue('note', delay => {delay} * interval '1 second')")
    sent = 2 if delay != "NULL" else 1
    assert ear.heard() == TOLD * sent * told
    sleepy.database.run(lambda: wake(["inbox"], None if delay == "NULL" else [float(delay)]))
    assert ear.heard() == TOLD * told


@both
def test_a_paused_queue_sends_nothing(sleepy: Kit, ear: Ear, sleeper: str, enqueue: str) -> None:
    sleepy.sql("UPDATE holdfast.queues SET paused_at = now() WHERE name = 'inbox'")
    sleepy.sql(enqueue, ["inbox"])
    assert ear.heard() == []


@both
@pytest.mark.parametrize("whose", ["DATABASE", "transaction"])
def test_it_can_be_switched_off(sleepy: Kit, ear: Ear, sleeper: str, whose: str, enqueue: str) -> None:
    """For the whole database, a role or one transaction."""
    with sleepy.connect() as conn:
        if whose == "DATABASE":
            name = sql.Identifier(conn.info.dbname)
            conn.execute(sql.SQL("ALTER DATABASE {} SET holdfast.notify = 'off'").format(name))
        else:
            conn.execute("SET LOCAL holdfast.notify = 'off'")
            conn.execute(enqueue, ["inbox"])
    if whose == "DATABASE":
        with sleepy.connect() as conn:  # it holds for sessions that begin after it
            conn.execute(enqueue, ["inbox"])
    assert ear.heard() == []
    assert len(sleepy.jobs()) == 1


@both
def test_no_more_than_four_transactions_are_about_to_notify(
    sleepy: Kit, ear: Ear, sleeper: str, enqueue: str
) -> None:
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(sleepy.connect()) for _ in range(6)]
        for conn in conns:
            conn.execute(enqueue, ["inbox"])
            conn.execute(enqueue, ["inbox"])
        for conn in conns:
            conn.commit()
        assert ear.heard() == TOLD * 4
        conns[5].execute(enqueue, ["inbox"])
        conns[5].commit()
        assert ear.heard() == TOLD
    assert len(sleepy.jobs()) == 13


def test_a_producer_needs_no_right_but_enqueue(sleepy: Kit, ear: Ear, sleeper: str) -> None:
    role = sql.Identifier(f"producer_{uuid4().hex[:8]}")
    with sleepy.connect(autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE ROLE {}").format(role))
        try:
            conn.execute(sql.SQL("GRANT USAGE ON SCHEMA holdfast TO {}").format(role))
            conn.execute(sql.SQL("GRANT EXECUTE ON FUNCTION holdfast.enqueue TO {}").format(role))
            conn.execute(sql.SQL("SET ROLE {}").format(role))
            conn.execute(ENQUEUE, ["inbox"])
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute("SELECT holdfast.wake('{inbox}')")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute("SELECT FROM holdfast.sleepers")
        finally:
            conn.execute("RESET ROLE")
            conn.execute(sql.SQL("DROP OWNED BY {}").format(role))
            conn.execute(sql.SQL("DROP ROLE {}").format(role))
    assert ear.heard() == TOLD


# Who sleeps -------------------------------------------------------------------------------------------------------------


def test_who_is_not_alive_does_not_fall_asleep(sleepy: Kit) -> None:
    drains, left = register(sleepy), register(sleepy)
    sleepy.database.run(lambda: workers.drain(drains))
    sleepy.database.run(lambda: workers.leave(left))
    for worker in (drains, left, "nobody"):
        assert not lie_down(sleepy, worker)
    assert sleepers(sleepy) == []


def test_drain_and_leave_and_an_operator_who_drains_take_it_out(sleepy: Kit) -> None:
    ends: list[Callable[[str], Statement[Any]]] = [
        workers.drain,
        workers.leave,
        lambda worker: workers.drain_workers([worker]),
    ]
    for end in ends:
        worker, other = register(sleepy), register(sleepy)
        lie_down(sleepy, worker)
        lie_down(sleepy, other)
        assert ask(sleepy, end(worker))
        assert sleepers(sleepy) == [other]
        ask(sleepy, get_up(other))


def test_a_fence_takes_it_out_and_a_sweep_what_others_left(sleepy: Kit) -> None:
    silent, lives = register(sleepy), register(sleepy)
    for worker in (silent, lives):
        lie_down(sleepy, worker)
    sleepy.sql("INSERT INTO holdfast.sleepers VALUES ('inbox', 'nobody', 1)")
    sleepy.sql("UPDATE holdfast.workers SET last_seen_at = now() - interval '1 hour' WHERE id = %s", [silent])
    assert sleepy.database.run(lambda: sweep.fence_workers(10)) == [silent]
    assert sleepers(sleepy) == [lives]


def test_a_sweep_tells_those_who_sleep(sleepy: Kit, ear: Ear, sleeper: str) -> None:
    (job,) = sleepy.sql(
        """INSERT INTO holdfast.work (id, queue, task, payload, status, claim_token)
           VALUES (holdfast.uuid7(), 'inbox', 'note', '{"n": 3}', 'processing', gen_random_uuid())
           RETURNING id, claim_token"""
    )
    claim = sweep.Revoked("dead", "inbox", [job["claim_token"]], [job["id"]])
    assert len(sleepy.database.run(lambda: sweep.take_back(claim, claim.job_ids, 3))) == 1
    assert ear.heard() == TOLD
    assert sleepy.database.run(lambda: sweep.take_back(claim, claim.job_ids, 3)) == []
    assert ear.heard() == []


def test_a_misfit_tells_those_whose_signature_may_differ(sleepy: Kit, ear: Ear, sleeper: str) -> None:
    (job,) = sleepy.sql(
        """INSERT INTO holdfast.work (id, queue, task, payload, status, claim_token, lease_generation)
           VALUES (holdfast.uuid7(), 'inbox', 'note', '{"n": 3}', 'processing', gen_random_uuid(), 1)
           RETURNING id, claim_token"""
    )
    misfit = Settlement(Grant("inbox", job["id"], 1, job["claim_token"]), Misfit("no", "mine"))
    assert [s.state for s in sleepy.database.run(lambda: settle([misfit], "w"))] == ["held"]
    assert ear.heard() == TOLD


# What a sleeper can expect ----------------------------------------------------------------------------------------------


@pytest.fixture
def expect(sleepy: Kit, sleeper: str) -> Expect:
    def look() -> Prospect:
        known = [("note", 1), ("other", 1)]
        return sleepy.database.run(lambda: next_due(["inbox", "mail"], known, 100.0))

    return look


def put(kit: Kit, delay: float = 0.0, queue: str = "inbox", priority: int = 0, task: str = "note") -> str:
    (row,) = kit.sql(
        "SELECT id FROM holdfast.enqueue(%s, %s, queue => %s, priority => %s, delay => make_interval(secs => %s))",
        [task, json.dumps({"n": 1}), queue, priority, delay],
    )
    return str(row["id"])


def due(expect: Expect) -> float:
    found = expect().due_in
    assert found is not None
    return found


def test_nothing_to_expect(sleepy: Kit, expect: Expect) -> None:
    assert expect() == (None, 1)
    put(sleepy, 200)
    assert expect() == (None, 1)


def test_the_first_of_every_queue_and_priority_counts(sleepy: Kit, expect: Expect) -> None:
    put(sleepy, 80, priority=5)
    assert 70 < due(expect) <= 80
    put(sleepy, 60, priority=-5)
    assert 50 < due(expect) <= 60
    put(sleepy, 40, queue="mail", priority=9)
    assert 30 < due(expect) <= 40
    put(sleepy, 0)
    assert due(expect) <= 0


def test_what_cannot_be_claimed_is_not_expected(sleepy: Kit, expect: Expect) -> None:
    job = put(sleepy)
    for hide, show in (
        ("UPDATE holdfast.queues SET paused_at = now()", "UPDATE holdfast.queues SET paused_at = NULL"),
        ("INSERT INTO holdfast.paused_tasks VALUES ('note', now())", "DELETE FROM holdfast.paused_tasks"),
        (f"INSERT INTO holdfast.quarantine VALUES ('{job}', 'inbox', '')", "DELETE FROM holdfast.quarantine"),
        ("UPDATE holdfast.work SET status = 'processing'", "UPDATE holdfast.work SET status = 'pending'"),
    ):
        assert due(expect) <= 0
        sleepy.sql(hide)
        assert expect().due_in is None
        sleepy.sql(show)


def test_held_jobs_are_expected_by_who_knows_their_task(sleepy: Kit, expect: Expect) -> None:
    put(sleepy, task="other")
    put(sleepy, task="unknown")
    sleepy.sql("UPDATE holdfast.work SET status = 'held', hold_reason = 'nobody knows it'")
    assert due(expect) <= 0
    sleepy.sql("DELETE FROM holdfast.work WHERE task = 'other'")
    assert expect().due_in is None


# Two-phase commit -------------------------------------------------------------------------------------------------------


def test_a_transaction_that_is_prepared_enqueues_with_it_switched_off(odd_server: EmbeddedServer) -> None:
    name = f"twophase_{uuid4().hex[:8]}"
    with psycopg.connect(odd_server.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        try:
            migrate.up(odd_server.dsn(name))
            with psycopg.connect(odd_server.dsn(name), autocommit=True) as conn:
                conn.execute("INSERT INTO holdfast.sleepers VALUES ('inbox', 'w', 10)")
                conn.execute("BEGIN")
                conn.execute(ENQUEUE, ["inbox"])
                with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
                    conn.execute("PREPARE TRANSACTION 'one'")
                conn.execute("BEGIN")
                conn.execute("SET LOCAL holdfast.notify = 'off'")
                conn.execute(ENQUEUE, ["inbox"])
                conn.execute("PREPARE TRANSACTION 'two'")
                conn.execute("COMMIT PREPARED 'two'")
                assert conn.execute("SELECT count(*) FROM holdfast.jobs").fetchone() == (1,)
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
