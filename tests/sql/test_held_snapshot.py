"""Counts of groups, who sleeps, and the tokens of keys stay cheap while a long transaction keeps every version of them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.sql.support import Conn, make_queue, one, register, run
from tests.sql.test_plans import explain

from holdfast.db.executors import drive
from holdfast.model.job import NewRow
from holdfast.model.queue import Rate
from holdfast.sql import query
from holdfast.store import chains, jobs, limits
from holdfast.store.statement import Statement, nothing
from holdfast.store.wake import fall_asleep, get_up, next_due

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]
TIMES = 5000
MORE = 8  # buffers: a page that is full, one level of an index


@pytest.fixture
def held(connect: Connect) -> Conn:
    """A transaction that sees the database as it is now, until the test ends."""
    old = connect()
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT 1")
    return old


def buffers(conn: Conn, text: str, *params: Any) -> int:
    """Of the statement and of all that it calls, when its plans are made; it is undone."""
    statement = Statement("explained", text, params, nothing)
    plans = [explain(conn, statement) for _ in range(8)]
    return min(int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]) for plan in plans)


def check(before: dict[str, int], after: dict[str, int]) -> None:
    dearer = {text[-300:]: (before[text], now) for text, now in after.items() if now > before[text] + MORE}
    assert not dearer, f"of {list(after.values())} these became dearer: {dearer}"


def still_cheap(
    conn: Conn, connect: Connect, before: dict[str, int], looks: dict[str, tuple[Any, ...]]
) -> None:
    """In this session and in one that makes its plans now; with the statistics of then, and with those of now."""
    for _ in range(2):
        for session in (conn, connect()):
            check(before, {text: buffers(session, text, *params) for text, params in looks.items()})
        conn.execute("VACUUM ANALYZE")  # sees two rows in a hundred pages


def make_group(conn: Conn, members: int) -> UUID:
    query = """INSERT INTO holdfast.groups (id, wanted, total, open, created_at)
               VALUES (holdfast.uuid7(), 'finished', %s, %s, holdfast.now()) RETURNING id"""
    return UUID(str(one(conn, query, members, members)))


def small_plans(conn: Conn) -> None:
    """As on a system that has run for a while: the server knows how few rows there are, and would read them all."""
    conn.execute("ANALYZE holdfast.groups, holdfast.sleepers")
    for table in ("group_counts", "asleep"):
        if one(conn, "SELECT to_regclass(%s) IS NOT NULL", f"holdfast.{table}"):
            conn.execute(f"ANALYZE holdfast.{table}".encode())


ENDED = "SELECT holdfast.jobs_ended(ARRAY[$1::uuid], '{completed}', ARRAY[$2::uuid], NULL)"


def test_the_next_count_of_a_group_costs_what_the_first_ones_did(
    conn: Conn, connect: Connect, held: Conn
) -> None:
    group, other = make_group(conn, TIMES + 10), make_group(conn, 10)
    conn.execute(
        "SELECT holdfast.jobs_ended(ARRAY[%s::uuid], '{completed}', ARRAY[%s::uuid], NULL)", [uuid4(), group]
    )
    small_plans(conn)
    looks: dict[str, tuple[Any, ...]] = {
        ENDED: (uuid4(), group),
        "SELECT holdfast.try_callback($1::uuid)": (group,),
        query("busy_groups"): ([group, other], []),
        chains.group_status(group).text: (group,),
    }
    before = {text: buffers(conn, text, *params) for text, params in looks.items()}
    conn.execute(
        f"""DO $$ BEGIN
                FOR i IN 1..{TIMES} LOOP
                    PERFORM holdfast.jobs_ended(ARRAY[gen_random_uuid()], '{{completed}}', ARRAY['{group}'::uuid], NULL);
                    COMMIT;
                END LOOP;
            END $$""".encode()
    )
    still_cheap(conn, connect, before, looks)
    status = run(conn, chains.group_status(group))
    assert status is not None
    assert (status.open, status.total) == (9, TIMES + 10)
    held.execute("ROLLBACK")


@pytest.mark.parametrize("somebody", [False, True], ids=["nobody sleeps", "one sleeps"])
def test_an_enqueue_costs_what_it_did_however_often_somebody_lay_down(
    conn: Conn, connect: Connect, held: Conn, somebody: bool
) -> None:
    worker, other = register(conn), register(conn)
    make_queue(conn, "mail")
    if somebody:
        run(conn, fall_asleep(other, ["inbox", "mail"], 10.0))
    run(conn, fall_asleep(worker, ["inbox", "mail"], 10.0))
    run(conn, get_up(worker))
    small_plans(conn)
    many = jobs.enqueue([NewRow("note", "{}"), NewRow("note", "{}", queue="mail")])
    looks: dict[str, tuple[Any, ...]] = {
        "SELECT holdfast.enqueue('note')": (),
        "SELECT holdfast.wake('{inbox,mail}')": (),
        many.text: tuple(many.params),
    }
    expect = next_due(["inbox", "mail"], [("note", 1)], 10.0, [""])
    before = {text: buffers(conn, text, *params) for text, params in looks.items()}
    conn.execute(
        f"""DO $$ BEGIN
                FOR i IN 1..{TIMES} LOOP
                    INSERT INTO holdfast.sleepers
                    SELECT q, '{worker}-' || i % 50, 10 FROM unnest('{{inbox,mail}}'::text[]) q;
                    COMMIT;
                    DELETE FROM holdfast.sleepers WHERE worker = '{worker}-' || i % 50 AND queue IN ('inbox', 'mail');
                    COMMIT;
                END LOOP;
            END $$""".encode()
    )
    still_cheap(conn, connect, before, looks)
    assert run(conn, expect).asleep == somebody
    held.execute("ROLLBACK")


def spend(at: datetime) -> Statement[None]:
    return Statement("spend", query("spend"), ("q", None, at, ["a"], [1.0]), nothing)


@pytest.mark.parametrize("forgotten", [False, True], ids=["in use", "forgotten meanwhile"])
def test_a_claim_within_the_rates_of_keys_costs_what_it_did(
    conn: Conn, connect: Connect, held: Conn, forgotten: bool
) -> None:
    make_queue(conn, "q", key_rate=Rate(1000))
    at = datetime.now(UTC)
    run(conn, spend(at))
    conn.execute("ANALYZE holdfast.key_tokens, holdfast.key_limits, holdfast.claims")
    ask = limits.allowance("q", ["a"])
    looks: dict[str, tuple[Any, ...]] = {ask.text: tuple(ask.params), spend(at).text: tuple(spend(at).params)}
    before = {text: buffers(conn, text, *params) for text, params in looks.items()}
    with conn.transaction():
        for n in range(TIMES // 2):
            drive(conn, spend(at + timedelta(microseconds=n)))
    if forgotten:
        conn.execute("DELETE FROM holdfast.key_tokens")
        run(conn, spend(at + timedelta(seconds=60)))
    still_cheap(conn, connect, before, looks)
    assert one(conn, "SELECT count(*) FROM holdfast.key_tokens") == 1
    held.execute("ROLLBACK")


def test_trimming_claims_reads_none_of_those_that_went(conn: Conn, connect: Connect, held: Conn) -> None:
    make_queue(conn, "q", key_concurrency=5)
    trim = limits.trim_claims("q", [uuid4()])
    before = {trim.text: buffers(conn, trim.text, *trim.params)}
    conn.execute(
        f"""DO $$ BEGIN
                FOR i IN 1..{TIMES // 2} LOOP
                    INSERT INTO holdfast.claims (token, queue, worker, claimed_at, lease_expires_at, job_ids)
                    VALUES (gen_random_uuid(), 'q', 'w', now(), now(), '{{}}');
                    COMMIT;
                    DELETE FROM holdfast.claims;
                    COMMIT;
                END LOOP;
            END $$""".encode()
    )
    if (
        conn.info.server_version < 170000
    ):  # reads what went: 36 buffers of 500 claims, where it was a thousand
        assert buffers(conn, trim.text, *trim.params) < 100
    else:
        still_cheap(conn, connect, before, {trim.text: tuple(trim.params)})
    held.execute("ROLLBACK")
