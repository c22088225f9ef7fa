"""`workflow list` and `show` on a database with many runs: what they read does not grow with it."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.workflows.support import QUEUE, Runs, step

from holdfast.shapes.workflows.runs import LOOKED_AT, RunFilter, find, listed, listed_to
from holdfast.shapes.workflows.states import WRONG
from holdfast.shapes.workflows.timeline import messages, timeline
from holdfast.store.statement import Statement

FILL = """
WITH run AS (
    INSERT INTO holdfast.workflow_runs (id, workflow, key, queue, version, root_id, created_at, era_at, state, ended_at)
    SELECT u.id, 'bulk' || n %% 5, 'b' || n, %s, 1, u.id, holdfast.now(), holdfast.now(), 'completed', holdfast.now()
    FROM (SELECT holdfast.uuid7() AS id, n FROM generate_series(1, %s) n OFFSET 0) u RETURNING id
)
INSERT INTO holdfast.workflow_history (slot, run_id, era, at, steps, signals)
SELECT holdfast.archive_slot(holdfast.now()), id, 0, holdfast.now(), '[]', '[]' FROM run
"""
SIZES = [
    pytest.param(30_000, marks=pytest.mark.slow),
    pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.long]),
]


@pytest.fixture(params=SIZES)
def runs(dsn: str, request: pytest.FixtureRequest) -> Iterator[Runs]:
    made = Runs.on(dsn)
    made.conn.execute(FILL, [QUEUE, request.param])
    made.conn.execute("ANALYZE holdfast.workflow_runs, holdfast.workflow_history")
    yield made
    made.conn.close()


def plan_of(runs: Runs, statement: Statement[Any]) -> dict[str, Any]:
    """As the verbs run it."""
    text = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON, TIMING OFF) " + statement.text
    with runs.conn.transaction(), psycopg.RawCursor(runs.conn) as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        cursor.execute(text.encode(), statement.params)
        row: Any = cursor.fetchone()
    found: dict[str, Any] = row["QUERY PLAN"][0]["Plan"]
    return found


def buffers(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def most_rows(plan: dict[str, Any]) -> float:
    return max(float(node["Actual Rows"]) * float(node["Actual Loops"]) for node in nodes(plan))


def test_what_list_and_show_read_is_bounded(runs: Runs) -> None:
    grant = runs.claim(runs.start("order:1"))
    runs.record(grant, *(step(f"s{n}") for n in range(10)))
    known = runs.one("SELECT key FROM holdfast.workflow_runs WHERE workflow = 'bulk3' LIMIT 1")
    assert buffers(plan_of(runs, find(known, None))) < 200, "by what it was started with, in any workflow"
    assert buffers(plan_of(runs, find(str(grant.id), None))) < 200
    assert buffers(plan_of(runs, timeline(grant.id))) < 400
    assert buffers(plan_of(runs, messages(grant.id))) < 400
    page = plan_of(runs, listed(RunFilter(), None, 50))
    assert (buffers(page) < 2000, most_rows(page) <= 1000) == (True, True), page
    in_an_hour = -3600.0  # all of them are older than that
    recent = plan_of(runs, listed(RunFilter(tag="none", since=in_an_hour), None, 50))
    assert buffers(recent) < 100, "ids begin with the time: what is older is not read"
    rare = plan_of(runs, listed(RunFilter(states=["paused"]), None, 50))
    assert most_rows(rare) <= LOOKED_AT
    assert runs.run(listed(RunFilter(states=["paused"]), None, 50)) == []
    end = runs.run(listed_to(RunFilter(), None))
    assert end is not None, "it says where to go on"
    rest = runs.run(listed(RunFilter(workflow="bulk1"), end, 50))
    assert len(rest) == 50
    assert all(run.run_id < end for run in rest)


def test_runs_that_went_wrong_have_an_index_of_their_own(runs: Runs) -> None:
    oldest = runs.one("SELECT id FROM holdfast.workflow_runs ORDER BY id LIMIT 1")
    runs.conn.execute(
        'UPDATE holdfast.workflow_runs SET state = \'failed\', error = \'{"kind": "ValueError", "message": "no"}\''
        " WHERE id = %s",
        [oldest],
    )
    for states in (["failed"], ["cancelled"], ["terminated"], ["diverged"], sorted(WRONG)):
        assert buffers(plan_of(runs, listed(RunFilter(states=states), None, 50))) < 100, states
        assert buffers(plan_of(runs, listed_to(RunFilter(states=states), None))) < 100, states
    assert [run.run_id for run in runs.run(listed(RunFilter(states=["failed"]), None, 50))] == [oldest]
    assert runs.run(listed_to(RunFilter(states=["failed"]), None)) is None, "it has seen all of them"
    run = runs.start("order:1")
    with runs.conn.transaction():
        runs.conn.execute(
            "UPDATE holdfast.workflow_runs SET state = 'completed', result = '1', ended_at = now() WHERE id = %s",
            [run],
        )
        hot = runs.one("SELECT pg_stat_get_xact_tuples_hot_updated('holdfast.workflow_runs'::regclass)")
    assert hot == 1, "a run that ends well costs no index anything"
