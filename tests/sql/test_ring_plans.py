"""The filter by bucket costs what is claimed: a hot bucket of another worker is not read."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sql.support import Conn, load

from holdfast.db.connect import CONFIGURE
from holdfast.db.executors import drive
from holdfast.model.bucket import BUCKETS, bucket
from holdfast.store import streams
from holdfast.store.claim import Mark
from holdfast.store.statement import Statement
from holdfast.testing import TestServer

pytestmark = pytest.mark.versions

HOT, DEEP, OURS = "hot", 60_000, [f"ours:{n}" for n in range(12)]
MINE = sorted({bucket(key) for key in OURS} | set(range(0, BUCKETS, 10)) - {bucket(HOT)})
FEW = 60  # buffers of a look at a dozen rows; those of the hot bucket would be thousands


@pytest.fixture(scope="module")
def hot(holdfast_server: TestServer) -> Iterator[Conn]:
    """A key 60,000 deep that is due for an hour, and 12 keys of ours that have just become due."""
    name = holdfast_server.clone()
    with psycopg.connect(holdfast_server.url(name), autocommit=True) as conn:
        with psycopg.RawCursor(conn) as cursor:
            cursor.execute(
                CONFIGURE.encode(), ("60000", "", False, conn.info.backend_pid, "force_custom_plan")
            )
        conn.execute("SELECT holdfast.create_queue('orders', key_ordering => 'key')")
        load(conn, DEEP, queue="'orders'", partition_key=f"'{HOT}'")
        conn.execute("VACUUM ANALYZE holdfast.work")
        conn.execute(
            "SELECT count(holdfast.enqueue('t', queue => 'orders', partition_key => key)) FROM unnest(%s::text[]) AS u(key)",
            [OURS],
        )
        yield conn
    holdfast_server.drop(name)


def buffers(conn: Conn, statement: Statement[Any]) -> int:
    with conn.transaction(force_rollback=True), psycopg.RawCursor(conn) as cursor:
        cursor.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON, TIMING OFF) {statement.text}".encode(), statement.params
        )
        ((found,),) = cursor.fetchall()
    plan = found[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def late(conn: Conn) -> Mark:
    row = conn.execute("SELECT holdfast.now() - interval '30 minutes'").fetchone()
    assert row is not None
    return Mark(row[0], -1)


def test_a_look_along_what_is_due_does_not_pass_the_hot_bucket(hot: Conn) -> None:
    look = streams.due_streams("orders", [(0, late(hot))], 2000, MINE)
    (due,) = drive(hot, look)
    assert sorted(due.keys) == sorted(OURS)
    assert due.seen == len(OURS)
    assert buffers(hot, look) < FEW


def test_keys_of_other_buckets_are_left_out(hot: Conn) -> None:
    rest = [b for b in MINE if b != bucket(OURS[0])]
    (due,) = drive(hot, streams.due_streams("orders", [(0, late(hot))], 2000, rest))
    assert sorted(due.keys) == sorted(key for key in OURS if bucket(key) != bucket(OURS[0]))


def test_the_net_steps_through_the_keys_of_its_buckets_and_no_others(hot: Conn) -> None:
    scan = streams.scan_streams("orders", MINE, None, 1000)
    found = drive(hot, scan)
    assert (found.seen, sorted(ready.key for ready in found.ready)) == (len(OURS), sorted(OURS))
    # One descent of the index for each bucket, two for each key in it, and the first row of each key.
    assert buffers(hot, scan) < 5 * (len(MINE) + 3 * len(OURS)) + FEW


def test_the_depth_of_a_key_costs_nothing_when_it_is_ours(hot: Conn) -> None:
    scan = streams.scan_streams("orders", [bucket(HOT)], None, 1000)
    assert [ready.key for ready in drive(hot, scan).ready] == [HOT]
    assert buffers(hot, scan) < FEW


def test_the_vectors_of_a_bucket_in_sql(hot: Conn) -> None:
    row = hot.execute(
        "SELECT holdfast.bucket('order:9182'), holdfast.bucket(''), holdfast.bucket(%s)", ["a\\b"]
    )
    assert row.fetchone() == (751, 944, 544)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), min_size=20))
def test_a_bucket_is_the_same_in_python_and_in_sql(hot: Conn, keys: list[str]) -> None:
    found = hot.execute(
        "SELECT holdfast.bucket(key) FROM unnest(%s::text[]) WITH ORDINALITY AS u(key, n) ORDER BY n", [keys]
    )
    assert [row[0] for row in found] == [bucket(key) for key in keys]
