"""Holdfast itself, measured as the others are: producer, worker and stopwatch in one process, through the public API."""

import asyncio
import contextlib
import os

for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
    del os.environ[name]
os.environ["HOLDFAST_CONFIG"] = os.devnull

import psycopg  # noqa: E402
from closed_loop import STEPS, Loop  # noqa: E402
from common import call  # noqa: E402

from holdfast import Holdfast, Workflow, telemetry  # noqa: E402
from holdfast.bench.loops import loop_factory  # noqa: E402
from holdfast.db import migrate  # noqa: E402
from holdfast.model.state import JOB_COMPLETED  # noqa: E402
from holdfast.runtime.gc_tuning import tuned_gc  # noqa: E402

app = Holdfast(call.url)
waiting: dict[str, asyncio.Future[None]] = {}
early: set[str] = set()  # ended before their start returned


async def nothing(n: int) -> int:
    return n


@app.workflow()
async def five(wf: Workflow, n: int) -> int:
    for _ in range(STEPS):
        n = await wf.step(nothing, n)
    return n


def ended(event: telemetry.Event) -> None:
    if event.name == JOB_COMPLETED:
        run = str(event.fields["job"])
        if run in waiting:
            waiting.pop(run).set_result(None)
        else:
            early.add(run)


async def one(n: int) -> None:
    run = str((await five.astart(n)).run_id)
    if run in early:
        early.remove(run)
        return
    waiting[run] = asyncio.get_running_loop().create_future()
    await waiting[run]


async def main() -> None:
    async with app:
        ready = asyncio.Event()
        stop = telemetry.subscribe(lambda event: ready.set() if event.name == "worker.started" else None)
        worker = asyncio.create_task(
            app.run_worker(queues=["workflows"], concurrency=call.settings["concurrency"])
        )
        waits = asyncio.create_task(ready.wait())
        await asyncio.wait({worker, waits}, return_when=asyncio.FIRST_COMPLETED)
        stop()
        if worker.done():
            worker.result()
        stop = telemetry.subscribe(ended)
        await Loop().in_tasks(one)
        stop()
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker


migrate.up(call.url)
with psycopg.connect(call.url, autocommit=True) as connection:
    connection.execute("SELECT holdfast.create_queue('workflows')")
with tuned_gc(), asyncio.Runner(loop_factory=loop_factory()) as runner:
    runner.run(main())
