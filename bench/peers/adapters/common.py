"""What the adapters for Python peers have in common. It runs in a peer's environment: standard library and psycopg only.

    adapter.py MODE URL JOBS SETTINGS

`drain`: JOBS jobs are enqueued, then one worker runs them. Timed from the start of the first handler until a query sees
that nothing is left, as committed. `latency`: against an idle worker, JOBS jobs one by one at a fixed rate, each committed
by its own call; from just before that call to the start of the handler. One JSON line on stdout.
"""

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg

DEADLINE = 600.0
RATE = 50


class Call:
    def __init__(self) -> None:
        mode, self.url, jobs, settings = sys.argv[1:5]
        self.drains = mode == "drain"
        self.jobs = int(jobs)
        self.settings: dict[str, Any] = json.loads(settings)


call = Call()


def report(**found: float) -> None:
    print(json.dumps(found), flush=True)


def chunks(total: int, size: int = 5000) -> Iterator[range]:
    for start in range(0, total, size):
        yield range(start, min(total, start + size))


def analyze() -> None:
    """After the enqueue, before the worker: statistics as a server that has run for a while has them."""
    with psycopg.connect(call.url, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")


class Drain:
    """Counts handlers. `left` is a query that answers whether any job is unfinished."""

    def __init__(self, left: str = "") -> None:
        self._left = left
        self._count = itertools.count(1)  # next() on it is atomic: handlers may be threads
        self._ran = 0
        self._began = self._cpu = 0.0
        self._done = threading.Event()

    def ran_one(self) -> None:
        ran = next(self._count)
        if ran == 1:
            self._began, self._cpu = time.perf_counter(), time.process_time()
        if ran >= call.jobs:
            self._ran = ran
            self._done.set()

    def all_ran(self) -> None:
        if not self._done.wait(DEADLINE):
            raise SystemExit(f"only {next(self._count) - 1} of {call.jobs} jobs ran in {DEADLINE:.0f} s")

    def report(self) -> None:
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        if self._ran != call.jobs:
            raise SystemExit(f"{self._ran} runs of {call.jobs} jobs")
        report(jobs=self._ran, seconds=seconds, cpu=cpu)

    def finish(self) -> None:
        """Blocks until all is done; in an async program, call it in a thread."""
        with psycopg.connect(call.url, autocommit=True) as connection:
            self.all_ran()
            while connection.execute(self._left.encode()).fetchone() != (False,):
                time.sleep(0.002)
        self.report()

    async def afinish(self) -> None:
        await asyncio.to_thread(self.finish)


class Latency:
    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        self._waits: list[float] = []
        self._first = 0.0

    def ran_one(self, n: int) -> None:
        self._waits.append((time.perf_counter() - self._sent[n]) * 1000)

    def _wait_for(self, n: int) -> float:
        self._first = self._first or time.perf_counter()
        return max(0.0, self._first + n / RATE - time.perf_counter())

    def finish(self, enqueue: Callable[[int], object]) -> None:
        time.sleep(2)
        for n in range(call.jobs):
            time.sleep(self._wait_for(n))
            self._sent[n] = time.perf_counter()
            enqueue(n)
        for _ in range(1000):
            if len(self._waits) >= call.jobs:
                break
            time.sleep(0.01)
        self._report()

    async def afinish(self, enqueue: Callable[[int], Awaitable[object]]) -> None:
        await asyncio.sleep(2)
        for n in range(call.jobs):
            await asyncio.sleep(self._wait_for(n))
            self._sent[n] = time.perf_counter()
            await enqueue(n)
        for _ in range(1000):
            if len(self._waits) >= call.jobs:
                break
            await asyncio.sleep(0.01)
        self._report()

    def _report(self) -> None:
        if len(self._waits) != call.jobs:
            raise SystemExit(f"{len(self._waits)} of {call.jobs} jobs ran")
        found = sorted(self._waits)
        report(
            jobs=call.jobs, p50=found[len(found) // 2], p99=found[min(len(found) - 1, int(len(found) * 0.99))]
        )
