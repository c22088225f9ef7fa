"""Twenty thousand payloads that this worker's signature refused: what an idle worker and the sweep pay for them."""

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest
from tests.sql.support import Conn, later, one, register, run
from tests.sql.test_plans import explain, nodes

from holdfast.db.executors import drive
from holdfast.store import misfits
from holdfast.store.wake import next_due
from holdfast.testing import Kit

pytestmark = [pytest.mark.versions, pytest.mark.slow]

Connect = Callable[[], Conn]
MANY = 20_000
WAIT = 600.0


@pytest.fixture
def many(conn: Conn) -> Conn:
    """All of them refused an hour ago by `mine`, which a live worker has."""
    conn.execute(
        """INSERT INTO holdfast.work (id, queue, task, payload, status, hold_reason, available_at)
           SELECT holdfast.uuid7(), 'inbox', 'grows', '{}', 'held', 'does not fit',
                  now() - interval '2 hours' + n * interval '1 ms'
           FROM generate_series(1, %s) n""",
        [MANY],
    )
    conn.execute(
        """INSERT INTO holdfast.misfits
           SELECT id, 'mine', 'inbox', available_at, 'no', available_at + interval '1 hour' FROM holdfast.work"""
    )
    _says(conn, register(conn), '{"grows/1": "mine"}')
    conn.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")  # as our own sessions are set
    return conn


def _says(conn: Conn, worker: str, signatures: str | None) -> None:
    conn.execute(
        "UPDATE holdfast.workers SET signatures = %s, tasks = '{grows}' WHERE id = %s", [signatures, worker]
    )


def _due(conn: Conn, within: float, signature: str = "mine") -> float | None:
    return run(conn, next_due(["inbox"], [("grows", 1)], within, [signature])).due_in


def _bury(conn: Conn, job_ids: list[UUID]) -> list[misfits.Buried]:
    return drive(conn, misfits.bury_misfits("inbox", job_ids, uuid4(), "w", wait=WAIT, dead_after=60.0))


def _old(conn: Conn, limit: int, after: misfits.RefusalCursor | None = None) -> list[misfits.RefusalCursor]:
    return run(conn, misfits.old_misfits("inbox", WAIT, after, limit))


@pytest.mark.parametrize("analyzed", [False, True])
def test_an_idle_worker_looks_at_a_few_of_what_it_refused(many: Conn, analyzed: bool) -> None:
    if analyzed:
        many.execute("ANALYZE holdfast.work; ANALYZE holdfast.misfits")
    plan = explain(many, next_due(["inbox"], [("grows", 1)], 3.0, ["mine"]))
    touched = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert touched < 1000, f"{touched} buffers"


def test_what_is_behind_them_is_left_to_a_look_about_once_a_minute(many: Conn) -> None:
    assert _due(many, 0.0) is None  # never, where it looks all the time
    assert _due(many, 60.0) is not None  # always, where it looks once a minute


def test_one_that_it_may_take_is_found_among_the_first(many: Conn) -> None:
    assert _due(many, 0.0, "another") is not None
    (first, *_) = _old(many, 10)
    many.execute("DELETE FROM holdfast.misfits WHERE job_id = %s", [first.job_id])
    found = _due(many, 0.0)
    assert found is not None
    assert found < 0
    many.execute(
        "INSERT INTO holdfast.quarantine (id, queue, reason) VALUES (%s, 'inbox', 'bad')", [first.job_id]
    )
    assert _due(many, 0.0) is None


def test_a_look_that_buries_nothing_locks_and_writes_nothing(many: Conn) -> None:
    says_nothing = register(many)
    _says(many, says_nothing, None)
    some = [place.job_id for place in _old(many, 1000)]
    with many.transaction():
        assert _bury(many, some) == []
        assert one(many, "SELECT pg_current_xact_id_if_assigned()::text") is None
    _says(many, says_nothing, '{"grows/1": "mine"}')
    assert (
        len(run(many, misfits.bury_misfits("inbox", some, uuid4(), "w", wait=WAIT, dead_after=60.0))) == 1000
    )


def test_they_are_looked_through_in_parts_and_each_part_costs_the_same(many: Conn) -> None:
    seen: list[UUID] = []
    place: misfits.RefusalCursor | None = None
    while found := _old(many, 1000, place):
        place = found[-1]
        seen += [p.job_id for p in found]
    assert len(seen) == len(set(seen)) == MANY
    plan = explain(many, misfits.old_misfits("inbox", WAIT, _old(many, 15_000)[-1], 1000))
    assert sum(node["Actual Rows"] for node in nodes(plan) if "Index Name" in node) <= 1001


def test_one_worker_at_a_time_looks_and_the_pause_holds_for_all(
    conn: Conn, connect: Connect, kit: Kit
) -> None:
    other = connect()
    assert run(conn, misfits.misfits_begin(60.0))
    assert not run(other, misfits.misfits_begin(60.0))
    run(conn, misfits.misfits_done(30.0))
    assert not run(other, misfits.misfits_begin(60.0))
    later(kit, 31, conn, other)
    assert run(other, misfits.misfits_begin(60.0))  # and dies
    assert not run(conn, misfits.misfits_begin(60.0))
    later(kit, 61, conn, other)
    assert run(conn, misfits.misfits_begin(60.0))


def test_nobody_waits_for_a_stranger_who_holds_the_row(conn: Conn, connect: Connect) -> None:
    stranger = connect()
    conn.execute("SET statement_timeout = '10s'")
    with stranger.transaction():
        stranger.execute("SELECT FROM holdfast.engine FOR UPDATE")
        assert not run(conn, misfits.misfits_begin(60.0))
        run(conn, misfits.misfits_done(1.0))
