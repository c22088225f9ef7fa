"""A backend is killed with -9 between two statements: the server recovers, and nothing of its transaction is there."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from tests.conftest import wait_until
from tests.events.log_support import check_log, labels, own, own_server, publish, publish_bulk, session, turn
from tests.sql.support import Conn, one, run

from holdfast.shapes.events import store

BINARIES = Path(os.environ["HOLDFAST_TEST_PG_BIN"]) if os.environ.get("HOLDFAST_TEST_PG_BIN") else None
APPEND = """SELECT holdfast.append_events('s', 0, '{t}', ARRAY['{"label": "lost"}'])"""
STEPS: dict[str, Callable[[Conn, store.Owned], object]] = {
    "publish": lambda conn, owned: publish(conn, "lost", "k"),
    "publish_many": lambda conn, owned: publish_bulk(conn, 50, "k"),
    "append": lambda conn, owned: conn.execute(APPEND),
    "turn": lambda conn, owned: turn(conn),
    "hold": lambda conn, owned: run(conn, store.hold(owned)),
    "advance": lambda conn, owned: run(conn, store.advance(owned, owned.position + 1, 1, 60.0)),
}


def is_gone(conn: Conn) -> bool:
    try:
        conn.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def connected(url: str) -> Conn | None:
    try:
        return session(url)
    except psycopg.OperationalError:
        return None


@pytest.mark.versions
@pytest.mark.slow
def test_a_backend_that_is_killed_between_statements_leaves_nothing() -> None:
    with own_server(BINARIES, synchronous_commit="on") as server:
        conn = session(server.dsn())
        run(conn, store.subscribe("s", "projection", ["*"], "start"))
        for n, (name, act) in enumerate(STEPS.items()):
            publish(conn, n, "k")
            (owned,) = own(conn, "s", uuid4(), 0.0)
            with session(server.dsn()) as watch:
                conn.execute("BEGIN")
                act(conn, owned)
                os.kill(conn.info.backend_pid, signal.SIGKILL)
                wait_until(lambda watch=watch: is_gone(watch), "the server ends every session")  # type: ignore[misc]
            conn.close()
            again = wait_until(lambda: connected(server.dsn()), "the server has recovered", 60)
            assert again is not None
            conn = again
            assert turn(conn) == n + 1, name
            assert labels(conn) == list(range(n + 1)), name
            assert one(conn, "SELECT position FROM holdfast.subscriptions") == 0, name
            assert one(conn, "SELECT count(*) FROM holdfast.event_streams") == 0, name
            check_log(conn)
        conn.close()
