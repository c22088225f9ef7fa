"""Holdfast itself, measured as the others are: producer, worker and stopwatch in one process, through the public API."""

import asyncio
import contextlib
import os

for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
    del os.environ[name]
os.environ["HOLDFAST_CONFIG"] = os.devnull

from common import Drain, Latency, analyze, call  # noqa: E402

from holdfast import Holdfast  # noqa: E402
from holdfast.bench.loops import loop_factory  # noqa: E402
from holdfast.db import migrate  # noqa: E402
from holdfast.runtime.gc_tuning import tuned_gc  # noqa: E402

app = Holdfast(call.url)
drain, latency = Drain("SELECT EXISTS (SELECT FROM holdfast.work)"), Latency()


@app.task(keep_completed=call.settings.get("keep_completed", True))
async def nothing(n: int) -> None:
    if call.drains:
        drain.ran_one()
    else:
        latency.ran_one(n)


async def main() -> None:
    async with app:
        if call.drains:
            await app.aenqueue_copy(nothing.job(n) for n in range(call.jobs))
            await asyncio.to_thread(analyze)
        worker = asyncio.create_task(app.run_worker(concurrency=call.settings["concurrency"]))
        await (drain.afinish() if call.drains else latency.afinish(nothing.aenqueue))
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker


migrate.up(call.url)
with tuned_gc(), asyncio.Runner(loop_factory=loop_factory()) as runner:
    runner.run(main())
