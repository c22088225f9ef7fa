"""A shape that keeps rows of attempts: its tasks record them, the settle writes them. Children import it as this module."""

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

from holdfast import Backoff, Batch, Cancel, DeadLetter, Holdfast, Job, Snooze, Transaction
from holdfast.model.outcome import Ended
from holdfast.shape import Shape
from holdfast.shapes import SHAPES
from holdfast.store.statement import Flow, Statement, nothing

TABLE = """
CREATE TABLE holdfast.notes (job_id uuid NOT NULL, generation bigint NOT NULL, outcome text NOT NULL, state text NOT NULL,
                             n int NOT NULL CHECK (n >= 0), note jsonb NOT NULL)
"""
COUNTERS = "CREATE TABLE holdfast.counters (name text PRIMARY KEY, n int NOT NULL)"
WRITE = """
INSERT INTO holdfast.notes (job_id, generation, outcome, state, n, note)
SELECT u.job_id, u.generation, u.outcome, u.state, (u.note ->> 'n')::int, u.note
FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::jsonb[]) AS u(job_id, generation, outcome, state, note)
"""
COUNT = """
UPDATE holdfast.counters c SET n = c.n + 1
WHERE c.name = ANY ($1::text[]) AND (SELECT set_config('lock_timeout', '20ms', true)) IS NOT NULL
"""


def write_notes(jobs: Sequence[Ended], rows: Sequence[str]) -> Flow[None]:
    if any("raise" in json.loads(row) for row in rows):
        raise KeyError("of the recorder itself")
    columns: tuple[list[Any], ...] = (
        [job.grant.id_text for job in jobs],
        [job.grant.generation for job in jobs],
        [type(job.outcome).__name__ for job in jobs],
        [job.state for job in jobs],
        list(rows),
    )
    yield from Statement("write_notes", WRITE, columns, nothing)


def count(jobs: Sequence[Ended], rows: Sequence[str]) -> Flow[None]:
    yield from Statement("count", COUNT, ([json.loads(row)["name"] for row in rows],), nothing)


SHAPE = Shape("notes", recorders={"notes": write_notes, "counters": count})


class App(Holdfast):
    _shapes = (*SHAPES, SHAPE)


app = App()
began = threading.Event()
late = threading.Event()
ended = threading.Event()
said: list[BaseException] = []
LATER = Backoff(first=3600, jitter=False)


@app.task
async def note(job: Job, n: int) -> None:
    job.record("notes", {"n": n, "how": "async"})
    job.record("notes", {"n": n + 1, "how": "async"})


@app.task
async def quiet(n: int) -> None:
    pass


@app.task(retry=LATER)
def end_as(job: Job, how: str) -> None:
    """In a thread."""
    job.record("notes", {"n": 1, "how": how})
    match how:
        case "fail":
            raise ValueError("no")
        case "snooze":
            raise Snooze(3600)
        case "die":
            raise DeadLetter("enough")
        case "cancel":
            raise Cancel("not needed")


@app.task(process=True, retry=LATER)
def apart(job: Job, n: int) -> None:
    job.record("notes", {"n": n, "how": "process"})
    if n == 2:
        raise ValueError("no")


@app.batch_task(size=10, wait=0.05)
async def together(batch: Batch[int]) -> None:
    for item in batch:
        item.job.record("notes", {"n": item.value, "how": "batch"})
        if item.value == 2:
            item.dead_letter("two")


@app.task
async def endless(job: Job) -> None:
    job.record("notes", {"n": 1, "how": "endless"})
    began.set()
    await asyncio.Event().wait()


@app.task(retry=LATER, timeout=0.1)
def too_late(job: Job) -> None:
    job.record("notes", {"n": 1, "how": "in time"})
    late.wait(60)
    try:
        job.record("notes", {"n": 2, "how": "late"})
    except Exception as error:
        said.append(error)
    ended.set()


@app.task(max_attempts=1)
def transacted(job: Job, tx: Transaction) -> None:
    job.record("notes", {"n": 1})


@app.task(max_attempts=1)
def stranger(job: Job) -> None:
    job.record("elsewhere", {"n": 1})


@app.task(max_attempts=1)
def completes(job: Job, url: str, before: bool) -> None:
    import psycopg

    with psycopg.connect(url) as conn:
        if before:
            job.record("notes", {"n": 1})
        job.complete(conn=conn)
        job.record("notes", {"n": 1})
