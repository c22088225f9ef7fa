"""Queues ordered by key, statement by statement: which jobs of a stream a claim takes, and what becomes of the others."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.sql.support import (
    BOOM,
    DAY,
    Conn,
    end,
    later,
    one,
    put,
    register,
    run,
    status,
    sweep_all,
    until_blocked,
)

from holdfast.db.executors import drive
from holdfast.model.bucket import bucket
from holdfast.model.job import ClaimedJob, Grant, NewRow
from holdfast.model.outcome import (
    Cancelled,
    Completed,
    DeadLettered,
    Failed,
    Held,
    Outcome,
    Released,
    Snoozed,
)
from holdfast.model.queue import OnDeadLetter, QueueRules
from holdfast.store import acts, dead, jobs, queues
from holdfast.store import claim as claims
from holdfast.store import streams as store
from holdfast.store.checked import settle_check
from holdfast.store.claim import Mark
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

START = Mark(datetime(1970, 1, 1, tzinfo=UTC), -1)
POLICIES: list[OnDeadLetter] = ["skip", "block", "park"]


@pytest.fixture(autouse=True)
def _queues(conn: Conn) -> None:
    """One ordered queue per policy, named after it."""
    for policy in POLICIES:
        run(conn, queues.create_queue(policy, None, QueueRules("key", policy)))


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def rows(count: int, key: str = "a", queue: str = "skip", **options: object) -> list[NewRow]:
    return [
        NewRow("work", json.dumps({"n": n}), queue=queue, partition_key=key, **options)  # type: ignore[arg-type]
        for n in range(count)
    ]


def fill(conn: Conn, count: int, key: str = "a", queue: str = "skip", **options: object) -> list[UUID]:
    answers = put(conn, *rows(count, key, queue, **options))
    return [a.id for a in answers if a.id is not None]


def grab(
    conn: Conn,
    worker: str,
    *keys: str,
    queue: str = "skip",
    most: int = 100,
    lease: float = 60.0,
    suspects: bool = False,
) -> list[ClaimedJob]:
    """A claim of these keys; the jobs by their place."""
    what = store.claim_streams(
        queue, worker, uuid4(), lease=lease, keys=keys or ("a",), run=most, suspects=suspects
    )
    taken = run(conn, what)
    return sorted(taken, key=lambda job: job.seq)


def ids(found: Sequence[ClaimedJob]) -> list[UUID]:
    return [job.id for job in found]


def stream(conn: Conn, key: str = "a", queue: str = "skip") -> list[UUID]:
    """The live jobs of a key, the first first."""
    query = "SELECT id FROM holdfast.work WHERE queue = %s AND partition_key = %s ORDER BY seq"
    return [row[0] for row in conn.execute(query, [queue, key]).fetchall()]


# Runs ---------------------------------------------------------------------------------------------------------------

OBSTACLES: dict[str, tuple[str, str]] = {
    "runs": (
        "UPDATE holdfast.work SET status = 'processing', claim_token = gen_random_uuid() WHERE id = %s",
        "UPDATE holdfast.work SET status = 'pending' WHERE id = %s",
    ),
    "is scheduled": (
        "UPDATE holdfast.work SET available_at = holdfast.now() + interval '1 second' WHERE id = %s",
        "UPDATE holdfast.work SET available_at = holdfast.now() WHERE id = %s",
    ),
    "is held": (
        "UPDATE holdfast.work SET status = 'held', hold_reason = 'x' WHERE id = %s",
        "UPDATE holdfast.work SET status = 'pending', hold_reason = NULL WHERE id = %s",
    ),
    "is blocked": (
        "UPDATE holdfast.work SET status = 'blocked', hold_reason = 'x' WHERE id = %s",
        "UPDATE holdfast.work SET status = 'pending', hold_reason = NULL WHERE id = %s",
    ),
    "is quarantined": (
        "INSERT INTO holdfast.quarantine (id, queue, reason) VALUES (%s, 'skip', 'bad')",
        "DELETE FROM holdfast.quarantine WHERE id = %s",
    ),
    "is a suspect": (
        "UPDATE holdfast.work SET suspect = 2 WHERE id = %s",
        "UPDATE holdfast.work SET suspect = 0 WHERE id = %s",
    ),
    "is of a paused task": (
        (
            "WITH p AS (INSERT INTO holdfast.paused_tasks (task, paused_at) VALUES ('paused', now()))"
            " UPDATE holdfast.work SET task = 'paused' WHERE id = %s"
        ),
        "WITH p AS (DELETE FROM holdfast.paused_tasks) UPDATE holdfast.work SET task = 'work' WHERE id = %s",
    ),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_a_run_ends_before_a_job_that_cannot_be_taken(conn: Conn, worker: str, name: str) -> None:
    put_up, take_away = OBSTACLES[name]
    other = fill(conn, 2, "b")
    for place in (0, 1, 3):
        key = f"{place}"
        made = fill(conn, 4, key)
        conn.execute(put_up.encode(), [made[place]])
        assert ids(grab(conn, worker, key, "b")) == [*(other if place == 0 else []), *made[:place]]
        conn.execute(take_away.encode(), [made[place]])
        # While the first ones run, nothing behind them is taken.
        assert ids(grab(conn, worker, key)) == ([] if place else made)


def test_a_run_ends_before_a_job_that_somebody_locks_at_this_moment(
    conn: Conn, connect: Callable[[], Conn], worker: str
) -> None:
    made = fill(conn, 3)
    other = fill(conn, 3, "b")
    stranger = connect()
    with stranger.transaction():
        stranger.execute("SELECT FROM holdfast.work WHERE id = ANY(%s) FOR UPDATE", [[made[1], other[0]]])
        assert ids(grab(conn, worker, "a", "b")) == made[:1]
    assert ids(grab(conn, worker, "b")) == other


def test_a_run_is_as_long_as_asked_and_each_key_has_its_own(conn: Conn, worker: str) -> None:
    first, second, third = (fill(conn, 5, key) for key in "abc")
    taken = grab(conn, worker, "a", "b", "nobody", most=2)
    assert ids(taken) == first[:2] + second[:2]
    assert len({job.grant.token for job in taken}) == 1
    assert [job.partition_key for job in taken] == ["a", "a", "b", "b"]
    assert stream(conn, "c") == third
    assert grab(conn, worker, "a", "b") == []


def test_a_queue_that_is_paused_and_a_worker_that_leaves_take_nothing(conn: Conn, worker: str) -> None:
    made = fill(conn, 1)
    conn.execute("UPDATE holdfast.queues SET paused_at = now() WHERE name = 'skip'")
    assert grab(conn, worker) == []
    conn.execute("UPDATE holdfast.queues SET paused_at = NULL WHERE name = 'skip'")
    conn.execute("UPDATE holdfast.workers SET status = 'draining'")
    assert grab(conn, worker) == []
    conn.execute("UPDATE holdfast.workers SET status = 'alive'")
    assert ids(grab(conn, worker)) == made


def test_a_head_far_ahead_keeps_its_key_waiting_and_no_other(kit: Kit, conn: Conn, worker: str) -> None:
    head = fill(conn, 1, delay=float(DAY))
    behind = fill(conn, 2)
    other = fill(conn, 1, "b")
    assert ids(grab(conn, worker, "a", "b")) == other
    later(kit, DAY + 1, conn)
    conn.execute("UPDATE holdfast.workers SET last_seen_at = holdfast.now()")
    assert ids(grab(conn, worker)) == head + behind


@pytest.mark.parametrize(
    "outcome",
    [Failed(BOOM, 60.0), Snoozed(60.0), Released("stop"), Held("unknown")],
    ids=lambda o: type(o).__name__,
)
def test_a_job_that_goes_back_keeps_its_place(kit: Kit, conn: Conn, worker: str, outcome: Outcome) -> None:
    made = fill(conn, 3)
    taken = grab(conn, worker)
    end(conn, taken[0].grant, outcome)
    for job in taken[1:]:
        end(conn, job.grant, Released("the one before it went back"))
    assert stream(conn) == made
    if not isinstance(outcome, Released):
        assert grab(conn, worker) == []
    if isinstance(outcome, Held):
        assert run(conn, store.unhold("skip", made)) == ["a"]
    later(kit, 61, conn)
    assert ids(grab(conn, worker)) == made
    attempts = conn.execute("SELECT attempts FROM holdfast.work ORDER BY seq").fetchall()
    assert attempts == [(int(isinstance(outcome, Failed)),), (0,), (0,)]


def test_the_next_job_may_start_when_the_one_before_it_is_finished(conn: Conn, worker: str) -> None:
    made = fill(conn, 4)
    for number, outcome in enumerate((Completed("1"), Cancelled("no"), DeadLettered(BOOM), Completed("1"))):
        (job,) = grab(conn, worker, most=1)
        assert job.id == made[number]
        assert grab(conn, worker) == []
        end(conn, job.grant, outcome)
    assert stream(conn) == []


def test_a_sweep_gives_a_run_back_in_its_place(kit: Kit, conn: Conn, worker: str) -> None:
    made = fill(conn, 4)
    lost = grab(conn, worker, most=3, lease=5)
    later(kit, 6, conn)
    swept = sweep_all(conn)
    assert sorted(s.id for s in swept) == sorted(made[:3])
    again = grab(conn, worker)
    assert ids(again) == made
    assert [j.grant.generation for j in again] == [2, 2, 2, 1]
    assert all(end(conn, job.grant, Completed("1")) == "lost" for job in lost)


def test_suspects_are_taken_from_the_front_only_and_one_of_a_key(kit: Kit, conn: Conn, worker: str) -> None:
    made, other = fill(conn, 3), fill(conn, 1, "b")
    dying = register(conn, "dying")
    grab(conn, dying, "a", "b", most=2)
    conn.execute("UPDATE holdfast.queue_skip SET crashes = 1")
    conn.execute(
        "UPDATE holdfast.workers SET last_seen_at = holdfast.now() - interval '1 hour' WHERE id = %s", [dying]
    )
    assert {s.state for s in sweep_all(conn, dead_after=60)} == {"pending"}
    assert grab(conn, worker, "a", "b") == []  # a plain claim leaves them to the look for suspects
    found = run(conn, store.suspect_streams("skip", 10))
    assert found == ["a", "b"]
    assert ids(grab(conn, worker, "a", "b", most=1, suspects=True)) == [made[0], other[0]]
    assert run(conn, store.suspect_streams("skip", 10)) == []  # the second of `a` waits behind the first


# Dead letters -------------------------------------------------------------------------------------------------------


def bury(conn: Conn, worker: str, queue: str, *, crash: bool = False) -> tuple[list[UUID], ClaimedJob]:
    """Three jobs of a key, the first of which fails for good: by its handler, or with its process."""
    made = fill(conn, 3, queue=queue)
    if not crash:
        (job,) = grab(conn, worker, queue=queue, most=1)
        assert (
            end(conn, job.grant, DeadLettered(BOOM))
            == {
                "skip": "dead_letter",
                "block": "blocked",
                "park": "parked",
            }[queue]
        )
        return made, job
    dying = register(conn, "dying")
    (job,) = grab(conn, dying, queue=queue, most=1)
    conn.execute(
        "UPDATE holdfast.workers SET last_seen_at = holdfast.now() - interval '1 hour' WHERE id = %s", [dying]
    )
    conn.execute("UPDATE holdfast.work SET suspect = 1, crashes = 3 WHERE id = %s", [job.id])
    (swept,) = sweep_all(conn, dead_after=60)
    assert swept.state == ("blocked" if queue == "block" else "dead_letter")
    return made, job


def redrive(conn: Conn, *job_ids: UUID) -> None:
    assert len(run(conn, dead.redrive(job_ids, [0.0] * len(job_ids)))) == len(job_ids)


@pytest.mark.parametrize("crash", [False, True], ids=["failed", "crashed"])
def test_skip_goes_on_with_the_next_and_a_redrive_goes_to_the_end(
    conn: Conn, worker: str, crash: bool
) -> None:
    made, _ = bury(conn, worker, "skip", crash=crash)
    assert status(conn, made[0]) == "dead_letter"
    assert stream(conn) == made[1:]
    redrive(conn, made[0])
    assert ids(grab(conn, worker)) == [made[1], made[2], made[0]]


@pytest.mark.parametrize("crash", [False, True], ids=["failed", "crashed"])
def test_block_keeps_the_dead_job_in_its_place_and_the_key_waits(
    conn: Conn, worker: str, crash: bool
) -> None:
    made, job = bury(conn, worker, "block", crash=crash)
    assert stream(conn, queue="block") == made
    assert grab(conn, worker, queue="block") == []
    assert (
        run(conn, claims.find_held("block", [("work", 1)], 10)) == []
    )  # not what a worker puts back by itself
    assert run(conn, store.unhold("block", made)) == []
    row = conn.execute(
        "SELECT status, hold_reason, last_error FROM holdfast.work WHERE id = %s", [job.id]
    ).fetchone()
    assert row is not None
    assert row[:2] == ("blocked", "a dead letter that its key waits for")
    assert row[2] == (
        "WorkerSilent: processes that had this job died or fell silent 4 times; the last one fell silent"
        if crash
        else "ValueError: boom"
    )
    other = fill(conn, 1, "b", "block")
    assert ids(grab(conn, worker, "a", "b", queue="block")) == other
    assert end(conn, job.grant, Completed("1")) == ("lost" if crash else "blocked")
    # Ended by an operator, it is out of the way.
    assert run(conn, jobs.cancel(job.id, "block"))
    assert ids(grab(conn, worker, queue="block")) == made[1:]


@pytest.mark.parametrize("crash", [False, True], ids=["failed", "crashed"])
def test_park_takes_nothing_from_the_key_until_the_dead_letter_comes_back_to_its_place(
    conn: Conn, worker: str, crash: bool
) -> None:
    made, job = bury(conn, worker, "park", crash=crash)
    assert status(conn, job.id) == "dead_letter"
    assert (
        one(conn, "SELECT job_id FROM holdfast.parked_keys WHERE queue = 'park' AND partition_key = 'a'")
        == job.id
    )
    other = fill(conn, 1, "b", "park")
    assert ids(grab(conn, worker, "a", "b", queue="park")) == other
    redrive(conn, job.id)
    assert one(conn, "SELECT count(*) FROM holdfast.parked_keys") == 0
    assert ids(grab(conn, worker, queue="park")) == made


def test_a_dead_letter_that_its_key_went_on_without_goes_to_the_end(conn: Conn, worker: str) -> None:
    made, job = bury(conn, worker, "park")
    conn.execute("DELETE FROM holdfast.parked_keys")  # released
    (second,) = grab(conn, worker, queue="park", most=1)
    assert second.id == made[1]
    assert end(conn, second.grant, DeadLettered(BOOM)) == "parked"
    redrive(conn, job.id)  # not what the key is parked for
    assert grab(conn, worker, queue="park") == []
    redrive(conn, second.id)
    assert ids(grab(conn, worker, queue="park")) == [made[1], made[2], made[0]]


def test_dead_letters_of_one_key_come_back_in_the_order_they_had(conn: Conn, worker: str) -> None:
    made = fill(conn, 4)
    for job in grab(conn, worker, most=3):
        end(conn, job.grant, DeadLettered(BOOM))
    redrive(conn, made[2], made[0], made[1])
    assert stream(conn) == [made[3], made[0], made[1], made[2]]


def test_a_cancelled_job_comes_back_at_the_end(conn: Conn, worker: str) -> None:
    made = fill(conn, 3)
    assert run(conn, jobs.cancel(made[0], "skip"))
    with conn.transaction():
        places = run(conn, acts.locate_jobs(made[:1]))
        assert drive(conn, acts.revive(drive(conn, acts.lock(places)))) == 1
    assert ids(grab(conn, worker)) == [made[1], made[2], made[0]]


def test_what_comes_back_waits_for_the_enqueues_of_its_stream(
    conn: Conn, connect: Callable[[], Conn], worker: str
) -> None:
    """The place is given out under the lock of the key, to a job that comes back too: else it could lie before one that
    commits later."""
    (gone,) = fill(conn, 1)
    assert run(conn, jobs.cancel(gone, "skip"))
    open_one, reviver = connect(), connect()
    open_one.execute("BEGIN")
    (later,) = fill(open_one, 1)

    def revive() -> None:
        with reviver.transaction():
            places = run(reviver, acts.locate_jobs([gone]))
            assert drive(reviver, acts.revive(drive(reviver, acts.lock(places)))) == 1

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(revive)
        until_blocked(conn, reviver)
        open_one.execute("COMMIT")
        waiting.result(100)
    assert stream(conn) == [later, gone]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_settle_whose_answer_was_lost_learns_what_it_had_done(
    conn: Conn, worker: str, policy: OnDeadLetter
) -> None:
    _, job = bury(conn, worker, policy)
    (answer,) = run(conn, settle_check(policy, [job.grant]))
    state = {"skip": "dead_letter", "block": "blocked", "park": "parked"}[policy]
    assert (answer.state, answer.already) == (state, True)
    assert end(conn, job.grant, DeadLettered(BOOM)) == state  # the same again changes nothing
    stranger = Grant(policy, job.id, job.grant.generation, uuid4())
    assert [a.state for a in run(conn, settle_check(policy, [stranger]))] == ["lost"]
    if policy == "park":  # the key was released meanwhile: it goes on without the dead letter
        conn.execute("DELETE FROM holdfast.parked_keys")
        assert [a.state for a in run(conn, settle_check(policy, [job.grant]))] == ["dead_letter"]
    if policy != "block":
        redrive(conn, job.id)
        assert [a.state for a in run(conn, settle_check(policy, [job.grant]))] == ["lost"]


# Commit order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [1, 2])  # alone, and in a call of many
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_sequence_is_commit_order_also_when_a_transaction_that_began_later_commits_first(
    conn: Conn, connect: Callable[[], Conn], worker: str, isolation: str, each: int
) -> None:
    early, late = connect(), connect()
    early.execute(f"BEGIN ISOLATION LEVEL {isolation}".encode())
    early.execute("SELECT count(*) FROM holdfast.queues")  # its snapshot is the older one
    late.execute("BEGIN")
    second = fill(late, each)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fill, early, each)
        until_blocked(conn, early)
        assert ids(grab(conn, worker)) == []
        late.execute("COMMIT")
        first = waiting.result(100)
    early.execute("COMMIT")
    assert stream(conn) == [*second, *first]
    assert ids(grab(conn, worker)) == [*second, *first]


def test_other_keys_and_other_queues_do_not_wait(conn: Conn, connect: Callable[[], Conn]) -> None:
    other = connect()
    with other.transaction():
        fill(other, 1)
        conn.execute("SET lock_timeout = '2s'")
        fill(conn, 1, "b")
        fill(conn, 1, "a", "park")
        put(conn, NewRow("work", "{}", partition_key="a"))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            fill(conn, 1)


def test_a_rolled_back_enqueue_leaves_neither_a_job_nor_a_lock(
    conn: Conn, connect: Callable[[], Conn]
) -> None:
    other = connect()
    other.execute("BEGIN")
    fill(other, 1)
    other.execute("SAVEPOINT s")
    fill(other, 1, "b")
    other.execute("ROLLBACK TO s")
    conn.execute("SET lock_timeout = '2s'")
    (kept,) = fill(conn, 1, "b")
    other.execute("ROLLBACK")
    (mine,) = fill(conn, 1)
    assert (stream(conn), stream(conn, "b")) == ([mine], [kept])
    held = """SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
              WHERE l.locktype = 'advisory' AND d.datname = current_database()"""
    assert one(conn, held) == 0


def many(count: int, start: int = 0) -> list[NewRow]:
    return [NewRow("work", "{}", queue="skip", partition_key=f"k{n}") for n in range(start, start + count)]


def test_a_bulk_waits_for_whoever_writes_to_one_of_its_keys(conn: Conn, connect: Callable[[], Conn]) -> None:
    single, bulk = connect(), connect()
    single.execute("BEGIN")
    (first,) = fill(single, 1, "k7")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(put, bulk, *many(65))
        until_blocked(conn, bulk)
        single.execute("COMMIT")
        answers = waiting.result(100)
    assert stream(conn, "k7") == [first, answers[7].id]


@pytest.mark.parametrize("count", [40, 200])
def test_two_bulks_with_the_same_keys_in_opposite_order_do_not_deadlock(
    connect: Callable[[], Conn], count: int
) -> None:
    forth, back = connect(), connect()
    for conn in (forth, back):
        conn.execute("SET deadlock_timeout = '20ms'")
    wanted = many(count)

    def repeat(conn: Conn, batch: list[NewRow]) -> int:
        return sum(len(put(conn, *batch)) for _ in range(15))

    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(repeat, forth, wanted), pool.submit(repeat, back, wanted[::-1])]
        assert [f.result(150) for f in done] == [15 * count] * 2


def test_a_job_without_a_key_is_refused_and_nothing_is_written(conn: Conn) -> None:
    good = NewRow("work", "{}", queue="skip", partition_key="a")
    with conn.transaction():
        answers = put(conn, good, NewRow("work", "{}", queue="skip"), NewRow("work", "{}"))
        assert [(a.id, a.created, a.conflict) for a in answers] == [
            (None, False, None),
            (None, False, "key"),
            (None, False, None),
        ]
        assert one(conn, "SELECT count(*) FROM holdfast.work") == 0  # and the transaction is usable
    (answer,) = put(conn, NewRow("work", "{}", queue="skip", partition_key=""))
    assert answer.created  # an empty key is a key
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute(
            "INSERT INTO holdfast.work (id, queue, task, payload) VALUES (gen_random_uuid(), 'skip', 'work', '{}')"
        )


def test_an_idempotent_repeat_keeps_the_place_of_the_first(conn: Conn) -> None:
    row = NewRow(
        "work", "{}", queue="skip", partition_key="a", idempotency_key="x", idempotency_lifetime=60.0
    )
    (first,) = put(conn, row)
    behind = fill(conn, 1)
    (again,) = put(conn, row)
    assert (again.id, again.created) == (first.id, False)
    assert stream(conn) == [first.id, *behind]


# Finding keys -------------------------------------------------------------------------------------------------------


def test_due_streams_meets_each_due_row_once_and_each_key_once(conn: Conn, worker: str) -> None:
    fill(conn, 3, "a")
    fill(conn, 2, "b")
    fill(conn, 2, "later", delay=60.0)
    fill(conn, 1, "high", priority=5)
    grab(conn, worker, "b")
    marks = [(5, START), (0, START), (-5, START)]
    high, zero = run(conn, store.due_streams("skip", marks, 100, None))
    assert (high.priority, high.seen, high.keys) == (5, 1, ["high"])
    assert (zero.priority, zero.seen, zero.keys) == (0, 5, ["a"])  # of `b` everything runs
    assert run(conn, store.due_streams("skip", [(0, zero.mark)], 100, None)) == []
    (short,) = run(conn, store.due_streams("skip", [(0, START)], 2, None))
    (rest,) = run(conn, store.due_streams("skip", [(0, short.mark)], 100, None))
    assert (short.seen, rest.seen) == (2, 3)
    (none,) = run(conn, store.due_streams("skip", [(0, START)], 100, [bucket("a") ^ 1]))
    assert (none.seen, none.keys) == (5, [])


def scan(
    conn: Conn, buckets: Sequence[int] | None = None, step: int = 1000, **options: bool
) -> list[list[str]]:
    """A whole round; the ready keys of each step."""
    found, place = [], None
    while True:
        part = run(conn, store.scan_streams("skip", buckets, place, step, **options))
        found.append([ready.key for ready in part.ready])
        if part.seen < step:
            return found
        place = part.last


def test_scan_streams_steps_through_every_key_once(conn: Conn, worker: str) -> None:
    keys = sorted(["", *(f"key {n}" for n in range(120))], key=lambda k: (bucket(k), k))
    put(conn, *(NewRow("work", "{}", queue="skip", partition_key=key) for key in keys for _ in range(2)))
    assert sorted(k for part in scan(conn) for k in part) == sorted(keys)
    steps = scan(conn, step=7)
    assert [sorted(part) for part in steps] == [
        sorted(keys[at : at + 7]) for at in range(0, len(keys) + 1, 7)
    ][: len(steps)]
    half = sorted({bucket(k) for k in keys})[::2]
    wanted = [k for k in keys if bucket(k) in half]
    assert sorted(k for part in scan(conn, half, 5) for k in part) == sorted(wanted)
    assert scan(conn, [bucket(keys[0])]) == [[k for k in keys if bucket(k) == bucket(keys[0])]]
    empty = next(b for b in range(1024) if b not in {bucket(k) for k in keys})
    assert scan(conn, [empty]) == [[]]
    assert scan(conn, []) == [[]]


def test_scan_streams_names_keys_whose_first_job_is_ready(conn: Conn, worker: str) -> None:
    heads = {name: fill(conn, 2, name)[0] for name in OBSTACLES}
    for name, (put_up, _) in OBSTACLES.items():
        conn.execute(put_up.encode(), [heads[name]])
    fill(conn, 1, "parked", "skip")
    conn.execute("INSERT INTO holdfast.parked_keys VALUES ('skip', 'parked', gen_random_uuid(), now())")
    fill(conn, 1, "low", priority=-5)
    fill(conn, 1, "high", priority=5)
    fill(conn, 1, "ready")
    assert scan(conn) == [["high", "ready", "low"]]
    assert scan(conn, suspects=True) == [["high", "is a suspect", "ready", "low"]]
    part = run(conn, store.scan_streams("skip", None, None, 1000))
    assert [r.priority for r in part.ready] == [5, 0, -5]
    assert all(r.late >= 0 for r in part.ready)


def test_stream_head_is_the_first_job_whatever_it_does(conn: Conn, worker: str) -> None:
    made = fill(conn, 2)
    assert run(conn, store.stream_head("skip", "a")) == made[0]
    grab(conn, worker, most=1)
    assert run(conn, store.stream_head("skip", "a")) == made[0]
    assert run(conn, store.stream_head("skip", "b")) is None


def test_the_rules_of_a_queue_are_read_as_they_were_made(conn: Conn) -> None:
    found = run(conn, queues.queue_rules(["inbox", *POLICIES, "nobody"]))
    expected: dict[str, QueueRules] = {p: QueueRules("key", p) for p in POLICIES}
    assert found == expected | {"inbox": QueueRules()}
