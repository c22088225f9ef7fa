"""Positions: no gaps, the same for every reader, in commit order within a key, whatever transactions do meanwhile."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest
from tests.events.log_support import check_log, labels, own, publish, publish_bulk, read_all, turn
from tests.sql.support import DAY, Conn, configure, later, one, run, until_blocked

from holdfast.shapes.events import store
from holdfast.testing import Kit

pytestmark = pytest.mark.versions
Connect = Callable[[], Conn]


def begin(conn: Conn, isolation: str = "READ COMMITTED") -> None:
    """With a transaction id of its own from the start."""
    conn.execute(f"BEGIN ISOLATION LEVEL {isolation}".encode())
    conn.execute("SELECT pg_current_xact_id()")


@pytest.mark.parametrize(
    ("turned", "missing"),
    [(False, False), (True, False), (False, True)],
    ids=["one page", "it was open at the last page", "a number is missing"],
)
def test_a_transaction_that_began_later_commits_first(
    conn: Conn, connect: Connect, turned: bool, missing: bool
) -> None:
    """A page with a number that was rolled back is read in another way."""
    first, second = connect(), connect()
    publish(conn, "before", "k")
    begin(first)
    begin(second)
    if turned:
        publish(conn, "other")
        turn(conn)
    publish(second, "later begun", "k")
    second.execute("COMMIT")
    if missing:
        begin(second)
        publish(second, "rolled back")
        second.execute("ROLLBACK")
    publish(first, "earlier begun", "k")
    first.execute("COMMIT")
    turn(conn)
    found = labels(conn)
    assert [x for x in found if x != "other"] == ["before", "later begun", "earlier begun"]
    check_log(conn)


def test_sessions_that_take_turns_are_in_the_order_of_their_commits(conn: Conn, connect: Connect) -> None:
    one_, other = connect(), connect()
    for n in range(60):
        publish(one_ if n % 2 else other, n, "k")
    turn(conn)
    assert labels(conn) == list(range(60))


def test_who_waits_for_a_key_draws_its_number_afterwards(conn: Conn, connect: Connect) -> None:
    holder, waiter = connect(), connect()
    begin(holder)
    publish(holder, "first", "k")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(publish, waiter, "third", "k")
        try:
            until_blocked(conn, waiter)
            publish(holder, "second", "k")
        finally:
            holder.execute("COMMIT")
            waiting.result()
    turn(conn)
    assert labels(conn) == ["first", "second", "third"]


def test_an_event_of_an_open_transaction_gets_a_page_of_its_own_when_it_commits(
    conn: Conn, connect: Connect
) -> None:
    late = connect()
    begin(late)
    publish(conn, 1)
    publish(late, "late 1")
    publish(conn, 2)
    assert turn(conn) == 2
    assert labels(conn) == [1, 2]
    publish(late, "late 2")
    late.execute("COMMIT")
    publish(conn, 3)
    assert turn(conn) == 5
    assert labels(conn, batch=1) == labels(conn, batch=2) == labels(conn) == [1, 2, "late 1", "late 2", 3]
    check_log(conn)


def test_a_page_whose_numbers_span_those_of_an_earlier_one_has_its_own_events_only(
    conn: Conn, connect: Connect
) -> None:
    late = connect()
    begin(late)
    publish(late, "late 1")
    for n in range(5):
        publish(conn, n)
    assert turn(conn) == 5
    publish(late, "late 2")
    late.execute("COMMIT")
    assert turn(conn) == 7
    for batch in (1, 2, 3, 6, 100):
        assert labels(conn, batch=batch) == [0, 1, 2, 3, 4, "late 1", "late 2"]
    for after in range(8):
        assert labels(conn, after, 2) == [0, 1, 2, 3, 4, "late 1", "late 2"][after:]
    check_log(conn)


def test_what_a_transaction_publishes_after_it_turned_the_page_is_not_lost(
    conn: Conn, connect: Connect
) -> None:
    consumer = connect()
    begin(consumer)
    publish(consumer, "own, before")
    publish(conn, "other")  # a later transaction has ended: the own one is below xmax
    assert turn(consumer) == 1
    publish(consumer, "own, after")
    consumer.execute("COMMIT")
    assert turn(conn) == 3
    assert labels(conn) == ["other", "own, before", "own, after"]
    check_log(conn)


def test_savepoints_and_rollbacks(conn: Conn) -> None:
    conn.execute("BEGIN")
    publish(conn, 1, "k")
    conn.execute("SAVEPOINT a")
    publish(conn, "rolled back", "k")
    conn.execute("ROLLBACK TO a")
    publish(conn, 2, "k")
    conn.execute("SAVEPOINT b")
    publish(conn, 3, "k")
    conn.execute("RELEASE b")
    conn.execute("COMMIT")
    conn.execute("BEGIN")
    publish(conn, "rolled back", "k")
    conn.execute("ROLLBACK")
    assert turn(conn) == 3
    assert labels(conn) == [1, 2, 3]
    check_log(conn)


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_publishers_of_every_isolation(conn: Conn, connect: Connect, isolation: str) -> None:
    other = connect()
    begin(other, isolation)
    publish(other, 1, "k")
    publish(conn, "other", "j")
    turn(conn)
    publish(other, 2, "k")
    other.execute("COMMIT")
    turn(conn)
    assert labels(conn) == ["other", 1, 2]


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("function", ["turn_page", "empty_event_slots", "rebase_events"])
def test_an_old_snapshot_may_not_change_pages(conn: Conn, isolation: str, function: str) -> None:
    publish(conn, 1)
    begin(conn, isolation)
    with pytest.raises(psycopg.DatabaseError) as raised:
        conn.execute(f"SELECT holdfast.{function}()".encode())
    assert raised.value.diag.message_primary == f"{function}() needs READ COMMITTED, not {isolation}"
    conn.execute("ROLLBACK")
    assert turn(conn) == 1


def test_a_page_is_cut_at_gaps_days_and_ten_thousand(conn: Conn, connect: Connect, kit: Kit) -> None:
    publish_bulk(conn, 10_001)
    conn.execute("SELECT setval('holdfast.event_seq', nextval('holdfast.event_seq') + 254)")
    publish(conn, "near")
    conn.execute("SELECT setval('holdfast.event_seq', nextval('holdfast.event_seq') + 255)")
    publish(conn, "far")
    later(kit, 86_400, conn)
    publish(conn, "tomorrow")
    assert turn(conn) == 10_004
    pages = conn.execute("SELECT n, hi - lo FROM holdfast.event_pages ORDER BY last_pos").fetchall()
    assert [n for n, _ in pages] == [10_000, 2, 1, 1]
    assert pages[1][1] == 256
    assert labels(conn)[-4:] == [10_001, "near", "far", "tomorrow"]
    check_log(conn)


def test_a_clock_that_was_moved_loses_nothing(conn: Conn, connect: Connect, kit: Kit) -> None:
    """Events lie in the slot of the day that their publisher believed; a page looks in all of them where it must."""
    ahead = connect()
    publish(conn, 0)
    turn(conn)
    for n in range(1, 5):
        kit.clock.advance(5 * 86_400)
        configure(ahead, kit)
        publish(ahead, f"ahead {n}", "k")
        publish(conn, f"here {n}", "k")
        turn(conn if n % 2 else ahead)
    wanted = [0] + [f"{where} {n}" for n in range(1, 5) for where in ("ahead", "here")]
    assert labels(conn) == wanted
    assert one(conn, "SELECT count(DISTINCT slot) FROM holdfast.events") == 5
    ats = conn.execute("SELECT setbacks, at FROM holdfast.event_pages ORDER BY last_pos").fetchall()
    assert ats == sorted(ats)
    check_log(conn)


def test_where_an_event_is_and_which_is_at_a_position(conn: Conn, connect: Connect) -> None:
    late = connect()
    begin(late)
    publish(late, "late")
    for n in range(300):
        publish(conn, n)
    turn(conn)
    publish(late, "late too")
    open_seqs = [
        r[0] for r in late.execute("SELECT seq FROM holdfast.events WHERE xid = pg_current_xact_id()")
    ]
    assert run(conn, store.event_positions(open_seqs)) == [None, None]
    assert run(late, store.event_positions(open_seqs)) == [
        None,
        None,
    ]  # it sees them, and they have no position
    late.execute("COMMIT")
    assert run(conn, store.event_positions(open_seqs)) == [None, None]
    turn(conn)
    rows = read_all(conn)
    assert run(conn, store.event_positions([row.seq for row in rows])) == list(range(1, 303))
    for row in rows[::37]:
        assert run(conn, store.event_seq_at(row.position)) == row.seq
    assert run(conn, store.event_positions([10**9])) == [None]
    assert run(conn, store.event_seq_at(0)) == run(conn, store.event_seq_at(999)) == 0


def test_a_read_ends_at_its_limits(conn: Conn) -> None:
    for n in range(10):
        publish(conn, n)
        if n % 3 == 0:
            turn(conn)
    turn(conn)
    page = run(conn, store.read_events(2, run(conn, store.event_seq_at(2)), 4))
    assert ([row.position for row in page.events], page.position, page.last) == ([3, 4, 5, 6], 6, 10)
    page = run(conn, store.read_events(2, run(conn, store.event_seq_at(2)), 100, until=5))
    assert ([row.position for row in page.events], page.position) == ([3, 4, 5], 5)
    page = run(conn, store.read_events(0, 0, 100, most_bytes=1))
    assert ([row.position for row in page.events], page.position) == ([1], 1)
    page = run(conn, store.read_events(0, 0, 4, patterns=["other.*"]))
    assert (page.events, page.position) == ([], 4)
    page = run(conn, store.read_events(10, page.seq, 4))
    assert (page.events, page.position, page.last) == ([], 10, 10)


def test_the_limit_of_bytes_counts_what_is_sent(conn: Conn) -> None:
    """Data that the server has compressed counts as large as it is read."""
    for n in range(5):
        conn.execute(
            "SELECT holdfast.publish('t', jsonb_build_object('label', %s::int, 'text', repeat('x', 100000)))",
            [n],
        )
    turn(conn)
    assert one(conn, "SELECT max(pg_column_size(data)) FROM holdfast.events") < 5000
    page = run(conn, store.read_events(0, 0, 100, most_bytes=250_000))
    assert ([row.position for row in page.events], page.position) == ([1, 2], 2)


def held_up(conn: Conn, connect: Connect, act: Callable[[Conn], object]) -> Future[store.Page]:
    """A read of the whole log that has looked at the pages, and waits for the events while `act` is done and committed."""
    reader, other = connect(), connect()
    other.execute("BEGIN")
    other.execute("LOCK TABLE holdfast.events IN ACCESS EXCLUSIVE MODE")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(run, reader, store.read_events(0, 0, 100))
        try:
            until_blocked(conn, reader)
            act(other)
        finally:
            other.execute("COMMIT")
    return reading


def test_a_page_that_is_turned_during_a_read_is_left_for_the_next(conn: Conn, connect: Connect) -> None:
    """The first one of the log: the reader has seen none."""
    publish(conn, 1)
    page = held_up(conn, connect, turn).result()
    assert (page.events, page.position, page.last) == ([], 0, 1)
    assert labels(conn) == [1]


def test_a_page_of_another_day_that_is_turned_during_a_read_is_left_for_the_next(
    conn: Conn, connect: Connect, kit: Kit
) -> None:
    publish(conn, 1)
    turn(conn)
    later(kit, DAY, conn)
    publish(conn, 2)
    page = held_up(conn, connect, turn).result()
    assert ([row.position for row in page.events], page.position, page.last) == ([1], 1, 2)
    assert labels(conn) == [1, 2]


def test_a_day_that_is_removed_during_a_read_is_not_taken_for_read(
    conn: Conn, connect: Connect, kit: Kit
) -> None:
    publish(conn, 1)
    turn(conn)
    later(kit, 20 * DAY, conn)
    with pytest.raises(psycopg.Error, match="events after position 0 are gone"):
        held_up(conn, connect, lambda other: run(other, store.empty_slots(0, 100))).result()


def test_a_fresh_log_has_nothing_and_says_so(conn: Conn) -> None:
    state = run(conn, store.log_state())
    assert (state.start, state.last, state.unnumbered, state.era) == (0, 0, 0, 1)
    assert turn(conn) == 0
    publish(conn, 1)
    assert run(conn, store.log_state()).unnumbered == 1
    turn(conn)
    assert run(conn, store.log_state()).unnumbered == 0


def test_an_earlier_generation_moves_nothing(conn: Conn, connect: Connect, kit: Kit) -> None:
    """The owner lost its subscription, another had it, and it has it again: what it read before is not its own any more."""
    publish(conn, 1)
    turn(conn)
    run(conn, store.subscribe("s", "projection", ["*"], "start"))
    mine, theirs = uuid4(), uuid4()
    (stale,) = own(conn, "s", mine, 10.0)
    later(kit, 11, conn)
    (other,) = own(conn, "s", theirs, 10.0)
    later(kit, 11, conn)
    (again,) = own(conn, "s", mine, 10.0)
    assert (stale.token, stale.position) == (again.token, again.position)
    for owned, moves in ((stale, False), (other, False), (again, True)):
        with conn.transaction(force_rollback=True):
            assert bool(run(conn, store.hold(owned))) is moves
        assert run(conn, store.advance(owned, 1, 1, 10.0)) is moves
