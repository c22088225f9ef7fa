"""Workflows on the real worker: the thin thread."""

from datetime import timedelta

import pytest

from holdfast import Holdfast, Signal, StepFailed, SyncWorkflow, Workflow, WorkflowFailed
from holdfast.testing import Kit

pytestmark = pytest.mark.versions
NOTE = Signal("note", str)


async def test_a_run_is_started_driven_and_its_result_read(app: Holdfast, akit: Kit) -> None:
    ran: list[str] = []

    async def say(word: str) -> str:
        ran.append(word)
        return word.upper()

    @app.workflow()
    async def hello(wf: Workflow, word: str, times: int = 2) -> list[str]:
        one = [await wf.step(say, word) for _ in range(times)]
        wf.set_state({"said": len(one)})
        return one + await wf.gather(
            wf.step(say, "x"), wf.step(say, "y"), wf.step(say, "z"), wf.step(say, "w")
        )

    akit.create_queues()
    run = await hello.astart("a")
    await akit.arun_worker()
    assert await run.aresult(timeout=25) == ["A", "A", "X", "Y", "Z", "W"]
    assert sorted(ran) == ["a", "a", "w", "x", "y", "z"]
    assert await run.astate() == ("completed", {"said": 2})


async def test_a_sleep_and_a_signal_hold_no_worker(app: Holdfast, akit: Kit) -> None:
    @app.workflow(sticky=0.05)
    async def waits(wf: Workflow) -> str:
        await wf.sleep(timedelta(days=2))
        return await wf.signal(NOTE)

    @app.workflow(sticky=0.05)
    def plainly(wf: SyncWorkflow) -> str:
        wf.sleep(timedelta(days=2))
        got = wf.signal(NOTE, timeout=3600)
        return got.value if got else "nobody"

    akit.create_queues()
    runs = [await waits.astart(), await plainly.astart()]
    await akit.arun_worker()
    assert [(await run.astate())[0] for run in runs] == ["suspended", "suspended"]
    akit.database.clock.advance(timedelta(days=2))
    await akit.arun_worker()
    for run in runs:
        assert await run.asignal(NOTE("hi"))
    await akit.arun_worker()
    assert [await run.aresult(timeout=25) for run in runs] == ["hi", "hi"]


async def test_a_failed_run_says_why(app: Holdfast, akit: Kit) -> None:
    async def broken() -> None:
        raise ValueError("oops")

    @app.workflow()
    async def fails(wf: Workflow) -> None:
        try:
            await wf.using(max_attempts=1).step(broken)
        except StepFailed as error:
            raise RuntimeError(f"gave up: {error.message}") from error

    akit.create_queues()
    run = await fails.using(id="f1").astart()
    await akit.arun_worker()
    with pytest.raises(WorkflowFailed) as raised:
        await run.aresult(timeout=25)
    assert str(raised.value) == "run 'f1' of fails failed: RuntimeError: gave up: oops"
    assert (raised.value.state, raised.value.kind) == ("failed", "RuntimeError")
