"""Procrastinate, over psycopg: one worker that runs many async tasks at once."""

import asyncio
import logging

from common import Drain, Latency, analyze, call, chunks
from procrastinate import App, PsycopgConnector

LEFT = "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"
drain, latency = Drain(LEFT), Latency()
app = App(connector=PsycopgConnector(conninfo=call.url, max_size=call.settings["pool"]))


@app.task(name="nothing")
async def nothing(n: int) -> None:
    if call.drains:
        drain.ran_one()
    else:
        latency.ran_one(n)


async def main() -> None:
    logging.disable(logging.INFO)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        if call.drains:
            for some in chunks(call.jobs, 1000):
                await nothing.batch_defer_async(*({"n": n} for n in some))
            await asyncio.to_thread(analyze)
        options = {
            "concurrency": call.settings["concurrency"],
            "delete_jobs": call.settings.get("delete_jobs", "never"),
        }
        worker = asyncio.create_task(app.run_worker_async(install_signal_handlers=False, **options))
        await (drain.afinish() if call.drains else latency.afinish(lambda n: nothing.defer_async(n=n)))
        worker.cancel()
        await asyncio.wait([worker], timeout=5)


if call.settings.get("uvloop"):
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
