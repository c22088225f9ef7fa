"""Transaction steps: exactly once, in a thread too, and without a trace where nobody waits for them."""

import asyncio
import threading
import time

import pytest
from tests.conftest import await_until, wait_until
from tests.workflows.test_workflow_worker import working

from holdfast import (
    AsyncTransaction,
    Holdfast,
    NonRetryable,
    Run,
    StepFailed,
    SyncWorkflow,
    Transaction,
    Workflow,
    WorkflowFailed,
    WorkflowType,
    current_step,
    failpoints,
)
from holdfast.shapes.workflows.bodies import threads
from holdfast.shapes.workflows.handover import Handover, settled
from holdfast.testing import Kit

begun = threading.Event()
go_on = threading.Event()
HOLDS = "SELECT FROM pg_locks WHERE relation = 'public.reserved'::regclass"


def reserve(tx: Transaction, n: int) -> tuple[int, str]:
    tx.execute("INSERT INTO public.reserved (n) VALUES (%s)", [n])
    return n, current_step().idempotency_key


def refuse(tx: Transaction, n: int) -> None:
    tx.execute("INSERT INTO public.reserved (n) VALUES (%s)", [n])
    raise NonRetryable("none left")


def broken(tx: Transaction) -> None:
    tx.execute("INSERT INTO public.reserved (n) VALUES ('no number')")


def slow(tx: Transaction, n: int) -> int:
    tx.execute("INSERT INTO public.reserved (n) VALUES (%s)", [n])
    begun.set()
    assert go_on.wait(60)
    return n


@pytest.fixture
def kit(kit: Kit) -> Kit:
    kit.sql("CREATE TABLE public.reserved (n int)")
    begun.clear()
    go_on.clear()
    return kit


def rows(kit: Kit) -> list[int]:
    return [row["n"] for row in kit.sql("SELECT n FROM public.reserved ORDER BY n")]


def declared(app: Holdfast, kit: Kit) -> WorkflowType[[int], list[object]]:
    @app.workflow(sticky=0.05)
    def orders(wf: SyncWorkflow, n: int) -> list[object]:
        found: list[object] = [wf.transact(reserve, n)]
        try:
            wf.transact(refuse, n + 1)
        except StepFailed as error:
            found.append(str(error))
        wf.sleep(3600)
        return [*found, wf.transact(reserve, n=n + 2)]

    kit.create_queues()
    return orders


def test_writes_and_record_of_a_plain_transaction_commit_together(app: Holdfast, kit: Kit) -> None:
    run = declared(app, kit).start(1)
    key = str(run.run_id)
    assert kit.workflows.run(run) == [
        [1, f"{key}:reserve"],
        "refuse failed after 1 attempt: NonRetryable: none left",
        [3, f"{key}:reserve#2"],
    ]
    assert rows(kit) == [1, 3], "what raised left nothing"
    assert [e.key for e in run.timeline() if e.kind == "transaction"] == ["reserve", "refuse", "reserve#2"]


def test_its_owner_is_lost_around_the_commit_and_it_is_made_once(app: Holdfast, kit: Kit) -> None:
    orders = declared(app, kit)

    def effects(_: Run[list[object]]) -> int:
        return len(kit.sql("DELETE FROM public.reserved RETURNING n"))

    report = kit.workflows.crash_everywhere(
        lambda: orders.start(1), effects=effects, points=["transact.done", "settle.before"]
    )
    assert {found[1] for found in report.outcomes.values()} == {2}  # type: ignore[index]
    assert {"transact.done#1", "transact.done#2"} <= set(report.boundaries)
    assert report.repeats["reserve"] == report.repeats["reserve#2"] == 1


def test_an_error_of_the_database_is_the_steps_own_failure(app: Holdfast, kit: Kit) -> None:
    @app.workflow(sticky=0.05)
    def fails(wf: SyncWorkflow) -> None:
        wf.transact(broken)

    kit.create_queues()
    with pytest.raises(WorkflowFailed, match="broken failed after 5 attempts: InvalidTextRepresentation"):
        kit.workflows.run(fails.start())
    assert rows(kit) == []


async def test_a_transaction_that_nobody_waits_for_any_more_does_not_commit(
    app: Holdfast, kit: Kit, akit: Kit
) -> None:
    @app.workflow(sticky=0.05)
    def waits(wf: SyncWorkflow, n: int) -> int:
        return wf.transact(slow, n)

    kit.create_queues()
    run = await waits.astart(7)

    def before_the_record() -> None:
        """The caller has left, and not recorded that yet: now the function returns, and its transaction ends."""
        go_on.set()
        wait_until(lambda: not kit.sql(HOLDS), "its transaction has ended")

    async with working(akit):
        await await_until(begun.is_set, "its function has begun")
        failpoints.arm("record.before", before_the_record)
        assert await run.acancel("enough")
        await await_until(lambda: run.state()[0] == "cancelled", "the run ends")
    assert go_on.is_set()
    assert rows(kit) == []
    assert [(e.key, e.outcome) for e in await run.atimeline()] == [("slow", "cancelled")]


async def test_a_commit_under_way_is_waited_for() -> None:
    handover, commits = Handover(), threading.Event()

    def commit() -> str:
        assert handover.commits()
        commits.set()
        assert go_on.wait(60)
        return "committed"

    go_on.clear()
    task = asyncio.create_task(settled(asyncio.create_task(threads.run(commit)), handover))
    await await_until(commits.is_set, "it commits")
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    assert await task == "committed"
    left = Handover()
    assert left.leaves()
    assert not left.commits()


async def areserve(tx: AsyncTransaction, n: int) -> int:
    await tx.execute("INSERT INTO public.reserved (n) VALUES (%s)", [n])
    return n


def test_a_time_that_is_over_while_it_commits_changes_nothing(app: Holdfast, kit: Kit) -> None:
    """The loop stands still before the commit, so the timeout of the step comes while it is under way."""

    @app.workflow(sticky=0.05)
    async def late(wf: Workflow) -> int:
        return await wf.using(timeout=1.5, max_attempts=1).transact(areserve, 1)

    kit.create_queues()
    failpoints.arm("transaction.commit", lambda: time.sleep(2))
    run = late.start()
    assert kit.workflows.run(run) == 1
    assert rows(kit) == [1]
    assert [(e.key, e.outcome) for e in run.timeline()] == [("areserve", "done")]


def test_an_async_function_is_refused_in_words(app: Holdfast, kit: Kit) -> None:
    async def wrong(tx: Transaction) -> None: ...

    @app.workflow(sticky=0.05)
    def asks(wf: SyncWorkflow) -> None:
        wf.transact(wrong)  # type: ignore[unused-coroutine]

    kit.create_queues()
    with pytest.raises(
        WorkflowFailed, match=r"takes a plain function, and .*wrong.* is async\. Write def wrong"
    ):
        kit.workflows.run(asks.start())
