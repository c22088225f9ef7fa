"""Holds cost nothing where there are none, and beside 10,000 held keys a claim of the others costs what it costs alone.
Judged by what each statement touched, prepared or not, whatever the statistics say."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.sql.support import Conn, load, register, run
from tests.sql.test_plans import buffers, explain, nodes

from holdfast.db.connect import CONFIGURE
from holdfast.model.queue import QueueRules
from holdfast.store import holds, limits, queues, streams
from holdfast.store.claim import Mark
from holdfast.store.statement import Statement
from holdfast.testing import TestServer

pytestmark = pytest.mark.versions

HELD = 10_000
START = Mark(datetime(1970, 1, 1, tzinfo=UTC), -1)
FREE = [f"free {n}" for n in range(1, 11)]
KEYS = 100  # stepped through in one look
ROWS = 200  # due jobs passed in one look
PROBE = 4  # buffers of one look at the hold of a key


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("fair", 4), id="fair"),
        pytest.param(("ordered", 4), id="ordered"),
        pytest.param(("fair", 100), id="fair-deep", marks=pytest.mark.long),
        pytest.param(("ordered", 100), id="ordered-deep", marks=pytest.mark.long),
    ],
)
def vast(holdfast_server: TestServer, request: pytest.FixtureRequest) -> Iterator[tuple[Conn, str]]:
    """Ten free keys behind very many, which are not held yet. Never analyzed."""
    name, (queue, deep) = holdfast_server.clone(), request.param
    with psycopg.connect(holdfast_server.url(name), autocommit=True) as conn:
        with psycopg.RawCursor(conn) as cursor:
            cursor.execute(
                CONFIGURE.encode(), ("60000", "", True, conn.info.backend_pid, "force_custom_plan")
            )
        rules = QueueRules("key") if queue == "ordered" else QueueRules(fair=True)
        run(conn, queues.create_queue(queue, None, rules))
        conn.execute(f"ALTER TABLE holdfast.queue_{queue} SET (autovacuum_enabled = off)".encode())
        conn.execute("ALTER TABLE holdfast.key_holds SET (autovacuum_enabled = off)")
        load(conn, deep * HELD, queue=f"'{queue}'", partition_key=f"'held ' || n % {HELD}")
        load(conn, 50, queue=f"'{queue}'", partition_key="'free ' || 1 + n % 10")
        yield conn, queue
    holdfast_server.drop(name)


def statements(conn: Conn, queue: str) -> dict[str, tuple[Statement[Any], int]]:
    """Each with the keys that it asks about."""
    worker = register(conn)
    due = streams.due_streams(queue, [(0, START)], ROWS, None)
    if queue == "ordered":
        claim = streams.claim_streams(queue, worker, uuid4(), lease=60, keys=FREE, run=1)
        return {
            "claim": (claim, 10),
            "scan": (streams.scan_streams(queue, None, None, KEYS), KEYS),
            "due": (due, ROWS),
        }
    shares = [(key, 1) for key in FREE]
    fair = limits.claim_shares(queue, worker, uuid4(), lease=60, shares=shares, limit=10)
    return {
        "claim": (fair, 10),
        "scan": (limits.scan_shares(queue, None, None, KEYS), KEYS),
        "due": (due, ROWS),
    }


def looks_at_holds(plan: dict[str, Any]) -> tuple[int, int]:
    """How often the table of holds was looked at, and the buffers of that."""
    found = [
        node for node in nodes(plan) if node.get("Relation Name") == "key_holds" and node["Actual Loops"]
    ]
    return sum(node["Actual Loops"] for node in found), sum(buffers(node) for node in found)


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_held_keys_cost_the_claims_of_others_nothing(vast: tuple[Conn, str], generic: bool) -> None:
    conn, queue = vast
    conn.execute("DELETE FROM holdfast.key_holds")
    conn.execute("VACUUM holdfast.key_holds")
    for name, (statement, _) in statements(conn, queue).items():
        times, touched = looks_at_holds(explain(conn, statement, generic=generic))
        assert times <= 1, f"{name} without a hold looks {times} times"
        assert touched <= PROBE, f"{name} without a hold touches {touched} buffers"
    for first in range(0, HELD, 1000):
        keys = [f"held {n}" for n in range(first, first + 1000)]
        run(conn, holds.hold_keys(queue, keys, None, trial=first < 5000))
    for name, (statement, keys_asked) in statements(conn, queue).items():
        plan = explain(conn, statement, generic=generic)
        times, touched = looks_at_holds(plan)
        assert times <= keys_asked + 1, f"{name} looks {times} times"
        assert touched <= PROBE * (keys_asked + 1), f"{name} touches {touched} buffers of holds"
        for node in nodes(plan):
            if node.get("Relation Name") == "key_holds" and node["Actual Loops"]:
                assert node["Node Type"] != "Seq Scan", name
                assert node["Actual Rows"] <= 1, f"{name} reads {node['Actual Rows']} holds"
    news = explain(conn, holds.hold_news(queue, datetime.now(UTC), 1000), generic=generic)
    assert buffers(news) <= 40, "what a worker asks once a second"
