"""A claim by bucket takes what it may and no more, and passes a bounded number of jobs of others."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.sql.support import Conn, enqueue, load, make_queue, one, register, run

from holdfast.db.connect import CONFIGURE
from holdfast.model.bucket import BUCKETS, bucket
from holdfast.model.job import ClaimedJob
from holdfast.store.affinity import Passed, bit_of_each, claim_mine
from holdfast.store.claim import Mark
from holdfast.store.statement import Statement
from holdfast.testing import TestServer

pytestmark = pytest.mark.versions

HOT = "hot"
OURS = [key for key in (f"ours:{n}" for n in range(30)) if bucket(key) % 2 != bucket(HOT) % 2]
MINE = bit_of_each([n for n in range(BUCKETS) if n % 2 != bucket(HOT) % 2], BUCKETS)
ROWS = 500
FEW = 1200  # buffers of a claim that passes 500 jobs twice; all of them would be more than ten times as many


def claim(worker: str, told: list[Passed] | None = None, **options: Any) -> Statement[list[ClaimedJob]]:
    given: dict[str, Any] = {"limit": 100, "marks": [(0, None)], "buckets": MINE, "rows": ROWS, **options}
    tell = (lambda _: None) if told is None else told.append
    return claim_mine("mail", worker, uuid4(), lease=60, tell=tell, **given)


def keys(conn: Conn, worker: str, **options: Any) -> list[str | None]:
    return [job.partition_key for job in run(conn, claim(worker, **options))]


@pytest.fixture
def worker(conn: Conn) -> str:
    make_queue(conn, "mail", affinity="key")
    return register(conn)


def test_what_may_not_be_taken_is_left_whoever_owns_it(conn: Conn, worker: str) -> None:
    first, later, held, suspect, bad, asleep = (
        enqueue(conn, queue="mail", partition_key=OURS[0])[0] for _ in range(6)
    )
    enqueue(conn, queue="mail", partition_key=HOT)
    work = "UPDATE holdfast.work SET"
    conn.execute(f"{work} available_at = holdfast.now() + interval '1 minute' WHERE id = %s", [later])
    conn.execute(f"{work} status = 'held', hold_reason = 'unknown' WHERE id = %s", [held])
    conn.execute(f"{work} suspect = 1 WHERE id = %s", [suspect])
    conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'mail', 'bad')", [bad])
    conn.execute(f"{work} task = 'paused' WHERE id = %s", [asleep])
    conn.execute(
        "INSERT INTO holdfast.paused_tasks (task, paused_at, paused_by) VALUES ('paused', holdfast.now(), 'ann')"
    )
    for refused in ("UPDATE holdfast.queues SET paused_at = holdfast.now()", "UPDATE holdfast.queues SET concurrency = 5",
                    "UPDATE holdfast.workers SET status = 'draining'"):  # fmt: skip
        with conn.transaction(force_rollback=True):
            conn.execute(refused.encode())
            assert keys(conn, worker) == []
    assert [job.id for job in run(conn, claim(worker))] == [first]
    assert one(conn, "SELECT job_ids FROM holdfast.claims") == [first]
    assert keys(conn, worker) == []


def test_by_bucket_without_a_key_by_lateness_and_by_priority(conn: Conn, worker: str) -> None:
    enqueue(conn, queue="mail", partition_key=OURS[0])
    enqueue(conn, queue="mail", partition_key=OURS[1], priority=7)
    enqueue(conn, queue="mail", partition_key=HOT)
    enqueue(conn, 20, queue="mail")
    both = [(7, None), (0, None)]
    with conn.transaction(force_rollback=True):
        assert keys(conn, worker, marks=both) == [OURS[1], OURS[0], *[None] * 20]
    with conn.transaction(force_rollback=True):  # those without a key whose number is in our buckets
        assert 2 < len(keys(conn, worker, marks=both, keyless=False)) < 22
    with conn.transaction(force_rollback=True):
        assert len(keys(conn, worker, marks=both, buckets=None)) == 23
    assert keys(conn, worker, marks=both, buckets=None, late=60.0) == []
    conn.execute("UPDATE holdfast.work SET available_at = available_at - interval '2 minutes'")
    with conn.transaction(force_rollback=True):
        assert len(keys(conn, worker, marks=both, buckets=None, late=60.0)) == 23
    limit = one(conn, "SELECT holdfast.now() - interval '3 minutes'")
    assert keys(conn, worker, marks=both, buckets=None, until=[None, limit]) == [OURS[1]]


def test_bytes_of_payload_are_counted_in_claim_order(conn: Conn, worker: str) -> None:
    ids = enqueue(conn, 4, queue="mail", partition_key=OURS[0])
    conn.execute("UPDATE holdfast.work SET payload = jsonb_build_object('x', repeat(md5(seq::text), 1000))")
    taken = run(conn, claim(worker, most_bytes=40_000))
    assert [job.id for job in taken] == ids[:2]
    assert taken[0].locked == 4


def test_what_another_session_has_is_left_out_and_counted(connect: Any, conn: Conn, worker: str) -> None:
    enqueue(conn, 3, queue="mail", partition_key=OURS[0])
    other = connect()
    told: list[Passed] = []
    with other.transaction():
        other.execute("SELECT 1 FROM holdfast.work ORDER BY seq LIMIT 1 FOR UPDATE")
        assert len(run(conn, claim(worker, told))) == 2
    assert told[0].found == 3
    assert run(conn, claim(worker, told))
    assert told[1].found == 1


@pytest.fixture(
    scope="module", params=[30_000, pytest.param(1_000_000, marks=pytest.mark.long)], ids=["30k", "1M"]
)
def hot(holdfast_server: TestServer, request: pytest.FixtureRequest) -> Iterator[Conn]:
    """A key of another worker so deep and due for an hour, and ours that have just become due."""
    name = holdfast_server.clone()
    with psycopg.connect(holdfast_server.url(name), autocommit=True) as conn:
        with psycopg.RawCursor(conn) as cursor:
            cursor.execute(
                CONFIGURE.encode(), ("60000", "", False, conn.info.backend_pid, "force_custom_plan")
            )
        make_queue(conn, "mail", affinity="key")
        conn.execute("ANALYZE holdfast.queue_mail")
        load(
            conn,
            request.param,
            queue="'mail'",
            partition_key=f"'{HOT}'",
            partition_bucket=str(bucket(HOT)),
        )
        for key in OURS:
            enqueue(conn, queue="mail", partition_key=key)
        yield conn
    holdfast_server.drop(name)


def explained(conn: Conn, statement: Statement[Any]) -> tuple[int, set[str]]:
    """Buffers, and the kinds of nodes that read the queue."""
    with conn.transaction(force_rollback=True), psycopg.RawCursor(conn) as cursor:
        options = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON, TIMING OFF) "
        cursor.execute((options + statement.text).encode(), statement.params)
        ((found,),) = cursor.fetchall()
    plan = found[0]["Plan"]
    kinds = {
        n["Node Type"] for n in _nodes(plan) if n.get("Relation Name") == "queue_mail" and n["Actual Loops"]
    }
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]), kinds - {"ModifyTable"}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def test_a_hot_bucket_of_another_worker_costs_a_claim_a_bounded_number_of_jobs(hot: Conn) -> None:
    worker = register(hot)
    told: list[Passed] = []
    with hot.transaction(force_rollback=True):
        assert run(hot, claim(worker, told)) == []
    bound = told[0].bounds[0]
    (place,) = hot.execute(
        "SELECT available_at FROM holdfast.work ORDER BY available_at, seq OFFSET 499 LIMIT 1"
    ).fetchall()
    assert (bound.at, told[0].found) == (place[0], 0)
    touched, kinds = explained(hot, claim(worker))
    assert kinds <= {"Index Scan", "Tid Scan"}
    assert touched < FEW


def test_behind_the_mark_a_claim_costs_what_it_takes(hot: Conn) -> None:
    worker = register(hot)
    mark = Mark(one(hot, "SELECT holdfast.now() - interval '20 minutes'"), -1)
    with hot.transaction(force_rollback=True):
        assert keys(hot, worker, marks=[(0, mark)], limit=5) == OURS[:5]
    touched, kinds = explained(hot, claim(worker, marks=[(0, mark)], limit=5))
    assert kinds <= {"Index Scan", "Tid Scan"}
    assert touched < 150
