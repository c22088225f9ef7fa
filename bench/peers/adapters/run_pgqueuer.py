"""PgQueuer, over asyncpg and uvloop, with several queue managers in the one process, as its own benchmark runs it."""

import asyncio

import asyncpg
import uvloop
from common import Drain, Latency, analyze, call, chunks
from pgqueuer import AsyncpgPoolDriver, PgQueuer, Queries
from pgqueuer.models import Job

LEFT = "SELECT EXISTS (SELECT FROM pgqueuer)"


async def main() -> None:
    settings = call.settings
    pools = [
        await asyncpg.create_pool(call.url, min_size=2, max_size=4) for _ in range(settings["managers"] + 1)
    ]
    queries = Queries(AsyncpgPoolDriver(pools[-1]))
    await queries.install()
    drain, latency = Drain(LEFT), Latency()
    managers = [PgQueuer(AsyncpgPoolDriver(pool)) for pool in pools[:-1]]
    for manager in managers:

        @manager.entrypoint("nothing")
        async def nothing(job: Job) -> None:
            if call.drains:
                drain.ran_one()
            else:
                latency.ran_one(int(job.payload or b""))

    async def enqueue(n: int) -> None:
        await queries.enqueue("nothing", str(n).encode())

    if call.drains:
        for some in chunks(call.jobs):
            await queries.enqueue(["nothing"] * len(some), [str(n).encode() for n in some], [0] * len(some))
        await asyncio.to_thread(analyze)
    running = [asyncio.create_task(manager.run(batch_size=settings["batch_size"])) for manager in managers]
    await (drain.afinish() if call.drains else latency.afinish(enqueue))
    for manager in managers:
        manager.shutdown.set()
    await asyncio.wait(running, timeout=5)


uvloop.run(main())
