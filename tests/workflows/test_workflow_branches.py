"""Branches beside each other: a cancel reaches each of them, and what they did is undone after a replay as it was before."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from tests.workflows.memory_journal import MemoryJournal, Store, code_of, run

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


# What branches did is undone


def undone() -> list[str]:
    return [word for word in ran if word.startswith("undo")]


async def test_what_a_branch_did_that_lost_is_undone_also_after_a_replay() -> None:
    async def slow(wf: Workflow) -> str:
        wf.on_failure(undo, "slow")
        await wf.step(say, "slow")
        await wf.gather(inner(wf), wf.branch("named", inner, wf))
        wf.set_state("slow")
        await wf.sleep(86400)
        wf.on_failure(undo, "never")
        return await wf.step(say, "never")

    async def inner(wf: Workflow) -> None:
        wf.on_failure(undo, "inner")
        await wf.step(say, "inner")

    async def quick(wf: Workflow) -> str:
        wf.on_failure(undo, "quick")
        return await wf.signal(GO)

    async def flow(wf: Workflow) -> str:
        winner, _ = await wf.first(slow(wf), quick(wf))
        wf.set_state("won")
        assert winner == 1
        await wf.sleep(60)
        raise KeyError("oops")

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    store.signals.append(("go", "now"))
    assert isinstance(await run(flow, store), Suspended)
    assert ran == ["slow", "inner", "inner"]
    store.clock += timedelta(seconds=61)
    assert isinstance(await run(flow, store), DeadLettered)
    assert undone() == ["undo inner", "undo inner", "undo quick", "undo slow"]
    assert store.shown == '"won"'


@pytest.mark.parametrize("edit", [False, True])
async def test_a_branch_that_lost_does_nothing_but_say_what_it_had_pushed(edit: bool) -> None:
    """It ends where its records end, also where the code was edited since."""
    edited = False

    async def slow(wf: Workflow) -> None:
        wf.on_failure(undo, "slow")
        if edited:
            wf.on_failure(undo, "new")
            await wf.step(say, "new")
        await wf.step(say, "slow")
        await wf.first(wf.sleep(86400), wf.sleep(86401))
        wf.on_failure(undo, "never")

    async def quick(wf: Workflow) -> None:
        await wf.signal(GO)

    async def flow(wf: Workflow) -> None:
        await wf.first(slow(wf), quick(wf))
        await wf.sleep(60)
        raise KeyError("oops")

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    store.signals.append(("go", "now"))
    assert isinstance(await run(flow, store), Suspended)
    edited = edit
    store.clock += timedelta(seconds=61)
    assert isinstance(await run(flow, store), DeadLettered)
    assert ran == ["slow", "undo slow"]


async def test_compensations_of_branches_run_last_first_also_after_a_replay() -> None:
    async def late(wf: Workflow) -> None:
        await wf.sleep(60)
        wf.on_failure(undo, "late")
        await wf.step(say, "late")

    async def early(wf: Workflow) -> None:
        wf.on_failure(undo, "early")
        await wf.step(say, "early")

    async def flow(wf: Workflow) -> None:
        await wf.gather(late(wf), early(wf))
        await wf.sleep(60)
        raise KeyError("oops")

    store = Store()
    for _ in range(2):
        assert isinstance(await run(flow, store), Suspended)
        store.clock += timedelta(seconds=61)
    assert isinstance(await run(flow, store), DeadLettered)
    assert undone() == ["undo late", "undo early"]


async def test_a_compensation_that_a_lost_branch_left_is_made_by_the_run() -> None:
    begun = asyncio.Event()

    async def stuck() -> None:
        ran.append("undo begun")
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()

    async def undoes(wf: Workflow) -> None:
        wf.on_failure(stuck)
        await wf.step(say, "one")
        await wf.compensate()

    async def quick() -> None:
        await begun.wait()

    async def flow(wf: Workflow) -> None:
        await wf.first(undoes(wf), wf.step(quick))
        raise KeyError("oops")

    assert isinstance(await run(flow), DeadLettered)
    assert undone() == ["undo begun", "undo begun"]


async def test_a_branch_cannot_have_the_name_of_one_that_has_none() -> None:
    async def flow(wf: Workflow) -> None:
        await wf.branch("g1.0", say, "x")

    ended = await run(flow)
    assert isinstance(ended, DeadLettered)
    assert ended.error.message == ("a branch cannot be called 'g1.0': that name is our own. Take another")


async def test_a_branch_is_begun_once() -> None:
    """Twice beside itself its steps would take their keys in no order."""

    async def flow(wf: Workflow) -> None:
        branch = wf.branch("pay", say, "x")
        with pytest.raises(TypeError, match=r"this branch was begun before: .* Call wf\.branch\(\) again"):
            await wf.gather(branch, branch)

    assert isinstance(await run(flow), Completed)


async def test_nobody_asks_for_the_records_of_a_branch_that_lost() -> None:
    seen: list[bool] = []

    async def slow(wf: Workflow) -> None:
        await wf.gather(wf.step(say, "slow"), wf.branch("inner", say_in, wf))
        await wf.sleep(86400)

    async def say_in(wf: Workflow) -> str:
        return await wf.step(say, "inner")

    async def quick(wf: Workflow) -> None:
        await wf.sleep(60)

    async def flow(wf: Workflow) -> None:
        await wf.first(slow(wf), quick(wf))
        seen.append(wf.replaying)
        await wf.sleep(60)
        seen.append(wf.replaying)

    store = Store()
    for _ in range(2):
        assert isinstance(await run(flow, store), Suspended)
        store.clock += timedelta(seconds=61)
    assert isinstance(await run(flow, store, verify=False), Completed)
    assert seen == [False, False, False]
