"""The app of test_migrate_rolling.py. Worker processes of two releases run it side by side, so it uses only what both have.

Every job has a tag. A handler that has done its work notes the tag in a file of its process; one with a transaction also in
a table.
"""

import asyncio
import json
import os
import time
from datetime import timedelta
from pathlib import Path

from holdfast import (
    AsyncTransaction,
    Backoff,
    Batch,
    DeadLetter,
    Holdfast,
    Job,
    Rate,
    Retry,
    Snooze,
    Transaction,
)

FOLDER = Path(os.environ.get("ROLLING_FOLDER", "/nonexistent"))
QUICK = Backoff(first=0.05, cap=0.2)
LEDGER = "INSERT INTO ledger (tag, key, n) VALUES (%s, %s, %s)"

app = Holdfast()
app.queue("ordered", ordering="key")
app.queue("limited", concurrency=3, rate=Rate(200, burst=20))
app.queue("shared", fair=True, key_concurrency=2)


def note(name: str, **fields: object) -> None:
    """One write of one line."""
    file = os.open(FOLDER / f"{name}-{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{json.dumps(fields)}\n".encode())
    finally:
        os.close(file)


def ran(job: Job, tag: str) -> None:
    note("ran", tag=tag, job=str(job.id), release=os.environ["ROLLING_RELEASE"])


@app.task(retry=QUICK)
async def plain(job: Job, tag: str) -> None:
    ran(job, tag)


@app.task(retry=QUICK)
def in_thread(job: Job, tag: str) -> str:
    time.sleep(0.02)
    ran(job, tag)
    return tag


@app.task(retry=QUICK)
def recorded(job: Job, tx: Transaction, tag: str) -> None:
    tx.execute(LEDGER, (tag, None, 0))
    plain.using(conn=tx.connection, parent=job).enqueue(tag=f"{tag}-more")
    ran(job, tag)


@app.task(retry=QUICK)
async def arecorded(job: Job, tx: AsyncTransaction, tag: str) -> None:
    await tx.execute(LEDGER, (tag, None, 0))
    ran(job, tag)


@app.task(retry=QUICK)
def stepped(job: Job, tag: str) -> None:
    job.once("first", lambda: tag)
    job.progress(0.5, "half")
    if job.attempt == 1:
        raise Retry("once more", after=0.05)
    assert job.once("first", lambda: "the second time") == tag
    ran(job, tag)


@app.task(retry=QUICK)
async def failing(job: Job, tag: str) -> None:
    if job.attempt == 1:
        raise RuntimeError("as the test wants")
    ran(job, tag)


@app.task(retry=QUICK)
async def snoozing(job: Job, tag: str) -> None:
    if job.generation == 1:
        raise Snooze(0.1)
    ran(job, tag)


@app.task(retry=QUICK)
async def doomed(job: Job, tag: str) -> None:
    """A dead letter, until somebody redrives it."""
    if job.generation == 1:
        raise DeadLetter("as the test wants")
    ran(job, tag)


@app.task(queue="ordered", retry=QUICK)
def in_order(job: Job, tx: Transaction, tag: str, n: int) -> None:
    tx.execute(LEDGER, (tag, job.partition_key, n))
    ran(job, tag)


@app.task(queue="limited", retry=QUICK)
async def limited(job: Job, tag: str) -> None:
    await asyncio.sleep(0.02)
    ran(job, tag)


@app.task(queue="shared", retry=QUICK)
async def shared(job: Job, tag: str) -> None:
    ran(job, tag)


@app.task(retry=QUICK, process=True)
def in_process(job: Job, tag: str) -> None:
    ran(job, tag)


@app.batch_task(size=10, wait=0.1, retry=QUICK)
def gathered(batch: Batch[str]) -> None:
    for item in batch:
        ran(item.job, item.value)


@app.task(retry=QUICK)
async def tick(job: Job) -> None:
    ran(job, f"slot {job.metadata['slot']}")


app.schedule(timedelta(seconds=1), tick.job(), name="tick", missed="run_all")


if os.environ.get("ROLLING_WORKFLOWS"):  # both releases have them
    from holdfast import Signal, Workflow

    NEXT = Signal("next", str)

    def noted(tag: str) -> None:
        note("ran", tag=tag, release=os.environ["ROLLING_RELEASE"])

    @app.workflow
    async def eras(wf: Workflow, tag: str, era: int) -> None:
        await wf.signal(NEXT)
        await wf.step(noted, f"{tag}-{era}")
        await wf.call(plain, tag=f"{tag}-{era}-called")
        if era == 1:
            wf.continue_as_new(tag=tag, era=2)
