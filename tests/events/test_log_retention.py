"""Days of the log go when nobody needs them, as a whole, and never in silence."""

from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest
from tests.events.log_support import check_log, labels, own, publish, read_all, turn
from tests.sql.support import DAY, Conn, configure, later, one, run

from holdfast.db.faults import translate
from holdfast.errors import EventsGone
from holdfast.shapes.events import store
from holdfast.testing import Kit

pytestmark = pytest.mark.versions
Connect = Callable[[], Conn]


def empty(conn: Conn, most: int = 5000) -> int:
    """Where the log begins afterwards."""
    run(conn, store.empty_slots(0, most))
    return run(conn, store.log_state()).start


def status(conn: Conn, name: str) -> tuple[str, int | None, str | None]:
    rows = conn.execute(
        "SELECT status, missed, problem FROM holdfast.subscriptions WHERE name = %s", [name]
    ).fetchall()
    ((state, missed, problem),) = rows
    return state, missed, problem


def subscribe(conn: Conn, name: str, position: int = 0, *, hold: bool = True) -> None:
    run(conn, store.subscribe(name, "projection", ["*"], "start", hold=hold))
    conn.execute(
        "UPDATE holdfast.subscriptions SET position = %s, seq = holdfast.event_seq_at(%s) WHERE name = %s",
        [position, position, name],
    )


def days(conn: Conn, kit: Kit, count: int, each: int = 3) -> None:
    """So many days with a few events each; the clock is in the last one."""
    for day in range(count):
        if day:
            later(kit, DAY, conn)
        for n in range(each):
            publish(conn, f"{day}.{n}", "k")
        turn(conn)


def test_days_past_retention_go_and_positions_go_on(conn: Conn, kit: Kit) -> None:
    days(conn, kit, 12)
    assert empty(conn) == 12  # days 0 to 3; 4 to 11 are today and the seven days before
    assert one(conn, "SELECT min(created_at::date) = max(created_at::date) - 7 FROM holdfast.events")
    assert labels(conn, 12)[0] == "4.0"
    publish(conn, "next", "k")
    assert turn(conn) == 37
    assert empty(conn) == 12
    check_log(conn)


@pytest.mark.parametrize("after", [0, 5, 11])
def test_who_reads_what_is_gone_is_told(conn: Conn, kit: Kit, after: int) -> None:
    days(conn, kit, 12)
    empty(conn)
    with pytest.raises(psycopg.Error) as raised:
        run(conn, store.read_events(after, 0, 10))
    error = translate(raised.value)
    assert isinstance(error, EventsGone)
    assert str(error) == f"events after position {after} are gone: the log begins after position 12"
    assert len(read_all(conn, 12)) == 24


def test_a_log_that_rested_begins_where_it_ended(conn: Conn, kit: Kit) -> None:
    days(conn, kit, 3)
    later(kit, 40 * DAY, conn)
    assert empty(conn) == 9
    assert one(conn, "SELECT count(*) FROM holdfast.events") == 0
    assert turn(conn) == 9
    subscribe(conn, "s", 9)
    publish(conn, "new")
    assert turn(conn) == 10
    assert labels(conn, 9) == ["new"]
    assert empty(conn) == 9
    check_log(conn)


def test_the_longest_retention_empties_a_slot_before_its_day_comes_again(conn: Conn, kit: Kit) -> None:
    run(conn, store.set_retention(30, 30, None))
    subscribe(conn, "slow")
    for day in range(34):
        days(conn, kit, 1, each=1)
        assert empty(conn) == max(0, day - 30)
        later(kit, DAY, conn)
    assert status(conn, "slow")[:2] == ("expired", 3)
    check_log(conn)


def test_a_subscriber_holds_the_log_until_its_days_are_over(conn: Conn, kit: Kit) -> None:
    days(conn, kit, 12)
    subscribe(conn, "slow", 4)
    subscribe(conn, "fast", 36)
    assert empty(conn) == 3  # the day that it has read, and not the one it is in
    assert status(conn, "slow") == ("active", None, None)
    later(kit, 18 * DAY, conn)  # hold_days is 28, and the events of day 1 are as old
    assert empty(conn) == 3
    later(kit, DAY, conn)
    assert empty(conn) == 6
    problem = "2 events after position 4 were removed before it read them"
    assert status(conn, "slow") == ("expired", 2, problem)
    assert status(conn, "fast") == ("active", None, None)
    assert empty(conn) == 36, "an expired subscription holds nothing"
    assert status(conn, "slow")[:2] == ("expired", 32)
    assert status(conn, "fast") == ("active", None, None)


def test_a_subscriber_that_may_not_hold_the_log_expires_with_the_number_it_missed(
    conn: Conn, kit: Kit
) -> None:
    days(conn, kit, 12)
    subscribe(conn, "eager", 5, hold=False)
    token = uuid4()
    (owned,) = own(conn, "eager", token, 600.0)
    assert empty(conn) == 12
    assert status(conn, "eager")[:2] == ("expired", 7)
    assert not run(conn, store.advance(owned, 12, 12, 600.0)), "its owner is fenced"
    assert own(conn, "eager", token, 600.0) == []


def test_bytes_end_a_hold_day_by_day(conn: Conn, kit: Kit) -> None:
    """The oldest days go until the rest is within the limit; those within retention stay in any case."""
    days(conn, kit, 12)
    subscribe(conn, "slow")
    slot = one(conn, "SELECT to_char(holdfast.archive_slot(holdfast.now()), 'FM00')")
    day = int(one(conn, f"SELECT pg_total_relation_size('holdfast.events_{slot}')"))
    run(conn, store.set_retention(None, None, 12 * day))
    assert empty(conn) == 0
    run(conn, store.set_retention(None, None, 10 * day))
    assert empty(conn) == 6
    assert status(conn, "slow")[:2] == ("expired", 6)
    subscribe(conn, "next", 6)
    run(conn, store.set_retention(None, None, 1))
    assert empty(conn) == 12
    assert status(conn, "next")[:2] == ("expired", 6)


def test_events_without_a_position_keep_their_day(conn: Conn, connect: Connect, kit: Kit) -> None:
    """Committed and not numbered; then open, and committed late."""
    opened = connect()
    days(conn, kit, 1)
    opened.execute("BEGIN")
    publish(opened, "late")
    publish(conn, "not numbered")
    later(kit, 10 * DAY, conn)
    assert empty(conn) == 0, "somebody writes to it"
    opened.execute("COMMIT")
    assert empty(conn) == 0, "it has events without a position"
    assert turn(conn) == 5
    assert empty(conn) == 0, "they were numbered today"
    assert labels(conn, 3) == ["late", "not numbered"] or labels(conn, 3) == ["not numbered", "late"]
    later(kit, 8 * DAY, conn)
    assert empty(conn) == 5
    check_log(conn)


def test_an_open_publisher_of_a_day_holds_up_nobody(conn: Conn, connect: Connect, kit: Kit) -> None:
    """It is not waited for; and the days before its own go."""
    publish(conn, 0)
    turn(conn)
    later(kit, DAY, conn)
    opened = connect()
    publish(conn, 1)
    turn(conn)
    opened.execute("BEGIN")
    publish(opened, "open")
    later(kit, 10 * DAY, conn)
    publish(conn, 2)
    turn(conn)
    conn.execute(
        "ALTER FUNCTION holdfast.empty_event_slots(int) SET lock_timeout = '1h'"
    )  # it must not need it
    assert empty(conn) == 1
    opened.execute("ROLLBACK")
    assert empty(conn) == 2


def test_a_reader_of_a_day_is_waited_for_shortly_and_not_raised_at(
    conn: Conn, connect: Connect, kit: Kit
) -> None:
    days(conn, kit, 12)
    reader = connect()
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM holdfast.events")
    assert empty(conn) == 0
    reader.execute("COMMIT")
    assert empty(conn) == 12


def test_a_batch_at_work_is_waited_for_shortly_and_not_raised_at(
    conn: Conn, connect: Connect, kit: Kit
) -> None:
    """Its subscription would expire, and its owner holds the row."""
    days(conn, kit, 12)
    subscribe(conn, "eager", 5, hold=False)
    (owned,) = own(conn, "eager", uuid4(), 600.0)
    worker = connect()
    worker.execute("BEGIN")
    assert run(worker, store.hold(owned))
    assert empty(conn) == 0
    assert run(worker, store.advance(owned, 12, run(worker, store.event_seq_at(12)), 600.0))
    worker.execute("COMMIT")
    assert empty(conn) == 12
    assert status(conn, "eager") == ("active", None, None)


def test_gone_is_not_done(conn: Conn, connect: Connect, kit: Kit) -> None:
    """A transaction that is older than the removal sees the pages, and TRUNCATE has taken the rows: as a reader does between
    its statements. It must not take that for having read them."""
    days(conn, kit, 12)
    all_of_it, part_of_it = connect(), connect()
    for reader in (all_of_it, part_of_it):
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
    assert empty(conn) == 12
    for reader, most in ((all_of_it, 100), (part_of_it, 6)):
        with pytest.raises(EventsGone, match="the others were removed"):
            run(reader, store.read_events(0, 0, most))
    with pytest.raises(psycopg.Error, match="events after position 0 are gone"):
        run(conn, store.read_events(0, 0, 6))


def test_days_whose_positions_overlap_go_together(conn: Conn, connect: Connect, kit: Kit) -> None:
    """A transaction of day 0 commits on day 1: positions of day 0 lie between those of day 1."""
    late = connect()
    publish(conn, "0")
    late.execute("BEGIN")
    publish(late, "0 late")
    turn(conn)
    later(kit, DAY, conn)
    publish(conn, "1")
    turn(conn)
    late.execute("COMMIT")
    turn(conn)
    publish(conn, "1 again")
    turn(conn)
    subscribe(conn, "slow", 3)
    later(kit, 12 * DAY, conn)
    assert empty(conn) == 0, "day 0 is read, and would take day 1 with it"
    conn.execute("UPDATE holdfast.subscriptions SET position = 4")
    assert empty(conn) == 4
    assert status(conn, "slow")[0] == "active"


def test_pages_of_what_is_gone_go_in_batches(conn: Conn, kit: Kit) -> None:
    for n in range(25):
        publish(conn, n)
        turn(conn)
    later(kit, 10 * DAY, conn)
    removed = [run(conn, store.empty_slots(0, 10)) for _ in range(4)]
    assert removed == [10, 10, 4, 0]  # the next page goes on from the last one
    assert run(conn, store.log_state()).start == 25
    publish(conn, "new")
    assert turn(conn) == 26
    assert labels(conn, 25) == ["new"]


def test_a_subscription_that_came_too_late_expires_too(conn: Conn, kit: Kit) -> None:
    """It was made at the beginning of the log while that moved on."""
    days(conn, kit, 12)
    empty(conn)
    subscribe(conn, "late", 2)
    empty(conn)
    assert status(conn, "late")[:2] == ("expired", 10)


def test_what_a_subscriber_makes_the_log_keep_is_known(conn: Conn, kit: Kit) -> None:
    days(conn, kit, 5)
    subscribe(conn, "fast", 15)
    subscribe(conn, "slow", 4)
    subscribe(conn, "eager", 0, hold=False)
    later(kit, 10 * DAY, conn)
    day = one(conn, "SELECT pg_total_relation_size('holdfast.events') / 32")
    fast, slow = run(conn, store.log_pressure())
    assert (fast.name, fast.seconds, fast.bytes, fast.share) == ("fast", 0.0, 0, 0.0)
    assert slow.name == "slow"
    assert 13 * DAY <= slow.seconds <= 13 * DAY + 600
    assert slow.bytes > 4 * day
    assert (slow.hold_days, slow.hold_bytes) == (28, 10 * 2**30)
    assert 0.4 < slow.share < 0.5
    later(kit, 2 * DAY, conn)
    assert run(conn, store.log_pressure())[1].share > 0.5
    run(conn, store.set_retention(None, None, slow.bytes))
    assert run(conn, store.log_pressure())[1].share == 1.0


def test_a_time_is_found_among_pages(conn: Conn, kit: Kit) -> None:
    days(conn, kit, 12)
    at = [row.time for row in read_all(conn)]
    assert run(conn, store.position_at(at[0])) == 0
    assert run(conn, store.position_at(at[20])) == 18  # the page that it is in
    empty(conn)
    assert run(conn, store.position_at(at[0])) == 12
    later(kit, DAY, conn)
    configure(conn, kit)
    assert run(conn, store.position_at(one(conn, "SELECT holdfast.now()"))) is None
