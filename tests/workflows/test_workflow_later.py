"""Records that the code does not wait for: durable before anything else begins, or written with the end of the run."""

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from tests.conftest import await_until
from tests.workflows.memory_journal import MemoryJournal, Store, code_of, run

from holdfast import Backoff, Holdfast, failpoints
from holdfast.model.job import Grant
from holdfast.model.outcome import Completed, DeadLettered, Ended, Held, Outcome, Released
from holdfast.model.state import COMPLETED
from holdfast.shapes.workflows.drive import drive
from holdfast.shapes.workflows.ends import end_runs
from holdfast.shapes.workflows.journal import Record
from holdfast.shapes.workflows.outgoing import NewEvent
from holdfast.shapes.workflows.workflow import Workflow
from holdfast.testing import Kit

story: list[str] = []


@pytest.fixture(autouse=True)
def _empty() -> None:
    story.clear()


async def say(word: str) -> str:
    story.append(f"body {word}")
    return word.upper()


class Telling(MemoryJournal):
    """Tells what is written, once it is."""

    async def record(
        self, rows: Sequence[Record], *, state: str | None = None, events: Sequence[NewEvent] = ()
    ) -> datetime:
        await asyncio.sleep(0.01)
        at = await super().record(rows, state=state, events=events)
        story.append(f"wrote {' '.join(row.key for row in rows)}")
        return at

    def record_at_end(self, rows: Sequence[Record]) -> None:
        super().record_at_end(rows)
        story.append(f"end {' '.join(row.key for row in rows)}")


async def told(fn: Any, store: Store | None = None) -> Outcome:
    return await drive(code_of(fn), Telling(store or Store()), {}, verify=False)


async def test_the_last_record_goes_with_the_end_and_each_other_before_the_next_body() -> None:
    async def flow(wf: Workflow) -> str:
        return await wf.step(say, "a") + await wf.step(say, "b")

    assert await told(flow) == Completed('"AB"')
    assert story == ["body a", "wrote say", "body b", "end say#2"]


async def test_branches_begin_after_the_record_before_them() -> None:
    async def flow(wf: Workflow) -> None:
        await wf.step(say, "a")
        wf.on_failure(say, "undo")
        await wf.gather(wf.step(say, "b"), wf.step(say, "c"))
        await wf.step(say, "d")

    assert isinstance(await told(flow), Completed)
    assert story[:2] == ["body a", "wrote say saga/say"]
    assert story[-2:] == ["body d", "end say#4"]


async def test_a_compensation_and_a_failed_end_come_after_the_record() -> None:
    async def undone(wf: Workflow) -> None:
        wf.on_failure(say, "undo")
        await wf.step(say, "a")
        raise ValueError("no")

    async def failed(wf: Workflow) -> None:
        await wf.step(say, "a")
        raise ValueError("no")

    assert isinstance(await told(undone), DeadLettered)
    assert story[:3] == ["body a", "wrote saga/say say", "body undo"]
    story.clear()
    assert isinstance(await told(failed), DeadLettered)
    assert story == ["body a", "wrote say"]


async def test_what_is_written_otherwise_at_the_end_takes_the_last_record_along() -> None:
    async def flow(wf: Workflow) -> None:
        await wf.step(say, "a")
        wf.set_state("over")

    store = Store()
    assert isinstance(await told(flow, store), Completed)
    assert (story, store.shown) == (["body a", "wrote say"], '"over"')


async def test_a_large_result_is_durable_before_the_code_goes_on() -> None:
    async def large() -> str:
        return "x" * 5000

    async def flow(wf: Workflow) -> None:
        await wf.step(large)
        story.append("code")

    assert isinstance(await told(flow), Completed)
    assert story[0].startswith("wrote ")
    assert story[1:] == ["code"]


async def test_code_that_does_something_else_after_a_step_does_not_keep_its_record_back() -> None:
    async def flow(wf: Workflow) -> None:
        await wf.step(say, "a")
        await await_until(lambda: store.rows, "its record is there")
        story.append("code")

    store = Store()
    assert isinstance(await told(flow, store), Completed)
    assert story == ["body a", "wrote say", "code"]


async def test_an_owner_that_is_lost_before_the_end_runs_the_last_body_again_and_no_other() -> None:
    async def flow(wf: Workflow) -> list[Any]:
        words = [await wf.step(say, "a"), await wf.step(say, "b")]
        return [*words, wf.now().isoformat()]

    store = Store()
    assert isinstance(await run(flow, store, crash_at=1), Released)
    assert store.written() == ["say"]
    first, second = await run(flow, store), await run(flow, store)
    assert story == ["body a", "body b", "body b"]
    assert first == second, "the time of the last record is the same in a replay"


async def test_a_patch_in_a_branch_goes_the_same_way_after_its_owner_is_lost() -> None:
    """Another branch has recorded something, which a replay asks for later than it asks for the patch."""
    begun = asyncio.Event()

    async def patches(wf: Workflow) -> str:
        await wf.using(name="first").step(say, "first")
        way = "new" if wf.patched("grace") else "old"
        await wf.using(name=way).step(charge, way)
        return way

    async def charge(way: str) -> str:
        story.append(f"body {way}")
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return way

    async def beside(wf: Workflow) -> None:
        await wf.using(name="other").step(say, "other")

    async def flow(wf: Workflow) -> list[Any]:
        return list(await wf.gather(patches(wf), beside(wf)))

    store = Store()
    lost = asyncio.create_task(told(flow, store))
    await begun.wait()  # its body is at work, and not recorded
    lost.cancel()
    await asyncio.wait({lost})
    assert "patch/grace" in store.written()
    ended = await told(flow, store)
    assert isinstance(ended, Completed)
    assert json.loads(ended.result or "")[0] == "new"
    assert "body old" not in story
    assert not isinstance(await run(flow, store), Held)


def test_the_last_records_and_the_end_of_runs_are_one_statement() -> None:
    """In a row with the settle and its commit, so each statement is a round trip of a run that is alone."""
    jobs = [Ended(Grant("workflows", UUID(int=n), 1, UUID(int=9)), Completed("1"), COMPLETED) for n in (1, 2)]
    flow = end_runs(jobs, ['{"rows": []}', "{}"])
    statement = next(flow)
    assert statement.name == "workflow_last"
    with pytest.raises(StopIteration):
        flow.send(2)


async def test_a_run_of_three_steps_is_two_records_and_its_end(akit: Kit, app: Holdfast) -> None:
    @app.workflow()
    async def three(wf: Workflow) -> list[str]:
        return [await wf.step(say, word) for word in ("a", "b", "c")]

    akit.create_queues()
    written: list[str] = []
    failpoints.arm("record.before", lambda: written.append("record"))
    try:
        handle = await three.astart()
        await akit.arun_worker()
    finally:
        failpoints.disarm("record.before")
    assert await handle.aresult(timeout=25) == ["A", "B", "C"]
    assert written == ["record"] * 2
    assert (
        akit.sql("SELECT key FROM holdfast.workflow_steps") == []
    )  # the last one was folded with the others
    entries = await handle.atimeline()
    assert [(entry.key, entry.outcome) for entry in entries] == [
        ("say", "done"),
        ("say#2", "done"),
        ("say#3", "done"),
    ]
    assert entries[0].ended_at <= entries[1].ended_at <= entries[2].ended_at  # type: ignore[operator]


async def test_a_step_that_was_tried_again_after_a_rest_ends_as_the_last_record(
    akit: Kit, app: Holdfast
) -> None:
    """Its row is there already, as one that is tried again: it is not left so."""
    tries: list[int] = []

    async def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("first try")
        return "fine"

    @app.workflow()
    async def one(wf: Workflow) -> str:
        return await wf.using(retry=Backoff(first=30.0, cap=30.0)).step(flaky)

    akit.create_queues()
    handle = await one.astart()
    await akit.arun_worker()
    akit.clock.advance(600)
    await akit.arun_worker()
    assert await handle.aresult(timeout=25) == "fine"
    (entry,) = await handle.atimeline()
    assert (entry.outcome, entry.attempts) == ("done", 2)
