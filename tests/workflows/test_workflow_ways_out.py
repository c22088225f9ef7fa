"""Ways by which code leaves its function, other than by returning or by an ordinary error: what it did is undone."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest
from tests.workflows.memory_journal import MemoryJournal, Store, code_of, run, run_on

from holdfast import Cancel, DeadLetter, Retry, Snooze
from holdfast.model.outcome import Cancelled, Completed, DeadLettered
from holdfast.shapes.workflows.drive import drive
from holdfast.shapes.workflows.faults import Evicted, UnscopedTask
from holdfast.shapes.workflows.messages import Signal
from holdfast.shapes.workflows.workflow import Workflow

GO = Signal("go", str)
ran: list[str] = []


class Panic(BaseException):
    """As a library may have one, so that `except Exception` lets it pass."""


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def say(word: str) -> str:
    ran.append(word)
    return word


async def undo(word: str) -> None:
    ran.append(f"undo {word}")


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (lambda: DeadLetter("hopeless"), "DeadLetter", "hopeless"),
        (
            lambda: Retry("again"),
            "Retry",
            "a workflow cannot raise Retry: only its steps are tried again. again",
        ),
        (lambda: Snooze(5), "Snooze", "a workflow cannot raise Snooze. Write wf.sleep()"),
        (asyncio.CancelledError, "CancelledError", ""),
        (lambda: Panic("broken"), "Panic", "broken"),
        (GeneratorExit, "GeneratorExit", ""),
        (lambda: Evicted("of another run"), "Evicted", "of another run"),
    ],
    ids=["dead letter", "retry", "snooze", "cancelled", "base", "generator", "evicted"],
)
async def test_what_a_workflow_raises_ends_it_and_it_is_undone(
    raised: Callable[[], BaseException], kind: str, message: str
) -> None:
    async def flow(wf: Workflow) -> None:
        wf.on_failure(undo, "it")
        await wf.step(say, "it")
        raise raised()

    store = Store()
    ended = await run(flow, store)
    assert isinstance(ended, DeadLettered), ended
    assert (ended.error.kind, ended.error.message) == (kind, message)
    assert ran == ["it", "undo it"]
    assert store.written()[-2:] == ["say", "undo/undo"], "its last record is there"


async def test_code_that_is_thrown_away_unfinished_undoes_nothing() -> None:
    """Its coroutine is closed, as the interpreter does it with one that nobody refers to any more."""
    held: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def flow(wf: Workflow) -> None:
        wf.on_failure(undo, "it")
        await wf.step(say, "it")
        held.set_result(asyncio.current_task())
        await asyncio.Event().wait()

    driving = asyncio.create_task(drive(code_of(flow), MemoryJournal(Store()), {}))
    task = await held
    task.get_coro().close()
    task.cancel()
    with contextlib.suppress(BaseException):
        await driving
    assert ran == ["it"]


async def test_a_workflow_that_raises_cancel_is_cancelled_and_undone() -> None:
    async def flow(wf: Workflow) -> None:
        wf.on_failure(undo, "it")
        await wf.step(say, "it")
        raise Cancel("not wanted")

    assert await run(flow) == Cancelled("not wanted")
    assert ran == ["it", "undo it"]


async def test_a_branch_that_cancels_itself_fails_its_run() -> None:
    async def branch(wf: Workflow) -> None:
        wf.on_failure(undo, "it")
        await wf.step(say, "it")
        raise asyncio.CancelledError

    async def flow(wf: Workflow) -> None:
        await wf.gather(branch(wf), wf.step(say, "other"))

    ended = await run(flow)
    assert isinstance(ended, DeadLettered), ended
    assert ran[-1] == "undo it"


class Resting(MemoryJournal):
    """Waits stay in memory."""

    async def changed(self, until: datetime | None, *, resting: bool) -> bool:
        await asyncio.Event().wait()
        return False


async def slow() -> None:
    await asyncio.Event().wait()


async def slow_in(wf: Workflow) -> None:
    await wf.step(slow)


CALLS: dict[str, Callable[[Workflow], Awaitable[Any]]] = {
    "step": lambda wf: wf.step(slow),
    "sleep": lambda wf: wf.sleep(1.5),  # it stays in memory
    "signal": lambda wf: wf.signal(GO),
    "gather": lambda wf: wf.gather(wf.step(slow), wf.step(say, "x")),
    "first": lambda wf: wf.first(wf.step(slow), wf.branch("b", slow_in, wf)),
    "branch": lambda wf: wf.branch("b", slow_in, wf),
}


@pytest.mark.parametrize("where", CALLS)
async def test_a_limit_of_asyncio_around_a_call_is_refused(where: str) -> None:
    """Whether it is over in time is nothing that a replay could know."""

    async def flow(wf: Workflow) -> str:
        wf.on_failure(undo, "it")
        try:
            async with asyncio.timeout(0.02):
                await CALLS[where](wf)
        except TimeoutError:
            return await wf.step(say, "late")
        return "in time"

    ended = await drive(code_of(flow), Resting(Store()), {}, verify=False)
    assert isinstance(ended, DeadLettered), ended
    assert ended.error.kind == UnscopedTask.__name__
    assert "wf.using(timeout=...)" in ended.error.message
    assert ran[-1] == "undo it"
    assert "late" not in ran


async def test_code_that_makes_no_further_call_fails_too() -> None:
    async def flow(wf: Workflow) -> str:
        try:
            async with asyncio.timeout(0.01):
                await wf.step(slow)
        except TimeoutError:
            return "late"
        return "in time"

    ended = await run(flow)
    assert isinstance(ended, DeadLettered), ended
    assert ended.error.kind == UnscopedTask.__name__


async def test_a_loop_that_ends_undoes_nothing() -> None:
    begun = asyncio.Event()

    async def slow() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def flow(wf: Workflow) -> None:
        wf.on_failure(undo, "it")
        try:
            await wf.step(slow)
        except Exception:
            ran.append("caught")
            raise

    store = Store()
    before = asyncio.all_tasks()
    task = asyncio.create_task(drive(code_of(flow), MemoryJournal(store), {}, verify=False))
    await begun.wait()
    for one in asyncio.all_tasks() - before - {task}:
        one.cancel()  # the run's own come first
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (ran, store.rows) == ([], [])


async def test_branches_that_lose_or_are_evicted_are_cancelled_as_ever() -> None:
    seen: list[str] = []

    async def slow(wf: Workflow) -> str:
        try:
            await wf.gather(wf.sleep(86400), wf.signal(GO))
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "slow"

    async def flow(wf: Workflow) -> str:
        _, word = await wf.first(slow(wf), wf.step(say, "quick"))
        return word

    ended = await run_on(flow, Store())
    assert isinstance(ended, Completed), ended
    assert json.loads(ended.result or "") == "quick"
    assert seen == ["cancelled"]
