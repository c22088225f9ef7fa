"""`memory`: the memory of one worker over many jobs. One round: a worker that grows shows it within one.

Beside what is resident, the blocks that Python objects use: the first moves with the largest batch there was, because Python
gives memory back in pieces of a megabyte; a leak is in both."""

import psycopg

from ..context import Bench
from ..crew import crew, drain
from ..fill import Load

PARTS = 20


def run(bench: Bench) -> None:
    if bench.round:
        return
    size, seen, blocks = max(1, bench.sizes.memory // PARTS), [], []
    with bench.database() as url, crew(url, queues=["inbox"], concurrency=bench.sizes.concurrency) as workers:
        for _ in range(PARTS):
            drain(workers, Load(size))
            found = workers.look()[0]
            seen.append(found.rss / 2**20)
            blocks.append(found.blocks)
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute("TRUNCATE holdfast.archive")
    early, late = seen[PARTS // 5 - 1], seen[-1]
    bench.add("memory", "after a fifth", "MB", early)
    bench.add("memory", "at the end", "MB", late)
    bench.add("memory", "end / fifth", "x", late / early)
    bench.add("memory", "blocks in use, end / fifth", "x", blocks[-1] / blocks[PARTS // 5 - 1])
    bench.add("memory", "rss over-jobs", "MB", *seen)
    bench.say(f"memory: {early:.1f} MB after a fifth, {late:.1f} MB after {size * PARTS:,} jobs")
