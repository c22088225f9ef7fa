"""awa-pg: handlers in Python, the engine in Rust. Enqueued by its direct COPY."""

import asyncio
from dataclasses import dataclass
from typing import Any

from awa import AsyncClient
from common import Drain, Latency, analyze, call, chunks


@dataclass
class Nothing:
    n: int


async def main() -> None:
    settings = call.settings
    client = AsyncClient(call.url, max_connections=settings["connections"])
    await client.migrate()
    await client.install_queue_storage()
    drain, latency = Drain(), Latency()

    @client.task(Nothing, queue="default")
    async def nothing(job: Any) -> None:
        if call.drains:
            drain.ran_one()
        else:
            latency.ran_one(job.args.n)

    if call.drains:
        for some in chunks(call.jobs):
            await client.enqueue_many_copy([Nothing(n) for n in some], queue="default")
        await asyncio.to_thread(analyze)
    await client.start(
        [{"name": "default", **settings["queue"]}], poll_interval_ms=settings["poll_interval_ms"]
    )
    if call.drains:
        await asyncio.to_thread(drain.all_ran)
        while any(queue.available or queue.running for queue in await client.queue_stats()):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        drain.report()
    else:
        await latency.afinish(lambda n: client.insert(Nothing(n), queue="default"))
    await client.shutdown()
    await client.close()


if call.settings.get("uvloop"):
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
