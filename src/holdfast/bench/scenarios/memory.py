"""`memory`: the memory of one worker over many jobs. One round: a worker that grows shows it within one."""

import psycopg

from ..context import Bench
from ..crew import crew, drain
from ..fill import Load

PARTS = 20


def run(bench: Bench) -> None:
    if bench.round:
        return
    size, seen = max(1, bench.sizes.memory // PARTS), []
    with bench.database() as url, crew(url, queues=["inbox"], concurrency=bench.sizes.concurrency) as workers:
        for _ in range(PARTS):
            drain(workers, Load(size))
            seen.append(workers.look()[0].rss / 2**20)
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute("TRUNCATE holdfast.archive")
    early, late = seen[PARTS // 5], seen[-1]
    bench.add("memory", "after a fifth", "MB", early)
    bench.add("memory", "at the end", "MB", late)
    bench.add("memory", "end / fifth", "x", late / early)
    bench.add("memory", "rss over-jobs", "MB", *seen)
    bench.say(f"memory: {early:.1f} MB after a fifth, {late:.1f} MB after {size * PARTS:,} jobs")
