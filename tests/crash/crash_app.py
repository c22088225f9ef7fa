"""The app of the crash tests. Real worker processes run it; files in CRASH_FOLDER steer it and tell what it did.

A handler leaves a note for every step, and waits at gates: files that a test makes when the handler may go on.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

from holdfast import AsyncTransaction, Backoff, Batch, Holdfast, Job, LeaseLost, Transaction, telemetry
from holdfast.runtime import renewal_thread

FOLDER = Path(os.environ.get("CRASH_FOLDER", "/nonexistent"))
QUICK = Backoff(first=0.05, cap=0.2)
LEDGER = "INSERT INTO ledger (job_id, generation, fence, pid) VALUES (%s, %s, %s, %s)"


app = Holdfast()  # database and timings come from HOLDFAST_ variables


def write_line(name: str, line: str) -> None:
    """One write of one line: whole, or not there at all, even when the process is killed the next moment."""
    file = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def note(kind: str, job: Job) -> None:
    fields = {
        "kind": kind,
        "job": str(job.id),
        "generation": job.generation,
        "fence": job.fence,
        "attempt": job.attempt,
        "pid": os.getpid(),
        "at": time.time(),
    }
    write_line("notes", json.dumps(fields))


def is_open(gate: str) -> bool:
    return not gate or (FOLDER / f"gate-{gate}").exists()


async def _until_open(gate: str) -> None:
    while not is_open(gate):  # noqa: ASYNC110 another process opens it
        await asyncio.sleep(0.01)


def entry(job: Job) -> tuple[object, ...]:
    return job.id, job.generation, job.fence, os.getpid()


@app.task(retry=QUICK, max_attempts=100)
def record(job: Job, tx: Transaction, seconds: float = 0.0) -> None:
    """One row in the ledger, in the job's own transaction."""
    note("start", job)
    tx.execute(LEDGER, entry(job))
    time.sleep(seconds)


@app.task(retry=QUICK)
def record_behind(job: Job, tx: Transaction, gate: str) -> None:
    """The same, waiting at a gate with the transaction open."""
    tx.execute(LEDGER, entry(job))
    note("start", job)
    while not is_open(gate):
        time.sleep(0.01)
    note("end", job)


@app.task(retry=QUICK)
async def arecord_behind(job: Job, tx: AsyncTransaction, gate: str = "") -> None:
    await tx.execute(LEDGER, entry(job))
    note("start", job)
    await _until_open(gate)
    note("end", job)


@app.task(retry=QUICK)
def plain(job: Job, gate: str = "") -> str:
    """Settled by the worker, not by its own transaction. Never looks whether it still owns its job."""
    note("start", job)
    while not is_open(gate):
        time.sleep(0.01)
    note("end", job)
    return "done"


@app.task(retry=QUICK)
async def quick(job: Job) -> None:
    """Without a result: settled the quick way."""
    note("start", job)


@app.task(retry=QUICK)
async def aplain(job: Job, gate: str = "") -> str:
    note("start", job)
    try:
        await _until_open(gate)
    except asyncio.CancelledError:
        note("cancelled", job)
        raise
    note("end", job)
    return "done"


@app.task(retry=QUICK)
def careful(job: Job, gate: str) -> None:
    """Looks whether it still owns its job."""
    note("start", job)
    try:
        while not is_open(gate):
            job.check()
            time.sleep(0.01)
    except LeaseLost:
        note("lost", job)
        raise
    note("end", job)


@app.task(retry=QUICK)
def fail_first(job: Job) -> None:
    note("start", job)
    if job.attempt == 1:
        raise RuntimeError("the first time")


@app.task
def deaf(job: Job) -> None:
    """A thread that nobody can stop."""
    note("start", job)
    time.sleep(600)


@app.task
async def block_the_loop(job: Job, seconds: float) -> None:
    note("start", job)
    time.sleep(seconds)
    note("end", job)


def _die(job: Job, how: str) -> None:
    note("start", job)
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.string_at(0)


@app.task
def crash(job: Job, how: str) -> None:
    _die(job, how)


@app.task
async def crash_async(job: Job, how: str) -> None:
    _die(job, how)


@app.task(max_attempts=1)
async def exit_beside(job: Job) -> None:
    """A task that the handler made, and waits for, leaves."""

    async def leave() -> None:
        sys.exit(3)

    note("start", job)
    await asyncio.gather(asyncio.sleep(3600), leave())


@app.task
def crash_tx(job: Job, tx: Transaction, how: str) -> None:
    tx.execute(LEDGER, entry(job))
    _die(job, how)


@app.batch_task(size=10, wait=0.05)
def crash_batch(batch: Batch[str]) -> None:
    for item in batch:
        _die(item.job, item.value)


def reap(child: int) -> int:
    """The exit code of a child, or -1 when it had to be killed."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


@app.task(max_attempts=1)
def fork_idle(job: Job, tx: Transaction) -> int:
    """A child that ends at once, while connections of its parent are open and one is in use."""
    note("start", job)
    tx.execute(LEDGER, entry(job))
    child = os.fork()
    if child == 0:
        os._exit(0)
    code = reap(child)
    tx.execute("SELECT 1")
    return code


@app.task(max_attempts=1)
def fork_enqueue(job: Job, tx: Transaction) -> int:
    """A child that enqueues, on a connection of its own."""
    note("start", job)
    tx.execute(LEDGER, entry(job))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            record.enqueue()
            code = 0
        finally:
            os._exit(code)
    code = reap(child)
    tx.execute("SELECT 1")
    return code


def _write_event(event: telemetry.Event) -> None:
    fields = {name: str(value) for name, value in event.fields.items()}
    write_line(f"events-{os.getpid()}", json.dumps({"name": event.name, "level": event.level, **fields}))


if "CRASH_FOLDER" in os.environ:
    telemetry.subscribe(_write_event)
if "CRASH_BLOCKED" in os.environ:
    renewal_thread._BLOCKED = float(os.environ["CRASH_BLOCKED"])
