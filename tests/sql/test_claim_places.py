"""A claim updates rows by their place: what somebody changed between its snapshot and its lock is left to the next look."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.sql.support import Conn, end, enqueue, load, one, register, run, take, until_blocked

from holdfast.model.job import ClaimedJob
from holdfast.model.outcome import Released
from holdfast.store.claim import claim, claim_these
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]
_GATE = 815
_WHERE = "WHERE EXISTS (SELECT FROM holdfast.workers"


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def claimed_while(
    connect: Connect, worker: str, change: Callable[[Conn], Any], limit: int = 10
) -> list[ClaimedJob]:
    """A claim that has its snapshot, and waits while another session makes a change and commits it."""
    mine, other, watch = connect(), connect(), connect()
    other.execute("SELECT pg_advisory_lock(%s)", [_GATE])
    whole = claim("inbox", worker, uuid4(), lease=60, limit=limit, marks=[(0, None)])
    assert whole.text.count(_WHERE) == 1
    gate = f"WHERE (SELECT pg_advisory_xact_lock_shared({_GATE}) IS NOT NULL) AND {_WHERE[6:]}"
    cut = replace(whole, text=whole.text.replace(_WHERE, gate))
    answer: list[list[ClaimedJob]] = []
    thread = threading.Thread(target=lambda: answer.append(run(mine, cut)))
    thread.start()
    until_blocked(watch, mine)
    change(other)
    other.execute("SELECT pg_advisory_unlock(%s)", [_GATE])
    thread.join(100)
    return answer[0]


def edited(other: Conn, job: UUID, worker: str) -> None:
    """The new version lies on the same page, and no index has a new entry."""
    other.execute("UPDATE holdfast.work SET tags = '{new}' WHERE id = %s", [job])


def moved(other: Conn, job: UUID, worker: str) -> None:
    """It lies somewhere else in the claim index, and due still."""
    other.execute(
        "UPDATE holdfast.work SET available_at = available_at - interval '1 s' WHERE id = %s", [job]
    )


def gone_far(other: Conn, job: UUID, worker: str) -> None:
    """On another page: it has grown."""
    grown = "SELECT jsonb_build_object('x', string_agg(md5(n::text), '')) FROM generate_series(1, 200) n"
    other.execute(f"UPDATE holdfast.work SET payload = ({grown}) WHERE id = %s".encode(), [job])


def bounced(other: Conn, job: UUID, worker: str) -> None:
    """Claimed and given back: it waits as before."""
    (taken,) = run(other, claim_these("inbox", worker, uuid4(), lease=60, job_ids=[job]))
    assert end(other, taken.grant, Released()) == "pending"


@pytest.mark.parametrize("change", [edited, moved, gone_far, bounced])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_row_that_is_changed_in_between_is_left_to_the_next_look(
    conn: Conn, connect: Connect, worker: str, change: Callable[[Conn, UUID, str], None], place: int
) -> None:
    ids = enqueue(conn, 5)
    changed = ids[place]
    before = 1 if change is bounced else 0
    taken = claimed_while(connect, worker, lambda other: change(other, changed, worker))
    assert [job.id for job in taken] == [job for job in ids if job != changed]
    assert taken[0].locked == 5  # so the claimer knows that fewer jobs do not mean that nothing is left
    assert (
        one(conn, "SELECT status || lease_generation FROM holdfast.work WHERE id = %s", changed)
        == f"pending{before}"
    )
    listed = conn.execute(
        "SELECT job_ids FROM holdfast.claims WHERE token = %s", [taken[0].grant.token]
    ).fetchone()
    assert listed is not None
    assert set(listed[0]) == {job.id for job in taken}
    (next_one,) = take(conn, worker, 10)
    assert (next_one.id, next_one.generation) == (changed, before + 1)


def test_the_only_one_that_was_asked_for_is_left_and_no_claim_is_written(
    conn: Conn, connect: Connect, worker: str
) -> None:
    first, second = enqueue(conn, 2)
    assert claimed_while(connect, worker, lambda other: edited(other, first, worker), limit=1) == []
    assert one(conn, "SELECT count(*) FROM holdfast.claims") == 0
    assert [job.id for job in take(conn, worker, 10)] == [first, second]


def test_who_was_taken_in_between_is_not_taken_twice(conn: Conn, connect: Connect, worker: str) -> None:
    ids = enqueue(conn, 4)
    stolen: list[ClaimedJob] = []
    taken = claimed_while(connect, worker, lambda other: stolen.extend(take(other, worker, 2)))
    assert [job.id for job in stolen] == ids[:2]
    assert [job.id for job in taken] == ids[2:]
    assert one(conn, "SELECT max(lease_generation) FROM holdfast.work") == 1


def test_a_place_that_is_used_again_by_another_job_is_not_mistaken(
    conn: Conn, connect: Connect, worker: str
) -> None:
    """The row goes, its place is made free, and a job that the claim cannot see yet is written there."""
    ids = enqueue(conn, 3)

    def reuse(other: Conn) -> None:
        other.execute("DELETE FROM holdfast.work WHERE id = %s", [ids[1]])
        other.execute("VACUUM holdfast.inbox")
        enqueue(other, 3)

    taken = claimed_while(connect, worker, reuse)
    assert [job.id for job in taken] == [ids[0], ids[2]]
    rest = take(conn, worker, 10)
    assert len(rest) == 3
    assert {job.generation for job in [*taken, *rest]} == {1}


@pytest.mark.parametrize("shuffled", [1, -1])
def test_named_jobs_come_in_claim_order_whatever_order_they_are_named_in(
    conn: Conn, kit: Kit, worker: str, shuffled: int
) -> None:
    for priority in (3, 0, -3):
        load(
            conn,
            20,
            priority=str(priority),
            available_at="holdfast.now() - (n * 7 %% 5) * interval '1 minute'".replace("%%", "%"),
        )
    expected = [
        r[0]
        for r in conn.execute(
            "SELECT id FROM holdfast.work ORDER BY priority DESC, available_at, seq"
        ).fetchall()
    ]
    named = sorted(expected)[::shuffled]
    taken = run(conn, claim_these("inbox", worker, uuid4(), lease=60, job_ids=named))
    assert [job.id for job in taken] == expected
