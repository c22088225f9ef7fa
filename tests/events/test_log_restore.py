"""A log on another server: transaction ids mean nothing there. It is refused, nothing is lost, and a rebase goes on."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.events.log_support import (
    check_log,
    labels,
    own_server,
    publish,
    publish_bulk,
    read_all,
    session,
    turn,
)
from tests.sql.support import Conn, one, run

from holdfast.db.embedded import EmbeddedServer
from holdfast.shapes.events import store

pytestmark = [pytest.mark.versions, pytest.mark.slow]
BINARIES = Path(os.environ["HOLDFAST_TEST_PG_BIN"]) if os.environ.get("HOLDFAST_TEST_PG_BIN") else None


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """Two servers; the first one has used many more transaction ids."""
    with own_server(BINARIES) as old, own_server(BINARIES) as young:
        burn(old, 20_000)
        yield old, young


def burn(server: EmbeddedServer, ids: int) -> None:
    """Use up transaction ids."""
    with session(server.dsn("postgres")) as conn:
        conn.execute(
            f"DO $$ BEGIN FOR i IN 1..{ids} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$".encode()
        )


def fresh(server: EmbeddedServer, name: str) -> Conn:
    """A copy of the migrated database, which nobody has used yet."""
    with session(server.dsn("postgres")) as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        conn.execute(f"CREATE DATABASE {name} TEMPLATE holdfast".encode())
    return session(server.dsn(name))


def program(name: str) -> str:
    found = str(BINARIES / name) if BINARIES else None
    if found is None:
        from holdfast.db.embedded import find_binaries

        found = str(find_binaries(None).bin / name)
    assert shutil.which(found), found
    return found


def move(source: str, server: EmbeddedServer, name: str) -> Conn:
    """Dump and restore, as people do it."""
    with session(server.dsn("postgres")) as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        conn.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
    dump = subprocess.run([program("pg_dump"), "--format=plain", source], check=True, capture_output=True)
    words = [program("psql"), "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", server.dsn(name)]
    done = subprocess.run(words, input=dump.stdout, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return session(server.dsn(name))


def fill(conn: Conn) -> None:
    """Numbered events of many transactions, two that are not, and one in between that was late."""
    late = session(conn.info.dsn)
    for n in range(200):
        if n == 100:
            late.execute("BEGIN")
            publish(late, "late", "late")
        publish(conn, n, f"k{n % 5}")
        if n % 20 == 19:
            turn(conn)
    late.execute("COMMIT")
    late.close()
    publish(conn, "tail", "k0")


WANTED = [*range(200), "late", "tail"]


@pytest.mark.parametrize("direction", ["younger", "older"])
def test_a_restored_log_is_refused_and_rebased(
    servers: tuple[EmbeddedServer, EmbeddedServer], direction: str
) -> None:
    source, target = servers if direction == "younger" else servers[::-1]
    conn = fresh(source, "shop")
    fill(conn)
    before = [(row.position, row.id) for row in read_all(conn)]
    assert len(before) == 200
    there = move(conn.info.dsn, target, "restored")
    conn.close()
    assert run(there, store.turn_page()) is None
    publish(there, "before rebase", "k0")
    publish(there, "before rebase too", "k1")
    assert run(there, store.turn_page()) is None
    assert run(there, store.rebase()) == 4
    assert run(there, store.log_state()).era == 2
    assert turn(there) == 204
    publish(there, "after", "k0")
    burn(target, 3000)
    publish(there, "much later", "k0")
    assert turn(there) == 206
    assert [(row.position, row.id) for row in read_all(there)][:200] == before
    assert labels(there) == [*WANTED, "before rebase", "before rebase too", "after", "much later"]
    check_log(there)
    there.close()


def test_ids_of_this_server_that_pass_those_of_the_old_one_number_nothing_again(
    servers: tuple[EmbeddedServer, EmbeddedServer],
) -> None:
    """Restored into a younger server, whose transaction ids come to those in the log a while later."""
    old, _ = servers
    with own_server(BINARIES) as young:
        source = fresh(old, "passed")
        with session(young.dsn()) as conn:
            behind = int(one(conn, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
        ahead = int(one(source, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
        burn(young, ahead - behind - 2000)  # the restore itself uses some
        fill(source)
        there = move(source.info.dsn, young, "restored")
        now = int(one(there, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
        assert now < int(one(there, "SELECT min(xid::text::bigint) FROM holdfast.events")), (
            "the server is younger"
        )
        assert run(there, store.rebase()) == 2
        while now < ahead + 3000:
            burn(young, 200)
            publish(there, now, "k0")
            turn(there)
            now = int(one(there, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
        found = labels(there)
        assert found[:202] == WANTED
        assert found[202:] == sorted(found[202:])
        check_log(there)
        there.close()
        source.close()


def test_a_log_that_moves_twice(servers: tuple[EmbeddedServer, EmbeddedServer]) -> None:
    """To a younger server and on to another one: what was numbered on the first keeps its position, also where the second
    had lower transaction ids."""
    old, young = servers
    conn = fresh(old, "once")
    fill(conn)
    there = move(conn.info.dsn, young, "twice")
    assert run(there, store.rebase()) == 2
    publish(there, "second server", "k0")
    turn(there)
    publish(there, "second server too", "k0")
    again = move(there.info.dsn, old, "thrice")
    publish(again, "third server", "k0")
    assert run(again, store.turn_page()) is None
    assert run(again, store.rebase()) == 2
    publish(again, "at last", "k0")
    assert turn(again) == 206
    assert labels(again) == [*WANTED, "second server", "second server too", "third server", "at last"]
    assert run(again, store.log_state()).era == 3
    check_log(again)
    for session_ in (conn, there, again):
        session_.close()


def test_an_event_that_gets_its_position_by_the_rebase_is_in_no_older_page(
    servers: tuple[EmbeddedServer, EmbeddedServer],
) -> None:
    """Its seq is among those of an old page, and the transaction id of the rebase among those of the window of that page."""
    old, young = servers
    conn = fresh(young, "wide")
    late = session(conn.info.dsn)
    late.execute("BEGIN")
    publish(conn, "a")
    publish(late, "late")
    publish(conn, "b")
    burn(young, 25_000)  # the window of the page is as wide
    assert turn(conn) == 2
    late.execute("COMMIT")
    late.close()
    there = move(conn.info.dsn, old, "narrow")
    window = "SELECT s_from, s_to FROM holdfast.event_pages"
    low, high = there.execute(window.encode()).fetchall()[0]
    assert run(there, store.rebase()) == 1
    rebased = int(one(there, "SELECT pg_snapshot_xmax(base_snap)::text FROM holdfast.event_log"))
    assert int(low.split(":")[1]) < rebased < int(high.split(":")[1]), "the case that this is about"
    assert labels(there) == ["a", "b", "late"]
    check_log(there)
    conn.close()
    there.close()


def test_a_rebase_that_was_not_needed_changes_no_position(
    servers: tuple[EmbeddedServer, EmbeddedServer],
) -> None:
    conn = fresh(servers[0], "same")
    fill(conn)
    turn(conn)
    before = read_all(conn)
    publish(conn, "unnumbered", "k0")
    assert run(conn, store.rebase()) == 1
    publish(conn, "next", "k0")
    turn(conn)
    assert read_all(conn)[:202] == before
    assert labels(conn) == [*WANTED, "unnumbered", "next"]
    check_log(conn)
    conn.close()


def test_a_copy_on_the_same_server_is_right_as_it_is(servers: tuple[EmbeddedServer, EmbeddedServer]) -> None:
    """By CREATE DATABASE ... TEMPLATE, and by a dump: the ids are of this server in both."""
    conn = fresh(servers[0], "original")
    fill(conn)
    dumped = move(conn.info.dsn, servers[0], "dumped")
    conn.close()
    with session(servers[0].dsn("postgres")) as admin:
        admin.execute("DROP DATABASE IF EXISTS copied WITH (FORCE)")
        admin.execute("CREATE DATABASE copied TEMPLATE original")
    copied = session(servers[0].dsn("copied"))
    for copy in (copied, dumped):
        publish(copy, "in the copy", "k0")
        assert turn(copy) == 203
        assert labels(copy) == [*WANTED, "in the copy"]
        assert run(copy, store.log_state()).era == 1
        check_log(copy)
        copy.close()


def test_a_rebase_waits_for_no_publisher_for_ever(servers: tuple[EmbeddedServer, EmbeddedServer]) -> None:
    conn = fresh(servers[0], "waits")
    publish_bulk(conn, 10)
    other = session(conn.info.dsn)
    other.execute("BEGIN")
    publish(other, "open")
    conn.execute("ALTER FUNCTION holdfast.rebase_events SET lock_timeout = '50ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable, match="is open or prepared"):
        conn.execute("SELECT holdfast.rebase_events()")
    other.execute("COMMIT")
    assert run(conn, store.rebase()) == 11
    check_log(conn)
    conn.close()
    other.close()


@pytest.mark.parametrize("direction", ["younger", "older"])
def test_events_of_a_replica_that_has_no_sequence_are_numbered_too(
    servers: tuple[EmbeddedServer, EmbeddedServer], direction: str
) -> None:
    """Logical replication does not carry sequences: numbers are drawn again that are there in another day."""
    source, target = servers if direction == "younger" else servers[::-1]
    conn = fresh(source, "shop")
    fill(conn)
    for table in ("events", "event_pages"):  # all of it was yesterday
        conn.execute(f"UPDATE holdfast.{table} SET slot = mod(slot + 31, 32)".encode())
    before = [(row.position, row.id) for row in read_all(conn)]
    there = move(conn.info.dsn, target, "replica")
    conn.close()
    there.execute("SELECT setval('holdfast.event_seq', 1, false)")
    for n in range(5):
        publish(there, f"before rebase {n}", "k0")
    assert run(there, store.turn_page()) is None
    assert run(there, store.rebase()) == 7
    publish(there, "after", "k0")
    assert turn(there) == 208
    assert [(row.position, row.id) for row in read_all(there)][:200] == before
    found = labels(there)
    assert found[:200] == WANTED[:200]
    assert sorted(found[200:207]) == sorted(["late", "tail", *(f"before rebase {n}" for n in range(5))])
    assert [label for label in found if str(label).startswith("before")] == [
        f"before rebase {n}" for n in range(5)
    ]
    assert found[-1] == "after"
    there.close()
