"""`history`: a drain beside many finished jobs, against the same drain beside none.

All of them are in today's slot of the archive, the one that the drain writes to: the worst place. Ten million take about
7 GB and some minutes to make, once.
"""

import psycopg

from ..context import Bench
from ..crew import crew, drain, warm
from ..fill import Load

FILL = """
INSERT INTO holdfast.archive (slot, id, claim_token, seq, lease_generation, available_at, created_at, claimed_at,
                              completed_at, attempts, max_attempts, version, crashes, priority, queue, status, task,
                              payload, claimed_by)
SELECT holdfast.archive_slot(t), holdfast.uuid7(), gen_random_uuid(), nextval('holdfast.work_seq'), 1, t, t, t, t, 1, 5, 1,
       0, 0, 'inbox', 'completed', 'nothing', jsonb_build_object('n', n), 'bench'
FROM generate_series(1, %s) AS n CROSS JOIN (SELECT holdfast.now()) AS clock(t)
"""
CHUNK = 500_000


def run(bench: Bench) -> None:
    jobs = bench.sizes.jobs
    with bench.database() as url:
        without = rate(bench, url, jobs)
    beside = rate(bench, bench.kept("history", lambda url: fill(bench, url)), jobs)
    bench.add("history", "none", "jobs/s", without)
    bench.add("history", "finished", "jobs/s", beside)
    bench.add("history", "finished / none", "x", beside / without)
    bench.say(
        f"history: {beside:,.0f} jobs/s beside {bench.sizes.history:,} finished, {without:,.0f} beside none"
    )


def rate(bench: Bench, url: str, jobs: int) -> float:
    with crew(url, queues=["inbox"], concurrency=bench.sizes.concurrency) as workers:
        load = Load(jobs)
        warm(workers, load)
        return drain(workers, load).rate


def fill(bench: Bench, url: str) -> None:
    bench.say(f"history: making {bench.sizes.history:,} finished jobs")
    with psycopg.connect(url, autocommit=True) as conn:
        left = bench.sizes.history
        while left > 0:
            conn.execute(FILL, [min(CHUNK, left)])
            left -= CHUNK
        conn.execute("VACUUM (ANALYZE) holdfast.archive")
    bench.server.checkpoint()
