"""Pauses and drains while a worker runs: what it leaves alone, what it finishes, and when it goes on or leaves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.conftest import await_until

from holdfast import Backoff, Holdfast, Retry, telemetry
from holdfast.operate.operator import Operator
from holdfast.testing import Kit


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


def states(kit: Kit) -> list[str]:
    return [row["status"] for row in kit.jobs()]


def test_for_a_worker_that_leaves_when_idle_a_paused_queue_has_nothing_due(app: Holdfast, kit: Kit) -> None:
    @app.task
    async def work() -> None: ...

    work.enqueue()
    Operator(kit.database, "ann").pause_queue("inbox")
    kit.run_worker()
    assert states(kit) == ["pending"]
    Operator(kit.database, "ann").resume_queue("inbox")
    kit.run_worker()
    assert states(kit) == ["completed"]


def test_for_a_worker_that_leaves_when_idle_a_paused_task_has_nothing_due(app: Holdfast, kit: Kit) -> None:
    @app.task
    async def work() -> None: ...

    @app.task
    async def other() -> None: ...

    work.enqueue()
    Operator(kit.database, "ann").pause_task("work")
    work.enqueue()
    other.enqueue()
    kit.run_worker()
    assert {row["status"] for row in kit.jobs("work")} <= {"pending", "held"}
    assert [row["status"] for row in kit.jobs("other")] == ["completed"]
    Operator(kit.database, "ann").resume_task("work")
    kit.run_worker()
    assert states(kit) == ["completed"] * 3


async def test_what_runs_when_the_queue_is_paused_finishes_and_the_rest_waits(
    app: Holdfast, akit: Kit
) -> None:
    gate = asyncio.Event()

    @app.task
    async def work() -> None:
        await gate.wait()

    first = work.enqueue()
    async with working(akit):
        await await_until(lambda: akit.job(first.id)["status"] == "processing", "the first runs")
        Operator(akit.database, "ann").pause_queue("inbox")
        second = work.enqueue()
        gate.set()
        await await_until(lambda: akit.job(first.id)["status"] == "completed", "it finishes")
        assert akit.job(second.id)["status"] == "pending"
        Operator(akit.database, "ann").resume_queue("inbox")
        await await_until(lambda: akit.job(second.id)["status"] == "completed", "the rest goes on by itself")


async def test_jobs_that_come_while_their_task_is_paused_are_set_aside_by_the_sweep(
    app: Holdfast, akit: Kit, events: list[telemetry.Event]
) -> None:
    @app.task
    async def work() -> None: ...

    @app.task(retry=Backoff(first=0.1, cap=0.1))
    async def failing() -> None:
        raise Retry("again", after=0)

    Operator(akit.database, "ann").pause_task("work")
    async with working(akit):
        late = work.enqueue()
        await await_until(lambda: akit.job(late.id)["status"] == "held", "what was enqueued is set aside")
        assert akit.job(late.id)["hold_reason"] == "task work is paused"
        retried = failing.using(max_attempts=1000).enqueue()
        await await_until(lambda: akit.job(retried.id)["attempts"] > 0, "it fails and is retried")
        Operator(akit.database, "ann").pause_task("failing")
        await await_until(lambda: akit.job(retried.id)["status"] == "held", "a retry is set aside too")
        assert Operator(akit.database, "ann").resume_task("work").changed
        await await_until(lambda: akit.job(late.id)["status"] == "completed", "it comes back")
    held = [e.fields for e in events if e.name == "jobs.held"]
    assert held
    assert {e["reason"] for e in held} == {"their task is paused"}


async def test_a_resumed_job_whose_task_no_worker_knows_is_held_by_the_worker(
    app: Holdfast, akit: Kit
) -> None:
    job = app.send("unheard.of", {})
    Operator(akit.database, "ann").pause_task("unheard.of")
    assert akit.job(job.id)["status"] == "held"
    assert Operator(akit.database, "ann").resume_task("unheard.of").moved == 1
    async with working(akit):
        await await_until(
            lambda: akit.job(job.id)["hold_reason"] == "no worker here knows unheard.of version 1",
            "the worker sets it aside for its own reason",
        )


async def test_a_sweep_with_a_bad_row_of_a_paused_task_goes_on(
    app: Holdfast, akit: Kit, events: list[telemetry.Event]
) -> None:
    @app.task
    async def work() -> None: ...

    app.send("bad", {})
    akit.sql(
        """CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'this row is bad'; END $$;
           CREATE TRIGGER refuse BEFORE UPDATE ON holdfast.inbox FOR EACH ROW
               WHEN (OLD.task = 'bad') EXECUTE FUNCTION public.refuse()"""
    )
    Operator(akit.database, "ann").pause_task("bad")
    async with working(akit):
        await await_until(lambda: any(e.name == "pause.hold_failed" for e in events), "the sweep says so")
        job = work.enqueue()
        await await_until(lambda: akit.job(job.id)["status"] == "completed", "the others run")
    assert not [e for e in events if e.name == "service.failed"]


# Drain -------------------------------------------------------------------------------------------------------------


async def test_a_worker_that_is_asked_to_drain_finishes_hands_back_and_leaves(
    app: Holdfast, akit: Kit, events: list[telemetry.Event]
) -> None:
    gate, started = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        started.set()
        await gate.wait()

    ids = [work.enqueue().id for _ in range(3)]
    async with working(akit, concurrency=1) as worker:
        await started.wait()
        held = lambda: [akit.job(i)["status"] for i in ids] == ["processing"] * 3  # noqa: E731
        await await_until(held, "one runs, two are prefetched")
        (me,) = Operator(akit.database, "ann").drain_workers(everyone=True).asked
        back = lambda: [akit.job(i)["status"] for i in ids] == ["processing", "pending", "pending"]  # noqa: E731
        await await_until(back, "what has not started is handed back")
        assert not worker.done()
        gate.set()
        await asyncio.wait_for(worker, 100)
    assert [(r["status"], r["attempts"]) for r in akit.jobs()] == [
        ("completed", 1),
        ("pending", 0),
        ("pending", 0),
    ]
    assert akit.sql("SELECT id, status, ended FROM holdfast.workers") == [
        {"id": me, "status": "gone", "ended": "left"}
    ]
    assert (
        len([e for e in events if e.name == "worker.drain_asked"]) == 1
    )  # however often the heartbeat says it


async def test_a_draining_worker_claims_nothing_even_before_it_knows(app: Holdfast, akit: Kit) -> None:
    @app.task
    async def work() -> None: ...

    async with working(akit) as worker:
        await await_until(lambda: akit.sql("SELECT 1 FROM holdfast.workers"), "it is there")
        Operator(akit.database, "ann").drain_workers(everyone=True)
        job = work.enqueue()
        await asyncio.wait_for(worker, 100)
    assert akit.job(job.id)["lease_generation"] == 0
