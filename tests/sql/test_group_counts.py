"""Members are counted beside the group's row: none is lost, none counts twice, and what follows comes once."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.sql.support import Conn, later, one, run, until_blocked

from holdfast.model.job import NewRow
from holdfast.store import chains, housekeeping
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]
WAIT = 60
AFTER = NewRow("after", "{}")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Asked for first: it is waited for when the sessions are closed."""
    with ThreadPoolExecutor(6) as threads:
        yield threads


def group_of(conn: Conn, members: int, wanted: str = "completed") -> UUID:
    made = run(conn, chains.enqueue_group([NewRow("work", "{}")] * members, [AFTER], wanted))
    assert made[0].id is not None
    return made[0].id


def count(conn: Conn, group: UUID, *states: str) -> None:
    """Members that ended so are counted."""
    query = "SELECT holdfast.jobs_ended(%s::uuid[], %s::text[], %s::uuid[], NULL)"
    conn.execute(query, [[uuid4() for _ in states], list(states), [group] * len(states)])


def state(conn: Conn, group: UUID) -> tuple[int, int, int]:
    """(open, discarded, callbacks), as the list and the group itself say it."""
    found = run(conn, chains.group_status(group))
    assert found is not None
    assert found in run(conn, chains.list_groups(only_open=False, limit=100))
    return found.open, found.discarded, afters(conn)


def afters(conn: Conn) -> int:
    return int(one(conn, "SELECT count(*) FROM holdfast.work WHERE task = 'after'"))


def rows(conn: Conn) -> int:
    return int(one(conn, "SELECT count(*) FROM holdfast.group_counts"))


def test_a_count_is_one_row_that_goes_with_the_last_member(conn: Conn) -> None:
    group = group_of(conn, 4, "finished")
    for states, left in ((("completed",), 3), (("dead_letter", "cancelled"), 1)):
        count(conn, group, *states)
        assert (state(conn, group), rows(conn)) == ((left, 0, 0), 1)
    count(conn, group, "discarded")
    assert (state(conn, group), rows(conn)) == ((0, 1, 1), 0)
    count(conn, group, "completed")
    assert (state(conn, group), rows(conn)) == ((0, 1, 1), 0)
    row = conn.execute("SELECT open, discarded, finished_at IS NOT NULL FROM holdfast.groups").fetchone()
    assert row == (0, 1, True)


def test_discarded_members_are_counted_where_all_have_to_complete(conn: Conn) -> None:
    group = group_of(conn, 3)
    count(conn, group, "discarded")
    count(conn, group, "completed", "discarded_after")
    assert state(conn, group) == (2, 2, 0)
    assert [g.state for g in run(conn, chains.list_groups(only_open=True, limit=9))] == ["broken"]


def test_a_member_too_many_is_refused(conn: Conn) -> None:
    group = group_of(conn, 2)
    count(conn, group, "completed")
    with pytest.raises(psycopg.errors.CheckViolation):
        count(conn, group, "completed", "completed")
    assert state(conn, group) == (1, 0, 0)


def test_a_callback_that_cannot_be_enqueued_is_tried_again_and_counts_nothing_more(conn: Conn) -> None:
    group = group_of(conn, 2)
    conn.execute('UPDATE holdfast.groups SET callback = \'[{"task": "after", "queue": "nowhere"}]\'')
    count(conn, group, "completed")
    count(conn, group, "completed")
    assert state(conn, group) == (0, 0, 0)
    count(conn, group, "completed")
    assert (state(conn, group), rows(conn)) == ((0, 0, 0), 0)
    conn.execute('UPDATE holdfast.groups SET callback = \'[{"task": "after"}]\'')
    assert run(conn, chains.retry_groups(10)) == [(group, True)]
    assert state(conn, group) == (0, 0, 1)


@pytest.mark.parametrize("counted", [0, 1], ids=["the first", "a later one"])
@pytest.mark.parametrize("verdict", ["commit", "rollback"])
def test_whoever_counts_waits_for_the_count_before(
    pool: ThreadPoolExecutor, conn: Conn, connect: Connect, counted: int, verdict: str
) -> None:
    group = group_of(conn, 9)
    for _ in range(counted):
        count(conn, group, "completed")
    first, second = connect(), connect()
    first.autocommit = False
    count(first, group, "completed")
    waiting = pool.submit(count, second, group, "completed")
    until_blocked(conn, second)
    first.commit() if verdict == "commit" else first.rollback()
    waiting.result(WAIT)
    left = 9 - counted - (2 if verdict == "commit" else 1)
    assert (state(conn, group), rows(conn)) == ((left, 0, 0), 1)


def test_many_at_once_lose_none_and_are_followed_once(
    pool: ThreadPoolExecutor, conn: Conn, connect: Connect
) -> None:
    groups = [group_of(conn, 150) for _ in range(2)]

    def member(session: Conn) -> None:
        for n in range(50):
            for group in groups:
                if n % 10 == 3:
                    with session.transaction(force_rollback=True):
                        count(session, group, "completed")
                count(session, group, "completed")

    for done in [pool.submit(member, connect()) for _ in range(3)]:
        done.result(WAIT)
    assert [state(conn, group) for group in groups] == [(0, 0, 2)] * 2
    assert rows(conn) == 0


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_old_snapshot_ends_in_a_serialization_failure_never_in_a_wrong_count(
    conn: Conn, connect: Connect, before: int, after: int
) -> None:
    group = group_of(conn, 6)
    for _ in range(before):
        count(conn, group, "completed")
    slow = connect()
    slow.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    slow.autocommit = False
    slow.execute("SELECT 1 FROM holdfast.groups")
    for _ in range(after):
        count(conn, group, "completed")
    with pytest.raises(psycopg.errors.SerializationFailure):
        count(slow, group, "completed")
    slow.rollback()
    assert state(conn, group)[0] == 6 - before - after
    count(slow, group, *["completed"] * (6 - before - after))
    slow.commit()
    assert (state(conn, group), rows(conn)) == ((0, 0, 1), 0)


# The release before -------------------------------------------------------------------------------------------------

_OLD_COUNT = """
UPDATE holdfast.groups g
SET open = g.open - 1 - CASE g.wanted WHEN 'finished' THEN 0 ELSE 0 END, discarded = g.discarded + 0
WHERE g.id = %s AND (g.wanted = 'finished' OR 1 > 0) AND g.finished_at IS NULL AND g.open > 0
"""


def count_as_before(conn: Conn, group: UUID) -> None:
    """As jobs_ended() of the release before does, in a call that was under way when it was replaced."""
    with conn.transaction():
        if conn.execute(_OLD_COUNT, [group]).rowcount and one(
            conn, "SELECT g.open = 0 FROM holdfast.groups g WHERE g.id = %s", group
        ):
            conn.execute("SELECT holdfast.close_group(%s, NULL)", [group])


@pytest.mark.parametrize("order", ["onnn", "oonn", "ooon", "oooo", "nooo", "nnno", "nono", "onon", "noon"])
def test_counts_in_the_row_and_beside_it_add_up(conn: Conn, order: str) -> None:
    """o: a call of the release before, n: one of this."""
    group = group_of(conn, 4)
    for place, way in enumerate(order, 1):
        count_as_before(conn, group) if way == "o" else count(conn, group, "completed")
        assert state(conn, group) == (4 - place, 0, int(place == 4))
    assert rows(conn) == 0


def test_a_count_that_waited_in_the_release_before_finds_what_was_counted_meanwhile(
    pool: ThreadPoolExecutor, conn: Conn, connect: Connect
) -> None:
    group = group_of(conn, 3)
    count(conn, group, "completed")
    first, second = connect(), connect()
    first.autocommit = False
    count(first, group, "completed", "discarded_after")
    waiting = pool.submit(count_as_before, second, group)
    until_blocked(conn, second)
    first.commit()
    waiting.result(WAIT)
    assert (state(conn, group), rows(conn)) == ((0, 1, 1), 0)


def test_a_forgotten_group_takes_its_count_along(kit: Kit, conn: Conn) -> None:
    group = group_of(conn, 2)
    count(conn, group, "completed")
    conn.execute("DELETE FROM holdfast.work")
    later(kit, 8 * 86_400, conn)
    assert run(conn, housekeeping.prune("groups", 7, 100, None)) == (None, 1)
    assert rows(conn) == 0
