"""Chancy, with its async executor. It writes what ended once a second by default; here as often as it is told to."""

import asyncio
import logging

from chancy import Chancy, Queue, Worker, job
from common import Drain, Latency, analyze, call

LEFT = "SELECT EXISTS (SELECT FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying'))"
drain, latency = Drain(LEFT), Latency()


@job(queue="default")
async def nothing(n: int) -> None:
    if call.drains:
        drain.ran_one()
    else:
        latency.ran_one(n)


async def main() -> None:
    settings = call.settings
    log = logging.getLogger("quiet")
    log.setLevel(logging.ERROR)
    async with Chancy(call.url, log=log) as chancy:
        await chancy.migrate()
        queue = Queue(
            "default",
            concurrency=settings["concurrency"],
            executor=Chancy.Executor.Async,
            polling_interval=settings["polling_interval"],
            eager_polling=settings["eager_polling"],
        )
        await chancy.declare(queue)
        if call.drains:
            jobs = [nothing.job.with_kwargs(n=n) for n in range(call.jobs)]
            async for _ in chancy.push_many(jobs, batch_size=5000):
                pass
            await asyncio.to_thread(analyze)
        worker = Worker(chancy, register_signal_handlers=False)
        worker.send_outgoing_interval = settings["send_outgoing_interval"]
        async with worker:
            enqueue = lambda n: chancy.push(nothing.job.with_kwargs(n=n))  # noqa: E731
            await (drain.afinish() if call.drains else latency.afinish(enqueue))


if call.settings.get("uvloop"):
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
