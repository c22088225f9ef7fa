"""`backlog`: does it stay as fast with more jobs waiting?

So many jobs are drained in front of each backlog, which is there before, during and after. The load is vacuumed first, so
that no vacuum of it runs beside the drain, and the clock runs between two jobs: the tenth part of the front is warming up.
A claim is timed by itself too, on a connection set as a worker's is, each followed by the settle of what it took.
"""

import time
from uuid import uuid4

import psycopg

from ...model.outcome import NOTHING, Settlement
from ...model.worker import WorkerIdentity
from ...store.claim import Mark, claim
from ...store.settle import settle_done
from ...store.workers import register
from ..context import Bench
from ..crew import crew
from ..fill import Load, Watcher, write
from ..raw import Engine
from .steady import percentile

HOUR = 3600.0
MARKERS = """
SELECT id FROM holdfast.work WHERE queue = %s AND (payload->>'n')::int = ANY (%s) ORDER BY (payload->>'n')::int
"""


def run(bench: Bench) -> None:
    most, front = bench.sizes.backlog, Load(bench.sizes.claimed, after=-30.0)
    for size in (most // 100, most // 10, most):
        measure(bench, f"waiting-{short(size)}", front, Load(size))
    measure(bench, f"scheduled-{short(most)}", front, Load(most, after=HOUR))
    streams = Load(
        bench.sizes.claimed, "keyed", "streams", keys=max(1, bench.sizes.claimed // 10), after=-20.0
    )
    small = Load(max(1, bench.sizes.deep // 100), "keyed", "streams", keys=1, after=-30.0, name="deep")
    deep = Load(bench.sizes.deep, "keyed", "streams", keys=1, after=-30.0, name="deep")
    measure(bench, f"key-deep-{short(small.count)}", streams, small)
    measure(bench, f"key-deep-{short(deep.count)}", streams, deep)


def short(count: int) -> str:
    if count >= 1_000_000:
        return f"{count / 1e6:g}M"
    return f"{count / 1000:g}k" if count >= 1000 else str(count)


def measure(bench: Bench, name: str, front: Load, behind: Load) -> None:
    if not bench.wants(name):
        return
    with bench.database() as url:
        rate = drain_rate(bench, url, front, behind)
        bench.add("backlog", name, "jobs/s", rate)
        bench.say(f"backlog {name}: {rate:,.0f} jobs/s")
        if front.queue == "inbox":
            times = claim_times(url, front, behind)
            bench.add("backlog", f"{name} claim p50", "ms", percentile(times, 50))
            bench.add("backlog", f"{name} claim p99", "ms", percentile(times, 99))


def drain_rate(bench: Bench, url: str, front: Load, behind: Load) -> float:
    """Jobs per second between the first tenth and the end of the front, whatever they were."""
    write(url, front)
    with psycopg.connect(url, autocommit=True) as conn:
        rows = conn.execute(MARKERS, [front.queue, [max(1, front.count // 10), front.count]]).fetchall()
        behind.write(conn)
        conn.execute("VACUUM (ANALYZE) holdfast.work")
    bench.server.checkpoint()
    concurrency = bench.sizes.concurrency
    with Watcher(url) as watcher, crew(url, queues=[front.queue], concurrency=concurrency) as workers:
        seen = []
        for (marker,) in rows:
            seen.append((watcher.gone(front.queue, str(marker), workers.check), watcher.finished()))
    (began, before), (ended, after) = seen
    return (after - before) / max(ended - began, 1e-3)


def claim_times(url: str, front: Load, behind: Load, batch: int = 100) -> list[float]:
    """Milliseconds of each claim of a hundred, sorted. Jobs that the worker took before it stopped are put back."""
    with psycopg.connect(url, autocommit=True) as conn:
        ((left,),) = conn.execute("SELECT count(*) FROM holdfast.work").fetchall()
    missing = behind.count - int(left)
    write(url, front, *([Load(missing, after=behind.after)] if missing > 0 else []))
    engine, worker, times = Engine(url), WorkerIdentity.create(), []
    entry = register(worker, queues=[front.queue], tasks=["nothing"], concurrency=1, release="bench")
    engine.ask(entry)
    mark: Mark | None = None
    for _ in range(max(1, front.count // batch)):
        token = uuid4()
        what = claim(front.queue, worker.id, token, lease=60, limit=batch, marks=[(0, mark)])
        began = time.perf_counter()
        cursor = engine.ask(what)
        times.append((time.perf_counter() - began) * 1000)
        if not (jobs := what.decode(cursor.fetchall())):
            break
        mark = Mark(jobs[-1].available_at, jobs[-1].seq)
        engine.ask(settle_done([Settlement(job, NOTHING) for job in jobs], worker.id))
    engine.conn.close()
    return sorted(times)
