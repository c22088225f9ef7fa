"""DBOS: workflows called in this process, without a queue, which is its quickest way. Sync ones in threads, or async."""

import asyncio

from closed_loop import STEPS, Loop
from common import call
from dbos import DBOS, DBOSConfig

settings = call.settings


@DBOS.step()
def nothing(n: int) -> int:
    return n


@DBOS.workflow()
def five(n: int) -> int:
    for _ in range(STEPS):
        n = nothing(n)
    return n


@DBOS.step()
async def nothing_async(n: int) -> int:
    return n


@DBOS.workflow()
async def five_async(n: int) -> int:
    for _ in range(STEPS):
        n = await nothing_async(n)
    return n


def main() -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": call.url.replace("postgresql:", "postgresql+psycopg:", 1),
        "sys_db_pool_size": settings["pool"],
        "max_executor_threads": settings["threads"],
        "log_level": "ERROR",
        "enable_otlp": False,
    }
    DBOS(config=config)
    DBOS.launch()
    if settings["async"]:
        asyncio.run(Loop().in_tasks(five_async))
    else:
        Loop().in_threads(five)
    DBOS.destroy()


main()
