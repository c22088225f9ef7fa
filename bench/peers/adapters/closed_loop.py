"""What the adapters for workflows have in common. It runs in a peer's environment: standard library and psycopg only.

    adapter.py workflow URL RUNS SETTINGS

RUNS runs of five steps that do nothing, at most `in_flight` of SETTINGS at a time: whoever sees the end of one starts the
next. A run is timed from just before it is started until this process knows that its end is committed. One JSON line on
stdout.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable

from common import call, report

STEPS = 5
WARM = 50  # runs before the clock, at most: imports, plans, connections


class Loop:
    def __init__(self) -> None:
        self.in_flight: int = call.settings["in_flight"]
        self._times: list[float] = []
        self._count = itertools.count()  # next() on it is atomic: runs may be in threads

    def in_threads(self, one: Callable[[int], object]) -> None:
        self._with_threads(one, min(self.in_flight, WARM))
        began, cpu = self._reset()
        self._with_threads(one, call.jobs)
        self._report(began, cpu)

    def _with_threads(self, one: Callable[[int], object], runs: int) -> None:
        def work() -> None:
            while (n := next(self._count)) < runs:
                at = time.perf_counter()
                one(n)
                self._times.append(time.perf_counter() - at)

        threads = [threading.Thread(target=work) for _ in range(min(self.in_flight, runs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async def in_tasks(self, one: Callable[[int], Awaitable[object]]) -> None:
        await self._with_tasks(one, min(self.in_flight, WARM))
        began, cpu = self._reset()
        await self._with_tasks(one, call.jobs)
        self._report(began, cpu)

    async def _with_tasks(self, one: Callable[[int], Awaitable[object]], runs: int) -> None:
        async def work() -> None:
            while (n := next(self._count)) < runs:
                at = time.perf_counter()
                await one(n)
                self._times.append(time.perf_counter() - at)

        await asyncio.gather(*(work() for _ in range(min(self.in_flight, runs))))

    def _reset(self) -> tuple[float, float]:
        self._times.clear()
        self._count = itertools.count()
        return time.perf_counter(), time.process_time()

    def _report(self, began: float, cpu: float) -> None:
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
        if len(self._times) != call.jobs:
            raise SystemExit(f"{len(self._times)} of {call.jobs} runs ended")
        found = sorted(self._times)
        report(jobs=call.jobs, seconds=seconds, cpu=used, p50=found[len(found) // 2] * 1000)
