"""The app of the worker processes, and the process itself: `python -m holdfast.bench.worker_app`.

It talks in lines of JSON: it says `ready` once its worker is in the registry; `look` is answered with the processor time,
memory and number of jobs so far, `times` with what the timed jobs measured, and at the end of input it drains and leaves.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

from .. import telemetry
from ..app import Holdfast
from ..db.transaction import AsyncTransaction
from ..model.queue import Rate
from ..model.state import JOB_COMPLETED
from ..runtime.batch.items import Batch
from ..runtime.gc_tuning import tuned_gc
from ..runtime.job import Job
from .loops import loop_factory, loop_name

app = Holdfast()
STREAMS = app.queue("streams", ordering="key")
AFFINE = app.queue("affine", affinity="key")
LIMITED = app.queue("limited", concurrency=10_000, rate=Rate(1_000_000))
LIMITED_KEYS = app.queue("limited_keys", key_concurrency=100)
NARROW = app.queue("narrow", concurrency=200)
WORKFLOWS = app.queue("workflows")


class Seen:
    """What handlers count. Plain attributes: one event loop writes them."""

    jobs = 0
    started: dict[Any, tuple[float, float]] = {}  # noqa: RUF012 job id -> when it was sent and when it began
    settled: dict[Any, float] = {}  # noqa: RUF012


@app.task
async def nothing(n: int) -> None:
    Seen.jobs += 1


@app.task(keep_completed=False)
async def dropped(n: int) -> None:
    Seen.jobs += 1


@app.task
def nothing_sync(n: int) -> None:
    Seen.jobs += 1


@app.task
async def order(tx: AsyncTransaction, n: int) -> None:
    Seen.jobs += 1
    await tx.execute("INSERT INTO bench_orders (customer, total) VALUES (%s, %s)", [n, 9.5])


@app.task(process=True)
def nothing_apart(n: int) -> None:
    """In a child process, whose jobs nobody counts here."""


@app.batch_task(size=100, wait=0.05)
async def nothing_together(batch: Batch[int]) -> None:
    Seen.jobs += len(batch)


@app.task(queue=STREAMS.name)
async def keyed(n: int) -> None:
    Seen.jobs += 1


@app.task(queue=AFFINE.name)
async def affine(n: int) -> None:
    Seen.jobs += 1


@app.task(queue=LIMITED.name)
async def limited(n: int) -> None:
    Seen.jobs += 1


@app.task(queue=LIMITED_KEYS.name)
async def limited_by_key(n: int) -> None:
    Seen.jobs += 1


@app.task(queue=NARROW.name)
async def narrow(n: int) -> None:
    Seen.jobs += 1


@app.task
async def timed(job: Job, sent: float) -> None:
    """The clock is the machine's own, so producer and worker may be two processes of it."""
    Seen.started[str(job.id)] = (sent, time.time())


@app.task
async def padded(n: int, note: str) -> None:
    Seen.jobs += 1


def note_settled(event: telemetry.Event) -> None:
    if event.name == JOB_COMPLETED and event.fields.get("task") == "timed":
        Seen.settled[str(event.fields["job"])] = time.time()


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def rss_bytes() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def answer(line: str) -> None:
    match line.strip():
        case "look":
            say(cpu=time.process_time(), rss=rss_bytes(), jobs=Seen.jobs, blocks=sys.getallocatedblocks())
        case "times":
            both = [(*Seen.started[job], Seen.settled.get(job, 0.0)) for job in list(Seen.started)]
            say(times=both)
        case "forget":
            Seen.started.clear()
            Seen.settled.clear()
            say(forgotten=True)


async def serve(queues: list[str], concurrency: int) -> None:
    loop = asyncio.get_running_loop()
    worker = asyncio.create_task(app.run_worker(queues=queues, concurrency=concurrency))

    def listen() -> None:
        for line in sys.stdin:
            answer(line)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(worker.cancel)

    def tell(event: telemetry.Event) -> None:
        if event.name == "worker.started":
            say(ready=True, loop=loop_name())
            stop_telling()

    stop_telling = telemetry.subscribe(tell)
    threading.Thread(target=listen, daemon=True).start()
    async with app:
        with contextlib.suppress(asyncio.CancelledError):
            await worker


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--queue", action="append", required=True)
    options.add_argument("--concurrency", type=int, default=10)
    options.add_argument("--timed", action="store_true")
    given = options.parse_args()
    if given.timed:
        telemetry.subscribe(note_settled)
    with tuned_gc(), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(given.queue, given.concurrency))


if __name__ == "__main__":
    main()
