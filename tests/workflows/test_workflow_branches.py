"""Branches beside each other: a cancel reaches each of them, and what they did is undone after a replay as it was before."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from tests.workflows.memory_journal import BEGIN, MemoryJournal, Store, code_of, run, run_on

from holdfast.model.outcome import Cancelled, Completed, DeadLettered, Held, Suspended
from holdfast.shapes.workflows.core import Rules
from holdfast.shapes.workflows.drive import drive
from holdfast.shapes.workflows.faults import WorkflowCancelled
from holdfast.shapes.workflows.journal import Record, Stored
from holdfast.shapes.workflows.messages import Signal
from holdfast.shapes.workflows.replay import Replay
from holdfast.shapes.workflows.steps import Step
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


async def never() -> None:
    await asyncio.Event().wait()


async def moment() -> None:
    await asyncio.sleep(0.05)


async def quick_step(wf: Workflow) -> None:
    await wf.step(moment)


async def test_a_step_that_was_cut_is_not_run_by_a_branch_that_lost() -> None:
    """Also where the step is another branch's."""

    async def charge() -> None:
        ran.append("charge")
        await never()

    async def slow(wf: Workflow, shared: Step[None]) -> None:
        wf.on_failure(undo, "slow")
        await wf.step(say, "slow")
        await shared

    async def flow(wf: Workflow) -> None:
        await wf.first(slow(wf, wf.step(charge)), quick_step(wf))
        await wf.sleep(60)

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    assert ran == ["slow", "charge"]
    store.clock += timedelta(seconds=61)
    assert isinstance(await run(flow, store, verify=False), Completed)
    assert ran == ["slow", "charge"]


async def test_a_branch_that_lost_goes_the_way_that_it_went() -> None:
    """A patch that came since is not taken there, and decides nothing for the rest of the run."""
    edited = False
    said: list[bool] = []

    async def slow(wf: Workflow) -> None:
        if edited and wf.patched("v2"):
            await wf.step(say, "new")
        wf.on_failure(undo, "slow")
        await wf.step(say, "slow")
        await wf.step(never)

    async def flow(wf: Workflow) -> None:
        await wf.first(slow(wf), quick_step(wf))
        if edited:
            said.append(wf.patched("v2"))
        await wf.step(say, "charge")
        raise KeyError("oops")

    store = Store()
    assert isinstance(await run(flow, store), DeadLettered)
    store.rows = store.rows[: store.written().index("first") + 1]  # where another owner takes over
    ran.clear()
    edited = True
    assert isinstance(await run(flow, store), DeadLettered)
    assert ran == ["charge", "undo slow"]
    assert said == [True]


async def test_a_branch_that_lost_goes_the_new_way_if_it_had() -> None:
    async def slow(wf: Workflow) -> None:
        if wf.patched("v2"):
            wf.on_failure(undo, "new")
        await wf.step(say, "slow")
        await wf.step(never)

    async def flow(wf: Workflow) -> None:
        await wf.first(slow(wf), quick_step(wf))
        await wf.sleep(60)
        raise KeyError("oops")

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    store.clock += timedelta(seconds=61)
    assert isinstance(await run(flow, store), DeadLettered)
    assert undone() == ["undo new"]


def test_a_marker_that_was_written_since_is_not_of_a_branch_that_lost() -> None:
    def row(name: str) -> Stored:
        return Stored(Record(f"patch/{name}", "patch", "done", None), 0, BEGIN)

    replay = Replay([row("v1")])
    replay.keep(row("v2"))
    assert replay.marked("v1")
    assert not replay.marked("v2")


async def _pushes(wf: Workflow) -> None:
    wf.on_failure(undo, "inner")
    await wf.step(say, "inner")
    await wf.sleep(86400)


async def _with_a_step(wf: Workflow) -> None:
    await wf.gather(_pushes(wf), wf.step(never))


async def _with_signals(wf: Workflow) -> None:
    await wf.gather(_pushes(wf), wf.received(GO), wf.step(never))


async def _undecided(wf: Workflow) -> None:
    await wf.first(_pushes(wf), wf.sleep(90000))


async def _undecided_deep(wf: Workflow) -> None:
    await wf.first(wf.branch("deep", _undecided, wf), wf.step(never))


@pytest.mark.parametrize("slow", [_with_a_step, _with_signals, _undecided, _undecided_deep])
async def test_what_branches_of_one_that_lost_pushed_is_undone_after_a_replay(slow: Any) -> None:
    """Beside calls that have no record, and in a `first` that was not decided."""

    async def flow(wf: Workflow) -> None:
        await wf.first(slow(wf), quick_step(wf))
        await wf.sleep(60)
        raise KeyError("oops")

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    written = store.written()
    store.clock += timedelta(seconds=61)
    assert isinstance(await run(flow, store), DeadLettered)
    assert undone() == ["undo inner"]
    assert ran == ["inner", "undo inner"]
    pushed = next(key for key in written if key.startswith("saga/")).removeprefix("saga/")
    assert store.written() == [*written, "sleep", f"undo/{pushed}"]


async def test_a_branch_that_lost_waits_publishes_and_undoes_nothing() -> None:
    """What it comes to behind its records is not done, whatever it is, and is nothing that a replay misses."""
    edited = False

    async def slow(wf: Workflow, what: str) -> None:
        wf.on_failure(undo, what)
        await wf.step(say, what)
        if edited and what == "sleep":
            await wf.sleep(0.01)
        if edited and what == "undo":
            await wf.compensate()
        if edited and what == "publish":
            await wf.publish("told", {})
        await wf.signal(GO)

    async def flow(wf: Workflow) -> str:
        await wf.first(slow(wf, "sleep"), slow(wf, "undo"), slow(wf, "publish"), quick_step(wf))
        await wf.sleep(60)
        return "ok"

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    written = store.written()
    edited = True
    store.clock += timedelta(seconds=61)
    assert result(await run(flow, store, verify=True)) == "ok"
    assert ran == ["sleep", "undo", "publish"]
    assert store.written() == [*written, "sleep"]
    assert not store.events
    assert not store.states


async def test_a_branch_that_lost_does_not_say_that_its_run_is_open_again() -> None:
    """It had undone what it had pushed; the run is undoing the rest."""

    async def stuck() -> None:
        ran.append("undo stuck")
        if undone().count("undo stuck") < 3:
            raise OSError("not now")

    async def slow(wf: Workflow) -> None:
        wf.on_failure(undo, "slow")
        await wf.step(say, "slow")
        await wf.compensate()
        wf.on_failure(stuck)
        await wf.step(say, "more")
        await wf.step(never)

    async def flow(wf: Workflow) -> None:
        await wf.first(slow(wf), quick_step(wf))
        raise KeyError("oops")

    store = Store()
    assert isinstance(await run_on(flow, store, rules=Rules(sticky=0.5)), DeadLettered)
    assert undone() == ["undo slow", "undo stuck", "undo stuck", "undo stuck"]
    assert store.states == ["compensating", "open", "compensating"]


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


async def test_a_step_that_lost_and_has_no_record_diverges_from_nothing() -> None:
    """The replay makes it as the first run did, and awaits it no more."""

    async def never() -> str:
        await asyncio.Event().wait()
        return "never"

    async def flow(wf: Workflow) -> str:
        made = wf.step(say, "made and not awaited")
        number, word = await wf.first(wf.step(never), wf.step(say, "quick"))
        assert made.key
        return f"{number} {word}"

    assert result(await run(flow, Store(), verify=True)) == "1 quick"


async def test_a_step_that_the_first_run_did_not_make_is_still_found() -> None:
    calls: list[str] = []

    async def flow(wf: Workflow) -> str:
        calls.append("call")
        word = await wf.step(say, "a")
        return word if len(calls) == 1 else word + await wf.step(say, "b")

    outcome = await run(flow, Store(), verify=True)
    assert isinstance(outcome, Held)
    assert "a replay asks for" in outcome.reason


@pytest.mark.parametrize("nested", [False, True])
async def test_what_a_branch_of_the_parent_pushed_in_one_that_lost_is_undone_after_a_replay(
    nested: bool,
) -> None:
    """It was made outside and awaited inside: its records stand beside those of the branch that lost."""

    async def pay(wf: Workflow) -> None:
        wf.on_failure(undo, "pay")
        await wf.step(say, "pay")

    async def uses(wf: Workflow, paying: Any) -> Any:
        await (wf.gather(paying) if nested else paying)
        await wf.sleep(86400)

    async def flow(wf: Workflow) -> str:
        await wf.first(uses(wf, wf.branch("paying", pay, wf)), wf.signal(GO))
        await wf.sleep(60)
        said.append((wf.replaying, wf.patched("new")))
        raise KeyError("oops")

    said: list[tuple[bool, bool]] = []
    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    store.signals.append(("go", "now"))
    assert isinstance(await run(flow, store), Suspended)
    assert ran == ["pay"]
    store.clock += timedelta(seconds=61)
    assert isinstance(await run(flow, store), DeadLettered)
    assert ran == ["pay", "undo pay"]
    assert said == [(False, True)], "nothing of the history is left to ask for"


async def test_a_branch_that_is_awaited_later_is_not_begun_by_one_that_lost() -> None:
    async def pay(wf: Workflow) -> str:
        return await wf.step(say, "pay")

    async def waits(wf: Workflow) -> str:
        return await wf.signal(GO)

    async def flow(wf: Workflow) -> str:
        paying = wf.branch("paying", pay, wf)
        await wf.first(waits(wf), wf.step(say, "quick"))
        paid = await paying
        await wf.sleep(60)
        return paid

    store = Store()
    assert result(await run_on(flow, store)) == "pay"
    assert sorted(ran) == ["pay", "quick"]


async def test_a_branch_inside_one_that_lost_makes_no_call() -> None:
    async def inner(wf: Workflow) -> None:
        wf.on_failure(undo, "inner")
        await wf.step(say, "inner")
        await wf.sleep(86400)  # cut here
        await wf.step(say, "never")

    async def outer(wf: Workflow) -> Any:
        await wf.gather(inner(wf), wf.branch("named", inner, wf))

    async def flow(wf: Workflow) -> None:
        await wf.first(outer(wf), wf.signal(GO))
        await wf.sleep(2 * 86400)
        raise KeyError("oops")

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    store.signals.append(("go", "now"))
    assert isinstance(await run(flow, store), Suspended)
    store.clock += timedelta(days=3)  # what was cut would be over by now
    assert isinstance(await run(flow, store), DeadLettered)
    assert ran == ["inner", "inner", "undo inner", "undo inner"]
