"""Nobody waits for a transaction that is open, prepared or huge; and a page costs what is new, not what is there.

Costs are buffers that a statement touched, never its time.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.events.log_support import buffers_of, check_log, labels, own_server, publish, session, turn
from tests.sql.support import Conn, one

from holdfast.db.embedded import EmbeddedServer

pytestmark = [pytest.mark.versions, pytest.mark.slow]
BINARIES = Path(os.environ["HOLDFAST_TEST_PG_BIN"]) if os.environ.get("HOLDFAST_TEST_PG_BIN") else None

MANY = 200_000
TURN = "SELECT holdfast.turn_page()"
FEW = 600  # buffers of a page with a few events: a descent of the index in each of 32 slots, and the writing of it
THOUSAND = 6_000  # with 1,000 transactions in progress: a few for each


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with own_server(BINARIES, max_prepared_transactions="1100", autovacuum="off") as server:
        yield server


@pytest.fixture
def conn(server: EmbeddedServer) -> Iterator[Conn]:
    with session(server.dsn("postgres")) as admin:
        admin.execute("DROP DATABASE IF EXISTS fresh WITH (FORCE)")
        admin.execute("CREATE DATABASE fresh TEMPLATE holdfast")
    conn = session(server.dsn("fresh"))
    yield conn
    for (name,) in conn.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    ).fetchall():
        conn.execute(f"ROLLBACK PREPARED '{name}'".encode())
    conn.close()


def load(conn: Conn, count: int) -> None:
    """Many events in one statement, without publish()."""
    conn.execute(
        "INSERT INTO holdfast.events (slot, type, data) "
        "SELECT holdfast.archive_slot(now()), 't', jsonb_build_object('label', n) "
        f"FROM generate_series(1, {count}) n".encode()
    )


def test_a_thousand_prepared_transactions_stall_nobody(conn: Conn) -> None:
    publish(conn, "before")
    assert turn(conn) == 1
    for n in range(1000):
        conn.execute("BEGIN")
        publish(conn, n)
        conn.execute(f"PREPARE TRANSACTION 't{n}'".encode())
    for n in range(50):
        publish(conn, f"meanwhile {n}")
        if n % 10 == 0:
            assert turn(conn) == n + 2
    publish(conn, "not numbered yet")
    assert buffers_of(conn, TURN) < THOUSAND
    assert turn(conn) == 52
    assert labels(conn)[1:] == [f"meanwhile {n}" for n in range(50)] + ["not numbered yet"]
    for n in range(1000):
        conn.execute(f"{'ROLLBACK' if n % 4 == 0 else 'COMMIT'} PREPARED 't{n}'".encode())
        if n % 100 == 0:
            turn(conn)
    assert turn(conn) == 52 + 750
    assert labels(conn, 52) == [n for n in range(1000) if n % 4]
    check_log(conn)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_bulk_of_200_000_uncommitted_stalls_nobody(conn: Conn, server: EmbeddedServer, end: str) -> None:
    publish(conn, "before")
    assert turn(conn) == 1
    bulk = session(server.dsn("fresh"))
    bulk.execute("BEGIN")
    load(bulk, MANY)
    for n in range(20):
        publish(conn, n)
        assert turn(conn) == n + 2
    publish(conn, "last")
    assert buffers_of(conn, TURN) < FEW
    assert turn(conn) == 22
    read = "SELECT count(*) FROM holdfast.read_events(1, holdfast.event_seq_at(1), 100, 1000000, NULL)"
    assert buffers_of(conn, read) < FEW
    bulk.execute(end.encode())
    assert turn(conn) == 22 + (MANY if end == "COMMIT" else 0)
    pages = one(conn, "SELECT count(*) FROM holdfast.event_pages")
    assert pages == 22 + (20 if end == "COMMIT" else 0)
    publish(conn, "afterwards")
    turn(conn)
    publish(conn, "and again")
    assert buffers_of(conn, TURN) < FEW
    bulk.close()


def test_a_commit_200_000_events_late_costs_readers_little(conn: Conn, server: EmbeddedServer) -> None:
    late = session(server.dsn("fresh"))
    late.execute("BEGIN")
    publish(late, "late 1", "k")
    load(conn, MANY)
    publish(late, "late 2", "k")
    assert turn(conn) == MANY
    late.execute("COMMIT")
    assert buffers_of(conn, TURN) < FEW
    assert turn(conn) == MANY + 2
    assert labels(conn, MANY) == ["late 1", "late 2"]
    # the seq of the event at a position is counted from the beginning of its page: of at most 10,000
    seq = one(conn, f"SELECT holdfast.event_seq_at({MANY})")
    read = f"SELECT count(*) FROM holdfast.read_events({MANY}, {seq}, 100, 1000000, NULL)"
    assert buffers_of(conn, read) < 100
    late.close()
