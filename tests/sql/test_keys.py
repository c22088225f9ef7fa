"""Keys of ordered queues: what is in their way, which are hot, and what a release does, also in a race."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.sql.keyed import DIES, QUEUE, fail_key, ordered, put_key, take_key
from tests.sql.support import BOOM, Conn, configure, end, load, one, register, run, status
from tests.sql.test_plans import buffers, explain, nodes

from holdfast.cli.refusals import worded, words
from holdfast.db.database import Database
from holdfast.db.faults import LockTimeout
from holdfast.errors import ConfigurationError, UnknownQueue
from holdfast.model.outcome import Completed, Failed, Held
from holdfast.operate import bulk, job_acts
from holdfast.operate.dead import DISCARD_DEAD, redrive_verb
from holdfast.operate.edit import Changes
from holdfast.operate.job_acts import DISCARD, RETRY, cancel_verb
from holdfast.operate.operator import Operator
from holdfast.store import acts as store_acts
from holdfast.store import keys as store
from holdfast.store.acts import JobLocation
from holdfast.store.claim import quarantine
from holdfast.store.queue_load import Count, prefer_indexes
from holdfast.store.search import JobFilter
from holdfast.store.statement import Statement
from holdfast.testing import Kit

pytestmark = pytest.mark.versions


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def stuck(database: Database, **options: Any) -> list[tuple[str, str, UUID, int]]:
    return [
        (k.key, k.why, k.job_id, k.behind.count) for k in Operator(database, "ann").stuck_keys(**options).keys
    ]


def runnable(conn: Conn, worker: str, *keys: str) -> list[UUID]:
    return [job.id for job in sorted(take_key(conn, worker, *keys, most=10), key=lambda job: job.seq)]


def refused(act: Callable[[], object], kind: type[Exception] = ConfigurationError) -> str:
    with pytest.raises(kind) as caught:
        act()
    return words(caught.value)


def audited(conn: Conn) -> list[tuple[str, dict[str, Any], int]]:
    rows = conn.execute("SELECT action, selection, count FROM holdfast.audit ORDER BY id").fetchall()
    return [(r[0], r[1], r[2]) for r in rows]


# Looks ------------------------------------------------------------------------------------------------------------


def test_every_key_that_does_not_move_is_listed_with_the_job_in_its_way(
    conn: Conn, database: Database
) -> None:
    ordered(conn, "block")
    ordered(conn, "park", "mail")
    put_key(conn, "free", 2)
    blocked, *_ = put_key(conn, "blocked", 3)
    fail_key(conn, "blocked")
    parked, *_ = put_key(conn, "parked", 2, "mail")
    fail_key(conn, "parked", queue="mail")
    held, *_ = put_key(conn, "held", 2)
    fail_key(conn, "held", Held("unknown"))
    bad, *_ = put_key(conn, "bad", 2)
    run(conn, quarantine(bad, QUEUE, "claim: bad"))
    backing, *_ = put_key(conn, "backing", 2)
    fail_key(conn, "backing", Failed(BOOM, 3600.0))
    ahead, *_ = put_key(conn, "ahead", delay=7200.0), *put_key(conn, "ahead", 2)
    put_key(conn, "alone", delay=7200.0)
    hard = [
        ("blocked", "blocked", blocked, 2),
        ("parked", "parked", parked, 1),
        ("bad", "quarantined", bad, 1),
        ("held", "held", held, 1),
    ]
    assert stuck(database) == hard
    soft = [("backing", "backing off", backing, 1), ("ahead", "scheduled", ahead[0], 2)]
    assert stuck(database, waiting=True) == [*hard, *soft]
    assert stuck(database, waiting=True, later=4000.0) == [*hard, soft[1]]
    assert [k.until is not None for k in Operator(database, "ann").stuck_keys(waiting=True).keys] == [
        False
    ] * 4 + [True] * 2
    assert stuck(database, queue="mail") == [hard[1]]
    notes = {k.key: k.note for k in Operator(database, "ann").stuck_keys().keys}
    assert notes == {
        "blocked": "ValueError: boom",
        "parked": "ValueError: boom",
        "bad": "claim: bad",
        "held": "unknown",
    }
    assert Operator(database, "ann").stuck_keys(limit=1).more
    assert not Operator(database, "ann").stuck_keys().more


def test_a_held_job_behind_a_running_one_is_not_in_the_way(
    conn: Conn, database: Database, worker: str
) -> None:
    ordered(conn)
    _, second = put_key(conn, "k", 2)
    conn.execute("UPDATE holdfast.work SET status = 'held', hold_reason = 'x' WHERE id = %s", [second])
    (job,) = take_key(conn, worker, "k")
    assert stuck(database) == []
    end(conn, job.grant, Completed("1"), worker)
    assert stuck(database) == [("k", "held", second, 0)]


def test_a_look_reads_so_many_jobs_and_says_when_there_are_more(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(conn, "block")
    put_key(conn, "k", 3)
    conn.execute("UPDATE holdfast.work SET status = 'held', hold_reason = 'x'")
    assert not Operator(database, "ann").stuck_keys().more
    monkeypatch.setattr(store, "LOOK", 2)
    assert Operator(database, "ann").stuck_keys().more


def test_keys_are_listed_in_pages_that_leave_nothing_out(conn: Conn, database: Database) -> None:
    ordered(conn)
    names = {f"key {n}" for n in range(25)}
    for name in names:
        put_key(conn, name, 2)
    found, after = [], None
    while True:
        page = Operator(database, "ann").list_keys(QUEUE, after=after, limit=4)
        found += [k.key for k in page.keys]
        if (after := page.next) is None:
            break
    assert len(found) == 25
    assert set(found) == names
    (line, *_) = Operator(database, "ann").list_keys(QUEUE).keys
    assert (line.jobs, line.state, line.parked_at) == (Count(2), "pending", None)


def test_show_has_the_first_jobs_in_their_order_and_who_runs_them(
    conn: Conn, database: Database, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(conn, "park")
    ids = put_key(conn, "k", 5)
    take_key(conn, worker, "k")
    stream = Operator(database, "ann").show_key(QUEUE, "k", limit=3)
    assert [job.id for job in stream.front] == ids[:3]
    assert [(job.state, job.worker) for job in stream.front] == [
        ("processing", worker),
        *[("pending", None)] * 2,
    ]
    assert (stream.jobs, stream.parked) == (Count(5), None)
    monkeypatch.setattr(store, "DEPTH", 4)
    assert Operator(database, "ann").show_key(QUEUE, "k").jobs == Count(4, True)
    put_key(conn, "p", 2)
    dead = fail_key(conn, "p")
    parked = Operator(database, "ann").show_key(QUEUE, "p").parked
    assert parked is not None
    assert (parked.job_id, parked.behind) == (dead, Count(1))
    assert Operator(database, "ann").show_key(QUEUE, "nobody").front == []


def test_hot_keys_are_found_by_a_bounded_look_at_both_ends(
    conn: Conn, database: Database, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(conn)
    for n in range(40):
        put_key(conn, f"cold {n}")
    put_key(conn, "hot", 120)
    put_key(conn, "hot", priority=5)
    hot, *rest = Operator(database, "ann").hot_keys()
    assert (hot.queue, hot.key, hot.seen, hot.jobs, hot.hot) == (QUEUE, "hot", 121, Count(121), True)
    assert hot.share == pytest.approx(121 / 161)
    assert not any(k.hot for k in rest)
    monkeypatch.setattr(store, "LOOK", 10)  # ten from each end of each priority
    hot, *_ = Operator(database, "ann").hot_keys()
    assert (hot.key, hot.seen, hot.jobs) == ("hot", 11, Count(121))
    (job,) = take_key(conn, worker, "hot")
    end(conn, job.grant, Completed("1"), worker)
    hot, *_ = Operator(database, "ann").hot_keys()
    assert (hot.finished, hot.finished_share) == (1, 1.0)


def test_looks_cost_what_is_stuck_and_not_what_waits(conn: Conn, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 jobs wait: 1,000 for keys of their own, the others deep in ten keys; 30 are set aside, 3 of them in the way."""
    ordered(conn, "block")
    load(
        conn,
        20_000,
        queue="'orders'",
        partition_key="CASE WHEN n <= 1000 THEN 'k' || n ELSE 'deep' || n % 10 END",
    )
    conn.execute(
        "UPDATE holdfast.work SET status = 'blocked', hold_reason = 'x' WHERE partition_key IN ('k1', 'k2', 'k3')"
    )
    conn.execute(
        "UPDATE holdfast.work SET status = 'held', hold_reason = 'x' "
        "WHERE seq IN (SELECT seq FROM holdfast.work WHERE partition_key = 'deep1' ORDER BY seq OFFSET 9 LIMIT 27)"
    )
    monkeypatch.setattr(store, "LOOK", 100)
    monkeypatch.setattr(store, "DEPTH", 100)
    looks: list[Statement[Any]] = [
        store.aside_heads(None, 50),
        store.aside_more(None),
        store.parked_heads(None, 50),
        store.quarantined_heads(None, 50),
        store.waiting_heads(QUEUE, 0.0, 50),
        store.list_keys(QUEUE, None, 10),
        store.stream_front(QUEUE, "deep1", 10),
        store.hot_keys(QUEUE, 5),
        store.all_blocked(QUEUE),
        store.blocked_of(QUEUE, ["k1", "deep1"]),
    ]
    for statement in looks:
        with conn.transaction(force_rollback=True):
            run(conn, prefer_indexes())
            plan = explain(conn, statement)
            assert buffers(plan) < 2500, f"{statement.name} touches {buffers(plan)} buffers"
            assert not [
                n
                for n in nodes(plan)
                if n["Node Type"] == "Seq Scan" and n["Relation Name"] == "queue_orders"
            ]
    assert [k.key for k in run(conn, store.aside_heads(None, 50))] == ["k1", "k2", "k3"]


def test_hot_keys_of_a_queue_without_order(conn: Conn, database: Database) -> None:
    load(conn, 200, partition_key="CASE WHEN n % 2 = 0 THEN 'a' ELSE 'b' || n END")
    assert Operator(database, "ann").hot_keys() == []
    (hot,) = Operator(database, "ann").hot_keys("inbox", limit=1)
    assert (hot.key, hot.seen, hot.jobs, hot.hot) == ("a", 100, None, True)


def test_a_queue_that_is_not_ordered_is_refused(conn: Conn, database: Database) -> None:
    assert refused(lambda: Operator(database, "ann").list_keys("inbox")) == (
        "queue 'inbox' is not ordered by key (no queue is): there no job waits for another. "
        "See its jobs: holdfast jobs list --queue inbox --key KEY"
    )
    ordered(conn)
    assert "(ordered are: orders)" in refused(lambda: Operator(database, "ann").release_keys("inbox", ["k"]))
    refused(lambda: Operator(database, "ann").show_key("nope", "k"), UnknownQueue)


# Release ----------------------------------------------------------------------------------------------------------


def test_a_blocked_key_is_retried_in_place(conn: Conn, database: Database, worker: str) -> None:
    ordered(conn, "block")
    ids = put_key(conn, "k", 3)
    fail_key(conn, "k")
    assert runnable(conn, worker, "k") == []
    assert refused(lambda: Operator(database, "ann").release_keys(QUEUE, ["k"])) == (
        f"key 'k' of queue 'orders' is blocked by job {ids[0]}: choose what happens to the blocking job: "
        "--retry runs it again in its place, --skip makes it a dead letter and releases its key"
    )
    done = Operator(database, "ann").release_keys(QUEUE, ["k"], "retry")
    assert (done.count, done.results) == (1, {"retried": 1})
    (row,) = conn.execute(
        "SELECT attempts, lease_generation, last_error FROM holdfast.work WHERE id = %s", [ids[0]]
    )
    assert row == (0, 1, "ValueError: boom")
    assert runnable(conn, worker, "k") == ids
    assert audited(conn) == [("keys release", {"queue": QUEUE, "keys": ["k"], "how": "retry"}, 1)]


def test_a_blocked_key_goes_on_without_its_job(conn: Conn, database: Database, worker: str) -> None:
    ordered(conn, "block")
    first, *rest = put_key(conn, "k", 3)
    fail_key(conn, "k")
    assert Operator(database, "ann").release_keys(QUEUE, ["k"], "skip").results == {"skipped": 1}
    assert status(conn, first) == "dead_letter"
    (row,) = conn.execute("SELECT attempts, last_error, claimed_by IS NOT NULL FROM holdfast.dead_letters")
    assert row == (1, "ValueError: boom", True)
    assert runnable(conn, worker, "k") == rest
    # Redriven later it goes to the end: its key went on.
    Operator(database, "ann").act_on(redrive_verb(), [first])
    assert [job.id for job in Operator(database, "ann").show_key(QUEUE, "k").front] == [*rest, first]


@pytest.mark.parametrize("how", [None, "skip"])
def test_a_parked_key_is_released_and_its_dead_letter_stays(
    conn: Conn, database: Database, worker: str, how: str | None
) -> None:
    ordered(conn, "park")
    first, *rest = put_key(conn, "k", 3)
    fail_key(conn, "k")
    assert runnable(conn, worker, "k") == []
    done = Operator(database, "ann").release_keys(QUEUE, ["k"], how)
    assert done.results == {"skipped" if how else "released": 1}
    assert status(conn, first) == "dead_letter"
    assert runnable(conn, worker, "k") == rest


def test_a_parked_key_is_retried_in_its_old_place(conn: Conn, database: Database, worker: str) -> None:
    ordered(conn, "park")
    ids = put_key(conn, "k", 3)
    fail_key(conn, "k")
    assert Operator(database, "ann").release_keys(QUEUE, ["k"], "retry").results == {"retried": 1}
    assert runnable(conn, worker, "k") == ids


def test_a_key_stays_parked_when_its_dead_letter_is_discarded(
    conn: Conn, database: Database, worker: str
) -> None:
    """Throwing something away starts nothing: whoever parked a key wants somebody to look first."""
    ordered(conn, "park")
    first, *rest = put_key(conn, "k", 3)
    fail_key(conn, "k")
    Operator(database, "ann").act_on(DISCARD_DEAD, [first])
    (key,) = Operator(database, "ann").stuck_keys().keys
    assert (key.why, key.job_id, key.task, key.note) == (
        "parked",
        first,
        None,
        "its dead letter was discarded or redriven",
    )
    assert runnable(conn, worker, "k") == []
    assert Operator(database, "ann").release_keys(QUEUE, ["k"], "retry").results == {"released": 1}
    assert runnable(conn, worker, "k") == rest


def test_named_keys_are_released_all_or_none(conn: Conn, database: Database) -> None:
    ordered(conn, "block")
    put_key(conn, "k", 2)
    put_key(conn, "fine", 2)
    job = fail_key(conn, "k")
    assert refused(lambda: Operator(database, "ann").release_keys(QUEUE, ["k", "fine"], "retry")) == (
        "nothing was released: key 'fine' of queue 'orders' is neither blocked nor parked. "
        "See what it waits for: holdfast keys show orders fine"
    )
    assert status(conn, job) == "blocked"
    assert audited(conn) == []


def test_a_dry_run_changes_nothing(conn: Conn, database: Database) -> None:
    ordered(conn, "block")
    put_key(conn, "k", 2)
    job = fail_key(conn, "k")
    for done in (
        Operator(database, "ann").release_keys(QUEUE, ["k"], "skip", dry_run=True),
        Operator(database, "ann").release_all(how="skip", dry_run=True),
    ):
        assert (done.count, done.results, done.dry_run) == (1, {"skipped": 1}, True)
        assert [(t.key, t.job_id) for t in done.targets] == [("k", job)]
    assert status(conn, job) == "blocked"
    assert audited(conn) == []


def test_all_are_released_in_batches_with_one_entry_in_the_audit(
    conn: Conn, database: Database, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(conn, "block")
    ordered(conn, "park", "mail")
    for n in range(5):
        put_key(conn, f"k{n}", 2)
        fail_key(conn, f"k{n}")
        put_key(conn, f"k{n}", 2, "mail")
        fail_key(conn, f"k{n}", queue="mail")
    monkeypatch.setattr("holdfast.operate.bulk.BATCH", 3)
    message = refused(lambda: Operator(database, "ann").release_all())
    assert "and 4 more keys are blocked" in message
    told: list[int] = []
    done = Operator(database, "ann").release_all("orders", "retry", on_batch=told.append)
    assert (done.results, told) == ({"retried": 5}, [3, 5])
    assert Operator(database, "ann").release_all().results == {"released": 5}
    assert stuck(database) == []
    assert [(a, s, c) for a, s, c in audited(conn)] == [
        ("keys release", {"all": True, "queue": "orders", "how": "retry"}, 5),
        ("keys release", {"all": True}, 5),
    ]
    assert len(runnable(conn, worker, *(f"k{n}" for n in range(5)))) == 10


def test_a_job_that_somebody_holds_is_left_or_waited_for(
    conn: Conn, connect: Callable[[], Conn], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(conn, "block")
    put_key(conn, "k", 2)
    job = fail_key(conn, "k")
    other = connect()
    with other.transaction():
        other.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [job])
        done = Operator(database, "ann").release_all(how="retry")
        assert (done.count, worded(done.left)) == (0, {"in use by somebody else, or changed meanwhile": 1})
        monkeypatch.setattr(bulk, "WAIT", 0.1)
        assert "another session holds" in refused(
            lambda: Operator(database, "ann").release_keys(QUEUE, ["k"], "retry"), LockTimeout
        )
    assert audited(conn) == []
    assert Operator(database, "ann").release_keys(QUEUE, ["k"], "retry").count == 1


def test_a_job_that_is_no_longer_blocked_is_not_touched(
    conn: Conn, database: Database, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was blocked a moment ago; under the lock it is looked at again."""
    ordered(conn, "block")
    put_key(conn, "k", 2)
    job = fail_key(conn, "k")
    (target,) = run(conn, store.all_blocked(None))
    Operator(database, "ann").act_on(RETRY, [job])
    monkeypatch.setattr(store, "all_blocked", lambda queue: _same(target))
    done = Operator(database, "ann").release_all(how="skip")
    assert (done.count, sum(done.left.values())) == (0, 1)
    assert status(conn, job) == "pending"


def _same(target: store.Target) -> Any:
    return Statement("all_blocked", "SELECT 1", (), lambda rows: [target])


def test_only_what_is_blocked_is_retried_or_buried(conn: Conn, worker: str) -> None:
    """Whatever is asked for: the statements themselves touch nothing else."""
    ordered(conn)
    put_key(conn, "k")
    (job,) = take_key(conn, worker, "k")
    with conn.transaction():
        locked = run(conn, store_acts.lock([JobLocation(job.id, QUEUE, "work")]))
        assert run(conn, store.unblock(locked)) == 0
        assert run(conn, store.bury(locked)) == 0
    assert status(conn, job.id) == "processing"


def test_a_key_parked_anew_for_another_job_stays_parked(conn: Conn, database: Database, worker: str) -> None:
    ordered(conn, "park")
    put_key(conn, "k", 3)
    fail_key(conn, "k")
    (old,) = run(conn, store.all_parked(None))
    Operator(database, "ann").release_keys(QUEUE, ["k"])
    again = fail_key(conn, "k")
    assert run(conn, store.unpark([old])) == []
    assert one(conn, "SELECT job_id FROM holdfast.parked_keys") == again


# Jobs that are blocked --------------------------------------------------------------------------------------------


@pytest.fixture
def blocked(conn: Conn) -> UUID:
    ordered(conn, "block")
    put_key(conn, "k", 3)
    return fail_key(conn, "k")


def test_blocked_jobs_are_listed_by_their_state(conn: Conn, database: Database, blocked: UUID) -> None:
    page = Operator(database, "ann").list_jobs(JobFilter(states=("blocked",)))
    assert [(line.id, line.state, line.hold_reason) for line in page.jobs] == [
        (blocked, "blocked", "a dead letter that its key waits for")
    ]
    assert Operator(database, "ann").list_jobs(JobFilter(states=("held",))).jobs == []


def test_retry_of_a_blocked_job(conn: Conn, database: Database, worker: str, blocked: UUID) -> None:
    assert Operator(database, "ann").act_on(RETRY, [blocked]).results == {"unblocked": 1}
    assert runnable(conn, worker, "k")[0] == blocked


@pytest.mark.parametrize("verb", [cancel_verb("enough"), DISCARD], ids=["cancel", "discard"])
def test_a_blocked_job_that_is_cancelled_or_discarded_lets_its_key_go_on(
    conn: Conn, database: Database, worker: str, blocked: UUID, verb: job_acts.Verb
) -> None:
    assert Operator(database, "ann").act_on(verb, [blocked]).count == 1
    assert status(conn, blocked) in ("cancelled", "missing")
    assert len(runnable(conn, worker, "k")) == 2


def test_a_blocked_job_can_be_mended_before_it_is_retried(
    conn: Conn, database: Database, worker: str, blocked: UUID
) -> None:
    edited = Operator(database, "ann").edit_job(blocked, Changes({"n": 17}))
    assert (edited.state, edited.after["payload"]) == ("blocked", {"n": 17})
    assert status(conn, blocked) == "blocked"
    assert refused(
        lambda: Operator(database, "ann").edit_job(blocked, Changes(run_after=timedelta(hours=1)))
    ) == (
        f"job {blocked} is blocked: it waits for no time. Run it again in its place: holdfast jobs retry {blocked}"
    )


def test_redrive_names_the_way_for_a_blocked_job(database: Database, blocked: UUID) -> None:
    assert refused(lambda: Operator(database, "ann").act_on(redrive_verb(), [blocked])) == (
        f"nothing was redriven: job {blocked} is blocked: a dead letter that its key waits for. Run it again in its place: "
        f"holdfast jobs retry {blocked}, or release its key without it: holdfast keys release --skip"
    )


def test_blocked_jobs_and_parked_keys_are_counted_apart(
    conn: Conn, database: Database, blocked: UUID
) -> None:
    ordered(conn, "park", "mail")
    put_key(conn, "p", 2, "mail")
    fail_key(conn, "p", queue="mail")
    put_key(conn, "h")
    fail_key(conn, "h", Held("unknown"))
    loads = {load.name: load for load in Operator(database, "ann").list_queues()}
    assert (loads[QUEUE].blocked, loads[QUEUE].held, loads[QUEUE].parked) == (Count(1), Count(1), Count(0))
    assert (loads["mail"].blocked, loads["mail"].parked) == (Count(0), Count(1))
    assert (loads[QUEUE].ordering, loads[QUEUE].on_dead_letter) == ("key", "block")


def test_the_view_of_keys_says_what_is_in_the_way(conn: Conn, blocked: UUID) -> None:
    ordered(conn, "park", "mail")
    parked, *_ = put_key(conn, "p", 2, "mail")
    fail_key(conn, "p", queue="mail")
    ahead, *_ = [*put_key(conn, "a", delay=60.0), *put_key(conn, "a")]
    put_key(conn, "free")
    conn.execute("SELECT holdfast.enqueue('work', partition_key => 'k', delay => '1 hour')")
    rows = conn.execute(
        "SELECT queue, partition_key, blocked, in_the_way, because FROM holdfast.keys ORDER BY 1, 2"
    ).fetchall()
    assert rows == [
        ("inbox", "k", 0, None, None),
        ("mail", "p", 0, parked, "parked"),
        ("orders", "a", 0, ahead, "scheduled"),
        ("orders", "free", 0, None, None),
        ("orders", "k", 1, blocked, "blocked"),
    ]


# Rules ------------------------------------------------------------------------------------------------------------


def test_the_policy_counts_from_the_next_failure_on(conn: Conn, database: Database) -> None:
    ordered(conn, "skip")
    put_key(conn, "k", 3)
    assert status(conn, fail_key(conn, "k")) == "dead_letter"
    assert Operator(database, "ann").set_queue(QUEUE, on_dead_letter="block").changed
    assert status(conn, fail_key(conn, "k")) == "blocked"
    again = Operator(database, "ann").set_queue(QUEUE, on_dead_letter="block")
    assert (again.changed, again.ordering, again.on_dead_letter) == (False, "key", "block")
    assert audited(conn) == [("queue set", {"queue": QUEUE, "ordering": "key", "on_dead_letter": "block"}, 1)]


def test_an_order_is_given_and_taken_while_the_queue_is_empty_and_nobody_serves_it(
    kit: Kit, conn: Conn, database: Database, worker: str
) -> None:
    def to_key() -> Any:
        return Operator(database, "ann").set_queue("inbox", ordering="key", on_dead_letter="park")

    assert refused(lambda: Operator(database, "ann").set_queue("inbox", on_dead_letter="park")) == (
        "queue 'inbox' is not ordered by key: there a dead letter is in nobody's way, and on_dead_letter is 'skip'. "
        "Order it: holdfast queue set inbox --ordering key --on-dead-letter park"
    )
    assert "is served by workers" in refused(to_key)
    conn.execute("UPDATE holdfast.workers SET status = 'gone', ended = 'left'")
    conn.execute("SELECT holdfast.enqueue('work')")
    assert "queue 'inbox' has jobs" in refused(to_key)
    conn.execute("DELETE FROM holdfast.work")
    assert to_key().changed
    configure(conn, kit)
    assert "pass a partition_key" in refused(
        lambda: conn.execute("SELECT holdfast.enqueue('work')"), Exception
    )
    put_key(conn, "k", 2, "inbox")
    fail_key(conn, "k", DIES, "inbox")
    assert one(conn, "SELECT count(*) FROM holdfast.parked_keys") == 1
    conn.execute("DELETE FROM holdfast.work")
    conn.execute("UPDATE holdfast.workers SET status = 'gone', ended = 'left'")
    assert Operator(database, "ann").set_queue("inbox", ordering="none").on_dead_letter == "skip"
    assert one(conn, "SELECT count(*) FROM holdfast.parked_keys") == 0
    conn.execute("SELECT holdfast.enqueue('work')")
    assert [a for a, _, _ in audited(conn)] == ["queue set", "queue set"]
