"""Many runs that sleep: they cost claims nothing, and nobody takes their time for a due one."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
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


def scan_of(plan: dict[str, Any], index: str) -> dict[str, Any] | None:
    """The node that walks along the due jobs."""
    if plan.get("Index Name") == index:
        return plan
    return next(
        (found for part in plan.get("Plans", ()) if (found := scan_of(part, index)) is not None), None
    )


def queue_of(runs: Runs, worker: str, name: str) -> str:
    """A new one, which nobody vacuums. One claim has looked into it, so that our session knows its tables."""
    runs.conn.execute("SELECT holdfast.create_queue(%s)", [name])
    runs.conn.execute(f"ALTER TABLE holdfast.queue_{name} SET (autovacuum_enabled = off)".encode())
    assert buffers(runs, worker, name, finds=0) <= 10
    return name


def buffers(runs: Runs, worker: str, queue: str, finds: int = 100) -> int:
    """That a claim of 100, which is undone, reads to find them. A second one would also pass the versions that this one has
    left, for as long as anybody on the server has an older transaction."""
    statement = claim(queue, worker, uuid4(), lease=30.0, limit=100, marks=[(0, None)])
    text = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON, TIMING OFF) " + statement.text
    with runs.conn.transaction(force_rollback=True), psycopg.RawCursor(runs.conn) as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        cursor.execute(text.encode(), statement.params)
        row: Any = cursor.fetchone()
    plan = scan_of(row["QUERY PLAN"][0]["Plan"], f"queue_{queue}_claim")
    assert plan is not None, row
    assert plan["Actual Rows"] == finds
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_a_claim_reads_no_more_with_many_runs_that_sleep(runs: Runs) -> None:
    worker = register(runs.conn)
    due, both = queue_of(runs, worker, "due"), queue_of(runs, worker, "both")
    # As many that are due: an index of twice the size has the same levels, and one of a hundred times has more.
    runs.conn.execute(FILL, [due, TYPE, "2020-01-01Z", SLEEPERS])
    runs.conn.execute(FILL, [both, TYPE, "9999-01-01Z", SLEEPERS])
    runs.conn.execute(FILL, [both, TYPE, "2020-01-01Z", SLEEPERS])
    assert buffers(runs, worker, both) <= buffers(runs, worker, due) * 1.1 + 1


@pytest.mark.long
def test_a_claim_reads_no_more_with_a_million_runs_that_sleep(runs: Runs) -> None:
    """Whole runs, as suspends leave them: a row of workflow_runs and its job."""
    worker = register(runs.conn)
    due, both = queue_of(runs, worker, "due"), queue_of(runs, worker, "both")
    # An index of 100,000 entries has as many levels as one of a million.
    runs.conn.execute(FILL, [due, TYPE, "2020-01-01Z", MILLION // 10])
    runs.conn.execute(ASLEEP, [both, MILLION, TYPE, both])
    assert runs.one("SELECT count(*) FROM holdfast.workflow_runs WHERE asleep IS NOT NULL") == MILLION
    runs.conn.execute(FILL, [both, TYPE, "2020-01-01Z", MILLION // 10])
    before, after = buffers(runs, worker, due), buffers(runs, worker, both)
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
