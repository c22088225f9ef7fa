"""A worker inside a web process: started with it, drained with it."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from tests.conftest import await_until

from holdfast import ConfigurationError, Holdfast, UnknownQueue, telemetry
from holdfast.runtime.lifecycle import Lifecycle
from holdfast.testing import Kit


async def test_by_one_line_of_a_web_applications_lifespan(app: Holdfast, akit: Kit) -> None:
    @app.task
    async def charge(order_id: int) -> int:
        return order_id * 100

    web = FastAPI(lifespan=lambda _: app.worker())

    @web.post("/orders/{order_id}", status_code=202)
    async def order(order_id: int) -> dict[str, str]:
        return {"job": str((await charge.aenqueue(order_id=order_id)).id)}

    @web.get("/jobs/{job_id}")
    async def look(job_id: str) -> dict[str, Any]:
        job = await charge.aget(job_id)
        if job is None:
            raise HTTPException(404)
        return {"state": job.state, "result": job.result}

    async with (
        web.router.lifespan_context(web),
        httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://shop") as client,
    ):
        posted = await client.post("/orders/7")
        assert posted.status_code == 202
        where = f"/jobs/{posted.json()['job']}"
        await await_until(lambda: akit.jobs("charge")[0]["status"] == "completed", "the worker ran it")
        assert (await client.get(where)).json() == {"state": "completed", "result": 700}
        assert (await client.get("/jobs/00000000-0000-0000-0000-000000000000")).status_code == 404
    assert akit.sql("SELECT status, ended FROM holdfast.workers") == [{"status": "gone", "ended": "left"}]


async def test_the_end_of_the_block_waits_for_handlers(app: Holdfast, akit: Kit) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        started.set()
        await go_on.wait()
        return "finished"

    handle = await slow.aenqueue()
    never = slow.using(run_after=0.0)
    async with app.worker(concurrency=1):
        await started.wait()
        await never.aenqueue()
        asyncio.get_running_loop().call_later(0.1, go_on.set)
    assert await handle.aresult(timeout=0) == "finished"
    assert [row["status"] for row in akit.jobs()] == ["completed", "pending"]  # drained: no more was claimed


async def test_what_is_wrong_is_raised_before_the_web_process_serves(app: Holdfast, akit: Kit) -> None:
    with pytest.raises(UnknownQueue, match="queue 'nowhere' does not exist"):
        async with app.worker(queues=["nowhere"]):
            pytest.fail("it served")
    with pytest.raises(ConfigurationError, match="queues= takes a list of names"):
        async with app.worker(queues="inbox"):
            pytest.fail("it served")
    for few in (0, -1, "5"):
        with pytest.raises(
            ConfigurationError, match=f"^concurrency must be between 1 and 10000, not {few!r}$"
        ):
            async with app.worker(concurrency=few):  # type: ignore[arg-type]
                pytest.fail("it served")


async def test_an_error_of_the_block_goes_out_and_the_worker_leaves(app: Holdfast, akit: Kit) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with app.worker():
            await await_until(lambda: akit.sql("SELECT 1 FROM holdfast.workers"), "it is registered")
            raise KeyError("mine")
    assert akit.sql("SELECT ended FROM holdfast.workers") == [{"ended": "left"}]


async def test_a_worker_that_fails_is_said_at_once_and_raised_at_the_end(
    app: Holdfast, akit: Kit, events: list[telemetry.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("broken engine")

    monkeypatch.setattr(Lifecycle, "run", fail)
    served = False
    with pytest.raises(RuntimeError, match="broken engine"):
        async with app.worker():
            await await_until(lambda: [e for e in events if e.name == "worker.failed"], "it is logged")
            served = True  # the web process goes on
    assert served
    (said,) = [e.fields for e in events if e.name == "worker.failed"]
    assert said["error"] == "RuntimeError: broken engine"


async def test_a_cancelled_start_leaves_no_worker(app: Holdfast, akit: Kit) -> None:
    async def enter() -> None:
        async with app.worker():
            await asyncio.Event().wait()

    task = asyncio.create_task(enter())
    await asyncio.sleep(0)  # it has begun to look at the server
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    others = [t for t in asyncio.all_tasks() if t.get_name() == "holdfast worker"]
    assert others == []
