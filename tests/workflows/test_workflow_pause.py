"""A pause reaches a run that is at work: what is under way ends, and nothing else begins."""

import asyncio

import pytest
from tests.conftest import await_until
from tests.flow.test_run import working

from holdfast import Holdfast, Run, SyncWorkflow, Workflow, WorkflowFailed
from holdfast.shapes.workflows.database_journal import DatabaseJournal
from holdfast.shapes.workflows.recorder import recorder_of
from holdfast.shapes.workflows.verbs import WorkflowVerbs
from holdfast.testing import Kit


class Bench:
    """Bodies that end when they are let."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.may_end = asyncio.Event()

    async def body(self, word: str) -> str:
        self.began.append(word)
        await self.may_end.wait()
        return word


@pytest.fixture
def bench(app: Holdfast) -> Bench:
    return Bench()


async def paused(akit: Kit, run: "Run[list[str]]") -> None:
    """It is asked to pause, and its journal has heard of it."""
    assert (await WorkflowVerbs(akit.database, "ann").pause.arun(run.id)).changed
    watched = recorder_of(akit.database)._watched

    def heard() -> bool:
        journal = watched.get(str(run.run_id))
        return isinstance(journal, DatabaseJournal) and journal.paused

    await await_until(heard, "the worker has heard of the pause")


def put_away(akit: Kit, run: "Run[list[str]]") -> bool:
    (row,) = akit.sql(
        "SELECT status, available_at >= '9999-01-01Z' AS never FROM holdfast.work WHERE id = %s", [run.run_id]
    )
    return bool(row["status"] == "pending" and row["never"])


async def test_what_is_under_way_ends_and_nothing_else_begins(app: Holdfast, akit: Kit, bench: Bench) -> None:
    @app.workflow()
    async def order(wf: Workflow) -> list[str]:
        async def line(name: str) -> list[str]:
            return [await wf.using(name=f"{name}{n}").step(bench.body, f"{name}{n}") for n in range(3)]

        left, right = await wf.gather(line("a"), line("b"))
        return [*left, *right]

    akit.create_queues()
    verbs = WorkflowVerbs(akit.database, "ann")
    async with working(akit):
        run = await order.astart()
        await await_until(lambda: bench.began == ["a0", "b0"], "both branches are at work")
        await paused(akit, run)
        bench.may_end.set()
        await await_until(lambda: put_away(akit, run), "the run is put away")
        assert bench.began == ["a0", "b0"]
        assert [entry.key for entry in await run.atimeline()] == ["g1.0/a0", "g1.1/b0"], (
            "what ran is recorded"
        )
        assert (await run.astate())[0] == "paused"
        assert (await verbs.resume.arun(run.id)).changed
        assert await run.aresult(timeout=30) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert sorted(bench.began) == ["a0", "a1", "a2", "b0", "b1", "b2"]


async def test_a_pause_that_ends_while_a_step_is_under_way_keeps_nothing_back(
    app: Holdfast, akit: Kit, bench: Bench
) -> None:
    other = Bench()

    @app.workflow(sticky=0.1)
    async def order(wf: Workflow) -> list[str]:
        async def line() -> str:
            await wf.using(name="first").step(other.body, "first")
            return await wf.using(name="second").step(other.body, "second")

        return list(await wf.gather(wf.using(name="slow").step(bench.body, "slow"), line()))

    akit.create_queues()
    async with working(akit):
        run = await order.astart()
        await await_until(lambda: bench.began and other.began, "both are at work")
        await paused(akit, run)
        other.may_end.set()
        await await_until(
            lambda: akit.sql("SELECT key FROM holdfast.workflow_steps") == [{"key": "g1.1/first"}],
            "the next step is kept back",
        )
        assert (await WorkflowVerbs(akit.database, "ann").resume.arun(run.id)).changed
        bench.may_end.set()
        assert await run.aresult(timeout=30) == ["slow", "second"]


async def test_a_cancel_goes_before_a_pause(app: Holdfast, akit: Kit, bench: Bench) -> None:
    @app.workflow()
    async def order(wf: Workflow) -> list[str]:
        return [await wf.using(name=f"s{n}").step(bench.body, f"s{n}") for n in range(3)]

    akit.create_queues()
    async with working(akit):
        run = await order.astart()
        await await_until(lambda: bench.began == ["s0"], "it is at work")
        await paused(akit, run)
        bench.may_end.set()
        await await_until(lambda: put_away(akit, run), "the run is put away")
        await run.acancel("enough")
        with pytest.raises(WorkflowFailed):
            await run.aresult(timeout=30)
    assert bench.began == ["s0"]


async def test_a_plain_function_is_paused_too(app: Holdfast, akit: Kit) -> None:
    began: list[str] = []
    loop = asyncio.get_running_loop()
    may_end = asyncio.Event()

    @app.workflow()
    def order(wf: SyncWorkflow) -> list[str]:
        def body(word: str) -> str:
            began.append(word)
            asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result(30)
            return word

        return [wf.step(body, f"s{n}") for n in range(3)]

    akit.create_queues()
    async with working(akit):
        run = await order.astart()
        await await_until(lambda: began == ["s0"], "it is at work")
        await paused(akit, run)
        may_end.set()
        await await_until(lambda: put_away(akit, run), "the run is put away")
        assert began == ["s0"]
        assert (await WorkflowVerbs(akit.database, "ann").resume.arun(run.id)).changed
        assert await run.aresult(timeout=30) == ["s0", "s1", "s2"]


async def test_a_paused_run_that_is_taken_up_again_makes_no_call(app: Holdfast, akit: Kit) -> None:
    """Its owner was lost, or a worker has its version again. What was asked for before the claim is known with it."""
    began: list[str] = []

    async def body(word: str) -> str:
        began.append(word)
        return word

    @app.workflow(sticky=0.05)
    async def order(wf: Workflow) -> list[str]:
        first = await wf.step(body, "first")
        await wf.sleep(3600)
        return [first, await wf.step(body, "second")]

    akit.create_queues()
    run = await order.astart()
    await akit.arun_worker()
    akit.clock.advance(7200)
    assert (await WorkflowVerbs(akit.database, "ann").pause.arun(run.id)).changed
    akit.sql("UPDATE holdfast.work SET available_at = now() - interval '1 hour' WHERE id = %s", [run.run_id])
    await akit.arun_worker()
    assert put_away(akit, run)
    assert began == ["first"]
    assert (await WorkflowVerbs(akit.database, "ann").resume.arun(run.id)).changed
    await akit.arun_worker()
    assert await run.aresult(timeout=25) == ["first", "second"]
