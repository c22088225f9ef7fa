"""Code that asks for too much, or leaves: it harms its own run, in words, and the worker goes on."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest
from tests.workflows.memory_journal import Store, run

from holdfast import (
    AsyncTransaction,
    Holdfast,
    InvalidOption,
    ResultTimeout,
    Signal,
    StepFailed,
    SyncWorkflow,
    Transaction,
    Workflow,
    WorkflowFailed,
    WorkflowType,
)
from holdfast.model.outcome import Completed, DeadLettered
from holdfast.shapes.workflows import records
from holdfast.shapes.workflows.core import Rules
from holdfast.testing import Kit

NOTE = Signal("note", str)


def leaves() -> NoReturn:
    sys.exit(3)


async def leaves_too() -> None:
    raise KeyboardInterrupt


async def leaves_inside(tx: AsyncTransaction) -> None:
    sys.exit(4)


def leaves_plainly(tx: Transaction) -> None:
    sys.exit(5)


async def fine() -> int:
    return 1


def declare(app: Holdfast) -> list[WorkflowType[[], Any]]:
    @app.workflow()
    async def steps(wf: Workflow) -> list[str]:
        once = wf.using(max_attempts=1)
        found = []
        for call in (once.step(leaves), once.step(leaves_too), once.transact(leaves_inside)):
            try:
                await call
            except StepFailed as failed:
                found.append(f"{failed.kind}: {failed.message}")
        return found

    @app.workflow()
    async def branch(wf: Workflow) -> None:
        async def other() -> None:
            await wf.step(fine)
            sys.exit("in a branch")

        await wf.gather(other(), wf.step(fine))

    @app.workflow()
    async def itself(wf: Workflow) -> None:
        await wf.step(fine)
        sys.exit(6)

    @app.workflow()
    def plain(wf: SyncWorkflow) -> None:
        try:
            wf.using(max_attempts=1).transact(leaves_plainly)
        except StepFailed as failed:
            sys.exit(failed.message)

    return [steps, branch, itself, plain]


async def test_code_that_calls_sys_exit_fails_its_run_and_the_worker_goes_on(
    app: Holdfast, akit: Kit
) -> None:
    """In a step, plain, async or in a transaction, in a branch, in the workflow itself, and in a plain one."""
    flows = declare(app)
    akit.create_queues()
    runs = {flow.name: await flow.astart() for flow in flows}
    await akit.arun_worker()
    assert await runs["steps"].aresult(timeout=0) == [
        "RuntimeError: the step raised SystemExit: 3",
        "RuntimeError: the step raised KeyboardInterrupt: ",
        "RuntimeError: the step raised SystemExit: 4",
    ]
    for name, says in (
        ("branch", "RuntimeError: a branch raised SystemExit: in a branch"),
        ("itself", "SystemExit: 6"),
        ("plain", "RuntimeError: the workflow raised SystemExit: the step raised SystemExit: 5"),
    ):
        with pytest.raises(WorkflowFailed) as failed:
            await runs[name].aresult(timeout=0)
        assert str(failed.value).endswith(f"failed: {says}")


async def test_steps_beside_each_other_count_before_they_are_written() -> None:
    """Else a gather could write any number of records."""

    async def flow(wf: Workflow) -> int:
        return len(await wf.gather(*(wf.step(fine) for _ in range(count))))

    count = 20
    assert isinstance(await run(flow, Store(), rules=Rules(max_history=20)), Completed)
    count, store = 21, Store()
    ended = await run(flow, store, rules=Rules(max_history=20))
    assert isinstance(ended, DeadLettered)
    assert ended.error.kind == "HistoryTooLong"
    assert len(store.rows) <= 20


async def test_a_key_that_is_too_long_is_refused_where_it_is_asked_for() -> None:
    async def flow(wf: Workflow) -> int:
        async def inside(left: int) -> int:
            if left == 0:
                return await wf.step(fine)
            (found,) = await wf.gather(inside(left - 1))
            return found

        return await inside(deep)

    deep = 150
    assert isinstance(await run(flow, Store()), Completed)
    deep, store = 300, Store()
    ended = await run(flow, store)
    assert isinstance(ended, DeadLettered)
    assert ended.error.summary.startswith(
        "InvalidOption: the key of this call is 1,504 bytes, more than the limit of 1,024: "
    )
    assert ended.error.summary.endswith("Nest fewer parallel calls in each other, or give shorter names")
    assert store.rows == []


def test_times_of_a_start_end_in_ten_years(app: Holdfast, kit: Kit) -> None:
    @app.workflow()
    async def flow(wf: Workflow) -> None: ...

    for option in ("delay", "timeout"):
        wrong: Any = {option: 1e12}
        with pytest.raises(
            InvalidOption, match=f"^{option} must be at most 10 years, not float 1000000000000.0$"
        ):
            flow.using(**wrong)
    with pytest.raises(InvalidOption, match=r"^timeout must be more than 0 seconds"):
        flow.using(timeout=0)
    flow.using(delay=0)


def test_a_result_that_does_not_come_says_what_keeps_it(app: Holdfast, kit: Kit) -> None:
    @app.workflow()
    async def rests(wf: Workflow) -> None:
        await wf.sleep(3600)

    kit.create_queues()
    run = rests.using(id="r1").start()

    def said() -> str:
        with pytest.raises(ResultTimeout) as late:
            run.result(timeout=0)
        return str(late.value).removeprefix("run 'r1' of rests is still ")

    assert said() == "open after 0 s. Is a worker running for its queue?"
    kit.workflows.run_until_waiting(run, skip_time=False)
    assert said() == "suspended after 0 s. See what it waits for: holdfast workflow show"
    kit.sql("SELECT holdfast.workflow_pause('rests', 'r1')")
    assert said() == "paused after 0 s. Somebody has to resume it: holdfast workflow resume"
    kit.sql("SELECT holdfast.workflow_resume('rests', 'r1')")
    kit.sql("UPDATE holdfast.workflow_runs SET state = 'diverged' RETURNING 1")
    assert said() == "diverged after 0 s. Its code diverged from what it recorded: see holdfast workflow show"


def test_a_child_of_a_run_with_a_long_id_has_a_short_one(app: Holdfast, kit: Kit) -> None:
    """Else a family could be as deep only as their names together are long."""

    @app.workflow()
    async def child(wf: Workflow) -> str:
        return wf.id

    @app.workflow()
    async def parent(wf: Workflow) -> list[str]:
        kids = [await wf.start(child), await wf.start(child)]
        return [await kid.result() for kid in kids]

    kit.create_queues()
    one, two = kit.workflows.run(parent.using(id="x" * 506).start())
    assert (one, len(two)) == ("x" * 506 + "/child", 36)


@pytest.mark.parametrize("call", ["step", "transact", "sleep", "signal", "received"])
async def test_no_call_of_any_kind_goes_beyond_the_limit_and_no_body_runs_in_vain(call: str) -> None:
    made: list[str] = []

    async def body(*_: object) -> None:
        made.append(call)

    async def flow(wf: Workflow) -> None:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "step": lambda: wf.step(body),
            "transact": lambda: wf.transact(body),
            "sleep": lambda: wf.sleep(0),
            "signal": lambda: wf.signal(NOTE, timeout=0),
            "received": lambda: wf.received(NOTE),
        }
        for _ in range(4):
            await calls[call]()

    store = Store()
    ended = await run(flow, store, rules=Rules(max_history=3))
    assert isinstance(ended, DeadLettered), ended
    assert ended.error.kind == "HistoryTooLong"
    assert len(store.rows) == 3
    assert len(made) in (0, 3)


async def test_a_history_that_is_too_large_fails_the_run_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_BYTES", 1000)
    undone: list[int] = []

    async def large() -> str:
        return "x" * 300

    async def undo(n: int) -> None:
        undone.append(n)

    async def flow(wf: Workflow, together: bool) -> None:
        wf.on_failure(undo, 1)
        if together:
            await wf.gather(*(wf.step(large) for _ in range(10)))
        for _ in range(10):
            await wf.step(large)

    for together in (False, True):
        store = Store()
        ended = await run(flow, store, together=together)
        assert isinstance(ended, DeadLettered), ended
        assert ended.error.kind == "HistoryTooLarge"
        assert "more than the limit of 1,000. Use wf.continue_as_new() now and then" in ended.error.message
        assert len([row for row in store.rows if row.record.kind == "step"]) == 4
    assert undone == [1, 1]
