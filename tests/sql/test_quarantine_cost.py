"""The quarantine costs a claim one look, however many rows it has, and next to nothing for each job."""

from typing import Any
from uuid import uuid4

import pytest
from tests.sql.support import Conn, load, one, register
from tests.sql.test_plans import buffers, explain, nodes

from holdfast.store import claim as claims
from holdfast.store.statement import Statement, ids

pytestmark = pytest.mark.versions

JOBS = 500
MANY = 5000


def claiming(conn: Conn) -> Statement[Any]:
    marks = [(5, None), (0, None), (-5, None)]
    return claims.claim("inbox", register(conn), uuid4(), lease=60, limit=JOBS, marks=marks)


def fill(conn: Conn) -> None:
    conn.execute(
        "INSERT INTO holdfast.quarantine SELECT gen_random_uuid(), 'inbox', 'bad' FROM generate_series(1, %s)",
        [MANY],
    )


def looks(plan: dict[str, Any]) -> list[tuple[int, int]]:
    """How often the quarantine was looked at, and the buffers of it."""
    found = [node for node in nodes(plan) if node.get("Relation Name") == "quarantine"]
    return [(node["Actual Loops"], buffers(node)) for node in found]


def test_a_claim_looks_at_the_quarantine_once_and_at_no_page_of_an_empty_one(conn: Conn) -> None:
    load(conn, 2 * JOBS)
    ((loops, read),) = looks(explain(conn, claiming(conn)))
    assert (loops, read <= 1) == (1, True)
    fill(conn)
    pages = one(conn, "SELECT pg_relation_size('holdfast.quarantine') / 8192")
    ((loops, read),) = looks(explain(conn, claiming(conn)))
    assert loops == 1
    assert read <= 3 * pages


@pytest.mark.parametrize("name", ["claim", "oldest_due"])
def test_each_job_is_looked_up_in_a_hash_of_the_quarantine(conn: Conn, name: str) -> None:
    load(conn, 2 * JOBS)
    fill(conn)
    view = Statement("oldest_due", "SELECT * FROM holdfast.oldest_due", (), ids)
    plan = explain(conn, claiming(conn) if name == "claim" else view)
    filters = [
        node["Filter"] for node in nodes(plan) if node.get("Relation Name") == "inbox" and "Filter" in node
    ]
    assert any("hashed SubPlan" in text for text in filters)
    assert not any("<> ALL" in text and "InitPlan" in text and "id <>" in text for text in filters)


def test_the_scaler_leaves_out_the_quarantine(conn: Conn) -> None:
    load(conn, 20)
    fill(conn)
    conn.execute("INSERT INTO holdfast.quarantine SELECT id, 'inbox', 'bad' FROM holdfast.work LIMIT 5")
    assert one(conn, "SELECT holdfast.scaler_backlog('inbox')") == 15
