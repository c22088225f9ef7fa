"""`steady`: a producer and a worker, two processes, at a given rate. How long jobs wait, and until they are settled.

A wait is from just before the producer calls enqueue() to the first line of the handler; settled is when the worker knows
that the job's end is committed.
"""

import json
import subprocess
import sys
import time

from ..context import Bench
from ..crew import crew, environment
from ..fill import Watcher


def run(bench: Bench) -> None:
    rate, seconds = bench.sizes.rate, bench.sizes.seconds
    waits, settled, reached = times(bench, rate, seconds)
    bench.add("steady", "rate", "jobs/s", reached)
    for name, values in (("start", waits), ("settled", settled)):
        for share in (50, 95, 99):
            bench.add("steady", f"{name} p{share}", "ms", percentile(values, share))
    bench.say(
        f"steady: {reached:,.0f} jobs/s, start p50 {percentile(waits, 50):.1f} p99 {percentile(waits, 99):.1f} ms"
    )


def times(
    bench: Bench, rate: float, seconds: float, idle: float = 0.0
) -> tuple[list[float], list[float], float]:
    """Waits until start and until settled in milliseconds, both sorted, and the rate that was reached."""
    with (
        bench.database() as url,
        crew(url, queues=["inbox"], concurrency=bench.sizes.concurrency, timed=True) as workers,
        Watcher(url) as watcher,
    ):
        produce(url, min(rate, 100.0), 1.0)
        watcher.empty("inbox", workers.check)
        time.sleep(idle)
        workers.forget()
        made = produce(url, rate, seconds)
        watcher.empty("inbox", workers.check)
        time.sleep(0.2)  # the last settles are reported
        found = [job for job in workers.times() if job[0]]  # but those that only opened the connections
    waits = sorted((began - sent) * 1000 for sent, began, _ in found)
    settled = sorted((end - sent) * 1000 for sent, _, end in found if end)
    return waits, settled, made["sent"] / made["seconds"]


def produce(url: str, rate: float, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "holdfast.bench.producer", f"--rate={rate}", f"--seconds={seconds}"]
    done = subprocess.run(command, env=environment(url), stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def percentile(values: list[float], share: float) -> float:
    """Of sorted values, the one that that percentage does not exceed."""
    return values[min(len(values) - 1, int(len(values) * share / 100))]
