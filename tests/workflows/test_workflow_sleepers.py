"""Many runs that sleep: they cost claims nothing, and nobody takes their time for a due one."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.conftest import wait_until
from tests.sql.support import register
from tests.workflows.support import QUEUE, TYPE, Runs, waits

from holdfast.operate.operator import Operator
from holdfast.store.claim import claim
from holdfast.store.wake import next_due
from holdfast.testing import Kit

SLEEPERS = 20_000
FILL = """
INSERT INTO holdfast.work (id, queue, task, payload, available_at, lease_generation)
SELECT gen_random_uuid(), %s, %s, '{}', %s::timestamptz, 1 FROM generate_series(1, %s)
"""
MILLION = 1_000_000
ASLEEP = """
WITH job AS (
    INSERT INTO holdfast.work (id, queue, task, payload, available_at, lease_generation)
    SELECT gen_random_uuid(), %s, 'sleeper', '{}', '9999-01-01Z', 1 FROM generate_series(1, %s) RETURNING id, created_at
)
INSERT INTO holdfast.workflow_runs (id, workflow, key, queue, version, root_id, created_at, era_at, waits, asleep)
SELECT j.id, %s, j.id::text, %s, 1, j.id, j.created_at, j.created_at, '{paid}', 1 FROM job j
"""


@pytest.fixture
def runs(kit: Kit) -> Iterator[Runs]:
    made = Runs.on(kit.url)
    yield made
    made.conn.close()


def scan_of(plan: dict[str, Any]) -> dict[str, Any] | None:
    """The node that walks along the due jobs."""
    if plan.get("Index Name") == "queue_workflows_claim":
        return plan
    return next((found for part in plan.get("Plans", ()) if (found := scan_of(part)) is not None), None)


def buffers(runs: Runs, worker: str) -> int:
    """That a claim of 100, which is undone, reads to find them: the least of many tries. What it reads and writes to lock
    and change them depends on the state of their pages."""
    found = []
    for _ in range(8):
        statement = claim(QUEUE, worker, uuid4(), lease=30.0, limit=100, marks=[(0, None)])
        text = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON, TIMING OFF) " + statement.text
        with runs.conn.transaction(force_rollback=True), psycopg.RawCursor(runs.conn) as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
            cursor.execute(text.encode(), statement.params)
            row: Any = cursor.fetchone()
        plan = scan_of(row["QUERY PLAN"][0]["Plan"])
        assert plan is not None, row
        assert plan["Actual Rows"] == 100
        found.append(int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]))
    return min(found)


def test_a_claim_reads_no_more_with_many_runs_that_sleep(runs: Runs) -> None:
    worker = register(runs.conn)
    runs.conn.execute("ALTER TABLE holdfast.queue_workflows SET (autovacuum_enabled = off)")
    # As many that are due: an index of twice the size has the same levels, and one of a hundred times has more.
    runs.conn.execute(FILL, [QUEUE, TYPE, "2020-01-01Z", SLEEPERS])
    before = buffers(runs, worker)
    runs.conn.execute(FILL, [QUEUE, TYPE, "9999-01-01Z", SLEEPERS])
    # Versions that were undone are passed by too, for as long as somebody's snapshot keeps them.
    wait_until(lambda: buffers(runs, worker) <= before * 1.1 + 1, "a claim reads what it did before")


@pytest.mark.long
def test_a_claim_reads_no_more_with_a_million_runs_that_sleep(runs: Runs) -> None:
    """Whole runs, as suspends leave them: a row of workflow_runs and its job."""
    worker = register(runs.conn)
    runs.conn.execute("ALTER TABLE holdfast.queue_workflows SET (autovacuum_enabled = off)")
    # An index of 100,000 entries has as many levels as one of a million.
    runs.conn.execute(FILL, [QUEUE, TYPE, "2020-01-01Z", MILLION // 10])
    before = buffers(runs, worker)
    runs.conn.execute(ASLEEP, [QUEUE, MILLION, TYPE, QUEUE])
    assert runs.one("SELECT count(*) FROM holdfast.workflow_runs WHERE asleep IS NOT NULL") == MILLION
    after = buffers(runs, worker)
    print(f"a claim of 100 finds them in {before} buffers, and in {after} beside a million that sleep")
    assert after <= before * 1.1 + 1


def test_what_a_run_that_sleeps_looks_like(runs: Runs, kit: Kit) -> None:
    owner = runs.started()
    assert runs.suspend(owner, waits()) == "suspended"
    found = runs.run(next_due([QUEUE], [(TYPE, 1)], 3600.0, [""]))
    assert found.due_in is None
    operator = Operator(kit.database, "tester")
    reason = operator.explain(owner.id).reasons[0]
    assert (reason.code, reason.sentence) == (
        "suspended",
        "It waits for something that its handler asked for, and is not due until that happens.",
    )
    assert operator.show_job(owner.id) is not None
    with kit.connect() as conn:
        conn.execute("SELECT * FROM holdfast.oldest_due").fetchall()
        conn.execute("SELECT * FROM holdfast.jobs").fetchall()
