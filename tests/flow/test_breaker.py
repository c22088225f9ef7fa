"""Circuit breakers: when one opens, what waits, the one job that is tried, and who closes it."""

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.conftest import await_until

from holdfast import (
    AsyncTransaction,
    Backoff,
    Batch,
    Breaker,
    Cancel,
    DeadLetter,
    Holdfast,
    Registry,
    Retry,
    Snooze,
    TaskDefinitionError,
    telemetry,
)
from holdfast.cli.advice import Shell
from holdfast.model.breaker import Watch
from holdfast.model.job import ClaimedJob
from holdfast.model.outcome import Completed, ErrorText, Failed, Settlement
from holdfast.model.queue import QueueRules
from holdfast.model.worker import WorkerIdentity
from holdfast.operate.operator import Operator
from holdfast.store.breaker import Note, Trial, claim_trial, note_ends
from holdfast.store.claim import claim
from holdfast.store.settle import settle_and
from holdfast.store.statement import Flow
from holdfast.store.sweep import fence_workers, revoke_expired, revoked_claims, sweep_take
from holdfast.store.workers import register
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Events = list[telemetry.Event]
AT_ONCE = Backoff(first=0, jitter=False)
THREE = Breaker(failures=3, within=60, cooldown=30)


@contextlib.asynccontextmanager
async def working(kit: Kit, **options: Any) -> AsyncIterator["asyncio.Task[None]"]:
    """A worker that runs until the block ends."""
    worker = asyncio.create_task(kit.arun_worker(until_idle=False, **options))
    try:
        yield worker
    finally:
        worker.cancel()
        await asyncio.wait([worker])
    with contextlib.suppress(asyncio.CancelledError):
        worker.result()


class Service:
    """What a task depends on. Counts the calls."""

    def __init__(self) -> None:
        self.is_down = True
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        if self.is_down:
            raise ConnectionError("it is down")


def breaker(kit: Kit, task: str = "work") -> dict[str, Any]:
    (row,) = kit.sql("SELECT * FROM holdfast.breakers WHERE task = %s", [task])
    return row


def state(kit: Kit, task: str = "work") -> str:
    return str(breaker(kit, task)["state"])


def states(kit: Kit, task: str = "work") -> list[str]:
    return [row["status"] for row in kit.jobs(task)]


def waiting(kit: Kit, task: str = "work") -> int:
    return sum(row["status"] in ("pending", "held") for row in kit.jobs(task))


def named(events: Events, name: str) -> list[dict[str, Any]]:
    return [event.fields for event in events if event.name == name]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def work(app: Holdfast, service: Service) -> Any:
    @app.task(breaker=THREE, retry=Backoff(first=10_000, cap=10_000), max_attempts=3)
    async def work(n: int = 0) -> None:
        service.call()

    return work


# Opening -----------------------------------------------------------------------------------------------------------


def test_it_opens_at_the_limit_and_not_before(kit: Kit, service: Service, work: Any, events: Events) -> None:
    for _ in range(2):
        work.enqueue()
        kit.run_worker(concurrency=1)
    assert state(kit) == "closed"
    assert len(breaker(kit)["failed_at"]) == 2
    work.enqueue()
    kit.run_worker(concurrency=1)
    assert state(kit) == "open"
    assert service.calls == 3
    (opened,) = named(events, "breaker.opened")
    assert opened == {"task": "work", "error": "ConnectionError: it is down", "again": False}


def test_while_it_is_open_nothing_of_the_task_is_claimed_and_no_attempt_is_spent(
    app: Holdfast, kit: Kit, service: Service, work: Any
) -> None:
    ran: list[int] = []

    @app.task
    async def other() -> None:
        ran.append(1)

    app.enqueue_many(work.job(n) for n in range(3))
    kit.run_worker(concurrency=1)
    later = app.enqueue_many(work.job(n) for n in range(5))
    other.enqueue()
    kit.run_worker()
    assert service.calls == 3
    assert ran == [1]
    assert [(kit.job(j.id)["attempts"], kit.job(j.id)["lease_generation"]) for j in later] == [(0, 0)] * 5


async def test_from_its_commit_on_no_claim_takes_a_job_of_the_task(akit: Kit, work: Any) -> None:
    await akit.app.aenqueue_many(work.job(n) for n in range(5))
    worker = await registered(akit)
    first = await akit.database.arun(
        lambda: claim("inbox", worker, uuid4(), lease=30, limit=3, marks=[(0, None)])
    )
    _, changes = await akit.database.arun(lambda: settle_and(failures(first), worker, note_ends))
    assert [c.change for c in changes] == ["opened"]
    again = await akit.database.arun(
        lambda: claim("inbox", worker, uuid4(), lease=30, limit=9, marks=[(0, None)])
    )
    assert again == []
    assert waiting(akit) == 2


def test_a_success_between_starts_the_count_again(kit: Kit, service: Service, work: Any) -> None:
    for down in (True, True, False, True, True):
        service.is_down = down
        work.enqueue()
        kit.run_worker(concurrency=1)
    assert state(kit) == "closed"
    assert len(breaker(kit)["failed_at"]) == 2


def test_failures_outside_the_window_do_not_count(kit: Kit, work: Any) -> None:
    for _ in range(3):
        work.enqueue()
        kit.run_worker(concurrency=1)
        kit.clock.advance(31)  # 62 seconds from the first to the third
    assert state(kit) == "closed"
    assert len(breaker(kit)["failed_at"]) == 2


@pytest.mark.parametrize(
    ("end", "counts"),
    [
        (Retry("busy", after=9999), True),
        (ValueError("x"), True),
        (Snooze(9999), False),
        (Cancel("no"), False),
        (DeadLetter("bad input"), False),
    ],
)
def test_what_counts_as_a_failure(app: Holdfast, kit: Kit, end: BaseException, counts: bool) -> None:
    @app.task(breaker=Breaker(failures=1))
    async def work() -> None:
        raise end

    work.enqueue()
    kit.run_worker()
    found = kit.sql("SELECT state FROM holdfast.breakers")
    assert [row["state"] for row in found] == (["open"] if counts else [])


def test_a_timeout_counts(app: Holdfast, kit: Kit) -> None:
    @app.task(breaker=Breaker(failures=1), timeout=0.05)
    async def work() -> None:
        await asyncio.sleep(30)

    work.enqueue()
    kit.run_worker()
    assert state(kit) == "open"


def test_a_call_of_a_batch_counts_once(app: Holdfast, kit: Kit) -> None:
    @app.batch_task(size=10, wait=30, breaker=Breaker(failures=2), retry=Backoff(first=9999))
    async def work(batch: Batch[int]) -> None:
        raise ConnectionError("it is down")

    app.enqueue_many(work.job(n) for n in range(10))
    kit.run_worker()
    assert state(kit) == "closed"
    app.enqueue_many(work.job(n) for n in range(10))
    kit.run_worker()
    assert state(kit) == "open"


def test_a_task_without_a_breaker_has_no_row(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=1)
    async def work() -> None:
        raise ValueError("x")

    app.enqueue_many(work.job() for _ in range(20))
    kit.run_worker()
    assert kit.sql("SELECT * FROM holdfast.breakers") == []


def test_a_breaker_that_never_saw_a_failure_has_no_row(kit: Kit, service: Service, work: Any) -> None:
    service.is_down = False
    work.enqueue()
    kit.run_worker()
    assert kit.sql("SELECT * FROM holdfast.breakers") == []


def test_a_settle_that_comes_late_does_not_count_twice(app: Holdfast, kit: Kit, work: Any) -> None:
    """A lost answer is asked for again: the job is settled already then."""
    app.enqueue_many(work.job(n) for n in range(2))

    async def main() -> None:
        worker = await registered(kit)
        jobs = await kit.database.arun(
            lambda: claim("inbox", worker, uuid4(), lease=30, limit=2, marks=[(0, None)])
        )
        for _ in range(3):
            await kit.database.arun(lambda: settle_and(failures(jobs), worker, note_ends))
        await kit.database.aclose()

    asyncio.run(main())
    assert len(breaker(kit)["failed_at"]) == 2


# The trial ---------------------------------------------------------------------------------------------------------


def opened(kit: Kit, work: Any, more: int = 5) -> None:
    """Three failures, and `more` jobs that wait."""
    kit.app.enqueue_many(work.job(n) for n in range(3))
    kit.run_worker(concurrency=1)
    assert state(kit) == "open"
    kit.app.enqueue_many(work.job(n) for n in range(more))


def test_after_the_cooldown_one_job_is_tried_and_its_success_closes(
    kit: Kit, service: Service, work: Any, events: Events
) -> None:
    opened(kit, work)
    kit.clock.advance(29)
    kit.run_worker()
    assert service.calls == 3
    service.is_down = False
    kit.clock.advance(2)
    kit.run_worker()
    assert state(kit) == "closed"
    assert service.calls == 3 + 5
    assert states(kit)[3:] == ["completed"] * 5
    assert [f["task"] for f in named(events, "breaker.half_open")] == ["work"]
    assert named(events, "breaker.closed") == [{"task": "work"}]
    assert kit.sql("SELECT * FROM holdfast.paused_tasks") == []
    assert not breaker(kit)["put_back"]


def test_a_trial_that_fails_opens_it_for_twice_as_long_up_to_the_cap(
    kit: Kit, service: Service, work: Any, events: Events
) -> None:
    opened(kit, work)
    for trial, wait in enumerate((30, 60, 120, 240, 300, 300), start=1):
        kit.clock.advance(wait - 1)
        kit.run_worker()
        assert service.calls == 2 + trial
        kit.clock.advance(2)
        kit.run_worker()
        assert service.calls == 3 + trial, f"trial {trial}"
        assert state(kit) == "open"
        work.enqueue()
    assert [f["again"] for f in named(events, "breaker.opened")] == [False] + [True] * 6


def test_the_next_trial_after_it_closed_waits_the_first_cooldown(
    kit: Kit, service: Service, work: Any
) -> None:
    opened(kit, work)
    kit.clock.advance(31)
    kit.run_worker()  # fails
    service.is_down = False
    kit.clock.advance(61)
    kit.run_worker()
    assert state(kit) == "closed"
    service.is_down = True
    opened(kit, work)
    row = breaker(kit)
    assert (row["retry_at"] - row["opened_at"]).total_seconds() == 30


async def registered(kit: Kit) -> str:
    identity = WorkerIdentity.create()
    await kit.database.arun(
        lambda: register(identity, queues=["inbox"], tasks=["work"], concurrency=1, release="test")
    )
    return identity.id


def failures(jobs: Any) -> list[Settlement]:
    return [
        Settlement(job.grant, Failed(ErrorText("E", "down"), 9999.0), Watch("work", THREE)) for job in jobs
    ]


def test_workers_that_race_for_the_trial_get_one(kit: Kit, work: Any) -> None:
    """Many connections, one barrier: each round one of them has the trial, and no other while it runs."""
    opened(kit, work, more=40)
    Operator(kit.database, "ann").pause_task(
        "other"
    )  # its hold is what the verb does: sets every due job aside
    kit.clock.advance(31)
    held = [r["id"] for r in kit.jobs("work") if r["status"] == "held"]
    assert len(held) == 40
    workers = [asyncio.run(one_registered(kit)) for _ in range(6)]
    for round_ in range(5):
        barrier = threading.Barrier(len(workers))

        def race(index: int, start: threading.Barrier = barrier, first: int = round_ * 6) -> list[Any]:
            start.wait()
            return kit.database.run(lambda: try_one(workers[index], held[first + index]))

        with ThreadPoolExecutor(len(workers)) as pool:
            taken = [job for jobs in pool.map(race, range(len(workers))) for job in jobs]
        assert len(taken) == 1
        assert state(kit) == "half_open"
        assert len(kit.sql("SELECT id FROM holdfast.work WHERE status = 'processing'")) == 1
        # It ends without a word on the task, so that the next round may try again.
        kit.sql("UPDATE holdfast.work SET status = 'pending' WHERE status = 'processing'")


async def one_registered(kit: Kit) -> str:
    try:
        return await registered(kit)
    finally:
        await kit.database.aclose()


def try_one(worker: str, job_id: UUID) -> Flow[list[ClaimedJob]]:
    return claim_trial(
        "inbox", worker, uuid4(), lease=30, task="work", trial=Trial(job_id, None), rules=QueueRules()
    )


async def test_a_trial_that_began_after_the_look_is_seen(akit: Kit, work: Any) -> None:
    """The lock and the question whether a trial runs are two statements: one would ask an old snapshot."""
    await asyncio.to_thread(opened, akit, work)
    akit.clock.advance(31)
    Operator(akit.database, "ann").pause_task("other")
    one, two = await registered(akit), await registered(akit)
    ids = [r["id"] for r in akit.jobs("work") if r["status"] == "held"]
    first = await akit.database.arun(lambda: try_one(one, ids[0]))
    second = await akit.database.arun(lambda: try_one(two, ids[1]))
    assert (len(first), len(second)) == (1, 0)


async def test_a_killed_trial_does_not_keep_it_half_open(
    app: Holdfast, akit: Kit, service: Service, work: Any
) -> None:
    await asyncio.to_thread(opened, akit, work, 1)
    akit.clock.advance(31)
    Operator(akit.database, "ann").pause_task("other")
    (job_id,) = [r["id"] for r in akit.jobs("work") if r["status"] == "held"]
    dead = await registered(akit)
    taken = await akit.database.arun(lambda: try_one(dead, job_id))
    assert len(taken) == 1
    await akit.arun_worker()
    assert state(akit) == "half_open"
    assert service.calls == 3
    akit.clock.advance(60)  # its worker is silent
    for worker in await akit.database.arun(lambda: fence_workers(1.0)):
        assert worker == dead
    await akit.database.arun(lambda: revoke_expired(10))
    for revoked in await akit.database.arun(lambda: revoked_claims(10)):
        await akit.database.arun(lambda: sweep_take(revoked, revoked.job_ids, 3))  # noqa: B023
    assert akit.job(job_id)["status"] == "pending"
    service.is_down = False
    await akit.arun_worker()
    assert state(akit) == "closed"
    assert akit.job(job_id)["status"] == "completed"
    assert akit.job(job_id)["attempts"] == 1


@pytest.mark.parametrize("end", [Snooze(9999), Cancel("no"), DeadLetter("bad")])
def test_a_trial_that_says_nothing_is_followed_by_another(
    app: Holdfast, kit: Kit, service: Service, end: BaseException
) -> None:
    def fail() -> None:
        raise ConnectionError("down")

    acts: list[Any] = [fail]

    @app.task(breaker=Breaker(failures=1, cooldown=30), max_attempts=1)
    async def work() -> None:
        act = acts.pop(0)
        if isinstance(act, BaseException):
            raise act
        if act:
            act()

    work.enqueue()
    kit.run_worker()
    assert state(kit) == "open"
    kit.clock.advance(31)
    acts += [end, None]
    work.enqueue()
    work.enqueue()
    kit.run_worker(concurrency=1)
    assert acts == []
    assert state(kit) == "closed"


def test_what_was_claimed_before_it_opened_does_not_decide(kit: Kit, work: Any) -> None:
    kit.app.enqueue_many(work.job(n) for n in range(8))

    async def main() -> None:
        worker = await registered(kit)
        jobs = await kit.database.arun(
            lambda: claim("inbox", worker, uuid4(), lease=30, limit=8, marks=[(0, None)])
        )
        _, changes = await kit.database.arun(lambda: settle_and(failures(jobs[:3]), worker, note_ends))
        assert [c.change for c in changes] == ["opened"]
        late = [Settlement(j.grant, Completed(None), Watch("work", THREE)) for j in jobs[3:5]]
        _, changes = await kit.database.arun(lambda: settle_and(late, worker, note_ends))
        assert changes == []
        _, changes = await kit.database.arun(lambda: settle_and(failures(jobs[5:]), worker, note_ends))
        assert changes == []
        await kit.database.aclose()

    asyncio.run(main())
    row = breaker(kit)
    assert row["state"] == "open"
    assert (row["retry_at"] - row["opened_at"]).total_seconds() == 30


def test_a_handler_with_its_own_transaction_closes_it_too(app: Holdfast, kit: Kit, service: Service) -> None:
    @app.task(breaker=Breaker(failures=1, cooldown=30), max_attempts=1)
    async def work(tx: AsyncTransaction) -> None:
        service.call()

    work.enqueue()
    kit.run_worker()
    assert state(kit) == "open"
    service.is_down = False
    kit.clock.advance(31)
    app.enqueue_many(work.job() for _ in range(3))
    kit.run_worker()
    assert state(kit) == "closed"
    assert states(kit) == ["dead_letter"] + ["completed"] * 3


def test_the_trial_of_a_batch_task_is_one_job(app: Holdfast, kit: Kit, service: Service) -> None:
    sizes: list[int] = []

    @app.batch_task(size=10, wait=30, breaker=Breaker(failures=1, cooldown=30), max_attempts=1)
    async def work(batch: Batch[int]) -> None:
        sizes.append(len(batch))
        service.call()

    work.enqueue(0)
    kit.run_worker()
    app.enqueue_many(work.job(n) for n in range(10))
    kit.clock.advance(31)
    service.is_down = False
    kit.run_worker()
    assert sizes == [1, 1, 9]


async def test_workers_that_run_take_up_the_task_by_themselves(
    app: Holdfast, akit: Kit, service: Service, work: Any
) -> None:
    async with working(akit), working(akit):
        await app.aenqueue_many(work.job(n) for n in range(3))
        await await_until(
            lambda: [r["state"] for r in akit.sql("SELECT state FROM holdfast.breakers")] == ["open"],
            "it opens",
        )
        called = service.calls
        await app.aenqueue_many(work.job(n) for n in range(20))
        service.is_down = False
        akit.clock.advance(31)
        await await_until(lambda: states(akit).count("completed") >= 20, "they run again")
        assert state(akit) == "closed"
        assert service.calls >= called + 20


# Operators ---------------------------------------------------------------------------------------------------------


def test_an_operators_pause_is_kept_apart(kit: Kit, service: Service, work: Any) -> None:
    opened(kit, work)
    assert Operator(kit.database, "ann").pause_task("work").changed
    service.is_down = False
    kit.clock.advance(31)
    kit.run_worker()
    assert service.calls == 3, "no trial while an operator has paused the task"
    kit.sql("SELECT holdfast.close_breaker('work')")
    kit.run_worker()
    assert service.calls == 3, "a breaker that closes does not lift an operator's pause"
    assert Operator(kit.database, "ann").resume_task("work").changed
    kit.run_worker()
    assert states(kit)[3:] == ["completed"] * 5


def test_an_operators_resume_closes_the_breaker(kit: Kit, service: Service, work: Any) -> None:
    opened(kit, work)
    service.is_down = False
    done = Operator(kit.database, "ann").resume_task("work")
    assert (done.changed, done.breaker_closed) == (True, True)
    assert state(kit) == "closed"
    kit.run_worker()
    assert states(kit)[3:] == ["completed"] * 5
    (entry,) = kit.sql("SELECT action, selection FROM holdfast.audit")
    assert entry == {"action": "task resume", "selection": {"task": "work", "breaker": "closed"}}
    assert not Operator(kit.database, "ann").resume_task("work").changed


def test_explain_says_that_the_breaker_is_open_and_when_it_tries(kit: Kit, work: Any) -> None:
    opened(kit, work)
    job = kit.jobs("work")[-1]["id"]
    found = Operator(kit.database, "ann").explain(job)
    assert found.code == "breaker_open"
    assert re.fullmatch(
        r"Its task's breaker is open since [-0-9]+ [:0-9]+ UTC; "
        r"next trial at [-0-9]+ [:0-9]+ UTC \(in (29|30) s\): ConnectionError: it is down",
        found.sentence,
    )
    assert Shell().lines(found.advice) == ["holdfast task resume work", "holdfast task list"]
    kit.clock.advance(31)
    assert (
        Operator(kit.database, "ann")
        .explain(job)
        .sentence.endswith(
            "; the next trial is due, by the first worker that has a free slot: ConnectionError: it is down"
        )
    )
    held_by_sweep(kit)
    assert Operator(kit.database, "ann").explain(job).code == "breaker_open"


def held_by_sweep(kit: Kit) -> None:
    Operator(kit.database, "ann").pause_task("other")


def test_the_list_of_tasks_has_the_breaker_and_why(kit: Kit, work: Any) -> None:
    opened(kit, work)
    held_by_sweep(kit)
    lines = {line.task: line for line in Operator(kit.database, "ann").list_tasks()}
    line = lines["work"]
    assert line.pause is None
    assert line.held is not None
    assert line.held.count == 5
    assert line.breaker is not None
    assert (line.breaker.state, line.breaker.last_error) == ("open", "ConnectionError: it is down")
    assert 28 < (line.breaker.trial_in_seconds or 0) <= 30


def test_a_task_that_lost_its_breaker_runs_again(
    app: Holdfast, kit: Kit, work: Any, holdfast_kit: Any
) -> None:
    opened(kit, work)
    newer = Holdfast("postgresql://unused.invalid/none")
    ran: list[int] = []

    @newer.task(name="work")
    async def without(n: int = 0) -> None:
        ran.append(n)

    other = holdfast_kit(newer, kit.database.settings)
    other.run_worker()
    other.run_worker()
    assert len(ran) == 5


# Declaration -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"failures": 0}, "Breaker(failures=) must be an integer from 1 to 1000, not 0"),
        ({"failures": True}, "Breaker(failures=) must be an integer from 1 to 1000, not True"),
        ({"within": 0}, "Breaker(within=) must be more than 0 seconds and at most 30 days, not 0"),
        ({"cooldown": 0}, "Breaker(cooldown=) must be more than 0 seconds and at most 30 days, not 0"),
        ({"cap": 1}, "Breaker(cap=) must be at least the cooldown of 30 seconds, not 1"),
    ],
)
def test_a_bad_breaker_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        Breaker(**options)


def test_only_a_breaker_is_taken_for_one() -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        Registry().task(breaker=5)  # type: ignore[call-overload]
    assert str(caught.value) == (
        "breaker must be a Breaker, not int 5. Write breaker=Breaker(failures=5, cooldown=30)"
    )


def test_failures_after_the_last_success_are_what_counts() -> None:
    watch, failed = Watch("work", THREE), Failed(ErrorText("E", "x"))
    note = Note(THREE)
    for outcome in (failed, Completed(None), failed, failed):
        note.add(watch, outcome, UUID(int=1))
    assert (note.succeeded, note.failed) == (True, 2)
