"""Ordered queues in a worker: the jobs of a key one after the other, whatever becomes of each."""

import asyncio
import math
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.conftest import QUICK, await_until, wait_until
from tests.flow.test_run import working

from holdfast import (
    AsyncTransaction,
    Backoff,
    DeadLetter,
    Holdfast,
    Job,
    Retry,
    Snooze,
    Transaction,
    telemetry,
)
from holdfast.model.queue import OnDeadLetter
from holdfast.model.worker import WorkerIdentity
from holdfast.runtime.claim.claimer import Ask, Shared
from holdfast.runtime.claim.held import HeldJobs
from holdfast.runtime.claim.ordered import OrderedClaimer
from holdfast.runtime.renew import Renewal
from holdfast.store import queues
from holdfast.store.claim import Mark
from holdfast.store.workers import register
from holdfast.tasks.task import Task
from holdfast.testing import Kit

LATER = Backoff(first=3600, jitter=False)
AT_ONCE = Backoff(first=0, jitter=False)


class Log:
    """What ran, and whether two jobs of one key ever ran together."""

    def __init__(self) -> None:
        self.started: dict[str, list[int]] = defaultdict(list)
        self.together: list[str] = []
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, key: str, n: int) -> None:
        with self._lock:
            if key in self._running:
                self.together.append(f"{key} {n}")
            self._running.add(key)
            self.started[key].append(n)

    def end(self, key: str) -> None:
        with self._lock:
            self._running.discard(key)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    policies: tuple[OnDeadLetter, ...] = ("skip", "block", "park")
    for policy in policies:
        app.queue(policy, ordering="key", on_dead_letter=policy)
    return holdfast_kit(
        app, replace(QUICK, lease=30.0, dead_after=10.0)
    )  # a slow machine is no reason to run twice


def put(app: Holdfast, task: Task[Any, Any], count: int, key: str = "a", **options: Any) -> list[UUID]:
    """Jobs 1 to `count` of a key."""
    new = [task.using(partition_key=key, **options).job(key=key, n=n) for n in range(1, count + 1)]
    return [handle.id for handle in app.enqueue_many(new)]


def state(kit: Kit, jobs: list[UUID]) -> list[tuple[str, int, int]]:
    """(status, attempts, generation) of each."""
    rows = {r["id"]: (r["status"], r["attempts"], r["lease_generation"]) for r in kit.jobs()}
    return [rows[job] for job in jobs]


DONE = ("completed", 1, 1)
BACK = ("pending", 0, 1)  # was claimed with the others, and went back unstarted


def test_what_waits_behind_a_retry_goes_back_unstarted_and_unspent(app: Holdfast, kit: Kit, log: Log) -> None:
    @app.task(queue="skip", retry=LATER)
    async def step(job: Job, key: str, n: int) -> None:
        log.begin(key, n)
        log.end(key)
        if n == 2 and job.attempt == 1:
            raise ValueError(n)

    jobs, other = put(app, step, 4), put(app, step, 1, "b")
    kit.run_worker()
    assert state(kit, jobs) == [DONE, ("scheduled", 1, 1), BACK, BACK]
    assert state(kit, other) == [DONE]
    assert log.started["a"] == [1, 2]
    kit.clock.advance(3601)
    kit.run_worker()
    assert log.started["a"] == [1, 2, 2, 3, 4]
    assert state(kit, jobs) == [DONE, ("completed", 2, 2), ("completed", 1, 2), ("completed", 1, 2)]


@pytest.mark.parametrize("signal", [Snooze(3600), Retry("later", after=3600)], ids=["snooze", "retry"])
def test_a_head_that_waits_makes_its_key_wait_and_no_other(
    app: Holdfast, kit: Kit, log: Log, signal: BaseException
) -> None:
    asked: list[int] = []

    @app.task(queue="skip")
    def step(key: str, n: int) -> None:
        log.begin(key, n)
        log.end(key)
        if key == "a" and n == 1 and not asked:
            asked.append(n)
            raise signal

    put(app, step, 3)
    put(app, step, 3, "b")
    kit.run_worker()
    assert log.started == {"a": [1], "b": [1, 2, 3]}
    kit.clock.advance(3601)
    kit.run_worker()
    assert log.started["a"] == [1, 1, 2, 3]


KINDS = ["async", "sync", "transaction", "async transaction", "complete"]


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_of_a_key_run_in_order_and_never_together(app: Holdfast, kit: Kit, log: Log, kind: str) -> None:
    turn = threading.Event()

    def one(key: str, n: int, attempt: int) -> None:
        log.begin(key, n)
        turn.wait(0.001)
        log.end(key)
        if n % 4 == 0 and attempt == 1:
            raise ValueError(n)

    async def a(job: Job, key: str, n: int) -> None:
        log.begin(key, n)
        await asyncio.sleep(0.001)
        log.end(key)
        if n % 4 == 0 and job.attempt == 1:
            raise ValueError(n)

    def s(job: Job, key: str, n: int) -> None:
        one(key, n, job.attempt)

    def t(job: Job, tx: Transaction, key: str, n: int) -> None:
        one(key, n, job.attempt)

    async def at(job: Job, tx: AsyncTransaction, key: str, n: int) -> None:
        await a(job, key, n)

    def c(job: Job, key: str, n: int) -> None:
        one(key, n, job.attempt)
        with psycopg.connect(kit.url) as conn:
            job.complete(conn=conn)

    handlers: list[Any] = [a, s, t, at, c]
    handler: Any = dict(zip(KINDS, handlers, strict=True))[kind]
    step = app.task(queue="skip", retry=AT_ONCE, name="step")(handler)
    new = [(f"k{n % 5}", n) for n in range(40)]
    app.enqueue_many(step.using(partition_key=k).job(key=k, n=n) for k, n in new)
    kit.run_worker(concurrency=8)
    assert kit.sql("SELECT id FROM holdfast.work") == []
    for key, started in log.started.items():
        expected = [n for k, n in new if k == key for _ in range(2 if n % 4 == 0 else 1)]
        assert started == expected, key
    assert log.together == []


async def test_a_completion_that_is_not_committed_holds_the_stream(app: Holdfast, kit: Kit, log: Log) -> None:
    """job.complete() in a transaction that ends after the handler: the next job waits for that end."""
    async with await psycopg.AsyncConnection.connect(kit.url) as conn:

        @app.task(queue="skip")
        async def step(job: Job, key: str, n: int) -> None:
            log.begin(key, n)
            if n == 1:
                await job.acomplete(conn=conn)
            log.end(key)

        jobs = put(app, step, 2)
        async with working(kit):
            await await_until(lambda: log.started["a"] == [1], "the first has begun")
            for _ in range(10):  # the settler asks every 50 ms, and is told that the row is busy
                await asyncio.sleep(0.02)
                assert log.started["a"] == [1]
            await conn.commit()
            await await_until(lambda: kit.job(jobs[1])["status"] == "completed", "the second is done")
    assert log.started["a"] == [1, 2]
    assert state(kit, jobs) == [DONE, DONE]
    await kit.database.aclose()


def test_a_handler_past_its_limit_fails_and_the_stream_goes_on_by_its_rule(
    app: Holdfast, kit: Kit, log: Log
) -> None:
    @app.task(queue="skip", timeout=0.1, max_attempts=2, retry=AT_ONCE)
    async def step(key: str, n: int) -> None:
        log.begin(key, n)
        try:
            if n == 2:
                await asyncio.sleep(60)
        finally:
            log.end(key)

    jobs = put(app, step, 3)
    kit.run_worker()
    assert log.started["a"] == [1, 2, 2, 3]
    assert log.together == []
    assert [s for s, _, _ in state(kit, jobs)] == ["completed", "dead_letter", "completed"]


@pytest.mark.parametrize("policy", ["skip", "block", "park"])
def test_a_dead_letter_in_a_run(
    app: Holdfast, kit: Kit, log: Log, policy: str, events: list[telemetry.Event]
) -> None:
    @app.task(queue=policy)
    async def step(key: str, n: int) -> None:
        log.begin(key, n)
        log.end(key)
        if n == 2 and key == "a":
            raise DeadLetter("hopeless")

    jobs, other = put(app, step, 4), put(app, step, 3, "b")
    kit.run_worker()
    assert state(kit, other) == [DONE] * 3
    if policy == "skip":
        assert log.started["a"] == [1, 2, 3, 4]
        assert state(kit, jobs) == [DONE, ("dead_letter", 1, 1), DONE, DONE]
    else:
        assert log.started["a"] == [1, 2]
        dead = "blocked" if policy == "block" else "dead_letter"
        assert state(kit, jobs) == [DONE, (dead, 1, 1), BACK, BACK]
    assert [e.fields["job"] for e in events if e.name == "job.dead_letter"] == [jobs[1]]


async def test_a_job_cancelled_while_it_waits_for_its_turn_never_starts(
    app: Holdfast, kit: Kit, log: Log
) -> None:
    go = asyncio.Event()

    @app.task(queue="skip")
    async def step(key: str, n: int) -> None:
        log.begin(key, n)
        if n == 1:
            await go.wait()
        log.end(key)

    jobs = put(app, step, 3)
    async with working(kit):
        await await_until(lambda: state(kit, jobs)[2][0] == "processing", "all three are claimed")
        handle = kit.sql(
            "UPDATE holdfast.work SET cancel_requested_at = now() WHERE id = %s RETURNING id", [jobs[1]]
        )
        assert len(handle) == 1
        await asyncio.sleep(3 * QUICK.heartbeat)  # told, or not yet: either way it does not start
        go.set()
        await await_until(lambda: state(kit, jobs)[2][0] == "completed", "the third is done")
    assert log.started["a"] == [1, 3]
    assert [s for s, _, _ in state(kit, jobs)] == ["completed", "cancelled", "completed"]
    await kit.database.aclose()


async def test_a_worker_that_stops_hands_back_what_waits_in_its_place(
    app: Holdfast, kit: Kit, log: Log
) -> None:
    go = asyncio.Event()

    @app.task(queue="skip")
    async def step(key: str, n: int) -> None:
        log.begin(key, n)
        await go.wait()
        log.end(key)

    jobs = put(app, step, 3)
    worker = asyncio.create_task(kit.arun_worker(until_idle=False))
    await await_until(lambda: state(kit, jobs)[2][0] == "processing", "all three are claimed")
    await await_until(lambda: log.started["a"] == [1], "the first runs")
    kit.sql("UPDATE holdfast.workers SET status = 'draining'")
    await await_until(lambda: state(kit, jobs)[1:] == [BACK, BACK], "the others are back")
    assert state(kit, jobs)[0][0] == "processing"
    go.set()
    await worker
    assert log.started["a"] == [1]
    assert state(kit, jobs) == [DONE, BACK, BACK]
    await kit.arun_worker()
    assert log.started["a"] == [1, 2, 3]
    await kit.database.aclose()


def test_a_head_that_no_worker_knows_holds_its_key_until_one_does(app: Holdfast, kit: Kit, log: Log) -> None:
    def step(key: str, n: int) -> None:
        log.begin(key, n)
        log.end(key)

    known = app.task(queue="skip", name="known")(step)
    first = app.send("of.the.next.release", {"key": "a", "n": 1}, queue="skip", partition_key="a")
    behind, other = put(app, known, 2), put(app, known, 2, "b")
    kit.run_worker()
    assert log.started == {"b": [1, 2]}
    assert kit.job(first.id)["status"] == "held"
    assert kit.job(first.id)["attempts"] == 0
    assert [s for s, _, _ in state(kit, behind + other)] == ["pending", "pending", "completed", "completed"]
    app.task(queue="skip", name="of.the.next.release")(step)
    kit.run_worker()
    assert log.started["a"] == [1, 1, 2]
    assert kit.sql("SELECT id FROM holdfast.work") == []


def test_suspects_of_a_key_run_one_by_one_and_in_order(app: Holdfast, kit: Kit, log: Log) -> None:
    @app.task(queue="skip")
    async def step(key: str, n: int) -> None:
        log.begin(key, n)
        await asyncio.sleep(0.001)
        log.end(key)

    for key in "ab":
        put(app, step, 4, key)
    kit.sql(
        "UPDATE holdfast.work SET suspect = 2"
        " WHERE seq <> ALL (ARRAY(SELECT max(seq) FROM holdfast.work GROUP BY partition_key))"
    )
    kit.run_worker()
    assert log.started == {"a": [1, 2, 3, 4], "b": [1, 2, 3, 4]}
    assert log.together == []


@pytest.mark.parametrize("place", [1, 3])
def test_a_bad_row_is_left_alone_and_only_its_key_waits(
    app: Holdfast, kit: Kit, log: Log, place: int
) -> None:
    @app.task(queue="skip")
    async def step(key: str, n: int) -> None:
        log.begin(key, n)
        log.end(key)

    jobs = put(app, step, 4)
    for key in "bcd":
        put(app, step, 2, key)
    kit.sql(
        f"""CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'this row is bad' USING ERRCODE = '22000'; END $$;
            CREATE TRIGGER refuse BEFORE UPDATE ON holdfast.queue_skip FOR EACH ROW
                WHEN (OLD.id = '{jobs[place - 1]}') EXECUTE FUNCTION public.refuse()"""
    )
    kit.run_worker(concurrency=4)
    assert log.started == {key: [1, 2] for key in "bcd"} | ({"a": [1, 2]} if place == 3 else {})
    assert [r["id"] for r in kit.sql("SELECT id FROM holdfast.quarantine")] == [jobs[place - 1]]
    kit.sql("DROP TRIGGER refuse ON holdfast.queue_skip; DELETE FROM holdfast.quarantine")
    kit.run_worker()
    assert log.started["a"] == [1, 2, 3, 4]


def test_priorities_count_between_keys_and_not_within_one(app: Holdfast, kit: Kit) -> None:
    ran: list[tuple[str, int]] = []

    @app.task(queue="skip")
    async def step(key: str, n: int) -> None:
        ran.append((key, n))

    app.enqueue_many(
        step.using(partition_key=k, priority=p).job(key=k, n=n)
        for n, (k, p) in enumerate([("a", 0), ("a", 50), ("b", 5), ("c", 100), ("b", -100)])
    )
    kit.run_worker(concurrency=1)
    assert [n for k, n in ran if k == "a"] == [0, 1]
    assert [n for k, n in ran if k == "b"] == [2, 4]
    assert [k for k, n in ran if n in (0, 2, 3)] == ["c", "a", "b"]  # `a` is met for its second job


def test_a_worker_is_idle_only_when_nothing_is_due_however_many_keys_there_are(
    app: Holdfast, kit: Kit
) -> None:
    @app.task(queue="skip")
    async def step(key: str, n: int) -> None: ...

    late = [step.using(partition_key=f"late {n}", run_after=3600).job(key="", n=n) for n in range(300)]
    behind = [
        step.using(partition_key=f"late {n}").job(key="", n=n) for n in range(300)
    ]  # due, and not their turn
    app.enqueue_many([*late, *behind])
    app.enqueue_many(step.using(partition_key=f"{n}").job(key="", n=n) for n in range(2600))
    kit.run_worker(concurrency=10)
    assert kit.sql("SELECT count(*) AS left FROM holdfast.work") == [{"left": 600}]


async def test_what_appears_before_every_mark_is_found_by_stepping_through_the_keys(
    app: Holdfast, kit: Kit, log: Log
) -> None:
    """A release by hand, a commit that was very late: nobody tells the worker, and the claim index was passed there."""

    @app.task(queue="skip")
    async def step(key: str, n: int) -> None:
        log.begin(key, n)
        log.end(key)

    jobs = put(app, step, 2)
    kit.sql("UPDATE holdfast.work SET status = 'blocked', hold_reason = 'x' WHERE id = %s", [jobs[0]])
    other = put(app, step, 1, "b")
    async with working(kit):
        await await_until(lambda: state(kit, other) == [DONE], "the worker has looked around")
        kit.sql(
            "UPDATE holdfast.work SET status = 'pending', hold_reason = NULL, available_at = now() - interval '1 hour'"
            " WHERE id = %s",
            [jobs[0]],
        )
        await await_until(lambda: state(kit, jobs) == [DONE, DONE], "it was found")
    assert log.started["a"] == [1, 2]
    await kit.database.aclose()


@pytest.fixture
async def net_only(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[OrderedClaimer, str]]:
    """2,600 keys whose jobs are due in an hour, and a worker that has looked at all of them. From now on only its net can
    find what falls due."""
    monkeypatch.setattr(
        "holdfast.runtime.claim.keyed.PATIENCE", 600.0
    )  # on a slow machine it would come again instead

    @app.task(queue="skip")
    async def step(key: str, n: int) -> None: ...

    app.enqueue_many(step.using(partition_key=f"{n}", run_after=3600).job(key="", n=n) for n in range(2600))
    session = akit.database.session("claim")
    rules = (await akit.database.arun(lambda: queues.queue_rules(["skip"])))["skip"]
    worker = WorkerIdentity.create()
    await session.run(register(worker, queues=["skip"], tasks=["step"], concurrency=10, release="-"))
    shared = Shared(session, HeldJobs(session, app.tasks), lambda _: uuid4(), 60.0)
    claimer = OrderedClaimer("skip", rules, 60.0, shared)
    claimer.look_after(None)
    while claimer._net._first:  # through the keys that are new to it
        assert await claimer.claim(Ask(worker.id, 10)) == []
    claimer._step_back_at, claimer._marks = time.monotonic() + 3600, {0: Mark(datetime.now(UTC), 0)}
    claimer._net._next = 0.0  # its next round is due
    yield claimer, worker.id
    await session.close()


def fall_due(kit: Kit, order: str) -> None:
    """The job of the first (asc) or the last (desc) key that the net comes to."""
    kit.sql(
        f"""UPDATE holdfast.work SET available_at = now() - interval '1 hour' WHERE seq = (
                SELECT seq FROM holdfast.work ORDER BY partition_bucket {order}, partition_key {order} LIMIT 1)"""
    )


async def test_while_nothing_is_found_the_net_goes_through_all_keys_in_one_go(
    akit: Kit, net_only: tuple[OrderedClaimer, str]
) -> None:
    """Another worker passed a key on and told nobody: with free slots, waiting between a thousand keys helps no one."""
    claimer, worker = net_only
    fall_due(akit, "desc")
    assert len(await claimer.claim(Ask(worker, 10))) == 1


async def test_a_pause_of_the_net_ends_when_there_is_nothing_else_to_do(
    akit: Kit, net_only: tuple[OrderedClaimer, str]
) -> None:
    claimer, worker = net_only
    fall_due(akit, "asc")
    fall_due(akit, "desc")
    assert len(await claimer.claim(Ask(worker, 10))) == 1
    claimer._net._next = time.monotonic() + 3600  # it pauses in the middle of its round: it found something
    assert len(await claimer.claim(Ask(worker, 10))) == 1
    claimer._net._next = time.monotonic() + 3600  # after its round it rests, whatever there is to do
    fall_due(akit, "asc")
    assert await claimer.claim(Ask(worker, 10)) == []


async def test_the_net_is_late_by_up_to_a_second_while_every_slot_has_a_job(
    akit: Kit, net_only: tuple[OrderedClaimer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps would take time from the jobs that are here."""
    claimer, worker = net_only
    fall_due(akit, "asc")
    claimer._net._next = time.monotonic()  # since now
    monkeypatch.setattr("holdfast.runtime.claim.keyed._BUSY", 3600.0)
    assert await claimer.claim(Ask(worker, 10, free=0)) == []
    assert len(await claimer.claim(Ask(worker, 10, free=1))) == 1
    fall_due(akit, "desc")
    claimer._net._next, claimer._net._after = time.monotonic(), None
    monkeypatch.setattr("holdfast.runtime.claim.keyed._BUSY", 0.0)
    jobs = await claimer.claim(Ask(worker, 10, free=0))  # it steps on from time to time
    claimer._net._next = time.monotonic()
    assert len(jobs or await claimer.claim(Ask(worker, 10, free=0))) == 1


def test_two_workers_share_the_keys_and_keep_the_order(app: Holdfast, kit: Kit, log: Log) -> None:
    @app.task(queue="skip", retry=AT_ONCE)
    async def step(job: Job, key: str, n: int) -> None:
        log.begin(key, n)
        await asyncio.sleep(0)
        log.end(key)
        if n % 7 == 0 and job.attempt == 1:
            raise ValueError(n)

    for key in "abcde":
        put(app, step, 20, key)

    async def main() -> None:
        await asyncio.gather(*(kit.arun_worker(concurrency=3) for _ in range(3)))
        await kit.database.aclose()

    asyncio.run(main())
    wait_until(lambda: kit.sql("SELECT count(*) AS n FROM holdfast.work") == [{"n": 0}], "nothing is left")
    expected = [n for n in range(1, 21) for _ in range(2 if n % 7 == 0 else 1)]
    assert log.started == dict.fromkeys("abcde", expected)
    assert log.together == []


SILENT = "UPDATE holdfast.workers SET last_seen_at = last_seen_at - interval '1 day' WHERE status <> 'gone'"


async def test_a_job_whose_lease_may_be_over_does_not_start(
    app: Holdfast, holdfast_kit: Callable[..., Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that nobody heard of for long, as after it stood still, first asks whose the job is."""
    app.queue("skip", ordering="key")
    go = asyncio.Event()
    silent, stood = threading.Event(), threading.Event()
    started: list[tuple[str, int]] = []
    tick = Renewal.tick

    async def heard(self: Renewal) -> float:
        if not silent.is_set():
            return await tick(self)
        for running in self._inflight.select():
            running.renewed_at = -math.inf
        stood.set()
        return 0.05

    monkeypatch.setattr(Renewal, "tick", heard)

    @app.task(queue="skip")
    async def step(job: Job, key: str, n: int) -> None:
        started.append((key, job.generation))
        if key == "a":
            await go.wait()

    kit = holdfast_kit(
        app, replace(QUICK, lease=300.0, dead_after=100.0)
    )  # nobody is fenced by a slow machine
    (first,) = put(app, step, 1)
    (second,) = put(app, step, 1, "b", priority=-1)
    async with working(kit, concurrency=1):
        await await_until(
            lambda: kit.job(second)["status"] == "processing", "the second is claimed and waits"
        )
        silent.set()
        gone = "SELECT id FROM holdfast.workers WHERE status = 'gone'"

        def is_fenced() -> bool:
            kit.sql(SILENT)  # again, where a tick was still on its way
            return bool(kit.sql(gone))

        await await_until(is_fenced, "the worker is fenced")
        await await_until(lambda: kit.job(second)["status"] == "pending", "its jobs were taken back")
        await await_until(stood.is_set, "it knows that nobody heard of it")
        go.set()
        await asyncio.sleep(0.3)  # time enough to start it wrongly
        assert started == [("a", 1)]
        silent.clear()
        await await_until(lambda: kit.job(second)["status"] == "completed", "it ran in the end")
        await await_until(lambda: kit.job(first)["status"] == "completed", "and the first ran again")
    assert [s for s in started if s[0] == "b"] == [("b", 2)]
    await kit.database.aclose()
