"""`python -m holdfast.bench.limits`: what limits and shares cost, and how long ten jobs wait behind a million of a key.

run         the same jobs in a plain queue and in queues with each rule: what a rule costs
claim       asking what is allowed, with that many jobs running, and with keys that are all at their limit
the ten     a key with a million jobs, and ten of another key that come while the worker is busy: how long until the last
            of the ten has started
"""

import argparse
import asyncio
import functools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg

from .. import Job
from ..app import Holdfast
from ..db import migrate
from ..db.embedded import EmbeddedOptions
from ..model.queue import QueueRules, Rate
from ..runtime.claim.fair import Turns
from ..store.jobs import describe_server
from ..store.limits import Allowance, allowance, claim_shares, within
from ..store.queues import create_queue
from .server import temporary_server

FILL = """
INSERT INTO holdfast.work (id, queue, task, payload, partition_key, available_at)
SELECT holdfast.uuid7(), %s, 'nothing', '{"n": 1}', %s || CASE WHEN %s = 1 THEN '' ELSE (n %% %s)::text END, holdfast.now()
FROM generate_series(1, %s) AS n
"""

RULES = {
    "plain": QueueRules(),
    "limited": QueueRules(concurrency=1000),
    "rated": QueueRules(rate=Rate(1_000_000)),
    "aged": QueueRules(aging=30.0),
    "fair": QueueRules(fair=True),
    "keyed": QueueRules(key_concurrency=10),
    "key_rated": QueueRules(key_rate=Rate(10_000)),
}


heard: list[Callable[[str | None], None]] = []  # told of the key of each job that starts


def say(name: str, value: float, unit: str) -> None:
    print(f"  {name:64} {value:12,.1f} {unit}", flush=True)


async def fill(url: str, queue: str, key: str, keys: int, count: int) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await conn.execute(FILL, [queue, key, keys, keys, count])
        await conn.execute("ANALYZE holdfast.work")


async def empty(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await conn.execute("TRUNCATE holdfast.work, holdfast.claims, holdfast.archive")


async def runs(app: Holdfast, url: str, jobs: int) -> None:
    for queue in RULES:
        times = []
        for _ in range(3):
            await fill(url, queue, "k", 100, jobs)
            began = time.perf_counter()
            await app.run_worker(queues=[queue], concurrency=10, until_idle=True)
            times.append(time.perf_counter() - began)
            await empty(url)
        say(f"run, 100 keys, concurrency 10, queue {queue}", jobs / min(times), "jobs/s")


async def claims(app: Holdfast, url: str, running: int) -> None:
    """`running` keys, each with one job that runs and one that waits behind it."""
    queue, session = "keyed_one", app.database.session("bench")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await conn.execute(
            "INSERT INTO holdfast.workers VALUES ('bench', 'h', 1, 'alive', holdfast.now(), holdfast.now(),"
            " '{inbox}', '{}', 1, '-') ON CONFLICT DO NOTHING"
        )
    await fill(url, queue, "k", running, 2 * running)

    def take(keys: list[str]) -> Any:
        def some(allowed: Allowance) -> Any:
            shares = [(key, min(1, most)) for key, most in zip(keys, allowed.keys, strict=True)]
            return claim_shares(queue, "bench", uuid4(), lease=60, shares=shares, limit=len(keys), limited=2)

        return within(queue, keys, some)

    for start in range(0, running, 100):
        keys = [f"k{n}" for n in range(start, min(start + 100, running))]
        await session.flow(functools.partial(take, keys))
    times = []
    keys = [f"k{n}" for n in range(200)]
    for _ in range(8):
        began = time.perf_counter()
        await session.run(allowance(queue, keys))
        times.append(time.perf_counter() - began)
    await session.close()
    say(f"what 200 keys may start, {running:,} jobs running", statistics.median(times) * 1000, "ms")
    await empty(url)


async def the_ten(app: Holdfast, url: str, many: int) -> None:
    await fill(url, "fair", "big", 1, many)
    started: list[float] = []
    busy = asyncio.Event()

    def seen(key: str | None) -> None:
        busy.set()
        if key == "small":
            started.append(time.perf_counter())

    heard.append(seen)
    worker = asyncio.create_task(app.run_worker(queues=["fair"], concurrency=10))
    await busy.wait()
    await asyncio.sleep(2)
    began = time.perf_counter()
    await fill(url, "fair", "small", 1, 10)
    while len(started) < 10:  # noqa: ASYNC110 a handler fills it
        await asyncio.sleep(0.005)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    say(f"ten jobs behind {many:,} of another key: the last has started", started[-1] - began, "s")
    await empty(url)


def turns(keys: int) -> None:
    made = Turns()
    for n in range(keys):
        made.add(f"k{n}")
    began = time.perf_counter()
    for _ in range(1000):
        for key, share, at in made.take(10, lambda _: 1.0):
            made.put_back(key, at + share)
    say(f"whose turn it is, 10 of {keys:,} keys", (time.perf_counter() - began) * 1000, "us")


async def measure(url: str, jobs: int, many: int) -> None:
    app = Holdfast(url)

    @app.task(name="nothing")
    async def nothing(job: Job, n: int) -> None:
        for listener in heard:
            listener(job.partition_key)

    async with app:
        for queue, rules in RULES.items():
            await app.database.arun(functools.partial(create_queue, queue, rules=rules))
        one = QueueRules(key_concurrency=1)
        await app.database.arun(lambda: create_queue("keyed_one", rules=one))
        server = await app.database.arun(describe_server)
        print(
            f"PostgreSQL {server.version // 10000}.{server.version % 10000}, Python {platform.python_version()}, "
            f"{os.cpu_count()} cores; default settings; {server.durability}"
        )
        await runs(app, url, jobs)
        for running in (100, 1000, 5000):
            await claims(app, url, running)
        await the_ten(app, url, many)
    turns(50_000)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--jobs", type=int, default=2000)
    options.add_argument("--many", type=int, default=1_000_000)
    given = options.parse_args()
    with temporary_server(EmbeddedOptions()) as server:
        server.ensure_database("bench")
        migrate.up(server.dsn("bench"))
        asyncio.run(measure(server.dsn("bench"), given.jobs, given.many))
    return 0


if __name__ == "__main__":
    sys.exit(main())
