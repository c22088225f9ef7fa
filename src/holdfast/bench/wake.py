"""`python -m holdfast.bench.wake`: how quickly an idle worker is woken, and what wake-ups cost producers.

pickup      from the commit of one job to the first line of its handler, in an idle system, woken and polling
producers   64 of them, each with a connection of its own, one commit per job; the rate with wake-ups against the rate
            without, in rounds that take turns. `busy`: a worker runs the jobs. `idle`: a worker sleeps in the queue and may
            not take any, because the task is paused. `never up`: somebody listens, and nobody takes its row among the
            sleepers away when there is much to do, as a worker would.
"""

import argparse
import asyncio
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import psycopg

from ..app import Holdfast
from ..db import migrate
from ..db.database import Database
from ..db.embedded import EmbeddedOptions
from ..settings import Settings
from ..store.jobs import describe_server
from .server import temporary_server

ENQUEUE = "SELECT holdfast.enqueue('touch', '{\"n\": 1}')"
PROCESSES, THREADS = 4, 16


async def pickup(url: str, tries: int, notify: bool) -> list[float]:
    """Milliseconds, sorted."""
    app = Holdfast(url, settings=replace(Settings(), notify=notify))
    started: dict[int, asyncio.Future[float]] = {}

    @app.task
    async def touch(n: int) -> None:
        started[n].set_result(time.perf_counter())

    async with app:
        worker = asyncio.create_task(app.run_worker())
        await asyncio.sleep(3)
        waits = []
        for n in range(tries):
            await asyncio.sleep(
                0.8 + 0.01 * (n % 20)
            )  # it sleeps by then, and no step of its polling is always hit
            started[n] = asyncio.get_running_loop().create_future()
            await touch.aenqueue(n)
            committed = time.perf_counter()
            waits.append((await started[n] - committed) * 1000)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return sorted(waits)


def produce(url: str, seconds: float) -> int:
    """Enqueue for a time on a number of connections of this process; returns how many jobs."""
    counts: list[int] = []
    begin = threading.Barrier(THREADS)

    def one() -> None:
        with psycopg.connect(url, autocommit=True) as conn:
            begin.wait()
            deadline, count = time.monotonic() + seconds, 0
            while time.monotonic() < deadline:
                conn.execute(ENQUEUE)
                count += 1
            counts.append(count)

    threads = [threading.Thread(target=one) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


@contextmanager
def worker(url: str, notify: bool) -> Iterator[None]:
    """A worker process that has had time to fall asleep."""
    env = {**os.environ, "HOLDFAST_DATABASE_URL": url, "HOLDFAST_NOTIFY": str(notify)}
    command = [sys.executable, "-m", "holdfast", "worker", "holdfast.bench.wake_app:app"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(4)
        yield
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def never_up(url: str) -> Iterator[None]:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("LISTEN holdfast_inbox")
        conn.execute("INSERT INTO holdfast.sleepers VALUES ('inbox', 'bench', 1)")
        yield
        conn.execute("DELETE FROM holdfast.sleepers")


def rate(pool: Any, url: str, scenario: str, notify: bool, seconds: float) -> float:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("TRUNCATE holdfast.work, holdfast.claims, holdfast.archive, holdfast.paused_tasks")
        if scenario == "idle":
            conn.execute("INSERT INTO holdfast.paused_tasks VALUES ('touch', now())")
        conn.execute("CHECKPOINT")
    if scenario == "never up":
        there: Any = never_up(url) if notify else nullcontext()
    else:
        there = worker(url, notify)
    with there:
        return float(sum(pool.starmap(produce, [(url, seconds)] * PROCESSES))) / seconds


def producers(url: str, scenarios: list[str], rounds: int, seconds: float) -> None:
    """The ratio is the median over neighbouring rounds: the machine's other load changes slower than that."""
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        pool.starmap(produce, [(url, 0.5)] * PROCESSES)
        for scenario in scenarios:
            rates: dict[bool, list[float]] = {True: [], False: []}
            for n in range(2 * rounds):
                notify = n % 4 in (1, 2)  # off on on off
                rates[notify].append(rate(pool, url, scenario, notify, seconds))
            off, on = statistics.median(rates[False]), statistics.median(rates[True])
            ratios = sorted(b / a for a, b in zip(rates[False], rates[True], strict=True))
            name = f"{PROCESSES * THREADS} producers, {scenario}"
            spread = f"{statistics.median(ratios):.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"  {name:28} {off:9,.0f} jobs/s off  {on:9,.0f} jobs/s on  {spread}", flush=True)


def measure(url: str, given: argparse.Namespace) -> None:
    database = Database(url, Settings())
    server = database.run(describe_server)
    database.close()
    print(
        f"PostgreSQL {server.version // 10000}.{server.version % 10000}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {server.durability}"
    )
    for notify in (True, False) if given.tries else ():
        waits = asyncio.run(pickup(url, given.tries, notify))
        name = f"pickup, {'woken' if notify else 'polling'}, {given.tries} jobs"
        p50, p99 = statistics.median(waits), waits[min(len(waits) - 1, int(len(waits) * 0.99))]
        print(f"  {name:28} {p50:9,.1f} ms p50   {p99:9,.1f} ms p99", flush=True)
    producers(url, given.scenario or ["busy", "idle", "never up"], given.rounds, given.seconds)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--tries", type=int, default=100)
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--seconds", type=float, default=12.0)
    options.add_argument("--scenario", action="append", choices=["busy", "idle", "never up"])
    given = options.parse_args()
    with temporary_server(EmbeddedOptions(settings={"max_connections": "150"})) as server:
        server.ensure_database("bench")
        migrate.up(server.dsn("bench"))
        measure(server.dsn("bench"), given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
