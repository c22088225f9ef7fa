"""When the jobs of a queue with a rate may start: as often as it allows, and in no window more often."""

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from tests.sql.support import Conn, enqueue, later, make_queue, one, register, run
from tests.sql.test_limit_rules import plain, shared
from tests.sql.test_plans import explain

from holdfast.db.connect import CONFIGURE
from holdfast.db.executors import drive
from holdfast.model.queue import QueueRules, Rate
from holdfast.sql import query
from holdfast.store import limits as store
from holdfast.store import queues
from holdfast.store.explain import explain as explain_job
from holdfast.store.statement import Statement, ids, nothing
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]


def most_beyond(starts: Sequence[float], rate: float, burst: int) -> float:
    """By how many starts the worst window is beyond what the rate allows in it."""
    return max(
        (last - first + 1) - rate * (end - starts[first]) - burst
        for last, end in enumerate(starts)
        for first in range(last + 1)
    )


@pytest.mark.parametrize("burst", [1, 2, 20])
@pytest.mark.parametrize("by", ["queue", "key"])
def test_a_rate_is_used_whatever_its_burst_and_no_window_has_more(
    conn: Conn, kit: Kit, burst: int, by: str
) -> None:
    """Two workers that come irregularly, and up to a tenth of a second apart."""
    make_queue(conn, "q", **{"rate" if by == "queue" else "key_rate": Rate(20, burst=burst)})
    enqueue(conn, 300, queue="q", partition_key="a")
    workers, chance = [register(conn), register(conn)], random.Random(burst)
    starts: list[float] = []
    while len(starts) < 120:
        worker = chance.choice(workers)
        what = plain("q", worker, 10) if by == "queue" else shared("q", worker, [("a", 10)])
        done = run(conn, what)
        assert len(done.starts) == len(done.jobs)
        starts += done.starts
        later(kit, chance.uniform(0.0, 0.08), conn)
    assert starts == sorted(starts)
    assert most_beyond(starts, 20, burst) < 1e-3
    assert (len(starts) - burst) / (starts[-1] - starts[0]) >= 0.95 * 20


def test_a_job_is_not_claimed_long_before_its_start(conn: Conn, kit: Kit) -> None:
    make_queue(conn, "q", rate=Rate(1, burst=1))
    enqueue(conn, 5, queue="q")
    worker = register(conn)
    assert len(run(conn, plain("q", worker, 5)).jobs) == 1
    empty = run(conn, plain("q", worker, 5))
    assert empty.jobs == []
    assert empty.again_in is not None
    later(kit, empty.again_in, conn)
    (job,) = (done := run(conn, plain("q", worker, 5))).jobs
    assert 0 < done.starts[0] - job.now < store.AHEAD


@pytest.mark.parametrize("by", ["rate", "key_rate"])
def test_a_rate_that_is_lowered_owes_no_more_than_it_brings_itself(conn: Conn, kit: Kit, by: str) -> None:
    """The quick rate gave out 250 tokens ahead. At six a minute they would keep the queue still for 42 minutes."""
    make_queue(conn, "q", **{by: Rate(1000, burst=1)})
    (*_, last) = enqueue(conn, 600, queue="q", partition_key="a")
    worker = register(conn)

    def claim() -> list[float]:
        what = plain("q", worker, 600) if by == "rate" else shared("q", worker, [("a", 600)], 600)
        return list(run(conn, what).starts)

    assert len(claim()) == 251
    slow: dict[str, Any] = {by: Rate(6, per=60, burst=1)}
    run(conn, queues.set_rules("q", QueueRules(**slow)))
    assert claim() == []
    if by == "rate":
        assert 0 < run(conn, store.limit_use("q")).next_in <= 10.25
    limits = seen.limits if (seen := run(conn, explain_job(last))) else None
    assert limits is not None
    assert 0 < (limits.next_in if by == "rate" else limits.key_next_in) <= 10.25
    later(kit, 10.25, conn)
    starts = claim()
    later(kit, 10.0, conn)
    starts += claim()
    assert len(starts) == 2
    assert starts[1] - starts[0] >= 9.999


def test_a_claim_that_takes_nothing_ahead_forgives_nothing(conn: Conn) -> None:
    """As that of a trial of a breaker: what others took ahead is still owed."""
    make_queue(conn, "q", rate=Rate(1000, burst=1))
    enqueue(conn, 300, queue="q")
    assert len(run(conn, plain("q", register(conn), 300)).jobs) == 251
    left = run(conn, store.allowance("q", [], store.Asked(want=1, ahead=0.0)))
    assert left.bucket is not None
    assert (left.total, left.bucket.tokens < -100) == (0, True)


def _buffers(conn: Conn, statement: Statement[Any]) -> int:
    """The least of some tries: a plan that is made anew reads the catalog, whenever somebody changed it."""
    plans = [explain(conn, statement) for _ in range(8)]
    return min(int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]) for plan in plans)


def test_a_long_transaction_makes_no_claim_of_a_rated_queue_dearer(conn: Conn, connect: Connect) -> None:
    """It keeps every version of the row that holds the tokens. Who looks for the newest one passes none of the others."""
    make_queue(conn, "q", rate=Rate(1000))
    with psycopg.RawCursor(conn) as cursor:  # planned as in our sessions
        cursor.execute(CONFIGURE.encode(), ("60000", "", True, conn.info.backend_pid, "force_custom_plan"))
    old = connect()
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT 1")
    now = datetime.now(UTC)

    def spend(tokens: float) -> Statement[None]:
        return Statement("spend", query("spend"), ("q", tokens, now, [], []), nothing)

    def each() -> dict[str, int]:
        lock = Statement("lock_limit", query("lock_limit"), ("q",), ids)
        return {
            "lock_limit": _buffers(conn, lock),
            "allowance": _buffers(conn, store.allowance("q", [])),
            "spend": _buffers(conn, spend(0.0)),
        }

    run(conn, spend(1.0))
    before = each()
    with conn.transaction():
        for n in range(3000):
            drive(conn, spend(float(n)))
    after = each()
    assert one(conn, "SELECT tokens FROM holdfast.limits WHERE queue = 'q'") == 2999
    assert all(after[name] <= before[name] + 5 for name in after), f"{before} became {after}"
    old.execute("ROLLBACK")


_OLD_LOCK = "SELECT queue FROM holdfast.limits WHERE queue = 'q' FOR UPDATE SKIP LOCKED"
_OLD_SPEND = """
UPDATE holdfast.limits l
SET tokens = least(q.burst, CASE WHEN l.refilled_at = '-infinity' THEN q.burst ELSE l.tokens
                                 + q.rate * greatest(extract(epoch FROM holdfast.now() - l.refilled_at)::float8, 0) END) - 1,
    refilled_at = holdfast.now()
FROM holdfast.queues q WHERE q.name = 'q' AND l.queue = 'q'
"""


def test_a_worker_of_the_release_before_has_the_same_lock_and_the_same_bucket(
    conn: Conn, connect: Connect
) -> None:
    make_queue(conn, "q", rate=Rate(1, per=3600, burst=4))
    enqueue(conn, 9, queue="q")
    worker, before = register(conn), connect()
    with conn.transaction():
        assert len(drive(conn, plain("q", worker, 1)).jobs) == 1
        assert before.execute(_OLD_LOCK).fetchall() == []
    with before.transaction():
        assert len(before.execute(_OLD_LOCK).fetchall()) == 1
        assert run(conn, plain("q", worker, 1)).busy
        before.execute(_OLD_SPEND)
    assert len(run(conn, plain("q", worker, 9)).jobs) == 2
    before.execute(_OLD_SPEND)
    assert one(conn, "SELECT round(tokens) FROM holdfast.limits WHERE queue = 'q'") == -1


_OLD_KEY = """
INSERT INTO holdfast.key_limits AS l (queue, partition_key, tokens, refilled_at) VALUES ('q', 'a', 3, holdfast.now())
ON CONFLICT (queue, partition_key) DO UPDATE SET tokens = l.tokens - 1, refilled_at = holdfast.now()
"""
_OLD_TOKENS = (
    "SELECT (SELECT round(tokens) FROM holdfast.key_limits WHERE queue = 'q' AND partition_key = 'a')"
)


def test_a_key_has_one_bucket_while_workers_of_the_release_before_are_there(conn: Conn) -> None:
    """They count in key_limits, which nobody else makes rows in."""
    make_queue(conn, "q", key_rate=Rate(1, per=3600, burst=4))
    enqueue(conn, 9, queue="q", partition_key="a")
    worker, old = register(conn), register(conn)
    conn.execute("UPDATE holdfast.workers SET signatures = '{}' WHERE id <> %s", [old])
    conn.execute(_OLD_KEY)
    assert len(run(conn, shared("q", worker, [("a", 1)])).jobs) == 1
    assert one(conn, _OLD_TOKENS) == 2
    conn.execute(_OLD_KEY)
    assert len(run(conn, shared("q", worker, [("a", 9)])).jobs) == 1
    assert one(conn, _OLD_TOKENS) == 0
    assert run(conn, store.prune_key_limits(10)) == 0
    conn.execute("UPDATE holdfast.workers SET status = 'gone' WHERE id = %s", [old])
    assert run(conn, store.prune_key_limits(10)) == 1
    assert one(conn, _OLD_TOKENS) is None
    assert run(conn, store.allowance("q", ["a"])).keys == [0]


def test_what_a_worker_of_the_release_before_counted_last_is_kept_when_it_goes(conn: Conn) -> None:
    make_queue(conn, "q", key_rate=Rate(1, per=3600, burst=4))
    enqueue(conn, 9, queue="q", partition_key="a")
    run(conn, shared("q", register(conn), [("a", 1)]))
    conn.execute("UPDATE holdfast.workers SET signatures = '{}'")
    conn.execute(_OLD_KEY)
    conn.execute(_OLD_KEY)
    assert run(conn, store.prune_key_limits(10)) == 0
    assert run(conn, store.allowance("q", ["a"])).keys == [2]
