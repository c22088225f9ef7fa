"""The app of the fleets that share a queue. Files in CRASH_FOLDER steer it and tell what it did."""

import asyncio
import json
import os

from tests.crash.crash_app import is_open, write_line

from holdfast import Holdfast, Job

app = Holdfast()  # database and timings come from HOLDFAST_ variables
app.queue("streams", ordering="key")
app.queue("mail", affinity="key")


def told(kind: str, job: Job, key: str, number: int) -> None:
    fields = {"kind": kind, "key": key, "number": number, "pid": os.getpid(), "attempt": job.attempt}
    write_line("runs", json.dumps(fields))


async def leave_lines(job: Job, key: str, number: int, seconds: float, gate: str) -> None:
    """One when it begins and one when it ends, in one file for the whole fleet."""
    told("start", job, key, number)
    while not is_open(gate):  # noqa: ASYNC110 another process opens it
        await asyncio.sleep(0.01)
    await asyncio.sleep(seconds)
    told("end", job, key, number)


@app.task(queue="streams")
async def step(job: Job, key: str, number: int, seconds: float = 0.0, gate: str = "") -> None:
    await leave_lines(job, key, number, seconds, gate)


@app.task(queue="mail")
async def post(job: Job, key: str, number: int, seconds: float = 0.0, gate: str = "") -> None:
    await leave_lines(job, key, number, seconds, gate)
