"""A read returns what the pages say, whichever way it goes: pages without gaps are read as one, others window by window."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.events.log_support import check_log, publish, publish_bulk, turn
from tests.sql.support import DAY, Conn, later, run

from holdfast.errors import EventsGone
from holdfast.shapes.events import store
from holdfast.testing import Kit

pytestmark = pytest.mark.versions
Connect = Callable[[], Conn]


def numbered(conn: Conn) -> list[tuple[int, int, str]]:
    """(position, seq, type) of every event, by the definition of a page."""
    return conn.execute(
        """
        SELECT p.last_pos - p.n + row_number() OVER (PARTITION BY p.last_pos ORDER BY e.seq), e.seq, e.type
        FROM holdfast.event_pages p CROSS JOIN LATERAL (
            SELECT e.seq, e.type FROM holdfast.events e WHERE e.slot = p.slot AND e.seq BETWEEN p.lo AND p.hi
            AND pg_visible_in_snapshot(e.xid, p.s_to) AND NOT pg_visible_in_snapshot(e.xid, p.s_from) OFFSET 0) e
        ORDER BY 1
        """
    ).fetchall()


def rolled_back(conn: Conn, label: object) -> None:
    """A number that is drawn and never used."""
    conn.execute("BEGIN")
    publish(conn, label)
    conn.execute("ROLLBACK")


def fill(conn: Conn, connect: Connect, kit: Kit) -> None:
    late = connect()
    publish_bulk(conn, 3)
    turn(conn)
    publish_bulk(conn, 2)
    turn(conn)  # two pages, one after the other
    rolled_back(conn, "between two pages")
    publish_bulk(conn, 2)
    conn.execute("SELECT holdfast.publish('other')")
    turn(conn)
    publish(conn, "before the gap")
    rolled_back(conn, "within a page")
    publish(conn, "after the gap")
    turn(conn)
    late.execute("BEGIN")
    publish(late, "late")
    publish_bulk(conn, 2)
    turn(conn)
    late.execute("COMMIT")
    turn(conn)  # a page that is before the one before it by its numbers
    publish_bulk(conn, 2)
    turn(conn)
    later(kit, DAY, conn)
    publish_bulk(conn, 4)  # and of the next day, without a gap
    turn(conn)


def test_pages_that_have_no_gaps_are_read_as_one(conn: Conn, connect: Connect, kit: Kit) -> None:
    fill(conn, connect, kit)
    check_log(conn)
    every = numbered(conn)
    assert [position for position, _, _ in every] == list(range(1, 20))
    seqs = {0: 0} | {position: seq for position, seq, _ in every}

    def read(after: int, most: int, patterns: Sequence[str] | None, until: int | None) -> Any:
        page = run(conn, store.read_events(after, seqs[after], most, patterns=patterns, until=until))
        assert after < page.position <= min(after + most, until or 19)
        assert page.seq == seqs[page.position]
        found = [(row.position, row.seq, row.type) for row in page.events]
        assert found == [
            event
            for event in every
            if after < event[0] <= page.position and (patterns is None or event[2] in patterns)
        ]
        return page.position

    for after in range(19):
        for most in (1, 3, 100):
            read(after, most, None, None)
        read(after, 100, ["other"], None)
        read(after, 100, ["t"], None)
        read(after, 100, None, min(after + 2, 19))
    assert read(0, 100, None, None) == 15  # to the end of the day
    assert read(15, 100, None, None) == 19


def test_shards_divide_what_is_read_as_one(conn: Conn) -> None:
    for n in range(40):
        publish(conn, n, f"k{n}")
    turn(conn)
    parts: list[list[int]] = []
    for shard in range(3):
        page = run(conn, store.read_events(0, 0, 100, shard=shard, shards=3))
        assert page.position == 40
        parts.append([row.position for row in page.events])
    assert sorted(position for part in parts for position in part) == list(range(1, 41))
    assert all(parts)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late commit"])
def test_a_read_of_large_events_ends_at_its_bytes(conn: Conn, connect: Connect, late: bool) -> None:
    """Also where they are stored compressed."""
    writer = connect()
    data = json.dumps({"text": "a" * 50_000})
    writer.execute("BEGIN")
    for _ in range(6):
        writer.execute("SELECT holdfast.publish('t', %s::jsonb)", [data])
    if late:
        publish(conn, "in the page before")
        turn(conn)
    writer.execute("COMMIT")
    first = int(late)
    assert turn(conn) == first + 6
    after, seq, sizes = first, run(conn, store.event_seq_at(first)), []
    while (page := run(conn, store.read_events(after, seq, 100, most_bytes=120_000))).position > after:
        after, seq = page.position, page.seq
        sizes.append(len(page.events))
    assert sizes == [2, 2, 2]


@pytest.mark.parametrize("patterns", [None, ["t"], ["other"]])
def test_an_event_that_is_missing_is_not_passed_over(conn: Conn, patterns: list[str] | None) -> None:
    """Nobody deletes single events; whoever does is told by the readers."""
    publish_bulk(conn, 5)
    turn(conn)
    conn.execute("DELETE FROM holdfast.events WHERE seq = 3")
    with pytest.raises(EventsGone, match="the log has 4 events between positions 0 and 5, not 5"):
        run(conn, store.read_events(0, 0, 100, patterns=patterns))
