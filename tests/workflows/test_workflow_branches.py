"""Branches beside each other: a cancel reaches each of them, and what they did is undone after a replay as it was before."""

import asyncio
import json
from typing import Any

import pytest
from tests.workflows.memory_journal import MemoryJournal, Store, code_of, run, run_on

from holdfast.errors import InvalidOption
from holdfast.model.outcome import Cancelled, Completed, DeadLettered, Suspended
from holdfast.shapes.workflows.drive import drive
from holdfast.shapes.workflows.faults import WorkflowCancelled
from holdfast.shapes.workflows.messages import Signal
from holdfast.shapes.workflows.workflow import Workflow

GO = Signal("go", str)
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def say(word: str) -> str:
    ran.append(word)
    return word


async def undo(word: str) -> None:
    ran.append(f"undo {word}")


def result(outcome: object) -> Any:
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result or "null")


# A cancel


async def test_a_cancel_that_one_branch_was_told_of_is_raised_in_the_others_too() -> None:
    """Theirs is the next call, however long after: here a step that is shielded ends first."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def charge() -> str:
        begun.set()
        await go.wait()
        return "charged"

    async def waits(wf: Workflow) -> str:
        return await wf.signal(GO)

    async def charges(wf: Workflow) -> str:
        charged = await wf.using(on_cancel="shield").step(charge)
        await wf.sleep(86400)
        return charged

    async def flow(wf: Workflow) -> list[str]:
        return list(await wf.gather(waits(wf), charges(wf)))

    store = Store()
    journal = MemoryJournal(store)
    task = asyncio.create_task(drive(code_of(flow), journal, {}, verify=False))
    await begun.wait()
    store.cancel = True
    journal.cancelled.set()
    for _ in range(50):
        await asyncio.sleep(0)
    go.set()
    assert await task == Cancelled("the run was cancelled")
    assert [row.record.outcome for row in store.rows] == ["cancelled", "done", "cancelled"]
    assert await run(flow, store) == Cancelled("the run was cancelled")


async def test_a_cancel_that_a_branch_caught_is_not_raised_again_behind_it() -> None:
    async def waits(wf: Workflow) -> str:
        try:
            return await wf.signal(GO)
        except WorkflowCancelled:
            (said,) = await wf.gather(wf.step(say, "cleaned"))  # nor in branches of its own
            return said

    async def flow(wf: Workflow) -> list[str]:
        found = await wf.gather(waits(wf), waits(wf))
        return [*found, await wf.step(say, "last")]

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    store.cancel = True
    assert result(await run(flow, store)) == ["cleaned", "cleaned", "last"]
    assert result(await run(flow, store)) == ["cleaned", "cleaned", "last"]
