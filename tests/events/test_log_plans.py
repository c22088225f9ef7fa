"""Statements on the log cost what they return: with 200,000 pages, whatever the statistics say, and under a held snapshot.

A plan is judged by the buffers it touched, never by its time.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.conftest import wait_until
from tests.events.log_support import labels, own, publish, turn
from tests.sql.support import Conn, one, run
from tests.sql.test_plans import buffers, explain

from holdfast.db.connect import CONFIGURE
from holdfast.shapes.events import store
from holdfast.store.statement import Statement
from holdfast.testing import TestServer

pytestmark = pytest.mark.versions
Connect = Callable[[], Conn]

PAGES = 200_000
MOST = 350  # buffers; the pages are 3,000 blocks, and each of their indexes 500 and more
MORE = 12  # buffers that a statement may take beyond what it took before: a page that is full, a level of an index
BETWEEN = 66  # buffers of a look between two transactions: an index of each of the 32 slots


def session(url: str) -> Conn:
    conn = psycopg.connect(url, autocommit=True)
    with psycopg.RawCursor(conn) as cursor:
        cursor.execute(CONFIGURE.encode(), ("60000", "", False, conn.info.backend_pid, "force_custom_plan"))
    return conn


def load(conn: Conn) -> None:
    """A window that was cut into many pages of one event each, the pages a second apart."""
    conn.execute(
        f"""
        INSERT INTO holdfast.events (seq, xid, slot, type, key, data)
        SELECT n, '10', holdfast.archive_slot(now()), 't', 'k', jsonb_build_object('label', n)
        FROM generate_series(1, {PAGES}) n;
        INSERT INTO holdfast.event_pages (last_pos, n, slot, lo, hi, top, s_from, s_to, at, bytes)
        SELECT n, 1, holdfast.archive_slot(now()), n, n, n, '10:10:', '11:11:',
               now() - make_interval(secs => {PAGES} - n), 20
        FROM generate_series(1, {PAGES}) n;
        SELECT setval('holdfast.event_seq', {PAGES})
        """.encode()
    )


@pytest.fixture(scope="module", params=["empty", "stale", "fresh"])
def big(request: pytest.FixtureRequest, holdfast_server: TestServer) -> Iterator[Conn]:
    """Never analyzed, analyzed while it was empty, analyzed as it is."""
    name = holdfast_server.clone()
    with session(holdfast_server.url(name)) as conn:
        conn.execute("ALTER TABLE holdfast.event_pages SET (autovacuum_enabled = off)")
        if request.param == "stale":
            conn.execute(
                "ANALYZE holdfast.events, holdfast.event_pages, holdfast.subscriptions, holdfast.event_log"
            )
        load(conn)
        for number in range(20):
            run(conn, store.subscribe(f"s{number}", "projection", ["*"], "start"))
            conn.execute(
                "UPDATE holdfast.subscriptions SET position = %(p)s, seq = %(p)s WHERE name = %(name)s",
                {"p": number * PAGES // 20, "name": f"s{number}"},
            )
        if request.param == "fresh":
            conn.execute(
                "ANALYZE holdfast.events, holdfast.event_pages, holdfast.subscriptions, holdfast.event_log"
            )
        yield conn
    holdfast_server.drop(name)


def cost(conn: Conn, statement: Statement[Any], enough: int = 0) -> int:
    """The least of some tries, or the first that is enough: a plan that is made anew reads the catalog."""
    least = tried(conn, statement)
    for _ in range(20 if enough else 7):
        if least > enough:
            least = min(least, tried(conn, statement))
    return least


def tried(conn: Conn, statement: Statement[Any]) -> int:
    """Buffers of one try. A turn looks between any two transactions that are in progress on the server, in whatever
    database: tests beside this one may have dozens, and what these cost is not counted."""
    if statement.name != "turn_page":
        return buffers(explain(conn, statement))
    before = in_progress(conn)
    found = buffers(explain(conn, statement))
    return found - BETWEEN * max(before, in_progress(conn))


def in_progress(conn: Conn) -> int:
    return int(one(conn, "SELECT count(*) FROM pg_snapshot_xip(pg_current_snapshot())"))


def statements() -> dict[str, Statement[Any]]:
    middle, end = PAGES // 2, PAGES - 5
    when = datetime.now(UTC) - timedelta(seconds=middle)
    return {
        "read in the middle": store.read_events(middle, middle, 20),
        "read at the end": store.read_events(end, end, 100),
        "read beyond the end": store.read_events(PAGES, PAGES, 100),
        "where is an early event": store.event_positions([3]),
        "where is an event": store.event_positions([middle]),
        "where is a late event": store.event_positions([PAGES]),
        "where is an unknown event": store.event_positions([PAGES + 100]),
        "which event is at a position": store.event_seq_at(middle),
        "which event has an id that nobody has": store.event_by_id(uuid4()),
        "which event has an id of another time": store.event_by_id(
            UUID("01234567-89ab-7000-8000-000000000000")
        ),
        "position at a time": store.position_at(when),
        "position at the first time": store.position_at(when - timedelta(days=9)),
        "state": store.log_state(),
        "lag of one": store.list_subscriptions("s7"),
        "turn": store.turn_page(),
        "nothing to remove": store.empty_slots(0, 5000),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", list(statements()))
def test_a_statement_touches_few_buffers_whatever_the_statistics(big: Conn, name: str) -> None:
    assert cost(big, statements()[name]) < MOST


@pytest.mark.slow
def test_an_open_event_is_not_looked_for_in_every_page(big: Conn, holdfast_server: TestServer) -> None:
    """It has a seq in the middle, it is visible, and no page has it."""
    with big.transaction(force_rollback=True):
        big.execute(
            "UPDATE holdfast.events SET xid = pg_current_xact_id() WHERE slot = holdfast.archive_slot(now()) AND seq = 50"
        )
        statement = store.event_positions([50])
        assert run(big, statement) == [None]
        assert cost(big, statement) < MOST


@pytest.mark.slow
def test_all_lags_cost_a_few_buffers_each(big: Conn) -> None:
    assert cost(big, store.list_subscriptions()) < 20 * 25
    assert cost(big, store.log_pressure()) < 20 * 25 + 150
    lags = {listed.name: listed.lag_events for listed in run(big, store.list_subscriptions())}
    assert lags["s7"] == PAGES - 7 * PAGES // 20


@pytest.mark.slow
@pytest.mark.parametrize("seq", [1, 777, PAGES // 2, PAGES])
def test_an_event_is_found_by_its_id_in_a_few_buffers(big: Conn, seq: int) -> None:
    event_id = one(
        big,
        f"SELECT id FROM holdfast.events WHERE slot = holdfast.archive_slot(now()) AND seq = {seq}",
    )
    assert run(big, store.event_by_id(event_id)) == seq
    assert cost(big, store.event_by_id(event_id)) < MOST


@pytest.mark.slow
def test_positions_are_right_at_size(big: Conn) -> None:
    seqs = [1, 77, PAGES // 2, PAGES]
    assert run(big, store.event_positions(seqs)) == seqs
    assert labels(big, PAGES - 3) == [PAGES - 2, PAGES - 1, PAGES]
    now = one(big, "SELECT at FROM holdfast.event_pages WHERE last_pos = 5000")
    assert run(big, store.position_at(now)) == 4999


TIMES = 2000


@pytest.fixture
def alone() -> Iterator[Connect]:
    """Sessions on a server that nobody else uses: what others have in progress there makes a turn look more often."""
    binaries = os.environ.get("HOLDFAST_TEST_PG_BIN")
    folder = Path(tempfile.gettempdir()) / f"holdfast-alone-{uuid4().hex[:12]}"
    server = TestServer(folder, Path(binaries) if binaries else None)
    opened: list[Conn] = []
    name = server.clone()

    def connect() -> Conn:
        opened.append(session(server.url(name)))
        return opened[-1]

    yield connect
    for conn in opened:
        conn.close()
    server.drop(name)
    server.close()


def test_a_held_snapshot_does_not_make_the_log_dearer(alone: Connect) -> None:
    """Pages are only ever added: a transaction that keeps every version of everything keeps none of them longer."""
    conn, held = alone(), alone()
    held.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    held.execute("SELECT 1")
    token = uuid4()
    publish(conn, 0)
    turn(conn)
    run(conn, store.subscribe("s", "projection", ["*"], "start"))
    (owned,) = own(conn, "s", token, 3600.0)

    def looks() -> dict[str, Statement[Any]]:
        last = one(conn, "SELECT max(last_pos) FROM holdfast.event_pages")
        seq = run(conn, store.event_seq_at(last - 1))
        return {
            "turn": store.turn_page(),
            "read": store.read_events(last - 1, seq, 100),
            "position": store.event_positions([seq]),
            "state": store.log_state(),
        }

    def costs(before: dict[str, int]) -> dict[str, int]:
        publish(conn, "one more")
        return {name: cost(conn, look, before.get(name, 0) + MORE) for name, look in looks().items()}

    steps(conn, 20, owned.token)
    before = costs({})
    steps(conn, TIMES, owned.token)
    for _ in range(2):  # with the statistics of then, and with those of now
        after = costs(before)
        dearer = {name: (before[name], now) for name, now in after.items() if now > before[name] + MORE}
        assert dearer == {}
        conn.execute("VACUUM ANALYZE")
    assert one(conn, "SELECT position FROM holdfast.subscriptions") == TIMES + 20
    held.execute("ROLLBACK")


def test_a_held_snapshot_makes_a_position_dearer_move_by_move(conn: Conn, connect: Connect) -> None:
    """Its row is updated in place, so old versions pile up while somebody may see them: some 25 buffers for every thousand
    moves. They go with the snapshot."""
    publish(conn, 0)
    turn(conn)
    run(conn, store.subscribe("s", "projection", ["*"], "start"))
    (owned,) = own(conn, "s", uuid4(), 3600.0)

    def dearest() -> int:
        owned.position = one(conn, "SELECT position FROM holdfast.subscriptions")
        return max(
            cost(conn, store.hold(owned)), cost(conn, store.advance(owned, owned.position + 1, 1, 60.0))
        )

    moves(conn, 20)
    before = dearest()
    held = connect()
    held.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    held.execute("SELECT 1")
    for thousands in (1, 2):
        moves(conn, 1000)
        assert dearest() <= before + MORE + 60 * thousands
    held.execute("ROLLBACK")

    def is_as_before() -> bool:
        conn.execute("VACUUM holdfast.subscriptions")
        moves(conn, 5)
        return dearest() <= before + MORE

    wait_until(is_as_before, what="the old versions to go")


def moves(conn: Conn, times: int) -> None:
    conn.execute(
        f"""DO $$ BEGIN
                FOR i IN 1..{times} LOOP
                    UPDATE holdfast.subscriptions SET position = position + 1, seq = position + 1, moved_at = now()
                    WHERE name = 's';
                    COMMIT;
                END LOOP;
            END $$""".encode()
    )


def steps(conn: Conn, times: int, token: UUID) -> None:
    """Publish, turn the page and move a position, each in a transaction of its own."""
    conn.execute(
        f"""DO $$ DECLARE at bigint; BEGIN
                FOR i IN 1..{times} LOOP
                    PERFORM holdfast.publish('t', '{{}}', 'k'); COMMIT;
                    at := holdfast.turn_page(); COMMIT;
                    UPDATE holdfast.subscriptions SET position = position + 1, seq = position + 1
                    WHERE name = 's' AND token = '{token}'; COMMIT;
                END LOOP;
            END $$""".encode()
    )
