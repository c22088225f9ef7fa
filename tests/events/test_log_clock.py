"""One wrong clock neither keeps the log from being emptied nor lets it go too early, and a time still finds its position."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from tests.events.log_support import check_log, labels, publish, read_all, turn
from tests.sql.support import DAY, Conn, later, one, run

from holdfast.shapes.events import store
from holdfast.testing import Kit

pytestmark = pytest.mark.versions
Connect = Callable[[], Conn]


def off_by(conn: Conn, seconds: int) -> Conn:
    """A session whose clock is wrong by so much from here on."""
    now = one(conn, "SELECT extract(epoch FROM holdfast.now() - statement_timestamp())::int")
    conn.execute("SELECT set_config('holdfast.clock_offset', %s, false)", [f"{now + seconds} seconds"])
    return conn


def turned(conn: Conn, label: object) -> None:
    """One event in a page of its own."""
    publish(conn, label, "k")
    turn(conn)


def empty(conn: Conn) -> int:
    """Where the log begins afterwards."""
    run(conn, store.empty_slots(0, 5000))
    return run(conn, store.log_state()).start


@pytest.mark.parametrize("ahead", [DAY, 12 * DAY, 3000 * DAY], ids=["a day", "days", "years"])
def test_a_clock_that_was_ahead_does_not_keep_the_log(
    conn: Conn, connect: Connect, kit: Kit, ahead: int
) -> None:
    turned(conn, "0")
    turned(off_by(connect(), ahead), "ahead")
    turned(conn, "0 again")
    for day in range(1, 12):
        later(kit, DAY, conn)
        turned(conn, str(day))
    # Days 0 to 3 go, with what was turned ahead. A clock that was a day ahead is believed when its time has come.
    assert empty(conn) == 6
    assert labels(conn, 6)[0] == "4"
    check_log(conn)


def test_a_page_of_the_future_that_is_the_last_one_stays_until_another_follows(
    conn: Conn, connect: Connect, kit: Kit
) -> None:
    turned(conn, "0")
    turned(off_by(connect(), 3000 * DAY), "ahead")
    later(kit, 20 * DAY, conn)
    assert empty(conn) == 1, "nobody knows when it was turned"
    turned(conn, "20")
    assert empty(conn) == 1, "before day 20, at the latest"
    later(kit, 8 * DAY, conn)
    assert empty(conn) == 3
    check_log(conn)


@pytest.mark.parametrize(("behind", "gone"), [(2 * DAY, 1), (400 * DAY, 2)])
def test_what_a_clock_that_was_behind_turned_is_kept_as_long_as_its_neighbours(
    conn: Conn, connect: Connect, kit: Kit, behind: int, gone: int
) -> None:
    """The third day is the oldest that is kept. What lies in the slot of the second keeps that too."""
    later(kit, 500 * DAY, conn)
    for day in range(3):
        turned(conn, str(day))
        later(kit, DAY, conn)
    slow = off_by(connect(), -behind)
    turned(slow, "behind")
    turned(conn, "3")
    assert empty(conn) == 0
    later(kit, 6 * DAY, conn)
    turned(conn, "9")
    assert empty(conn) == gone
    later(kit, 2 * DAY, conn)
    assert empty(conn) == 5
    check_log(conn)


def test_positions_by_time_rise_and_leave_nothing_out(conn: Conn, connect: Connect, kit: Kit) -> None:
    """Some turns are far ahead, some behind: what the others turned is found by its time all the same."""
    later(kit, 20 * DAY, conn)
    ahead, behind = connect(), connect()
    began: datetime = one(conn, "SELECT holdfast.now()")
    right: dict[int, datetime] = {}  # position: when it was turned, by the right clock
    for hour in range(40):
        later(kit, 3600, conn, ahead, behind)
        if hour % 10 == 3:
            turned(off_by(ahead, 300 * DAY), "ahead")
        if hour % 10 == 7:
            turned(off_by(behind, -5 * DAY), "behind")
        turned(conn, hour)
        position = run(conn, store.log_state()).last
        right[position] = one(conn, "SELECT at FROM holdfast.event_pages ORDER BY last_pos DESC LIMIT 1")
    for position, at in right.items():
        before = run(conn, store.position_at(at))
        assert before == position - 1, "neither what was turned ahead nor what was turned behind comes first"
    every = [run(conn, store.position_at(began + timedelta(hours=hours))) for hours in range(-200, 41, 4)]
    known = [position for position in every if position is not None]
    assert known == sorted(known)
    assert known[0] == 0
    assert run(conn, store.position_at(began + timedelta(days=100))) is None, "the future has not begun"
    assert run(conn, store.place_in_log(began + timedelta(days=100))).position == len(read_all(conn))
    check_log(conn)


def test_a_clock_that_stepped_back_a_little_is_no_setback(conn: Conn, connect: Connect) -> None:
    turned(off_by(connect(), 50), "a little ahead")
    for n in range(3):
        turned(conn, n)
    pages = conn.execute("SELECT setbacks, at FROM holdfast.event_pages ORDER BY last_pos").fetchall()
    assert {setbacks for setbacks, _ in pages} == {0}
    assert len({at for _, at in pages}) == 1, "they take the time of the one before"
    turned(off_by(connect(), 5000), "ahead")
    turned(conn, "back")
    assert one(conn, "SELECT setbacks FROM holdfast.event_pages ORDER BY last_pos DESC LIMIT 1") == 1
