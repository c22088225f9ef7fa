"""What makes a worker quick keeps what it promises."""

import asyncio
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.conftest import QUICK, await_until

from holdfast import AsyncTransaction, Holdfast, telemetry
from holdfast.model.job import ClaimedJob
from holdfast.model.worker import WorkerIdentity
from holdfast.runtime import claim_loop as module
from holdfast.runtime.claim.claimer import Ask
from holdfast.runtime.claim.queues import Queues
from holdfast.store.claim import PriorityMark
from holdfast.store.workers import register
from holdfast.testing import Kit


async def test_a_job_that_commits_out_of_turn_is_claimed_at_once(
    akit: Kit, app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was enqueued before one that is taken already: its place lies before that one's. No full look finds it."""
    monkeypatch.setattr("holdfast.runtime.claim.low_water.FULL_SCAN", 600.0)
    monkeypatch.setattr("holdfast.runtime.claim.low_water._SOONER", 600.0)
    monkeypatch.setattr("holdfast.runtime.claim.low_water.LATE", timedelta(seconds=60))
    ran: list[int] = []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)

    running = asyncio.create_task(akit.arun_worker(until_idle=False))
    await work.aenqueue(0)
    await await_until(lambda: ran == [0], "it runs")
    with akit.connect() as early, akit.connect() as late:
        for _ in range(20):
            expected = len(ran) + 2
            early.execute("SELECT holdfast.enqueue('work', '{\"n\": 1}')")
            late.execute("SELECT holdfast.enqueue('work', '{\"n\": 2}')")
            late.commit()
            await await_until(lambda: ran[-1] == 2 and len(ran) == expected - 1, "the later one has run")  # noqa: B023
            early.commit()
            await await_until(lambda: len(ran) == expected, "the earlier one runs")  # noqa: B023
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_job_whose_transaction_was_long_is_claimed_at_once(
    akit: Kit, app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark has passed its place. A claim from there finds nothing, which is the reason for a full scan: no other one
    is due."""
    monkeypatch.setattr("holdfast.runtime.claim.low_water.FULL_SCAN", 600.0)
    monkeypatch.setattr("holdfast.runtime.claim.low_water.LATE", timedelta())
    ran: list[int] = []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)

    running = asyncio.create_task(akit.arun_worker(until_idle=False))
    with akit.connect() as late:
        for n in range(0, 20, 2):
            late.execute("SELECT holdfast.enqueue('work', jsonb_build_object('n', %s::int))", [n])
            await work.aenqueue(n + 1)
            await await_until(lambda: ran[-1:] == [n + 1], "the job that was enqueued after it has run")  # noqa: B023
            late.commit()
            await await_until(lambda: ran[-1] == n, "it runs too")  # noqa: B023
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(("locked", "found"), [(4, 7), (3, 0)])
async def test_a_look_that_left_rows_out_does_not_take_the_rest_for_done(
    akit: Kit, app: Holdfast, monkeypatch: pytest.MonkeyPatch, locked: int, found: int
) -> None:
    """A claim that brings fewer than were asked for means that nothing is left, unless it left some out."""

    @app.task
    async def work(n: int) -> None: ...

    await app.aenqueue_many(work.job(n) for n in range(10))
    akit.sql("UPDATE holdfast.work SET available_at = available_at - interval '1 minute'")
    worker = WorkerIdentity.create()
    await akit.database.arun(
        lambda: register(worker, queues=["inbox"], tasks=["work"], concurrency=1, release="x")
    )
    claimer = Queues(akit.database, app.tasks, {"inbox": 60.0})
    plain: Any = claimer["inbox"]
    take = plain._take

    async def some(ask: Ask, marks: list[PriorityMark]) -> list[ClaimedJob]:
        jobs = await take(ask._replace(want=3), marks)
        return [job._replace(locked=locked) for job in jobs]

    with monkeypatch.context() as during:
        during.setattr(claimer["inbox"], "_take", some)
        assert len(await claimer.claim(Ask(worker.id, 100))) == 3
    assert len(await claimer.claim(Ask(worker.id, 100))) == found
    claimer.look_again()
    assert len(await claimer.claim(Ask(worker.id, 100))) == 7 - found
    await claimer.close()


async def test_a_look_that_found_nothing_counts_the_second_time(
    akit: Kit, app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it locked may have been changed by others: then its answer is as empty as that of an empty queue."""

    @app.task
    async def work(n: int) -> None: ...

    await app.aenqueue_many(work.job(n) for n in range(3))
    akit.sql("UPDATE holdfast.work SET available_at = available_at - interval '1 minute'")
    worker = WorkerIdentity.create()
    await akit.database.arun(
        lambda: register(worker, queues=["inbox"], tasks=["work"], concurrency=1, release="x")
    )
    claimer = Queues(akit.database, app.tasks, {"inbox": 60.0})

    async def none(ask: Ask, marks: list[PriorityMark]) -> list[ClaimedJob]:
        return []

    with monkeypatch.context() as during:
        during.setattr(claimer["inbox"], "_take", none)
        assert await claimer.claim(Ask(worker.id, 100)) == []
    assert len(await claimer.claim(Ask(worker.id, 100))) == 3
    await claimer.close()


async def test_a_worker_does_not_claim_without_end_while_nothing_can_be_settled(
    akit: Kit, app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNSETTLED", 50)
    ran = 0

    @app.task
    async def work(n: int) -> None:
        nonlocal ran
        ran += 1

    await app.aenqueue_many(work.job(n) for n in range(3000))
    with akit.connect() as other:
        other.execute("LOCK TABLE holdfast.archive IN SHARE MODE")
        running = asyncio.create_task(akit.arun_worker(concurrency=4))
        await await_until(lambda: ran >= 50, "some have run")
        before = -1
        while ran != before:  # until it claims no more
            before = ran
            await asyncio.sleep(0.3)
        assert ran < 2100  # the fifty, and what one claim brings: 2000 ahead of four slots
    await running
    assert ran == 3000
    assert {row["status"] for row in akit.jobs()} == {"completed"}


async def test_a_job_that_waits_to_be_settled_keeps_no_task(akit: Kit, app: Holdfast) -> None:
    tasks: list[weakref.ref[asyncio.Task[Any]]] = []

    @app.task
    async def work(n: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(weakref.ref(task))
        if n % 2:
            await asyncio.sleep(0)

    await app.aenqueue_many(work.job(n) for n in range(20))
    with akit.connect() as other:
        other.execute("LOCK TABLE holdfast.archive IN SHARE MODE")
        running = asyncio.create_task(akit.arun_worker(concurrency=4))
        await await_until(lambda: len(tasks) == 20 and not any(task() for task in tasks), "they are gone")
        assert {row["status"] for row in akit.jobs()} == {"processing"}
    await running
    assert {row["status"] for row in akit.jobs()} == {"completed"}


async def test_nothing_is_made_that_nobody_hears(
    akit: Kit, app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    emit = telemetry.emit

    def noted(name: str, **fields: Any) -> None:
        made.append(name)
        emit(name, **fields)

    @app.task
    async def work() -> None: ...

    monkeypatch.setattr(telemetry, "emit", noted)
    monkeypatch.setattr(
        telemetry, "_subscribers", [telemetry.log_events]
    )  # an app of another test may have its own
    monkeypatch.setattr(telemetry.log, "level", 30)
    telemetry.log.manager._clear_cache()  # type: ignore[attr-defined]
    await work.aenqueue()
    await akit.arun_worker()
    assert not {"job.started", "job.completed"} & set(made)
    stop = telemetry.subscribe(lambda event: None)
    try:
        await work.aenqueue()
        await akit.arun_worker()
    finally:
        stop()
    assert {"job.started", "job.completed"} <= set(made)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_connection_that_the_server_ended_a_moment_ago_is_not_used(
    app: Holdfast, holdfast_kit: Callable[..., Kit], kind: str
) -> None:
    kit = holdfast_kit(app, replace(QUICK, pool_size=1))

    @app.task
    async def work() -> None: ...

    async def enqueue() -> None:
        if kind == "sync":
            work.enqueue()
        else:
            await work.aenqueue()

    for _ in range(3):
        await enqueue()
        with kit.connect(autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE application_name = 'holdfast' AND datname = current_database()"
            )
        await enqueue()
    assert len(kit.jobs()) == 6
    await kit.database.aclose()


async def test_a_kept_plan_survives_a_change_of_the_table(akit: Kit, app: Holdfast) -> None:
    ran: list[int] = []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)

    running = asyncio.create_task(akit.arun_worker(until_idle=False))
    for n in range(30):
        await work.aenqueue(n)
        await await_until(lambda: len(ran) == n + 1, "it runs")  # noqa: B023
        if n == 15:
            akit.sql("DROP INDEX holdfast.inbox_suspect")
            akit.sql("CREATE INDEX inbox_suspect ON holdfast.inbox (available_at, seq) WHERE suspect > 0")
            akit.sql("ANALYZE holdfast.inbox")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert ran == list(range(30))


def test_who_may_use_the_table_of_all_queues_may_use_a_new_queue(kit: Kit) -> None:
    role = f"hand_{id(kit)}"
    kit.sql(f"CREATE ROLE {role}")
    try:
        kit.sql(f"GRANT SELECT, DELETE ON holdfast.work TO {role}")
        kit.sql("GRANT UPDATE ON holdfast.work TO PUBLIC")
        kit.sql("SELECT holdfast.create_queue('fresh')")
        (row,) = kit.sql(
            f"""SELECT has_table_privilege('{role}', 'holdfast.queue_fresh', 'SELECT, DELETE') AS named,
                       has_table_privilege('{role}', 'holdfast.queue_fresh', 'UPDATE') AS everybody,
                       has_table_privilege('{role}', 'holdfast.queue_fresh', 'INSERT') AS not_given"""
        )
        assert (row["named"], row["everybody"], row["not_given"]) == (True, True, False)
    finally:
        kit.sql(f"DROP OWNED BY {role}")
        kit.sql(f"DROP ROLE {role}")


async def test_a_transaction_handler_leaves_its_connection_as_it_was(
    app: Holdfast, holdfast_kit: Callable[..., Kit]
) -> None:
    kit = holdfast_kit(app, replace(QUICK, pool_size=1))
    (row,) = kit.sql("SELECT current_database() AS name")
    kit.sql(
        f"ALTER DATABASE {row['name']} SET default_transaction_isolation = 'repeatable read'"
    )  # not what we want
    seen: list[tuple[Any, ...]] = []
    names = ("statement_timeout", "plan_cache_mode", "datestyle", "default_transaction_isolation")

    @app.task
    async def spoil(tx: AsyncTransaction) -> None:
        await tx.execute("SET statement_timeout = '7s'")
        await tx.execute("SET datestyle = 'German'")
        await tx.execute("SET default_transaction_isolation = 'serializable'")
        await tx.execute("CREATE TEMP TABLE left_behind (n int)")

    @app.task
    async def look(tx: AsyncTransaction) -> None:
        settings = ", ".join(f"current_setting({name!r})" for name in names)
        cursor = await tx.execute(f"SELECT {settings}, to_regclass('left_behind')")
        seen.append(await cursor.fetchone() or ())

    await look.aenqueue()
    await kit.arun_worker(concurrency=1)
    await spoil.aenqueue()
    await kit.arun_worker(concurrency=1)
    await look.aenqueue()
    await kit.arun_worker(concurrency=1)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    await kit.database.aclose()
