"""A handler with a transaction, written by hand: a business row and the job's own end in one transaction."""

import asyncio
import time
from typing import Any
from uuid import uuid4

import psycopg

from ...model.job import ClaimedJob
from ...model.outcome import Completed, Settlement
from ...model.worker import WorkerIdentity
from ...store.claim import claim
from ...store.settle_last import settle_last
from ...store.statement import Last
from ...store.workers import register
from ..fill import Load, write
from ..loops import loop_factory
from ..raw import Engine

_ORDER = b"INSERT INTO bench_orders (customer, total) VALUES ($1, $2)"


def transactions_by_hand(url: str, jobs: int, connections: int) -> float:
    """BEGIN; INSERT; guarded DELETE and archive; COMMIT, for jobs that are claimed already. Jobs per second."""
    write(url, Load(jobs, "order"))
    engine, worker = Engine(url), WorkerIdentity.create()
    grants: list[ClaimedJob] = []
    entry = register(worker, queues=["inbox"], tasks=["order"], concurrency=connections, release="bench")
    engine.ask(entry)
    while len(grants) < jobs:
        what = claim("inbox", worker.id, uuid4(), lease=600, limit=500, marks=[(0, None)])
        grants += what.decode(engine.ask(what).fetchall())
    engine.conn.close()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return jobs / runner.run(_all(url, worker.id, grants, connections))


async def _all(url: str, worker: str, grants: list[ClaimedJob], connections: int) -> float:
    waiting = list(reversed(grants))
    opened = [await psycopg.AsyncConnection.connect(url, autocommit=True) for _ in range(connections)]
    began = time.perf_counter()
    await asyncio.gather(*(_some(conn, worker, waiting) for conn in opened))
    took = time.perf_counter() - began
    for conn in opened:
        await conn.close()
    return took


async def _some(conn: psycopg.AsyncConnection[Any], worker: str, waiting: list[ClaimedJob]) -> None:
    cursor = psycopg.AsyncRawCursor(conn)
    while waiting:
        end = settle_last(Settlement(waiting.pop(), Completed("null")), worker)
        assert isinstance(end, Last)
        async with conn.transaction():
            await cursor.execute(_ORDER, [1, 9.5])
            await cursor.execute(end.text.encode(), end.values)  # it fails where it ended no job
