"""Runs in a real worker: recorded, suspended, woken, ended with their job."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.conftest import await_until, within

from holdfast import Holdfast, telemetry
from holdfast.runtime.inflight import Running
from holdfast.settings import Settings
from holdfast.shapes.workflows import database_journal, recorder
from holdfast.shapes.workflows.messages import Signal
from holdfast.shapes.workflows.workflow import Workflow
from holdfast.testing import Kit

GO = Signal("go", int)


async def double(n: int) -> int:
    return 2 * n


async def steps(wf: Workflow, n: int) -> int:
    for _ in range(3):
        n = await wf.step(double, n)
    return n


async def waits(wf: Workflow) -> int:
    return await wf.signal(GO) + await wf.step(double, 1)


async def sleeps(wf: Workflow) -> str:
    await wf.sleep(3600)
    return "rested"


async def square(n: int) -> int:
    if n == 13:
        raise ValueError("unlucky")
    return n * n


async def child(wf: Workflow, n: int) -> int:
    return await wf.step(double, n)


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")
    for function in (steps, waits, sleeps):
        app.workflow(sticky=0.3)(function)
    task = app.task(max_attempts=1)(square)
    kid = app.workflow()(child)

    @app.workflow(sticky=0.3)
    async def family(wf: Workflow) -> list[Any]:
        one = await wf.call(task, 3)
        many = await wf.map(task, [1, 2, 3, 4, 5], limit=2)
        started = await wf.start(kid, 21)
        return [one, many, await started.result()]

    @app.workflow(sticky=0.3)
    async def unlucky(wf: Workflow) -> str:
        await wf.call(task, 13)
        return "never"

    return app


@contextlib.asynccontextmanager
async def working(kit: Kit) -> AsyncIterator[None]:
    worker = asyncio.create_task(kit.arun_worker(until_idle=False))
    try:
        yield
    finally:
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker


async def start(kit: Kit, name: str, payload: str = "{}") -> str:
    def run() -> str:
        with kit.connect(autocommit=True) as conn:
            found = conn.execute(
                "SELECT run_id FROM holdfast.workflow_start(%s, %s, version => 1, queue => 'workflows')",
                [name, payload],
            ).fetchone()
            assert found is not None
            return str(found["run_id"])

    return await asyncio.to_thread(run)


def look(kit: Kit, run: str) -> dict[str, Any]:
    with kit.connect(autocommit=True) as conn:
        found = conn.execute(
            "SELECT x.* FROM holdfast.workflow_runs r CROSS JOIN LATERAL holdfast.workflow_result(r.workflow, r.key) x"
            " WHERE r.id = %s",
            [run],
        ).fetchone()
        assert found is not None
        return found


def send(kit: Kit, run: str) -> None:
    with kit.connect(autocommit=True) as conn:
        conn.execute(
            "SELECT holdfast.workflow_signal(r.workflow, r.key, 'go', '7') FROM holdfast.workflow_runs r WHERE r.id = %s",
            [run],
        )


async def ended(kit: Kit, run: str) -> dict[str, Any]:
    await await_until(lambda: look(kit, run)["ended_at"], f"the end of {run}")
    return look(kit, run)


def jobs_in_memory(but: Sequence[Running] = ()) -> list[Running]:
    """`but`: not those, which another test has left."""
    known = set(map(id, but))
    return [found for found in gc.get_objects() if type(found) is Running and id(found) not in known]


async def test_a_run_records_its_steps_and_ends_with_its_job(akit: Kit) -> None:
    async with working(akit):
        run = await start(akit, "steps", '{"n": 1}')
        found = await ended(akit, run)
        gc.collect()
        gc.disable()
        before = jobs_in_memory()
        try:  # and the collector has nothing to find
            await ended(akit, await start(akit, "steps", '{"n": 1}'))
            await await_until(lambda: not jobs_in_memory(but=before), "the job of a run to leave memory")
        finally:
            gc.enable()
    assert (found["state"], found["result"]) == ("completed", 8)
    with akit.connect() as conn:
        (row,) = conn.execute(
            "SELECT steps FROM holdfast.workflow_history WHERE run_id = %s", [run]
        ).fetchall()
        assert [step["key"] for step in row["steps"]] == ["double", "double#2", "double#3"]


async def test_a_run_that_waits_is_put_away_and_a_signal_wakes_it(
    akit: Kit, events: list[telemetry.Event]
) -> None:
    async with working(akit):
        run = await start(akit, "waits")
        await await_until(lambda: [e for e in events if e.name == "job.suspended"], "the run is put away")
        with akit.connect(autocommit=True) as conn:
            conn.execute("SELECT holdfast.workflow_signal('waits', %s, 'go', '40')", [run])
        found = await ended(akit, run)
    assert (found["state"], found["result"]) == ("completed", 42)


async def test_jobs_that_are_called_wake_the_run_with_their_results(akit: Kit) -> None:
    async with working(akit):
        run = await start(akit, "family")
        found = await ended(akit, run)
    assert (found["state"], found["result"]) == ("completed", [9, [1, 4, 9, 16, 25], 42])


async def test_a_called_job_that_dies_fails_the_step(akit: Kit) -> None:
    async with working(akit):
        run = await start(akit, "unlucky")
        found = await ended(akit, run)
    assert found["state"] == "failed"
    assert "unlucky" in found["error"]["message"]


async def test_a_cancel_reaches_a_run_that_sleeps(akit: Kit) -> None:
    async with working(akit):
        run = await start(akit, "sleeps")
        await await_until(lambda: look(akit, run)["state"] == "suspended", "it sleeps")
        with akit.connect(autocommit=True) as conn:
            conn.execute("SELECT holdfast.workflow_cancel('sleeps', %s, 'enough')", [run])
        found = await ended(akit, run)
    assert found["state"] == "cancelled"


async def test_a_run_that_rests_hears_of_a_signal_before_its_worker_looks(
    akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is not among the sleepers while it rests, and must be told all the same."""
    monkeypatch.setattr(recorder, "BEAT", 3600.0)
    monkeypatch.setattr(recorder, "SLOW", 3600.0)
    monkeypatch.setattr(database_journal, "BUSY", 3600.0)
    listens, rests = asyncio.Event(), asyncio.Event()
    stop = telemetry.subscribe(lambda event: listens.set() if event.name == "listen.ready" else None)
    real = recorder.Recorder.closely

    def closely(self: recorder.Recorder, run: str) -> Any:
        rests.set()
        return real(self, run)

    monkeypatch.setattr(recorder.Recorder, "closely", closely)
    async with Holdfast(akit.url, settings=Settings()) as app:  # its worker listens: that of the kit polls
        app.workflow(name="stays", sticky=3600.0)(waits)
        worker = asyncio.create_task(app.run_worker(queues=["workflows"]))
        run = await start(akit, "stays")
        async with asyncio.timeout(within(30)):
            await listens.wait()
            await rests.wait()
        await asyncio.to_thread(send, akit, run)
        found = await ended(akit, run)
        assert (found["state"], found["result"]) == ("completed", 9)
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker
    stop()
