"""`make bench`: what this machine does, on a server of its own, with every setting beside the figures.

Ratios inside one run are the point; a figure from another machine says little here. Each measurement is the best of three.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from ..app import Holdfast
from ..db import migrate
from ..db.embedded import EmbeddedOptions, EmbeddedServer
from ..store.claim import claim
from ..store.jobs import describe_server
from . import process_app

BACKLOG = """
INSERT INTO holdfast.work (id, queue, task, payload, available_at)
SELECT holdfast.uuid7(), 'inbox', 'backlog', '{"n": 1}', holdfast.now() - make_interval(secs => n * 0.001)
FROM generate_series(1, %s) AS n
"""


def best(times: list[float]) -> float:
    return min(times)


class Bench:
    def __init__(self, app: Holdfast, url: str, jobs: int) -> None:
        self.app = app
        self.url = url
        self.jobs = jobs
        self.found: dict[str, float] = {}

        @app.task
        async def nothing(n: int) -> None:
            return None

        @app.task
        def nothing_in_a_thread(n: int) -> None:
            return None

        self.nothing, self.in_a_thread = nothing, nothing_in_a_thread

    def _note(self, name: str, value: float, unit: str) -> None:
        self.found[name] = value
        print(f"  {name:52} {value:12,.1f} {unit}", flush=True)

    async def _rate(self, name: str, count: int, work: Callable[[], Awaitable[Any]], rounds: int = 3) -> None:
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            await work()
            times.append(time.perf_counter() - began)
        self._note(name, count / best(times), "jobs/s")

    async def enqueue(self) -> None:
        async def one_by_one() -> None:
            for n in range(200):
                await self.nothing.aenqueue(n)

        async def many() -> None:
            await self.app.aenqueue_many(self.nothing.job(n) for n in range(2000))

        await self._rate("enqueue, one commit each", 200, one_by_one)
        await self._rate("enqueue_many, 2,000 at once", 2000, many)
        await self._empty()

    async def _empty(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as conn:
            await conn.execute("TRUNCATE holdfast.work, holdfast.claims, holdfast.archive")

    async def run(self, task: Any, name: str, concurrency: int) -> None:
        times = []
        for _ in range(3):
            await self.app.aenqueue_many(task.job(n) for n in range(self.jobs))
            began = time.perf_counter()
            await self.app.run_worker(concurrency=concurrency, until_idle=True)
            times.append(time.perf_counter() - began)
        self._note(f"{name}, concurrency {concurrency}", self.jobs / best(times), "jobs/s")
        await self._empty()

    async def processes(self) -> None:
        """With the start of the child processes, and of those that replace them."""
        process_app.app._use(self.url, self.app.settings)
        async with process_app.app as app:
            bench = Bench(app, self.url, self.jobs // 10)
            name = "run, process handler that does nothing"
            await bench.run(process_app.nothing_in_a_process, name, 2)
        self.found |= bench.found

    async def pickup(self) -> None:
        """From commit to the first line of the handler, in an idle system: the worker sleeps. More in bench/wake.py."""
        seen: dict[int, asyncio.Event] = {}

        @self.app.task
        async def touch(n: int) -> None:
            seen[n].set()

        worker = asyncio.create_task(self.app.run_worker())
        waits = []
        for n in range(20):
            await asyncio.sleep(0.9)
            seen[n] = asyncio.Event()
            await touch.aenqueue(n)
            began = time.perf_counter()
            await seen[n].wait()
            waits.append(time.perf_counter() - began)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        self._note("pickup in an idle system, median", statistics.median(waits) * 1000, "ms")
        await self._empty()

    async def claims(self, backlog: int) -> None:
        """A claim of ten with nothing else waiting, and behind a large backlog."""
        for size, name in ((100, "claim of 10, 100 waiting"), (backlog, f"claim of 10, {backlog:,} waiting")):
            async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as conn:
                await conn.execute(BACKLOG, [size])
                await conn.execute("ANALYZE holdfast.work")
                await conn.execute(
                    "INSERT INTO holdfast.workers VALUES ('bench', 'h', 1, 'alive', holdfast.now(), holdfast.now(),"
                    " '{inbox}', '{}', 1, '-') ON CONFLICT DO NOTHING"
                )
            session = self.app.database.session("bench")
            times = []
            for _ in range(8):
                began = time.perf_counter()
                await session.run(claim("inbox", "bench", uuid4(), lease=60, limit=10, marks=[(0, None)]))
                times.append(time.perf_counter() - began)
            await session.close()
            self._note(name, statistics.median(times) * 1000, "ms")
            await self._empty()
        ratio = self.found[f"claim of 10, {backlog:,} waiting"] / self.found["claim of 10, 100 waiting"]
        self._note("ratio of the two", ratio, "x")


async def measure(url: str, jobs: int, backlog: int) -> dict[str, float]:
    app = Holdfast(url)
    bench = Bench(app, url, jobs)
    async with app:
        server = await app.database.arun(describe_server)
        print(
            f"PostgreSQL {server.version // 10000}.{server.version % 10000}, Python {platform.python_version()}, "
            f"{os.cpu_count()} cores; {server.durability}"
        )
        await bench.enqueue()
        await bench.run(bench.nothing, "run, async handler that does nothing", 10)
        await bench.run(bench.nothing, "run, async handler that does nothing", 100)
        await bench.run(bench.in_a_thread, "run, sync handler that does nothing", 10)
        await bench.processes()
        await bench.pickup()
        await bench.claims(backlog)
    return bench.found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=3000)
    options.add_argument("--backlog", type=int, default=300_000)
    options.add_argument("--json", action="store_true", help="also print the figures as JSON")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        server = EmbeddedServer.acquire(Path(folder) / "postgres", EmbeddedOptions())
        try:
            server.ensure_database("bench")
            migrate.up(server.dsn("bench"))
            found = asyncio.run(measure(server.dsn("bench"), given.jobs, given.backlog))
        finally:
            server.release()
    if given.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
