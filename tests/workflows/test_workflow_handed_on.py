"""What a branch took that another won against is not lost: the next call that asks for it gets it, once."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.workflows.memory_journal import BEGIN, Crash, MemoryJournal, Store, code_of, run

from holdfast import Holdfast, Signal, StepFailed, Workflow
from holdfast.model.outcome import Completed, Released, Suspended
from holdfast.shapes.workflows.drive import drive
from holdfast.shapes.workflows.handed_on import HandedOn
from holdfast.shapes.workflows.journal import Record, Stored, Wait
from holdfast.shapes.workflows.replay import Replay
from holdfast.testing import Kit

A, B = Signal("a", int), Signal("b", int)


async def taken(wf: Workflow) -> list[Any]:
    """Both are there: one wins, and the other is taken at the same moment."""
    number, first = await wf.first(wf.signal(A), wf.signal(B))
    return [number, first, await wf.signal(B)]


async def received(wf: Workflow) -> list[Any]:
    number, first = await wf.first(wf.signal(A), wf.signal(B), wf.signal(B))
    return [number, first, await wf.received(B), await wf.received(B)]


async def goes_on(wf: Workflow, before: list[Any] | None = None) -> list[Any]:
    if not before:
        wf.continue_as_new(before=list(await wf.first(wf.signal(A), wf.signal(B))))
    return [*before, await wf.signal(B)]


async def times_out(wf: Workflow) -> list[Any]:
    await wf.sleep(1)
    number, _ = await wf.first(wf.sleep(0), wf.signal(B, timeout=5))
    return [number, await wf.signal(B)]


CASES: dict[str, tuple[Callable[..., Awaitable[Any]], list[tuple[str, int]], list[Any]]] = {
    "taken": (taken, [("a", 1), ("b", 2)], [0, 1, 2]),
    "received": (received, [("a", 1), ("b", 2), ("b", 3), ("b", 4)], [0, 1, [2, 3], [4]]),
    "goes on": (goes_on, [("a", 1), ("b", 2)], [0, 1, 2]),
    "times out": (times_out, [("b", 2)], [0, 2]),
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("case", CASES)
async def test_a_signal_that_nobody_has_seen_is_given_to_the_next_call(case: str, after: bool) -> None:
    """Wherever the owner is lost."""
    flow, signals, wanted = CASES[case]
    for cut in range(20):
        store = Store(signals=list(signals))
        journal: MemoryJournal | None = MemoryJournal(store, cut, after=after)
        for _ in range(20):
            arguments = json.loads(store.payload or "{}")
            outcome: object = Released("lost")
            with contextlib.suppress(Crash):
                outcome = await drive(code_of(flow), journal or MemoryJournal(store), arguments, verify=True)
            journal = None
            if isinstance(outcome, Completed):
                break
            assert isinstance(outcome, Released | Suspended), outcome
            if isinstance(outcome, Suspended):
                times = [wait.until for wait in store.waits if wait.until is not None]
                assert times, (cut, store)
                store.clock = max(store.clock, *times)
        assert isinstance(outcome, Completed), (cut, store)
        assert json.loads(outcome.result or "null") == wanted, (cut, store)
        assert not store.signals


async def say(word: str) -> str:
    return word


@pytest.mark.parametrize("turns", range(10))
async def test_a_call_that_waits_already_is_given_it_before_the_run_is_put_away(turns: int) -> None:
    async def flow(wf: Workflow) -> list[Any]:
        async def chooses() -> Any:
            return await wf.first(wf.signal(A), wf.signal(B))

        async def waits() -> int:
            for _ in range(turns):
                await asyncio.sleep(0)
            return await wf.signal(B)

        (number, first), second = await wf.gather(chooses(), waits())
        return [number, first, second]

    outcome = await run(flow, Store(signals=[("a", 1), ("b", 2)]))
    assert isinstance(outcome, Completed)
    assert json.loads(outcome.result or "") == [0, 1, 2]


class SlowReplies(MemoryJournal):
    """What a wait took is known some turns of the loop after it is written."""

    async def decide(self, wait: Wait, rows: Sequence[Record] = ()) -> Stored | None:
        found = await super().decide(wait, rows)
        for _ in range(20 if found else 0):
            await asyncio.sleep(0)
        return found


async def test_what_a_branch_takes_while_it_loses_is_known() -> None:
    async def chooses(wf: Workflow) -> tuple[int, Any]:
        quick: Any = wf.step(say, "quick")
        return await wf.first(quick, wf.signal(B))

    async def flow(wf: Workflow) -> list[Any]:
        return [*(await chooses(wf)), await wf.signal(B)]

    outcome = await drive(code_of(flow), SlowReplies(Store(signals=[("b", 2)])), {}, verify=True)
    assert isinstance(outcome, Completed)
    assert json.loads(outcome.result or "") == [0, "quick", 2]


async def test_a_signal_that_code_has_seen_is_taken() -> None:
    async def sees(wf: Workflow) -> int:
        return await wf.signal(B)

    async def flow(wf: Workflow) -> list[Any]:
        number, _ = await wf.first(wf.signal(A), sees(wf))
        return [number, bool(await wf.signal(B, timeout=0))]

    outcome = await run(flow, Store(signals=[("a", 1), ("b", 2)]))
    assert isinstance(outcome, Completed)
    assert json.loads(outcome.result or "") == [0, False]


def test_the_end_of_a_child_may_be_asked_for_again(app: Holdfast, kit: Kit) -> None:
    """One after the other, and side by side."""

    @app.workflow()
    async def ship(wf: Workflow, cents: int) -> int:
        if not cents:
            raise ValueError("nothing to ship")
        return cents

    @app.workflow()
    async def orders(wf: Workflow) -> list[Any]:
        child, other, bad = [await wf.start(ship, cents) for cents in (5, 6, 0)]
        found = [await child.result(), await child.result()]
        found += await wf.gather(other.result(), other.result())
        for _ in range(2):
            with pytest.raises(StepFailed, match="nothing to ship"):
                await bad.result()
        return found

    kit.create_queues()
    assert kit.workflows.run(orders.start()) == [5, 5, 6, 6]


def test_the_end_of_a_child_that_a_lost_branch_took_is_known(app: Holdfast, kit: Kit) -> None:
    """Also where a replay does not run that branch again."""

    @app.workflow()
    async def ship(wf: Workflow) -> str:
        return "shipped"

    @app.workflow()
    async def order(wf: Workflow) -> list[Any]:
        child = await wf.start(ship)
        await wf.sleep(60)

        async def looks() -> str:
            return await child.result()

        number, _ = await wf.first(wf.sleep(0), looks())
        return [number, await child.result()]

    kit.create_queues()
    report = kit.workflows.crash_everywhere(order.start, points=["decide.done", "record.done"])
    report.assert_same()
    assert report.outcomes[""] == [0, "shipped"]


def test_signals_are_taken_once_wherever_the_owner_is_lost(app: Holdfast, kit: Kit) -> None:
    @app.workflow(sticky=0.05)
    async def chooses(wf: Workflow, era: int = 0) -> list[Any]:
        found = [*await wf.first(wf.signal(A), wf.signal(B)), await wf.signal(B)]
        again = await wf.first(wf.signal(A), wf.signal(B), wf.signal(B))
        if era == 0:
            wf.continue_as_new(1)
        return [*found, *again, await wf.received(B), await wf.received(B)]

    def start() -> Any:
        run = chooses.start()
        for number in range(4):
            assert run.signal(A(number))
            assert run.signal(B(10 * number))
        for number in range(4, 6):
            assert run.signal(B(10 * number))
        return run

    kit.create_queues()
    report = kit.workflows.crash_everywhere(start, points=["decide.done", "era.before"])
    report.assert_same()
    assert report.outcomes[""] == [0, 2, 10, 0, 3, [20, 30], [40, 50]]  # the oldest first


def test_what_is_left_is_named_by_the_record_that_took_it() -> None:
    """A signal may be handed on from one branch that lost to another."""
    rows = [
        Stored(Record("g1.1/b", "signal", "done", 0, '{"value": 1}'), 1, BEGIN),
        Stored(Record("g2.1/b", "signal", "done", 0, '{"value": 1, "from": ["g1.1/b"]}'), 1, BEGIN),
    ]
    handed = HandedOn(Replay(rows))
    for key in ("g1.1/b", "g2.1/b"):
        handed.lose([None, ("b", key)], 0)
    assert handed.left() == ["g1.1/b"]
