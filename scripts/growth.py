"""Keyed jobs with steps, progress and errors at a rate, and how large the tables beside the jobs become.

`python scripts/growth.py --rate 3000 --every 10 --seconds 240`. Every job has an idempotency key, every tenth takes a step,
reports progress and fails once. Keys live for 20 seconds, and errors go as soon as their job is done, so that minutes show
what weeks would: the tables stop growing, or they do not. The exit code says which. The server is not durable: a disk would
be measured, not the housekeeping.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.memory import quick_folder

from holdfast import Backoff, Holdfast, Job, NewJob, Retry
from holdfast.runtime.sweep import Sweeper
from holdfast.runtime.tidy import BUDGET
from holdfast.testing import Kit, TestServer

TABLES = ("idempotency", "once", "progress", "errors")
BATCH = 100

app = Holdfast()


@app.task
async def plain(n: int) -> None: ...


@app.task(retry=Backoff(first=0, jitter=False))
async def work(job: Job, n: int) -> None:
    async def step() -> int:
        return n

    await job.aonce("step", step)
    job.progress(0.5)
    if job.attempt == 1:
        raise Retry("once more")


class Producer:
    def __init__(self, rate: float, every: int) -> None:
        self.rate = rate
        self.every = every
        self.made = 0

    def _job(self, n: int) -> NewJob[None]:
        task = plain if n % self.every else work
        return task.using(idempotency_key=f"{n}", idempotency_lifetime=20).job(n)

    async def run(self) -> None:
        began = time.monotonic()
        while True:
            await app.aenqueue_many([self._job(self.made + n) for n in range(BATCH)])
            self.made += BATCH
            await asyncio.sleep(max(0.0, began + self.made / self.rate - time.monotonic()))


async def tidy(kit: Kit) -> None:
    sweeper = Sweeper(kit.database, lambda: None)
    while True:
        await asyncio.sleep(10)
        await sweeper.tidier.tidy_once(0, BUDGET)


async def main(kit: Kit, given: argparse.Namespace) -> bool:
    """True: the tables have stopped growing."""
    producer = Producer(given.rate, given.every)
    worker = kit.arun_worker(until_idle=False, concurrency=50)
    tasks = [asyncio.create_task(c) for c in (worker, producer.run(), tidy(kit))]
    sizes = ", ".join(f"pg_total_relation_size('holdfast.{t}') / 1024 AS {t}" for t in TABLES)
    seen: list[dict[str, int]] = []
    began = time.monotonic()
    while time.monotonic() - began < given.seconds:
        await asyncio.wait(tasks, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        (row,) = await asyncio.to_thread(
            kit.sql,
            f"SELECT {sizes}, (SELECT count(*) FROM holdfast.idempotency) AS keys, "
            "(SELECT count(*) FROM holdfast.work) AS waiting, (SELECT count(*) FROM holdfast.archive) AS done",
        )
        seen.append(row)
        passed = time.monotonic() - began
        print(f"{passed:4.0f} s  {producer.made / passed:5.0f} jobs/s  {row} (tables in kB)", flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    middle = seen[len(seen) // 2]
    grown = {t: f"{middle[t]} -> {seen[-1][t]} kB" for t in TABLES if seen[-1][t] > 1.1 * middle[t] + 100}
    print(
        f"in the second half these grew: {grown}" if grown else "in the second half no table grew", flush=True
    )
    return not grown


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=3000)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=240)
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # not a line for each retry
    with quick_folder(), tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # root's server runs as another user
        server = TestServer(Path(folder) / "pg")
        flat = asyncio.run(main(Kit(app, server.url(server.clone())), parser.parse_args()))
        server.close()
    sys.exit(not flat)
