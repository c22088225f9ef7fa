"""`limit`: the claim and the settle of the store, with no Python per job: what the database can do.

One connection claims, another settles what was claimed, both at once, as in a worker. The answer of a claim is received
and not read, but for its last row (where the next claim begins); the ids to settle are fetched as one array out of the
claim's row, and go back as one. So Python runs per batch, never per job.
"""

import queue
import threading
import time
from typing import Any
from uuid import UUID, uuid4

import psycopg

from ...model.job import ClaimedJob, Grant
from ...model.outcome import NOTHING, Settlement
from ...model.worker import WorkerIdentity
from ...store.arrays import UuidArray, plain_array, uuid_array
from ...store.claim import Mark, claim
from ...store.settle import settle_done
from ...store.statement import Statement
from ...store.workers import register
from ..context import Bench
from ..fill import Load, write
from ..raw import Engine

BATCHES = (100, 500, 1000, 2000)  # a worker claims up to 2,000, and settles up to 1,000
_IDS = b"SELECT array_send(job_ids) FROM holdfast.claims WHERE token = $1"


def run(bench: Bench) -> None:
    for batch in sorted({*BATCHES, bench.sizes.batch}):
        if not bench.wants(f"batch-{batch}"):
            continue
        with bench.database() as url:
            write(url, Load(bench.sizes.jobs))
            bench.server.checkpoint()
            rate = bench.sizes.jobs / seconds(url, bench.sizes.jobs, batch)
        bench.add("limit", f"batch-{batch}", "jobs/s", rate)
        bench.say(f"limit batch-{batch}: {rate:,.0f} jobs/s")


def seconds(url: str, jobs: int, batch: int, queue_name: str = "inbox") -> float:
    """How long the statements take to bring that many jobs from the queue to the archive."""
    claims, settles = Engine(url), Engine(url)
    worker = WorkerIdentity.create()
    entry = register(worker, queues=[queue_name], tasks=["nothing"], concurrency=1, release="bench")
    claims.ask(entry)
    claimed: queue.Queue[tuple[UUID, UuidArray, int] | None] = queue.Queue(maxsize=2)
    faults: list[BaseException] = []

    def settling() -> None:
        try:
            while (item := claimed.get()) is not None:
                settle_all(settles, queue_name, worker.id, *item)
        except BaseException as error:  # noqa: BLE001 told to the thread that waits for it
            faults.append(error)
            while claimed.get() is not None:
                pass

    settler = threading.Thread(target=settling)
    began = time.perf_counter()
    settler.start()
    left = jobs
    mark: Mark | None = None
    try:
        while left > 0 and not faults:
            token = uuid4()
            what = claim(queue_name, worker.id, token, lease=60, limit=batch, marks=[(0, mark)])
            cursor = claims.ask(what)
            if not (count := cursor.rowcount):
                raise RuntimeError(f"{left} jobs were left, and a claim found none")
            mark = last_place(cursor, what)
            claimed.put((token, claimed_ids(claims, token), count))
            left -= count
    finally:
        claimed.put(None)
        settler.join()
    if faults:
        raise faults[0]
    took = time.perf_counter() - began
    claims.conn.close()
    settles.conn.close()
    return took


def last_place(cursor: "psycopg.RawCursor[Any]", what: Statement[list[ClaimedJob]]) -> Mark:
    """Where a claim ended, which is where the next one begins. One row of its answer is read."""
    cursor.scroll(cursor.rowcount - 1, mode="absolute")
    (job,) = what.decode(cursor.fetchall())
    return Mark(job.available_at, job.seq)


def claimed_ids(engine: Engine, token: UUID) -> UuidArray:
    """The rows of a claim, as one array, as the server sends it."""
    ((ids,),) = engine.run(_IDS, [token], binary=True).fetchall()
    return UuidArray(ids)


def settle_all(engine: Engine, queue_name: str, worker: str, token: UUID, ids: UuidArray, count: int) -> None:
    """The statement for one job, with its arrays made as long as the batch."""
    one = settle_done([Settlement(Grant(queue_name, UUID(int=0), 1, token), NOTHING)], worker)
    tokens, firsts = uuid_array([str(token)] * count), plain_array(["1"] * count)
    parameters = [queue_name, ids, firsts, tokens, worker, count, None]
    ((done, _),) = engine.run(one.text, parameters).fetchall()
    if done != count:
        raise RuntimeError(f"{count} jobs were claimed, and {done} of them settled")
