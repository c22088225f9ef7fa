"""Heartbeats of steps: shown while the step is at work, and the end of one whose run is lost or cancelled."""

import asyncio
import threading
from typing import Any

from tests.conftest import await_until
from tests.workflows.memory_journal import MemoryJournal, Store, code_of, run
from tests.workflows.test_workflow_worker import working
from typer.testing import CliRunner

from holdfast import Backoff, Holdfast, Workflow, WorkflowCancelled, current_step
from holdfast.cli import app as cli
from holdfast.model.outcome import Cancelled, Completed, Released
from holdfast.shapes.workflows.bodies import StepInfo
from holdfast.shapes.workflows.drive import drive
from holdfast.testing import Kit

seen: list[str] = []


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("unprintable")


async def test_a_heartbeat_takes_any_detail_and_never_fails_the_step() -> None:
    details: list[Any] = [None, "page 1", {"done": 3}, Odd(), "\x00x\ud800", float("nan"), "y" * 9000]

    async def works() -> int:
        for detail in details:
            current_step().heartbeat(detail)
        return len(details)

    async def flow(wf: Workflow) -> int:
        return await wf.step(works)

    store = Store()
    assert isinstance(await run(flow, store), Completed)
    texts = [text for _, text in store.beats]
    assert texts[:4] == ["", "page 1", '{"done": 3}', "(a detail of type Odd that has no JSON form)"]
    assert "\x00" not in str(texts[4])
    assert texts[5] == "NaN"
    assert len(texts[6] or "") <= 512
    assert texts[-1] is None, "it is at work no longer"
    StepInfo("k", 1, "f").heartbeat("nobody hears")


async def test_a_heartbeat_of_a_run_that_was_lost_ends_the_step_and_nothing_is_recorded() -> None:
    store = Store()

    def works() -> None:
        store.lost = True
        try:
            current_step().heartbeat(1)
        except Exception:
            seen.append("caught")

    async def flow(wf: Workflow) -> None:
        await wf.step(works)

    seen.clear()
    assert isinstance(await run(flow, store), Released)
    assert (store.rows, seen) == ([], [])


async def test_a_heartbeat_ends_a_plain_step_that_has_timed_out() -> None:
    """Its thread goes on beside the next attempt, and says nothing of the step any more."""
    go, left = threading.Event(), threading.Event()

    def works() -> str:
        if current_step().attempt > 1:
            return "second"
        go.wait(60)
        try:
            current_step().heartbeat("first")
        finally:
            left.set()
        return "first"

    async def flow(wf: Workflow) -> str:
        quick = wf.using(timeout=0.05, max_attempts=100, retry=Backoff(first=0.001, cap=0.001))
        said = await quick.step(works)
        go.set()
        await wf.step(leaves)
        return said

    async def leaves() -> None:
        await await_until(left.is_set, "the first attempt has ended")

    store = Store()
    outcome = await run(flow, store, verify=False)
    assert isinstance(outcome, Completed)
    assert outcome.result == '"second"'
    assert "first" not in [text for _, text in store.beats]


async def test_a_heartbeat_ends_a_plain_step_of_a_cancelled_run_but_no_compensation() -> None:
    store = Store()
    journal = MemoryJournal(store)
    loop = asyncio.get_running_loop()
    left = threading.Event()

    def works() -> None:
        loop.call_soon_threadsafe(journal.cancelled.set)
        try:
            while True:
                current_step().heartbeat("on and on")
        except WorkflowCancelled:
            left.set()
            raise

    async def undo() -> None:
        current_step().heartbeat("undoing")
        seen.append("undone")

    async def flow(wf: Workflow) -> None:
        wf.on_failure(undo)
        await wf.step(works)

    seen.clear()
    outcome = await drive(code_of(flow), journal, {}, verify=False)
    assert isinstance(outcome, Cancelled), outcome
    await await_until(left.is_set, "the thread has left")
    assert seen == ["undone"]
    outcomes = [(row.record.kind, row.record.outcome) for row in store.rows]
    assert outcomes == [("compensation", "done"), ("step", "cancelled"), ("compensation", "done")]


async def test_what_a_step_says_is_shown_while_it_is_at_work(app: Holdfast, akit: Kit) -> None:
    go_on = threading.Event()

    def pages() -> int:
        current_step().heartbeat("page 3 of 10")
        assert go_on.wait(60)
        return 10

    @app.workflow(sticky=0.05)
    async def book(wf: Workflow) -> int:
        count = await wf.step(pages)
        await wf.sleep(3600)
        return count

    akit.create_queues()

    def show(run_id: str) -> str:
        found = CliRunner().invoke(cli, ["workflow", "show", run_id, "-d", akit.url])
        assert found.exit_code == 0, found.output
        return found.output

    run = await book.using(id="b1").astart()
    async with working(akit):
        text = "at work:   test_what_a_step_says_is_shown_while_it_is_at_work.<locals>.pages: page 3 of 10 ("
        await await_until(lambda: text in show("b1"), "it is shown")
        go_on.set()
        await await_until(lambda: run.state()[0] == "suspended", "it sleeps")
        assert "at work" not in show("b1")
        assert await run.acancel()
        await await_until(lambda: run.state()[0] == "cancelled", "it has ended")
    assert akit.sql("SELECT FROM holdfast.progress") == []
