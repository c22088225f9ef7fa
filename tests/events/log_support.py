"""What the tests of the log share: publish, turn and read in one line each, and what a statement touched."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from tests.sql.support import Conn, one, run

from holdfast.db import migrate
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer
from holdfast.shapes.events import store
from holdfast.shapes.events.event import EventRow


def publish(conn: Conn, label: object, key: str | None = None) -> int:
    """One event with this label; its seq."""
    data = json.dumps({"label": label})
    return int(one(conn, "SELECT seq FROM holdfast.publish('t', %s::jsonb, %s)", data, key))


def publish_bulk(conn: Conn, count: int, key: str | None = None) -> None:
    """Many events in one statement, labelled 1, 2, ..."""
    conn.execute(
        "SELECT count(*) FROM holdfast.publish_many("
        "(SELECT array_agg('t'::text) FROM generate_series(1, %(n)s)), "
        "(SELECT array_agg(format('{\"label\": %%s}', g) ORDER BY g) FROM generate_series(1, %(n)s) g), "
        "CASE WHEN %(key)s::text IS NOT NULL THEN (SELECT array_agg(%(key)s::text) FROM generate_series(1, %(n)s)) END)",
        {"n": count, "key": key},
    )


def turn(conn: Conn) -> int:
    last = run(conn, store.turn_page())
    assert last is not None, "the log is of another server"
    return last


def read_all(conn: Conn, after: int = 0, batch: int = 1000) -> list[EventRow]:
    """Every numbered event after a position, batch by batch, as a runner reads."""
    found: list[EventRow] = []
    seq = run(conn, store.event_seq_at(after))
    while True:
        page = run(conn, store.read_events(after, seq, batch))
        found += page.events
        if page.position == after:
            return found
        after, seq = page.position, page.seq


def own(
    conn: Conn, name: str, token: UUID, lease: float, patterns: Sequence[str] = ("*",)
) -> list[store.Owned]:
    """Renew or take a subscription; empty: somebody else has it."""
    return run(conn, store.own(store.Owner([(name, patterns)], token, "worker", lease, 0.0)))


def label(row: EventRow) -> Any:
    assert row.data is not None
    return json.loads(row.data)["label"]


def labels(conn: Conn, after: int = 0, batch: int = 1000) -> list[Any]:
    """What was read, in order; the positions have no gaps."""
    rows = read_all(conn, after, batch)
    assert [row.position for row in rows] == list(range(after + 1, after + 1 + len(rows)))
    return [label(row) for row in rows]


def check_log(conn: Conn) -> None:
    """Every committed event is in exactly one page, and every page has as many as it says."""
    committed = one(conn, "SELECT count(*) FROM holdfast.events")
    start, last = conn.execute(
        "SELECT l.start_pos, coalesce(max(p.last_pos), l.base_pos) "
        "FROM holdfast.event_log l LEFT JOIN holdfast.event_pages p ON true GROUP BY l.start_pos, l.base_pos"
    ).fetchall()[0]
    with conn.transaction():
        conn.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        wrong = conn.execute(
            """
            SELECT p.last_pos, p.n, e.n FROM holdfast.event_pages p CROSS JOIN holdfast.event_log l
            CROSS JOIN LATERAL (
                SELECT count(*) AS n FROM holdfast.events e WHERE e.slot = p.slot AND e.seq BETWEEN p.lo AND p.hi
                AND pg_visible_in_snapshot(e.xid, p.s_to) AND NOT pg_visible_in_snapshot(e.xid, p.s_from) OFFSET 0) e
            WHERE p.last_pos > l.start_pos AND p.n <> e.n
            """
        ).fetchall()
    assert wrong == []
    rows = read_all(conn, start, 5000)
    assert [row.position for row in rows] == list(range(start + 1, last + 1))
    assert len({row.id for row in rows}) == len(rows) == committed
    broken = conn.execute(
        """
        SELECT p.last_pos FROM (
            SELECT p.last_pos, p.s_from::text AS a, p.s_to::text AS b,
                   lag(p.s_from::text) OVER w AS before_a, lag(p.s_to::text) OVER w AS before_b
            FROM holdfast.event_pages p CROSS JOIN holdfast.event_log l
            WHERE p.last_pos > greatest(l.base_pos, l.start_pos) WINDOW w AS (ORDER BY p.last_pos)) p
        WHERE p.before_b IS NOT NULL AND p.a <> p.before_b AND (p.a, p.b) IS DISTINCT FROM (p.before_a, p.before_b)
        """
    ).fetchall()
    assert broken == [], "each window begins where the one before it ended"


def buffers_of(conn: Conn, text: str) -> int:
    """Of the statement and of all that it calls, the cheapest of a few: the first ones make plans. It is undone."""
    found = []
    for _ in range(6):
        with conn.transaction(force_rollback=True):
            row = conn.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON, TIMING OFF) {text}".encode()
            ).fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            found.append(int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]))
    return min(found)


@contextmanager
def own_server(binaries: Path | None = None, **settings: str) -> Iterator[EmbeddedServer]:
    """A server for one test, with a migrated database. Its folder is short, for the path of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="hf-log-"))
    folder.chmod(0o755)
    try:
        options = EmbeddedOptions(durable=False, binaries=binaries, settings=settings)
        with EmbeddedServer.acquire(folder / "pg", options) as server:
            server.ensure_database()
            migrate.up(server.dsn())
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def session(url: str) -> Conn:
    return psycopg.connect(url, autocommit=True)
