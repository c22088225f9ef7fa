"""`using(on_cancel="shield")`: a step that is under way when its run is cancelled ends by itself."""

import asyncio
import json
from typing import Any

import pytest
from tests.workflows.memory_journal import MemoryJournal, Store, code_of, run

from holdfast import Backoff, Registry
from holdfast.errors import InvalidOption
from holdfast.model.outcome import Cancelled, Completed
from holdfast.shapes.workflows.bodies import current_step
from holdfast.shapes.workflows.drive import drive
from holdfast.shapes.workflows.workflow import Workflow

ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def say(word: str) -> str:
    ran.append(word)
    return word.upper()


def result(outcome: object) -> Any:
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result or "null")


async def test_a_cancel_lets_a_shielded_step_end_and_is_raised_at_the_next_call() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def charge() -> str:
        begun.set()
        await go.wait()
        current_step().heartbeat("nearly there")  # it is not told to end
        return "charged"

    async def undo(what: str) -> None:
        ran.append(f"undo {what}")

    async def flow(wf: Workflow) -> str:
        charged = await wf.using(on_cancel="shield", timeout=60).step(charge)
        wf.on_failure(undo, charged)
        return await wf.step(say, "never")

    store = Store()
    journal = MemoryJournal(store)
    task = asyncio.create_task(drive(code_of(flow), journal, {}, verify=False))
    await begun.wait()
    journal.cancelled.set()
    for _ in range(50):
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    assert await task == Cancelled("the run was cancelled")
    assert ran == ["undo charged"]
    store.cancel = True
    assert await run(flow, store) == Cancelled("the run was cancelled")
    assert ran == ["undo charged"], "a replay finds all of it"


async def test_a_shielded_step_that_fails_after_a_cancel_is_not_tried_again() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def charge() -> None:
        ran.append("charge")
        begun.set()
        await go.wait()
        raise OSError("down")

    async def flow(wf: Workflow) -> None:
        await wf.using(on_cancel="shield", retry=Backoff(first=0.001)).step(charge)

    store = Store()
    journal = MemoryJournal(store)
    task = asyncio.create_task(drive(code_of(flow), journal, {}, verify=False))
    await begun.wait()
    journal.cancelled.set()
    go.set()
    assert await task == Cancelled("the run was cancelled")
    assert ran == ["charge"]
    assert [row.record.outcome for row in store.rows] == ["cancelled"]


async def test_a_step_is_not_shielded_from_an_eviction() -> None:
    begun = asyncio.Event()

    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def flow(wf: Workflow) -> None:
        await wf.using(on_cancel="shield").step(long)

    task = asyncio.create_task(drive(code_of(flow), MemoryJournal(Store()), {}, verify=False))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_not_in_this_worker_cannot_be_shielded() -> None:
    app = Registry()

    @app.task()
    async def resize(n: int) -> int:
        return n

    @app.workflow(name="shielded_child")
    async def child(wf: Workflow) -> None: ...

    async def flow(wf: Workflow) -> list[str]:
        steps, refused = wf.using(on_cancel="shield"), list[str]()
        for call in (
            lambda: steps.call(resize, 1),
            lambda: steps.map(resize, [1]),
            lambda: steps.start(child),
        ):
            with pytest.raises(InvalidOption) as caught:
                call()
            refused.append(str(caught.value).partition(" cannot")[0])
        return refused

    assert result(await run(flow)) == ["wf.call()", "wf.map()", "wf.start()"]
