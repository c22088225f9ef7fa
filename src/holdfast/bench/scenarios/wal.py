"""`wal`: what a job costs the server from enqueue to archive: WAL, commits, dead rows, heap-only updates.

On our own server full-page images are switched off meanwhile: how many there are depends on when the last checkpoint was,
not on us. On a server of --url they are part of the figure, and its name says so.
"""

import json
import time
from typing import Any

import psycopg

from ...app import Holdfast
from ..context import Bench
from ..crew import crew
from ..fill import Watcher

PAYLOAD = 130  # bytes of JSON text
CHUNK = 500
COUNTS = """
SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint, coalesce(sum(n_tup_upd) FILTER (WHERE relname = 'inbox'), 0)::bigint,
       coalesce(sum(n_tup_hot_upd) FILTER (WHERE relname = 'inbox'), 0)::bigint,
       coalesce(sum(n_tup_ins) FILTER (WHERE relname = 'claims'), 0)::bigint,
       (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())
FROM pg_stat_user_tables WHERE schemaname = 'holdfast'
"""


def run(bench: Bench) -> None:
    if not bench.server.is_own:
        measure(bench, "WAL with full-page images")
        return
    bench.server.set(full_page_writes="off")
    try:
        measure(bench, "WAL")
    finally:
        bench.server.set(full_page_writes="on")


def measure(bench: Bench, name: str) -> None:
    jobs = max(bench.sizes.jobs // 2 // CHUNK, 1) * CHUNK
    with bench.database() as url, psycopg.connect(url, autocommit=True) as conn:
        enqueue(url, CHUNK)
        work_off(bench, url)
        bench.server.checkpoint()
        before, start = counts(conn), position(conn)
        enqueue(url, jobs)
        middle = position(conn)
        end = work_off(bench, url)
        changed, updated, hot, claims, commits = (b - a for a, b in zip(before, counts(conn), strict=True))
    bench.add("wal", name, "bytes/job", (end - start) / jobs)
    bench.add("wal", f"{name}: enqueue", "bytes/job", (middle - start) / jobs)
    bench.add("wal", f"{name}: claim, settle and archive", "bytes/job", (end - middle) / jobs)
    bench.add("wal", "commits", "per job", commits / jobs)
    bench.add("wal", "dead rows", "per job", changed / jobs)
    bench.add("wal", "heap-only claims", "%", 100 * hot / max(1, updated))
    bench.add("wal", "claim batch", "jobs", jobs / max(1, claims))
    bench.say(
        f"wal: {(end - start) / jobs:,.0f} bytes per job, {100 * hot / max(1, updated):.2f} % heap-only"
    )


def work_off(bench: Bench, url: str) -> int:
    """Run what is there; returns where the WAL was when the last job was done."""
    concurrency = max(CHUNK, bench.sizes.concurrency)
    with crew(url, queues=["inbox"], concurrency=concurrency) as workers, Watcher(url) as watcher:
        watcher.empty("inbox", workers.check)
        with psycopg.connect(url, autocommit=True) as conn:
            return position(conn)


def enqueue(url: str, jobs: int) -> None:
    app = Holdfast(url)

    @app.task
    async def padded(n: int, note: str) -> None:
        return None

    with app:
        for start in range(0, jobs, CHUNK):
            app.enqueue_many(padded.job(n, note(n)) for n in range(start, min(start + CHUNK, jobs)))


def note(n: int) -> str:
    """What makes the payload of job n as long as it is to be."""
    return "x" * (PAYLOAD - len(json.dumps({"n": n, "note": ""})))


def position(conn: psycopg.Connection[Any]) -> int:
    ((found,),) = conn.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchall()
    return int(found)


def counts(conn: psycopg.Connection[Any]) -> tuple[int, ...]:
    """After the statistics of every session have arrived."""
    time.sleep(1.5)
    (found,) = conn.execute(COUNTS).fetchall()
    return tuple(int(n) for n in found)
