"""An event is found by its id without an index and without reading the log."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
from tests.events.log_support import publish_bulk, turn
from tests.sql.support import DAY, Conn, later, one, run

from holdfast.shapes.events import store
from holdfast.testing import Kit

pytestmark = pytest.mark.versions
Connect = Callable[[], Conn]


def every(conn: Conn) -> dict[UUID, int]:
    return {row[0]: row[1] for row in conn.execute("SELECT id, seq FROM holdfast.events")}


def found(conn: Conn, ids: list[UUID]) -> dict[UUID, int | None]:
    return {event_id: run(conn, store.event_by_id(event_id)) for event_id in ids}


def test_every_event_is_found_whoever_made_its_id(conn: Conn, connect: Connect, kit: Kit) -> None:
    """Single ones and bulks, at once and one after the other, over days, with ids of the caller's among them."""
    chosen = [uuid4() for _ in range(40)]
    for day in range(3):
        with ThreadPoolExecutor(3) as pool:
            sessions = [connect() for _ in range(3)]
            list(pool.map(lambda session: publish_bulk(session, 400), sessions))
        for event_id in chosen[day * 10 : day * 10 + 10]:
            conn.execute("SELECT holdfast.publish('t', '{}', event_id => %s)", [event_id])
            conn.execute("SELECT holdfast.publish('t', '{}')")
        later(kit, DAY, conn)
    turn(conn)
    known = every(conn)
    sample = [*list(known)[::29], *chosen[:30]]
    assert found(conn, sample) == {event_id: known[event_id] for event_id in sample}
    assert found(conn, chosen[30:]) == dict.fromkeys(chosen[30:]), "these were not published"
    strange = [
        UUID(int=0),
        UUID("ffffffff-ffff-7fff-8fff-ffffffffffff"),
        one(conn, "SELECT holdfast.uuid7()"),
    ]
    assert found(conn, strange) == dict.fromkeys(strange)


def test_two_bulks_at_once_are_told_apart(conn: Conn) -> None:
    """The ids of the second are all later than those of the first, and the numbers of both take turns."""
    conn.execute(
        """
        INSERT INTO holdfast.events (seq, slot, type, data, id)
        SELECT n, holdfast.archive_slot(holdfast.now()), 't', '{}',
               (to_char(n % 2, 'FM"01990000-000"0"-7000-8000-"') || lpad(to_hex(n), 12, '0'))::uuid
        FROM generate_series(1, 6000) n
        """
    )
    known = every(conn)
    sample = list(known)[::97]
    assert found(conn, sample) == {event_id: known[event_id] for event_id in sample}
