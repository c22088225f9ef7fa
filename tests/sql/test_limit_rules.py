"""Limits, statement by statement: no place is given twice, none is lost, and tokens come with time and no faster."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.conftest import wait_until
from tests.sql.support import (
    BOOM,
    Conn,
    end,
    enqueue,
    later,
    load,
    make_queue,
    one,
    register,
    run,
    sweep_all,
)
from tests.sql.test_plans import explain, nodes

from holdfast.db.connect import CONFIGURE
from holdfast.db.executors import drive
from holdfast.model.job import ClaimedJob
from holdfast.model.outcome import Completed, Failed, Released, Snoozed
from holdfast.model.queue import QueueRules, Rate
from holdfast.store import claim as claims
from holdfast.store import limits as store
from holdfast.store import queues, streams
from holdfast.store.limits import Allowance, Limited
from holdfast.store.statement import Flow, Statement
from holdfast.testing import Kit, TestServer

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]
NOW = [(0, None)]


def plain(queue: str, worker: str, want: int, limited: int = 1) -> Flow[Limited]:
    """A claim of a queue that is limited as a whole."""

    def take(allowed: Allowance) -> Statement[list[ClaimedJob]]:
        most = min(want, allowed.total)
        return claims.claim(queue, worker, uuid4(), lease=60, limit=most, marks=NOW, limited=limited)

    return store.within(queue, [], take)


def shared(queue: str, worker: str, shares: Sequence[tuple[str, int]], want: int = 100) -> Flow[Limited]:
    """A claim of a queue whose keys have limits."""

    def take(allowed: Allowance) -> Statement[list[ClaimedJob]]:
        cut = [(key, min(n, most)) for (key, n), most in zip(shares, allowed.keys, strict=True)]
        most = min(want, allowed.total)
        return store.claim_shares(queue, worker, uuid4(), lease=60, shares=cut, limit=most, limited=2)

    return store.within(queue, [key for key, _ in shares], take)


def allowance(conn: Conn, queue: str, *keys: str) -> Allowance:
    return run(conn, store.allowance(queue, keys))


# Races ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["queue", "key"])
def test_of_two_claims_at_once_one_takes_the_last_place(conn: Conn, connect: Connect, by: str) -> None:
    make_queue(conn, "q", **({"concurrency": 1} if by == "queue" else {"key_concurrency": 1}))
    enqueue(conn, 5, queue="q", partition_key="a")
    worker, other = register(conn), connect()

    def claim() -> Flow[Limited]:
        return plain("q", worker, 5) if by == "queue" else shared("q", worker, [("a", 5)])

    with conn.transaction():
        assert len(drive(conn, claim()).jobs) == 1
        second = run(other, claim())  # the first has not committed
        assert (second.jobs, second.busy) == ([], True)
    assert run(other, claim()).jobs == []


@pytest.mark.parametrize("by", ["queue", "key"])
def test_a_limit_of_one_is_never_two(conn: Conn, connect: Connect, by: str) -> None:
    make_queue(conn, "q", **({"concurrency": 1} if by == "queue" else {"key_concurrency": 1}))
    keys = ["a"] if by == "queue" else ["a", "b"]
    for key in keys:
        enqueue(conn, 30, queue="q", partition_key=key)
    worker, lock = register(conn), threading.Lock()
    running: Counter[str] = Counter()
    most: list[int] = []
    ended = 0

    def work(mine: Conn) -> None:
        nonlocal ended
        while ended < 30 * len(keys):
            what = plain("q", worker, 5) if by == "queue" else shared("q", worker, [(k, 5) for k in keys])
            jobs = run(mine, what).jobs
            with lock:
                for job in jobs:
                    running[job.partition_key or ""] += 1
                    most.append(running[job.partition_key or ""])
            for job in jobs:
                one(mine, "SELECT 1")  # it takes a moment
                with lock:
                    running[job.partition_key or ""] -= 1
                end(mine, job.grant, Completed(None), worker)
                with lock:
                    ended += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [connect() for _ in range(4)]))
    assert set(most) == {1}
    assert len(most) == 30 * len(keys)


def test_a_token_is_spent_once_however_many_claim(conn: Conn, connect: Connect) -> None:
    make_queue(conn, "q", rate=Rate(1, per=3600, burst=7))
    enqueue(conn, 40, queue="q")
    worker = register(conn)

    def work(mine: Conn) -> int:
        taken = 0
        while True:
            done = run(mine, plain("q", worker, 3))
            taken += len(done.jobs)
            if not done.jobs and not done.busy:
                return taken

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, [connect() for _ in range(4)])) == 7


def test_who_finds_another_claiming_does_not_wait_for_it(conn: Conn, connect: Connect, kit: Kit) -> None:
    """One that stands still in its claim holds the queue until the server ends its session: two seconds, however long its
    other transactions may stand still."""
    make_queue(conn, "q", concurrency=1)
    enqueue(conn, 2, queue="q")
    worker, still = register(conn), psycopg.connect(kit.url, autocommit=True)
    with psycopg.RawCursor(still) as cursor:
        cursor.execute(CONFIGURE.encode(), ("3600000", "", True, still.info.backend_pid, "force_custom_plan"))
    with still.transaction():
        drive(still, plain("q", worker, 0))
    assert one(still, "SHOW idle_in_transaction_session_timeout") == "1h", "only while it claims"
    still.execute("BEGIN")
    assert len(drive(still, plain("q", worker, 1)).jobs) == 1
    assert run(conn, plain("q", worker, 1)).busy
    wait_until(
        lambda: len(run(conn, plain("q", worker, 1)).jobs) == 1, "the session that stood still is ended"
    )
    still.close()


# Places --------------------------------------------------------------------------------------------------------------


def test_places_come_back_however_an_attempt_ends(conn: Conn, kit: Kit) -> None:
    make_queue(conn, "q", concurrency=4)
    enqueue(conn, 4, queue="q")
    worker = register(conn)
    jobs = run(conn, plain("q", worker, 10)).jobs
    assert [len(jobs), allowance(conn, "q").total] == [4, 0]
    for n, outcome in enumerate([Completed(None), Failed(BOOM, 60.0), Snoozed(60.0), Released("stop")], 1):
        end(conn, jobs[n - 1].grant, outcome, worker)
        assert allowance(conn, "q").total == n


def test_places_of_a_dead_worker_come_back_when_it_is_swept(conn: Conn, kit: Kit) -> None:
    make_queue(conn, "q", concurrency=3, key_concurrency=2)
    enqueue(conn, 5, queue="q", partition_key="a")
    worker = register(conn)
    assert len(run(conn, shared("q", worker, [("a", 9)])).jobs) == 2
    assert allowance(conn, "q", "a")[:2] == (1, [0])
    later(kit, 30, conn)
    assert len(sweep_all(conn, dead_after=15)) == 2
    assert allowance(conn, "q", "a")[:2] == (3, [2])


def test_a_claim_over_several_keys_takes_no_more_than_the_queue_may(conn: Conn) -> None:
    make_queue(conn, "q", concurrency=3, key_concurrency=2)
    for key in ("a", "b", "c"):
        enqueue(conn, 4, queue="q", partition_key=key)
    taken = run(conn, shared("q", register(conn), [(key, 4) for key in ("a", "b", "c")])).jobs
    assert Counter(job.partition_key for job in taken) == {"a": 2, "b": 1}


def test_a_quarantined_job_takes_no_place(conn: Conn) -> None:
    make_queue(conn, "q", concurrency=1)
    enqueue(conn, 1, queue="q")
    (job,) = run(conn, plain("q", register(conn), 1)).jobs
    run(conn, claims.quarantine(job.id, "q", "the sweep cannot take it back"))
    assert allowance(conn, "q").total == 1


def test_a_claim_that_is_rolled_back_takes_no_place_and_no_token(conn: Conn) -> None:
    make_queue(conn, "q", concurrency=1, rate=Rate(1, per=3600, burst=1))
    enqueue(conn, 1, queue="q")
    worker = register(conn)
    with conn.transaction(force_rollback=True):
        assert len(drive(conn, plain("q", worker, 1)).jobs) == 1
    assert len(run(conn, plain("q", worker, 1)).jobs) == 1


def test_limits_of_other_queues_do_not_count(conn: Conn) -> None:
    for name in ("q", "other"):
        make_queue(conn, name, concurrency=1, rate=Rate(1, per=3600, burst=1))
        enqueue(conn, 2, queue=name)
        assert len(run(conn, plain(name, register(conn), 2)).jobs) == 1


# Tokens --------------------------------------------------------------------------------------------------------------


def test_a_bucket_starts_full_empties_and_fills_with_time(conn: Conn, kit: Kit) -> None:
    make_queue(conn, "q", rate=Rate(6, per=60, burst=4))
    enqueue(conn, 50, queue="q")
    worker = register(conn)
    assert len(run(conn, plain("q", worker, 3)).jobs) == 3
    assert len(run(conn, plain("q", worker, 3)).jobs) == 1
    empty = run(conn, plain("q", worker, 3))
    assert (empty.jobs, empty.cut) == ([], True)
    assert empty.again_in is not None
    assert 0 < empty.again_in <= 10
    later(kit, 20.5, conn)
    assert len(run(conn, plain("q", worker, 9)).jobs) == 2
    later(kit, 3600, conn)
    assert len(run(conn, plain("q", worker, 9)).jobs) == 4


def test_a_key_has_a_bucket_of_its_own(conn: Conn, kit: Kit) -> None:
    make_queue(conn, "q", key_rate=Rate(6, per=60, burst=2))
    for key in ("a", "b"):
        enqueue(conn, 50, queue="q", partition_key=key)
    worker = register(conn)
    assert len(run(conn, shared("q", worker, [("a", 5)])).jobs) == 2
    found = allowance(conn, "q", "a", "b", "new")
    assert found.keys == [0, 2, 2]
    assert 0 < found.waits[0] <= 10
    assert found.waits[1:] == [0, 0]
    later(kit, 10.5, conn)
    assert len(run(conn, shared("q", worker, [("a", 5), ("b", 1)])).jobs) == 2
    later(kit, 3600, conn)
    assert allowance(conn, "q", "a", "b").keys == [2, 2]


def test_every_start_spends_a_token_and_a_job_that_goes_back_returns_none(conn: Conn) -> None:
    make_queue(conn, "q", rate=Rate(1, per=3600, burst=3))
    enqueue(conn, 1, queue="q")
    worker = register(conn)
    for left in (2, 1, 0):
        (job,) = run(conn, plain("q", worker, 1)).jobs
        end(conn, job.grant, Released("stop"), worker)
        assert allowance(conn, "q").total == left


def test_a_clock_that_was_moved_back_does_not_stop_a_rate(conn: Conn, kit: Kit) -> None:
    make_queue(conn, "q", rate=Rate(60, per=60, burst=1), key_rate=Rate(60, per=60, burst=1))
    enqueue(conn, 3, queue="q", partition_key="a")
    worker = register(conn)
    assert len(run(conn, shared("q", worker, [("a", 1)])).jobs) == 1
    for table in ("limits", "key_tokens"):
        conn.execute(f"UPDATE holdfast.{table} SET refilled_at = holdfast.now() + interval '1 day'".encode())
    assert run(conn, shared("q", worker, [("a", 1)])).jobs == []  # seen: from now on they fill again
    later(kit, 1.1, conn)
    assert len(run(conn, shared("q", worker, [("a", 1)])).jobs) == 1


def test_a_changed_rate_counts_from_the_next_claim(conn: Conn) -> None:
    make_queue(conn, "q", rate=Rate(1, per=3600, burst=50))
    enqueue(conn, 50, queue="q")
    run(conn, queues.set_rules("q", QueueRules(rate=Rate(1, per=3600, burst=2))))
    assert len(run(conn, plain("q", register(conn), 50)).jobs) == 2


def test_buckets_that_are_full_again_are_forgotten_and_others_are_kept(conn: Conn, kit: Kit) -> None:
    make_queue(conn, "quick", key_rate=Rate(1, burst=1))
    make_queue(conn, "slow", key_rate=Rate(1, per=86_400, burst=5))
    worker = register(conn)
    for queue in ("quick", "slow"):
        enqueue(conn, 5, queue=queue, partition_key="a")
        assert run(conn, shared(queue, worker, [("a", 5)])).jobs
    assert run(conn, store.prune_key_limits(10)) == 0
    later(kit, 120, conn)
    assert run(conn, store.prune_key_limits(10)) == 1
    assert allowance(conn, "slow", "a").keys == [0]


# Who does not know ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rules", "level"), [({"concurrency": 9}, 1), ({"key_concurrency": 9}, 2)])
def test_a_claim_that_knows_of_fewer_limits_takes_nothing(
    conn: Conn, rules: dict[str, Any], level: int
) -> None:
    """A worker reads the rules every few seconds; until then it takes nothing rather than too much."""
    run(conn, queues.create_queue("q", rules=QueueRules(fair=True)))
    make_queue(conn, "o", ordering="key")
    (job,) = enqueue(conn, 1, queue="q", partition_key="a")
    enqueue(conn, 1, queue="o", partition_key="a")
    worker = register(conn)
    run(conn, queues.set_rules("q", QueueRules(fair=True, **rules)))
    run(conn, queues.set_rules("o", QueueRules("key", **rules)))

    def every(limited: int) -> Iterator[Statement[list[ClaimedJob]]]:
        yield claims.claim("q", worker, uuid4(), lease=60, limit=1, marks=NOW, limited=limited)
        yield claims.claim_these("q", worker, uuid4(), lease=60, job_ids=[job], limited=limited)
        yield store.claim_shares("q", worker, uuid4(), lease=60, shares=[("a", 1)], limit=1, limited=limited)
        yield streams.claim_streams("o", worker, uuid4(), lease=60, keys=["a"], run=1, limited=limited)

    for known in range(level):
        assert [run(conn, statement) for statement in every(known)] == [[]] * 4
    assert all(_undone(conn, statement) for statement in every(level))


def _undone(conn: Conn, statement: Statement[list[ClaimedJob]]) -> list[ClaimedJob]:
    with conn.transaction(force_rollback=True):
        return drive(conn, statement)


def test_the_head_of_a_key_is_what_a_claim_would_take(conn: Conn) -> None:
    """It is what is set aside when the claim of a key fails: no innocent."""
    make_queue(conn, "q", fair=True)
    enqueue(conn, 1, queue="q", partition_key="a", task="paused")
    suspect, next_one = enqueue(conn, 2, queue="q", partition_key="a")
    conn.execute("INSERT INTO holdfast.paused_tasks (task, paused_at) VALUES ('paused', holdfast.now())")
    conn.execute("UPDATE holdfast.work SET suspect = 1 WHERE id = %s", [suspect])
    assert run(conn, store.share_head("q", "a")) == next_one
    assert run(conn, store.share_head("q", "a", suspects=True)) == suspect


# Plans ---------------------------------------------------------------------------------------------------------------

DEEP, KEYS = 100_000, 20_000


@pytest.fixture(scope="module")
def big(holdfast_server: TestServer) -> Iterator[Conn]:
    """One key with 100,000 jobs, 20,000 keys with one each, no statistics, and 400 jobs that run."""
    name = holdfast_server.clone()
    with psycopg.connect(holdfast_server.url(name), autocommit=True) as conn:
        with psycopg.RawCursor(conn) as cursor:
            cursor.execute(
                CONFIGURE.encode(), ("60000", "", True, conn.info.backend_pid, "force_custom_plan")
            )
        make_queue(
            conn, "q", fair=True, key_concurrency=5, concurrency=1000, key_rate=Rate(10), rate=Rate(1000)
        )
        make_queue(conn, "aged", aging=60.0)
        load(conn, DEEP, queue="'q'", partition_key="'big'")
        load(conn, KEYS, queue="'q'", partition_key="'k' || n")
        load(conn, DEEP, queue="'aged'", priority="n % 20 - 10")
        worker = register(conn)
        for start in range(0, 400, 100):
            keys = [(f"k{n}", 1) for n in range(start + 1, start + 101)]
            assert len(run(conn, shared("q", worker, keys)).jobs) == 100
        yield conn
    holdfast_server.drop(name)


def _statements(worker: str) -> dict[str, tuple[Statement[Any], int]]:
    """Each with the buffers it may touch."""
    keys = ["big", *(f"k{n}" for n in range(1000, 1009))]
    shares = [(key, 2) for key in keys]
    claim = store.claim_shares("q", worker, uuid4(), lease=60, shares=shares, limit=10, limited=2)
    marks = [(p, None) for p in range(9, -11, -1)]
    return {
        "claim_shares": (claim, 500),
        "scan_shares": (store.scan_shares("q", None, None, 100), 1500),
        "suspect_shares": (store.suspect_shares("q", 10), 100),
        "share_head": (store.share_head("q", "big"), 100),
        "oldest_of_each": (store.oldest_of_each("aged", marks), 400),
        "allowance": (store.allowance("q", keys), 4000),  # 400 jobs that run, looked up one by one
    }


@pytest.mark.parametrize("name", sorted(_statements("w")))
@pytest.mark.parametrize("analyzed", [False, True])
def test_what_limits_and_shares_ask_stays_cheap(big: Conn, name: str, analyzed: bool) -> None:
    statement, most = _statements(register(big))[name]
    if analyzed:
        big.execute("ANALYZE holdfast.queue_q")
        big.execute("ANALYZE holdfast.queue_aged")
    plan = explain(big, statement)
    for node in nodes(plan):
        table = node.get("Relation Name", "")
        assert not (table.startswith("queue_") and node["Node Type"] == "Seq Scan"), f"{name} scans {table}"
    touched = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert touched < most, f"{name} touches {touched} buffers"
