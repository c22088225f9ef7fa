"""Cancels, redeploys, versions, connections and refusals, on the real worker."""

from datetime import timedelta

import psycopg
import pytest
from tests.conftest import QUICK

from holdfast import (
    DuplicateTask,
    Holdfast,
    InvalidArguments,
    InvalidOption,
    InvalidPayload,
    Registry,
    ResultExpired,
    ResultTimeout,
    Signal,
    SyncWorkflow,
    TaskDefinitionError,
    UnboundTask,
    Workflow,
    WorkflowCancelled,
    WorkflowFailed,
    current_step,
)
from holdfast.testing import Kit

NOTE = Signal("note", int)
HOUR = timedelta(hours=1)
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def say(word: str) -> str:
    ran.append(word)
    return word


async def undo(word: str) -> None:
    ran.append(f"undo {word} {current_step().attempt}")
    if word == "two" and current_step().attempt == 1:
        raise ConnectionError("not now")


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.workflow(sticky=0.05)
    async def trip(wf: Workflow, caught: bool = False) -> str:
        wf.on_failure(undo, "one")
        await wf.step(say, "one")
        wf.on_failure(undo, "two")
        try:
            await wf.sleep(HOUR)
        except WorkflowCancelled:
            if not caught:
                raise
            await wf.compensate()
            return await wf.step(say, "home")
        return "there"

    @app.workflow(sticky=0.05)
    def plain(wf: SyncWorkflow, n: int) -> list[int]:
        def double(value: int) -> int:
            ran.append(f"double {value}")
            return 2 * value

        one = wf.step(double, n)
        many = wf.gather(wf.later(double, 2), wf.later(double, 3))
        wf.sleep(HOUR)
        return [one, *many, wf.signal(NOTE)]

    app.trip, app.plain = trip, plain  # type: ignore[attr-defined]
    return app


async def test_a_cancelled_run_is_undone_in_reverse_and_ends_as_cancelled(app: Holdfast, akit: Kit) -> None:
    run = await app.trip.using(id="t").astart()  # type: ignore[attr-defined]
    await akit.arun_worker()
    assert await run.acancel("enough")
    assert not await run.acancel()
    await akit.arun_worker()
    akit.clock.advance(60)  # the second attempt of a compensation
    await akit.arun_worker()
    with pytest.raises(WorkflowFailed, match=r"^run 't' of trip was cancelled") as raised:
        await run.aresult(timeout=25)
    assert raised.value.state == "cancelled"
    assert ran == ["one", "undo two 1", "undo two 2", "undo one 1"]
    assert not await run.acancel()
    assert not await run.asignal(NOTE(1))


async def test_code_may_catch_a_cancel_and_end_in_its_own_way(app: Holdfast, akit: Kit) -> None:
    run = await app.trip.astart(caught=True)  # type: ignore[attr-defined]
    await akit.arun_worker()
    await run.acancel()
    await akit.arun_worker()
    akit.clock.advance(60)
    await akit.arun_worker()
    assert await run.aresult(timeout=25) == "home"


async def test_a_plain_function_is_unwound_by_a_long_wait_and_goes_on(app: Holdfast, akit: Kit) -> None:
    run = await app.plain.astart(1)  # type: ignore[attr-defined]
    await akit.arun_worker()
    assert (await run.astate())[0] == "suspended"
    akit.clock.advance(HOUR)
    await run.asignal(NOTE(7))
    await akit.arun_worker()
    assert await run.aresult(timeout=25) == [2, 4, 6, 7]
    assert sorted(ran) == ["double 1", "double 2", "double 3"]


async def test_a_run_goes_on_as_new_and_keeps_signals_that_nobody_took(app: Holdfast, akit: Kit) -> None:
    @app.workflow(sticky=0.05)
    async def rounds(wf: Workflow, n: int = 0) -> list[int]:
        await wf.step(say, f"round {n}")
        if n < 2:
            wf.continue_as_new(n=n + 1)
        return [n, *await wf.received(NOTE), wf.history_length]

    run = await rounds.astart()
    await run.asignal(NOTE(7))
    await run.asignal(NOTE(8))
    await akit.arun_worker()
    assert (await run.aresult(timeout=25))[:3] == [2, 7, 8]
    assert ran == ["round 0", "round 1", "round 2"]


async def test_code_that_diverges_parks_the_run_and_a_version_beside_it_does_not(
    akit: Kit, app: Holdfast
) -> None:
    @app.workflow(name="order", sticky=0.05)
    async def order(wf: Workflow) -> str:
        await wf.using(name="charge").step(say, "charge")
        await wf.sleep(HOUR)
        return "old"

    akit.create_queues()
    first = await order.using(id="o1").astart()
    second = await order.using(id="o2").astart()
    await akit.arun_worker()

    changed = Holdfast("postgresql://unused.invalid/none")
    changed._opened = akit.database

    @changed.workflow(name="order", sticky=0.05)
    async def edited(wf: Workflow) -> str:
        await wf.using(name="refund").step(say, "refund")
        return "new"

    await first.acancel()  # due at once
    await changed.run_worker(until_idle=True)
    rows = akit.sql("SELECT status, hold_reason FROM holdfast.work WHERE id = %s", [first.run_id])
    text = "diverged: at 0 in scope '' the history has 'charge', the code asks for 'refund'; see holdfast workflow check"
    assert rows == [{"status": "held", "hold_reason": f"needs a newer worker: {text}"}]
    assert (await first.astate())[0] == "diverged"
    assert ran == ["charge", "charge"]

    beside = Holdfast("postgresql://unused.invalid/none")
    beside._opened = akit.database
    beside.workflow(name="order", sticky=0.05)(order.func)

    @beside.workflow(name="order", version=2, sticky=0.05)
    async def better(wf: Workflow) -> str:
        return await wf.using(name="refund").step(say, "new")

    third = await better.using(id="o3").astart()
    akit.clock.advance(HOUR)
    await beside.run_worker(until_idle=True)
    assert await second.aresult(timeout=25) == "old"
    assert await third.aresult(timeout=25) == "new"


def test_a_run_starts_and_is_signalled_in_the_callers_transaction(app: Holdfast, kit: Kit) -> None:
    flow = app.plain  # type: ignore[attr-defined]
    with psycopg.connect(kit.url) as conn:
        run = flow.using(id="mine", conn=conn).start(1)
        assert run.created
        assert run.signal(NOTE(1), conn=conn)
        conn.rollback()
    with pytest.raises(ResultExpired, match="there is no run 'mine' of plain"):
        run.state()
    with psycopg.connect(kit.url) as conn:
        run = flow.using(id="mine", conn=conn).start(1)
        assert not flow.using(id="mine", conn=conn).start(1).created
    assert not flow.using(id="mine").start(1).created
    assert flow.get("mine").run_id == run.run_id
    with pytest.raises(InvalidOption, match="there is a run 'mine' of plain already"):
        flow.using(id="mine", if_exists="refuse").start(1)
    with pytest.raises(ResultTimeout, match=r"is still open after 0\.01 s"):
        run.result(timeout=0.01)


def test_wrong_declarations_starts_and_signals_are_refused(app: Holdfast) -> None:
    flow = app.plain  # type: ignore[attr-defined]
    with pytest.raises(InvalidArguments, match="argument 'n' of plain must be int, not str 'x'"):
        flow.start("x")
    with pytest.raises(InvalidOption, match="id must not be empty"):
        flow.using(id="")
    with pytest.raises(InvalidPayload, match="the payload of signal 'note' must be int, not str 'x'"):
        NOTE("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"signal\(\) takes what a Signal makes, not int 3"):
        flow.get("a").signal(3)
    with pytest.raises(TaskDefinitionError) as refused:

        @app.workflow()  # type: ignore[arg-type]
        async def wrong(order_id: int) -> None: ...

    assert str(refused.value) == (
        "wrong: the first parameter of a workflow is a Workflow, and a Job or transaction belongs to its steps: "
        "async def wrong(wf: Workflow, order_id: int)"
    )
    with pytest.raises(DuplicateTask, match="workflow 'plain' version 1 is declared twice"):

        @app.workflow(name="plain")
        async def again(wf: Workflow) -> None: ...

    with pytest.raises(UnboundTask):
        lonely = Registry("lonely")

        @lonely.workflow()
        async def nowhere(wf: Workflow) -> None: ...

        nowhere.start()
    assert QUICK.lease == 1.0
