"""Keyed jobs with steps, progress and errors at a rate, and how large the tables beside the jobs become.

`python scripts/growth.py --rate 3000 --seconds 180`. Keys live for 20 seconds, and errors go as soon as their job is done,
so that minutes show what weeks would: the tables stop growing, or they do not.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from holdfast import Backoff, Holdfast, Job, Retry
from holdfast.runtime.sweep import Sweeper
from holdfast.runtime.tidy import BUDGET
from holdfast.testing import Kit, TestServer

TABLES = ("idempotency", "once", "progress", "errors")
BATCH = 100

app = Holdfast()


@app.task(retry=Backoff(first=0, jitter=False))
async def work(job: Job, n: int) -> None:
    async def step() -> int:
        return n

    await job.aonce("step", step)
    job.progress(0.5)
    if n % 10 == 0 and job.attempt == 1:
        raise Retry("once more")


class Producer:
    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.made = 0

    async def run(self) -> None:
        began = time.monotonic()
        while True:
            jobs = [
                work.using(idempotency_key=f"{self.made + n}", idempotency_lifetime=20).job(self.made + n)
                for n in range(BATCH)
            ]
            await app.aenqueue_many(jobs)
            self.made += BATCH
            await asyncio.sleep(max(0.0, began + self.made / self.rate - time.monotonic()))


async def tidy(kit: Kit) -> None:
    sweeper = Sweeper(kit.database, lambda: None)
    while True:
        await asyncio.sleep(10)
        await sweeper.tidier.tidy_once(0, BUDGET)


async def main(kit: Kit, rate: float, seconds: float) -> None:
    producer = Producer(rate)
    worker = kit.arun_worker(until_idle=False, concurrency=50)
    tasks = [asyncio.create_task(c) for c in (worker, producer.run(), tidy(kit))]
    counts = ", ".join(
        f"(SELECT count(*) FROM holdfast.{t}) || ' rows ' || pg_total_relation_size('holdfast.{t}') / 1024 || ' kB' AS {t}"
        for t in TABLES
    )
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        await asyncio.wait(tasks, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        (row,) = await asyncio.to_thread(
            kit.sql,
            f"SELECT {counts}, (SELECT count(*) FROM holdfast.work) AS waiting, "
            "(SELECT count(*) FROM holdfast.archive) AS done",
        )
        passed = time.monotonic() - began
        print(f"{passed:4.0f} s  {producer.made / passed:5.0f} jobs/s  {row}", flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=3000)
    parser.add_argument("--seconds", type=float, default=180)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = TestServer(Path(folder) / "pg")
        asyncio.run(main(Kit(app, server.url(server.clone())), given.rate, given.seconds))
        server.close()
