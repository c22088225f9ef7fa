"""`history`: a drain beside many finished jobs, against the same drain beside none.

All of them are in today's slot of the archive, the one that the drain writes to: the worst place. Ten million take about
7 GB with their WAL, and some minutes to make, once.
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
    full = bench.kept("history", lambda url: fill(bench, url))
    with bench.database() as empty:
        turns = {"none": empty, "finished": full}
        order = sorted(turns, reverse=bool(bench.round % 2))  # the first one has no advantage over the rounds
        rates = {name: rate(bench, turns[name]) for name in order}
    for name in turns:
        bench.add("history", name, "jobs/s", rates[name])
    bench.add("history", "finished / none", "x", rates["finished"] / rates["none"])
    said = f"{rates['finished']:,.0f} jobs/s beside {bench.sizes.history:,} finished, {rates['none']:,.0f} beside none"
    bench.say(f"history: {said}")


def rate(bench: Bench, url: str) -> float:
    with crew(url, queues=["inbox"], concurrency=bench.sizes.concurrency) as workers:
        load = Load(bench.sizes.jobs)
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
