"""`keep_completed=False`: nothing stays of a job that completed, and everybody who asks for it gets a true answer."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from tests.sql.support import Conn, configure, enqueue, later, one, register, run, sweep_all, take_one

from holdfast import (
    Batch,
    Holdfast,
    Job,
    JobCancelled,
    JobFailed,
    ResultExpired,
    TaskDefinitionError,
    Transaction,
)
from holdfast.model.job import ClaimedJob
from holdfast.model.outcome import NOTHING, Completed, Settlement
from holdfast.operate.operator import Operator
from holdfast.runtime.settle import Settler
from holdfast.store.settle import settle
from holdfast.testing import Kit

Make = Callable[[Holdfast], Kit]
ARCHIVED = "SELECT task, status FROM holdfast.archive ORDER BY task, status"


@pytest.fixture
def made(holdfast_kit: Callable[..., Kit]) -> Make:
    """Once everything is declared: the kit makes the queues."""
    return lambda app: holdfast_kit(app, QUICK)


@pytest.fixture
def conn(kit: Kit) -> Iterator[Conn]:
    with psycopg.connect(kit.url, autocommit=True) as made:
        configure(made, kit)
        yield made


def archived(kit: Kit) -> list[tuple[str, str]]:
    return [(row["task"], row["status"]) for row in kit.sql(ARCHIVED)]


def nothing_left(kit: Kit) -> bool:
    return kit.sql("SELECT count(*) AS n FROM holdfast.work") == [{"n": 0}]


def test_a_queue_keeps_nothing_of_what_completed(app: Holdfast, made: Make) -> None:
    app.queue("mail", keep_completed=False)
    ran: list[int] = []

    @app.task(queue="mail", name="plain")
    async def plain(n: int) -> None:
        ran.append(n)

    @app.task(queue="mail", name="with_result")
    def with_result(n: int) -> int:
        ran.append(n)
        return n

    @app.task(queue="mail", name="in_transaction")
    def in_transaction(tx: Transaction, n: int) -> int:
        ran.append(n)
        return n

    @app.batch_task(queue="mail", name="gathered", size=10, wait=0.01)
    async def gathered(batch: Batch[int]) -> None:
        ran.extend(item.value for item in batch)

    @app.task(queue="mail", name="by_hand")
    def by_hand(job: Job, n: int) -> int:
        ran.append(n)
        with psycopg.connect(kit.url) as own:
            job.complete(conn=own, result=n)
        return n

    kit = made(app)
    for n in range(3):
        plain.enqueue(n=n)
    kit.run_worker()  # alone they are settled in the quick way
    for n in range(3):
        for task in (with_result, in_transaction, by_hand):
            task.enqueue(n=n)
        gathered.enqueue(n)  # a batch takes what is enqueued by position
    kit.run_worker()
    assert sorted(ran) == sorted([*range(3)] * 5)
    assert nothing_left(kit)
    assert archived(kit) == []
    assert kit.sql("SELECT sum(completed)::int AS n FROM holdfast.throughput") == [{"n": 15}]


def test_a_task_says_it_for_itself(app: Holdfast, made: Make) -> None:
    app.queue("mail", keep_completed=False)

    @app.task(keep_completed=False, name="dropped")
    async def dropped() -> None: ...

    @app.task(name="usual")
    async def usual() -> None: ...

    @app.task(queue="mail", keep_completed=True, name="kept")
    async def kept() -> None: ...

    kit = made(app)
    for task in (dropped, usual, kept):
        task.enqueue()
    kit.run_worker()
    assert nothing_left(kit)
    assert archived(kit) == [("kept", "completed"), ("usual", "completed")]


def test_what_did_not_complete_is_kept(app: Holdfast, kit: Kit) -> None:
    @app.task(keep_completed=False, max_attempts=1, name="fails")
    async def fails() -> None:
        raise ValueError("no")

    @app.task(keep_completed=False, name="never_runs")
    async def never_runs() -> None: ...

    failed, cancelled = fails.enqueue(), never_runs.enqueue()
    assert cancelled.cancel()
    kit.run_worker()
    with pytest.raises(JobFailed):
        failed.result(timeout=5)
    with pytest.raises(JobCancelled):
        cancelled.result(timeout=5)
    assert archived(kit) == [("never_runs", "cancelled")]


def test_what_others_hang_on_is_kept(app: Holdfast, kit: Kit) -> None:
    """A group looks at its members, and a chain at what it follows; the job at the end of either is nobody's."""

    @app.task(keep_completed=False, name="member")
    async def member(n: int) -> int:
        return n

    @app.task(keep_completed=False, name="first")
    async def first() -> None: ...

    app.group([member.job(n=n) for n in (1, 2)], then=member.job(n=3))
    first.using(then=member.job(n=4)).enqueue()
    kit.run_worker()
    assert nothing_left(kit)
    assert archived(kit) == [("first", "completed"), ("member", "completed"), ("member", "completed")]


def test_whoever_waits_for_the_result_hears_that_nothing_is_kept(app: Holdfast, kit: Kit) -> None:
    @app.task(keep_completed=False)
    async def dropped() -> int:
        return 7

    handle = dropped.enqueue()
    kit.run_worker()
    with pytest.raises(ResultExpired, match="or its queue or task has keep_completed=False"):
        handle.result(timeout=5)
    assert not handle.cancel()


def test_an_idempotency_key_outlives_its_job(app: Holdfast, kit: Kit) -> None:
    ran: list[int] = []

    @app.task(keep_completed=False)
    async def dropped() -> None:
        ran.append(1)

    once = dropped.using(idempotency_key="order:1")
    handle = once.enqueue()
    kit.run_worker()
    again = once.enqueue()
    kit.run_worker()
    assert (again.id, again.created) == (handle.id, False)
    assert ran == [1]


async def test_a_settle_that_was_done_before_hears_that_the_job_is_gone(akit: Kit, conn: Conn) -> None:
    """As after a commit whose answer was lost: it is not ours any more, and nobody can say more than that it has ended."""
    conn.execute("UPDATE holdfast.queues SET keep_completed = false")
    told: list[str] = []
    settler = Settler(akit.database, lambda: "w", lambda _, states: told.extend(states))
    enqueue(conn)
    job = take_one(conn, register(conn))
    settler.settle(Settlement(job, NOTHING))
    await settler.tick()
    settler.settle(Settlement(job, NOTHING))
    settler.settle(Settlement(job, Completed("1")))
    await settler.tick()
    await settler.stop()
    assert told == ["completed", "gone", "gone"]


@pytest.mark.parametrize("by_task", [False, True], ids=["queue", "task"])
def test_a_stale_owner_is_told_apart_from_a_job_that_is_gone(kit: Kit, conn: Conn, by_task: bool) -> None:
    if not by_task:
        conn.execute("UPDATE holdfast.queues SET keep_completed = false")

    def answer(job: ClaimedJob) -> str:
        settlement = Settlement(job, Completed("1"), keep=False if by_task else None)
        (found,) = run(conn, settle([settlement], "w"))
        return found.state

    enqueue(conn)
    stale = take_one(conn, register(conn))
    later(kit, 3600, conn)
    sweep_all(conn)
    assert answer(stale) == "lost"  # it waits for another owner
    fresh = take_one(conn, register(conn))
    assert answer(stale) == "lost"
    assert answer(fresh) == "completed"
    assert answer(stale) == "gone"
    assert one(conn, "SELECT count(*) FROM holdfast.archive") == 0


def test_operators_change_it_while_workers_run(app: Holdfast, kit: Kit) -> None:
    @app.task(name="plain")
    async def plain() -> None: ...

    async def main() -> None:
        worker = asyncio.create_task(kit.arun_worker(until_idle=False))
        try:
            for keep, wanted in ((False, 0), (True, 1), (False, 1)):
                await asyncio.to_thread(set_keep, kit, keep)
                await plain.aenqueue()
                await await_until(lambda: nothing_left(kit), "it has ended")
                assert len(await asyncio.to_thread(archived, kit)) == wanted
        finally:
            worker.cancel()
            await asyncio.wait([worker])

    asyncio.run(main())


def set_keep(kit: Kit, keep: bool) -> None:
    Operator(kit.database, "ann").set_queue("inbox", limits={"keep_completed": keep})


@pytest.mark.parametrize("value", [None, 0, "no"])
def test_what_is_no_answer_is_refused(app: Holdfast, value: Any) -> None:
    with pytest.raises(TaskDefinitionError, match="keep_completed must be True or False, not"):
        app.queue("mail", keep_completed=value)
    with pytest.raises(TaskDefinitionError, match="keep_completed must be True or False, not"):
        app.task(keep_completed=value)(lambda: None)
