"""Absurd: async workers in this process, each with a connection of its own. Its schema comes with absurdctl."""

import asyncio
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd, AsyncTaskContext
from absurdctl import BUNDLED_SCHEMA_SQL
from closed_loop import STEPS, Loop
from common import call

ended: dict[int, asyncio.Future[None]] = {}


class Worker(AsyncAbsurd):
    """Tells when the end of a task is committed: a task's own last line is one commit before that."""

    async def _execute_task(self, task: Any, claim_timeout: int) -> None:
        await super()._execute_task(task, claim_timeout)
        ended.pop(task["params"]["n"]).set_result(None)


async def five(params: dict[str, int], ctx: AsyncTaskContext) -> int:
    n = params["n"]

    async def nothing() -> int:
        return n

    for _ in range(STEPS):
        n = await ctx.step("nothing", nothing)
    return n


async def main() -> None:
    producers = [AsyncAbsurd(call.url) for _ in range(call.settings["producers"])]
    await producers[0].create_queue("default")
    workers = [Worker(call.url) for _ in range(call.settings["workers"])]
    for worker in workers:
        worker.register_task(name="five")(five)
    options = {name: call.settings[name] for name in ("concurrency", "batch_size", "poll_interval")}
    tasks = [asyncio.create_task(worker.start_worker(**options)) for worker in workers]

    async def one(n: int) -> None:
        done = ended[n] = asyncio.get_running_loop().create_future()
        await producers[n % len(producers)].spawn("five", {"n": n}, queue="default")
        await done

    await Loop().in_tasks(one)
    for worker in workers:
        worker.stop_worker()
    await asyncio.gather(*tasks)


with psycopg.connect(call.url, autocommit=True) as connection:
    connection.execute(BUNDLED_SCHEMA_SQL.encode())
asyncio.run(main())
