"""Finding and claiming from ready keys costs what is ready: with one key 100,000 deep beside 20,000 others, and with 200,000
keys scheduled ahead. Judged by what each statement touched, prepared or not, whatever the statistics say."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.sql.support import BOOM, Conn, load, register, run
from tests.sql.test_plans import buffers, explain, nodes, readable, updates

from holdfast.db.connect import CONFIGURE
from holdfast.model.outcome import Completed, DeadLettered, Settlement
from holdfast.model.queue import QueueRules
from holdfast.store import limits, queues, streams
from holdfast.store.claim import Mark
from holdfast.store.settle import settle
from holdfast.store.statement import Statement
from holdfast.testing import TestServer

pytestmark = pytest.mark.versions

START = Mark(datetime(1970, 1, 1, tzinfo=UTC), -1)
KEYS = 100  # stepped through in one look
ROWS = 200  # due jobs passed in one look
RUN = 32


def hot_key(conn: Conn) -> None:
    load(conn, 100_000, queue="'orders'", partition_key="'hot'")
    load(conn, 20_000, queue="'orders'", partition_key="'key ' || n")


def scheduled_ahead(conn: Conn) -> None:
    load(
        conn,
        200_000,
        queue="'orders'",
        partition_key="'key ' || n",
        available_at="holdfast.now() + interval '1 day' + n * interval '1 ms'",
    )
    load(conn, 5, queue="'orders'", partition_key="'ready ' || n")
    load(conn, 100, queue="'orders'", partition_key="'hot'")


def never(conn: Conn) -> None:
    """No statistics at all."""


def when_empty(conn: Conn) -> None:
    conn.execute("ANALYZE holdfast.queue_orders, holdfast.work")


def when_one_key_had_all(conn: Conn) -> None:
    load(conn, 1000, queue="'orders'", partition_key="'hot'", status="'processing'")
    conn.execute("VACUUM ANALYZE holdfast.queue_orders")
    conn.execute("DELETE FROM holdfast.work")
    conn.execute("VACUUM holdfast.queue_orders")


SHAPES: list[Callable[[Conn], None]] = [hot_key, scheduled_ahead]
ANALYZED: list[Callable[[Conn], None]] = [never, when_empty, when_one_key_had_all]


@pytest.fixture(
    scope="module",
    params=[(s, a) for s in SHAPES for a in ANALYZED],
    ids=lambda p: "-".join(f.__name__ for f in p),
)
def deep(holdfast_server: TestServer, request: pytest.FixtureRequest) -> Iterator[Conn]:
    """Loaded after it was analyzed, if at all, and not since."""
    shape, analyze = request.param
    name = holdfast_server.clone()
    with psycopg.connect(holdfast_server.url(name), autocommit=True) as conn:
        with psycopg.RawCursor(conn) as cursor:
            cursor.execute(
                CONFIGURE.encode(), ("60000", "", True, conn.info.backend_pid, "force_custom_plan")
            )
        run(conn, queues.create_queue("orders", None, QueueRules("key", "skip")))
        conn.execute("ALTER TABLE holdfast.queue_orders SET (autovacuum_enabled = off)")
        analyze(conn)
        shape(conn)
        yield conn
    holdfast_server.drop(name)


def statements(conn: Conn) -> dict[str, tuple[Statement[Any], int]]:
    """Each with the buffers it may touch: so many per key, per row or per job, and nothing by what waits.

    A job costs up to twice as much when an earlier, rolled back claim of it could not be pruned yet."""
    worker = register(conn)
    some = [f"ready {n}" for n in range(1, 6)] + [f"key {n}" for n in range(1, 6)]
    return {
        "claim_streams, 10 keys": (
            streams.claim_streams("orders", worker, uuid4(), lease=60, keys=some, run=RUN), 60 + 10 * 25,
        ),
        "claim_streams, the deep key": (
            streams.claim_streams("orders", worker, uuid4(), lease=60, keys=["hot"], run=RUN), 60 + RUN * 24,
        ),
        "due_streams": (streams.due_streams("orders", [(5, START), (0, START)], ROWS, None), 40 + ROWS),
        "scan_streams": (streams.scan_streams("orders", None, None, KEYS), 40 + KEYS * 8),
        "scan_streams, some buckets": (
            streams.scan_streams("orders", range(0, 1024, 2), (500, "key"), KEYS), 40 + 2 * KEYS * 8,
        ),
        "scan_streams, the last bucket": (streams.scan_streams("orders", [1023], None, KEYS), 40 + KEYS * 8),
        "suspect_streams": (streams.suspect_streams("orders", 10), 40),
        "stream_head": (streams.stream_head("orders", "hot"), 20),
    }  # fmt: skip


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_a_claim_costs_what_is_ready_and_not_what_waits(deep: Conn, generic: bool) -> None:
    for name, (statement, most) in statements(deep).items():
        plan = explain(deep, statement, generic=generic)
        for node in nodes(plan):
            if str(node.get("Relation Name", "")).startswith("queue_orders") and node.get("Actual Loops"):
                assert node["Node Type"] != "Seq Scan", name
        assert buffers(plan) <= most, f"{name} touches {buffers(plan)} buffers"


def test_a_claim_looks_up_each_job_of_the_front_once(deep: Conn) -> None:
    """Searching a list for each of them would make a claim quadratic."""
    claim = streams.claim_streams("orders", register(deep), uuid4(), lease=60, keys=["hot"], run=RUN)
    with deep.transaction(force_rollback=True), psycopg.RawCursor(deep) as cursor:
        cursor.execute(
            ("EXPLAIN (VERBOSE) " + claim.text).encode(), [readable(value) for value in claim.params]
        )
        plan = [line for (line,) in cursor.fetchall()]
    checks = [line for line in plan if "Output: " in line and "bool_and(" in line]
    (any_gap,) = [line for line in plan if "Filter: " in line and "f.place = " in line]
    assert checks
    assert all("hashed SubPlan" in check for check in checks)
    assert "hashed SubPlan" in any_gap


def test_a_kept_plan_casts_no_list_of_buckets(deep: Conn) -> None:
    """It would be cast anew for each key that is compared with it."""
    some = range(0, 1024, 2)
    looks: list[Statement[Any]] = [
        streams.due_streams("orders", [(0, START)], ROWS, some),
        streams.scan_streams("orders", some, None, KEYS),
        limits.scan_shares("orders", some, None, KEYS),
    ]
    with psycopg.RawCursor(deep) as cursor:
        for look in looks:
            cursor.execute(f"EXPLAIN {look.text}".encode(), look.params, prepare=True)
    types = deep.execute(
        "SELECT parameter_types::text FROM pg_prepared_statements WHERE statement LIKE '%partition_bucket%'"
    )
    kept = [kinds for (kinds,) in types.fetchall()]
    assert len(kept) == len(looks)
    assert all("integer[]" in kinds for kinds in kept), (
        kept
    )  # the driver says smallint[] of a list of small numbers


def test_settling_a_job_of_the_deep_key_costs_the_same_as_any(deep: Conn) -> None:
    with deep.transaction(force_rollback=True):
        claim = streams.claim_streams("orders", register(deep), uuid4(), lease=60, keys=["hot"], run=10)
        taken = run(deep, claim)
        assert len(taken) == 10
        for outcome in (Completed("1"), DeadLettered(BOOM)):
            ends = [Settlement(job.grant, outcome) for job in taken]
            plan = explain(deep, next(settle(ends, "w")))
            assert buffers(plan) < 10 * 80, type(outcome).__name__


def test_the_jobs_of_an_ordered_queue_are_claimed_by_heap_only_updates(deep: Conn) -> None:
    with deep.transaction(force_rollback=True):
        # Jobs of their own: on the pages of the others lies what earlier tests rolled back.
        deep.execute(
            "SELECT holdfast.enqueue('work', queue => 'orders', partition_key => 'fresh') FROM generate_series(1, 50)"
        )
        before = updates(deep)
        claim = streams.claim_streams("orders", register(deep), uuid4(), lease=60, keys=["fresh"], run=50)
        assert len(run(deep, claim)) == 50
        assert updates(deep)["queue_orders", "all"] - before["queue_orders", "all"] == 50
        assert updates(deep)["queue_orders", "heap only"] - before["queue_orders", "heap only"] == 50
