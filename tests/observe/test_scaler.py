"""holdfast.scaler_backlog(): what an autoscaler asks, as the least of roles, at a cost that does not grow."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.observe import yaml_lines

from holdfast import Holdfast
from holdfast.testing import Kit, TestServer

pytestmark = pytest.mark.versions

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "monitoring.md"
MANY = 60_000
INSERT = """
INSERT INTO holdfast.work (id, queue, task, payload, priority, available_at)
SELECT holdfast.uuid7(), 'inbox', 't', '{{}}', {priority}, now() {when} FROM generate_series(1, {number})
"""


def backlog(kit: Kit, *arguments: object) -> int:
    places = ", ".join(["%s"] * len(arguments))
    return int(kit.sql(f"SELECT holdfast.scaler_backlog({places}) AS n", arguments)[0]["n"])


def test_due_and_running_jobs_count_and_others_do_not(app: Holdfast, kit: Kit) -> None:
    kit.sql("SELECT holdfast.create_queue('bulk')")
    assert backlog(kit) == 0
    for priority in (-100, 0, 100):
        app.send("due", {}, priority=priority)
    app.send("later", {}, run_after=3600, priority=50)
    app.send("elsewhere", {}, queue="bulk")
    assert (backlog(kit), backlog(kit, "inbox"), backlog(kit, "bulk")) == (3, 3, 1)
    app.send("running", {})
    kit.sql(
        """WITH token AS (SELECT gen_random_uuid() AS token),
           job AS (UPDATE holdfast.work SET status = 'processing', claim_token = (SELECT token FROM token)
                   WHERE task = 'running' RETURNING id)
           INSERT INTO holdfast.claims (token, queue, worker, claimed_at, lease_expires_at, job_ids)
           SELECT token, 'inbox', 'w', now(), now() - interval '1 hour', ARRAY(SELECT id FROM job) || gen_random_uuid()
           FROM token"""
    )
    assert backlog(kit) == 4  # also past its lease: somebody must take it back
    kit.sql("UPDATE holdfast.work SET status = 'held', hold_reason = 'unknown' WHERE priority = 100")
    assert backlog(kit) == 3
    kit.sql(
        "INSERT INTO holdfast.quarantine (id, queue, reason) SELECT id, queue, 'x' FROM holdfast.work WHERE priority = -100"
    )
    assert backlog(kit) == 2
    assert backlog(kit, "inbox", 1) == 1
    kit.sql("UPDATE holdfast.queues SET paused_at = now() WHERE name = 'inbox'")
    assert (backlog(kit), backlog(kit, "bulk")) == (0, 1)


def test_a_queue_that_does_not_exist_is_an_error(kit: Kit) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="queue 'mial' does not exist"):
        backlog(kit, "mial")


@pytest.fixture
def scaler(kit: Kit) -> Iterator[str]:
    """The role of the document, under a name of its own; its connection string."""
    text = DOCUMENT.read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- skip: a role[^\n]*-->\n```sql\n(.*?)```", text, re.DOTALL)
    role = f"scaler_{uuid4().hex[:12]}"
    kit.sql(block.replace("holdfast_scaler", role))
    yield make_conninfo(kit.url, user=role)
    kit.sql(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)).as_string())


def test_the_query_of_the_document_runs_as_the_least_of_roles(
    app: Holdfast, kit: Kit, scaler: str, holdfast_server: TestServer
) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (example,) = re.findall(r"<!-- output: holdfast monitoring keda -->\n```yaml\n(.*?)```", text, re.DOTALL)
    (trigger,) = yaml_lines.documents(example)[0]["spec"]["triggers"]
    for _ in range(3):
        app.send("due", {})
    with psycopg.connect(scaler, autocommit=True) as conn:
        assert conn.execute(trigger["metadata"]["query"]).fetchall() == [(3,)]
        for query in (
            "SELECT 1 FROM holdfast.work",
            "SELECT 1 FROM holdfast.queues",
            "SELECT holdfast.enqueue('x')",
            "SELECT holdfast.create_queue('x')",
            "CREATE TABLE holdfast.mine (n int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(query)


def test_nobody_else_may_call_it(kit: Kit) -> None:
    granted = "SELECT proacl::text AS acl, prosecdef AS definer FROM pg_proc WHERE proname = 'scaler_backlog'"
    (found,) = kit.sql(granted)
    assert found["definer"]
    assert not re.search(r"[{,]=X", found["acl"])  # an entry without a name is PUBLIC


@pytest.mark.parametrize("analyzed", [False, True])
def test_its_cost_does_not_grow_with_the_jobs(kit: Kit, analyzed: bool) -> None:
    """Many due, many scheduled ahead of them at higher priorities, some running; with statistics and without."""
    with psycopg.connect(kit.url, autocommit=True) as conn:
        for priority, when, number in (
            (50, "+ interval '1 hour'", MANY),
            (0, "- interval '1 hour'", MANY),
            (-50, "+ interval '1 hour'", 1000),
        ):
            conn.execute(INSERT.format(priority=priority, when=when, number=number).encode())
        if analyzed:
            conn.execute("ANALYZE holdfast.inbox")
        found, plan = _explained(conn, 200)
        assert found == 200
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 600
        conn.execute(
            """DELETE FROM holdfast.work
               WHERE priority = 0 AND seq > (SELECT min(seq) + 2 FROM holdfast.work WHERE priority = 0)"""
        )
        conn.execute("VACUUM holdfast.inbox")
        found, plan = _explained(conn, 200)
        assert found == 3
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 600


def _explained(conn: psycopg.Connection[Any], cap: int) -> tuple[int, dict[str, Any]]:
    query = f"SELECT holdfast.scaler_backlog('inbox', {cap})"
    conn.execute(query.encode())  # the catalogs are read once
    ((number,),) = conn.execute(query.encode()).fetchall()
    ((plan,),) = conn.execute(
        f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {query}".encode()
    ).fetchall()
    read = plan if isinstance(plan, list) else json.loads(plan)
    return int(number), dict(read[0]["Plan"])
