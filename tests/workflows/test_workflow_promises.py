"""What the documentation promises of starts, children, cancels and drains, from Python."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.conftest import await_until
from tests.workflows.test_workflow_worker import working

from holdfast import (
    Child,
    Holdfast,
    InvalidOption,
    Run,
    Signal,
    StepFailed,
    Workflow,
    WorkflowCancelled,
    WorkflowFailed,
    telemetry,
)
from holdfast.shapes.workflows.recorder import recorder_of
from holdfast.shapes.workflows.runs import RunFilter
from holdfast.shapes.workflows.verbs import WorkflowVerbs
from holdfast.testing import Kit

STOP = Signal("stop", str)
HOUR = timedelta(hours=1)
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def say(word: str) -> str:
    ran.append(word)
    return word


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.workflow(sticky=0.05)
    async def waits(wf: Workflow, word: str = "") -> str:
        wf.on_failure(say, f"undo {word}")
        await wf.step(say, word)
        return await wf.signal(STOP)

    @app.workflow(sticky=0.05)
    async def parent(wf: Workflow, how: str) -> list[str]:
        kept: Child[str] = await wf.using(id="kept", on_cancel="abandon").start(waits, "kept")
        mine: Child[str] = await wf.using(id="mine").start(waits, "mine")
        if how == "signal":
            await mine.signal(STOP("by its parent"))
            return [await mine.result(), kept.id]
        if how == "cancel":
            await mine.cancel()
            try:
                return [await mine.result()]
            except StepFailed as error:
                return [error.kind]
        await wf.signal(STOP)
        return []

    app.waits, app.parent = waits, parent  # type: ignore[attr-defined]
    return app


def waiting(kit: Kit, run: Run[Any]) -> None:
    assert kit.workflows.run_until_waiting(run) == ["stop"]


# Starts


def test_a_second_start_gives_the_same_run_is_refused_or_starts_anew(app: Any, kit: Kit) -> None:
    first = app.waits.using(id="a").start("one")
    assert not app.waits.using(id="a").start("two").created
    with pytest.raises(InvalidOption, match=r"there is a run 'a' of waits already\. Take another id"):
        app.waits.using(id="a", if_exists="refuse").start("two")
    open_run = app.waits.using(id="a", if_exists="restart_ended").start("two")
    assert (open_run.created, open_run.run_id) == (False, first.run_id), "it has not ended"
    first.signal(STOP("now"))
    assert kit.workflows.run(first) == "now"
    with pytest.raises(InvalidOption, match="there is a run 'a' of waits already"):
        app.waits.using(id="a", if_exists="refuse").start("two")
    again = app.waits.using(id="a", if_exists="restart_ended").start("two")
    assert again.created
    assert again.run_id != first.run_id
    waiting(kit, again)
    assert ran == ["one", "two"]
    assert app.waits.get("a").run_id == again.run_id
    assert app.waits.using(id="b", if_exists="refuse").start("three").created


def test_a_timeout_of_the_whole_run_cancels_it_and_it_is_undone(app: Any, kit: Kit) -> None:
    run = app.waits.using(timeout=HOUR).start("one")
    before = kit.clock.now()
    with pytest.raises(WorkflowFailed) as raised:
        kit.workflows.run(run)
    assert raised.value.state == "cancelled"
    assert timedelta(minutes=59) < kit.clock.now() - before < 2 * HOUR
    assert ran == ["one", "undo one"]


def test_delay_priority_and_tags_are_those_of_its_job(app: Any, kit: Kit) -> None:
    late = app.waits.using(delay=HOUR).start("late")
    low = app.waits.using(priority=-5, tags=["x"]).start("low")
    high = app.waits.using(priority=5, tags=["x", "y"]).start("high")
    kit.run_worker(concurrency=1)
    assert ran == ["high", "low"]
    rows = {row["id"]: row for row in kit.jobs()}
    assert (rows[high.run_id]["priority"], rows[high.run_id]["tags"]) == (5, ["x", "y"])
    assert rows[low.run_id]["tags"] == ["x"]
    kit.clock.advance(3600)
    waiting(kit, late)
    assert ran == ["high", "low", "late"]


# Children


@pytest.mark.parametrize(
    ("how", "result"), [("signal", ["by its parent", "kept"]), ("cancel", ["WorkflowCancelled"])]
)
def test_a_parent_signals_and_cancels_its_child(app: Any, kit: Kit, how: str, result: list[str]) -> None:
    run = app.parent.start(how)
    assert kit.workflows.run(run) == result
    assert ("undo mine" in ran) == (how == "cancel")
    entries = {entry.key: entry.outcome for entry in run.timeline()}
    assert entries[f"waits.{how}"] == "done"
    assert entries["waits.result"] == {"signal": "done", "cancel": "failed"}[how]


def test_a_child_that_is_abandoned_outlives_the_cancel_of_its_parent(app: Any, kit: Kit) -> None:
    run = app.parent.start("wait")
    waiting(kit, run)
    kept, mine = app.waits.get("kept"), app.waits.get("mine")
    waiting(kit, mine)
    assert run.cancel("enough")
    for ended in (run, mine):
        with pytest.raises(WorkflowFailed, match="was cancelled"):
            kit.workflows.run(ended)
    assert kept.state()[0] == "suspended"
    assert kept.signal(STOP("alone"))
    assert kit.workflows.run(kept) == "alone"
    assert ran.count("undo mine") == 1
    assert "undo kept" not in ran


# Cancels


async def test_a_cancel_while_it_compensates_has_no_effect_and_says_so(app: Any, akit: Kit) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def undo(word: str) -> None:
        begun.set()
        await go_on.wait()
        ran.append(f"undone {word}")

    @app.workflow(sticky=0.05)  # type: ignore[untyped-decorator,unused-ignore]
    async def fails(wf: Workflow) -> None:
        wf.on_failure(undo, "one")
        wf.on_failure(undo, "two")
        await wf.step(say, "done")
        raise RuntimeError("no")

    run = await fails.astart()
    async with working(akit):
        await asyncio.wait_for(begun.wait(), 60)
        assert await run.acancel("first")
        assert not await run.acancel("second"), "it was asked before"
        known = recorder_of(akit.database)._watched
        await await_until(lambda: all(one.cancelled.is_set() for one in known.values()), "it knows")  # type: ignore[attr-defined]
        go_on.set()
        with pytest.raises(WorkflowFailed, match="RuntimeError: no") as raised:
            await run.aresult(timeout=60)
    assert raised.value.state == "failed"
    assert ran == ["done", "undone two", "undone one"]
    assert not await run.acancel("too late")


async def test_a_run_that_compensates_says_so_until_it_ends_or_goes_on(app: Any, akit: Kit) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    verbs = WorkflowVerbs(akit.database, "ann")

    async def undo() -> None:
        begun.set()
        await go_on.wait()
        if not ran:
            ran.append("first try")
            raise OSError("not yet")

    @app.workflow(sticky=0.05)  # type: ignore[untyped-decorator,unused-ignore]
    async def changes_its_mind(wf: Workflow) -> str:
        wf.on_failure(undo)
        await wf.step(say_nothing)
        await wf.compensate()
        return await wf.signal(STOP)

    @app.workflow()  # type: ignore[untyped-decorator,unused-ignore]
    async def gives_up(wf: Workflow) -> None:
        wf.on_failure(undo)
        await wf.step(say_nothing)
        raise RuntimeError("no")

    run = await changes_its_mind.astart()
    async with working(akit):
        await asyncio.wait_for(begun.wait(), 60)
        assert (await run.astate())[0] == "compensating"
        wanted = RunFilter(states=["compensating"])
        assert [one.id for one in (await verbs.list_runs.arun(wanted)).runs] == [run.id]
        go_on.set()
        await await_until(lambda: len(ran) == 1, "it failed once, and is put away")
        assert (await run.astate())[0] == "compensating"
        await await_until(lambda: run.state()[0] == "suspended", "it goes on, and waits for its signal")
        await run.asignal(STOP("enough"))
        assert await run.aresult(timeout=60) == "enough"
        begun.clear()
        go_on.clear()
        other = await gives_up.astart()
        await asyncio.wait_for(begun.wait(), 60)
        assert (await other.astate())[0] == "compensating"
        go_on.set()
        with pytest.raises(WorkflowFailed):
            await other.aresult(timeout=60)
        assert (await other.astate())[0] == "failed"


async def say_nothing() -> None: ...


MISFIT = "SELECT holdfast.workflow_signal('waits', %s, 'stop', '{\"not\": \"text\"}')"


def test_a_cancel_ends_a_run_that_is_parked(app: Any, kit: Kit) -> None:
    """No code fits what it recorded, so that nothing of it can run: also not what was to compensate."""
    run = app.waits.using(id="p").start("p")
    waiting(kit, run)
    kit.sql(MISFIT, ["p"])
    kit.run_worker()
    assert run.state()[0] == "diverged"
    assert run.cancel("enough")
    with pytest.raises(WorkflowFailed, match=r"^run 'p' of waits was cancelled"):
        run.result(timeout=1)
    assert not run.cancel("again")
    assert ran == ["p"]
    assert kit.sql("SELECT FROM holdfast.work") == []
    assert kit.sql("SELECT status, last_error FROM holdfast.archive") == [
        {"status": "cancelled", "last_error": "cancelled"}
    ]


def test_a_second_cancel_of_an_open_run_is_no_other_request(app: Any, kit: Kit) -> None:
    run = app.waits.using(id="p").start("p")
    waiting(kit, run)
    assert run.cancel("enough")
    assert not run.cancel("again")
    assert kit.sql("SELECT holdfast.workflow_cancel('waits', 'p', 'again') AS said") == [{"said": "already"}]
    assert kit.sql("SELECT cancel_reason FROM holdfast.workflow_runs") == [{"cancel_reason": "enough"}]


def test_a_run_that_is_parked_after_its_cancel_can_be_cancelled(app: Any, kit: Kit) -> None:
    """It was asked while its code still fitted, and the worker that met it next found that it does not."""
    run = app.waits.using(id="p").start("p")
    waiting(kit, run)
    kit.sql(MISFIT, ["p"])
    kit.run_worker()
    kit.sql("UPDATE holdfast.workflow_runs SET cancel_requested_at = holdfast.now()")
    assert run.state()[0] == "diverged"
    assert run.cancel("again")
    assert run.state()[0] == "cancelled"
    assert kit.sql("SELECT FROM holdfast.work") == []


def test_a_cancel_of_a_parent_ends_a_child_that_is_parked(app: Any, kit: Kit) -> None:
    run = app.parent.start("wait")
    waiting(kit, run)
    mine = app.waits.get("mine")
    waiting(kit, mine)
    kit.sql(MISFIT, ["mine"])
    kit.run_worker()
    assert mine.state()[0] == "diverged"
    assert run.cancel("enough")
    assert mine.state()[0] == "cancelled"
    with pytest.raises(WorkflowFailed, match="was cancelled"):
        kit.workflows.run(run)


def test_a_run_whose_task_is_paused_is_not_parked(app: Any, kit: Kit) -> None:
    """It learns of a cancel when it goes on, and is undone."""
    run = app.waits.using(id="p").start("p")
    waiting(kit, run)
    kit.sql("UPDATE holdfast.work SET status = 'held', hold_reason = 'paused'")
    assert run.cancel("enough")
    kit.sql("UPDATE holdfast.work SET status = 'pending', hold_reason = NULL, available_at = now()")
    with pytest.raises(WorkflowFailed, match="was cancelled"):
        kit.workflows.run(run)
    assert ran == ["p", "undo p"]


async def test_a_cancel_ends_a_run_that_only_begins_anew(app: Any, akit: Kit) -> None:
    @app.workflow(sticky=0.05)  # type: ignore[untyped-decorator,unused-ignore]
    async def turns(wf: Workflow, n: int = 0) -> None:
        ran.append(str(n))
        wf.continue_as_new(n + 1)

    run = await turns.using(id="t").astart()
    async with working(akit):
        await await_until(lambda: len(ran) > 3, "it goes round")
        assert await run.acancel("enough")
        with pytest.raises(WorkflowFailed, match=r"^run 't' of turns was cancelled"):
            await run.aresult(timeout=60)


async def test_code_that_caught_a_cancel_is_not_cancelled_again(app: Any, akit: Kit) -> None:
    @app.workflow(sticky=0.05)  # type: ignore[untyped-decorator,unused-ignore]
    async def stubborn(wf: Workflow) -> list[str]:
        try:
            await wf.signal(STOP)
        except WorkflowCancelled:
            await wf.step(say, "caught")
        await wf.sleep(0.01)
        return [await wf.step(say, "home")]

    run = await stubborn.astart()
    async with working(akit):
        await await_until(lambda: run.state()[0] == "suspended", "it waits")
        assert await run.acancel()
        assert await run.aresult(timeout=60) == ["home"]
    assert ran == ["caught", "home"]


# Drains


async def test_a_drain_lets_go_of_runs_that_rest_at_once_and_spends_no_attempt(
    akit: Kit, events: list[telemetry.Event]
) -> None:
    app: Any = akit.app

    @app.workflow(sticky=600)  # type: ignore[untyped-decorator,unused-ignore]
    async def rests(wf: Workflow) -> str:
        await wf.step(say, "once")
        return await wf.signal(STOP)

    akit.create_queues()
    runs = [await rests.astart() for _ in range(20)]
    resting = "SELECT count(*) AS n FROM holdfast.work WHERE status = 'processing'"
    async with working(akit):
        await await_until(
            lambda: len(ran) == 20 and akit.sql(resting) == [{"n": 20}], "all of them rest in the worker"
        )
    # The worker was stopped, as SIGTERM does it: nothing rests any more, though it would for minutes. They were put away,
    # and not cut off when the time of the drain was over.
    assert {(await run.astate())[0] for run in runs} == {"suspended"}
    assert akit.sql(resting) == [{"n": 0}]
    assert akit.sql("SELECT DISTINCT status, attempts, crashes FROM holdfast.work") == [
        {"status": "pending", "attempts": 0, "crashes": 0}
    ]
    for run in runs:
        assert await run.asignal(STOP("go"))
    async with working(akit):
        for run in runs:
            assert await run.aresult(timeout=60) == "go"
    assert ran == ["once"] * 20, "what was recorded is not made again"


def test_why_a_run_was_cancelled_is_said_where_its_end_is(app: Any, kit: Kit) -> None:
    """Suspended, not begun, over its time, and as the child of one that was cancelled."""
    asleep = app.waits.using(id="asleep").start("one")
    waiting(kit, asleep)
    assert asleep.cancel("no longer wanted")
    early = app.waits.using(id="early", delay=HOUR).start("two")
    assert early.cancel("too early")
    late = app.waits.using(id="late", timeout=60).start("three")
    family = app.parent.using(id="family").start("")
    waiting(kit, family)
    assert family.cancel("all of you")
    over = app.waits.using(id="over", timeout=60).start("four")
    kit.clock.advance(61)
    for run, why in (
        (asleep, "no longer wanted"),
        (early, "too early"),
        (late, "its timeout is over"),
        (over, "its timeout is over"),
        (family, "all of you"),
        (app.waits.get("mine"), "all of you"),
    ):
        said = f"was cancelled: WorkflowCancelled: the run was cancelled: {why}$"
        with pytest.raises(WorkflowFailed, match=said):
            kit.workflows.run(run)
    assert not {"two", "four"} & set(ran), "what had not begun does not begin"


async def test_why_a_run_was_cancelled_is_said_to_code_that_rests(app: Holdfast, akit: Kit) -> None:
    heard: list[str] = []

    @app.workflow(sticky=60)
    async def rests(wf: Workflow) -> str:
        try:
            return await wf.signal(STOP)
        except WorkflowCancelled as error:
            heard.append(str(error))
            raise

    akit.create_queues()
    async with working(akit):
        run = await rests.astart()
        await await_until(lambda: akit.jobs()[0]["status"] == "processing", "it rests")
        await run.acancel("enough")
        with pytest.raises(WorkflowFailed, match="the run was cancelled: enough"):
            await run.aresult(timeout=30)
    assert heard == ["the run was cancelled: enough"]
