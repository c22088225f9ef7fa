"""`horizon`: a drain while another session holds an old snapshot, so that no vacuum may remove what the drain leaves behind.

The load is cut into twenty parts by the order of claims; the last job of each tells when its part was done.
"""

import psycopg

from ..context import Bench
from ..crew import Crew, crew, warm
from ..fill import Load, Watcher

PARTS = 20
MARKERS = """
SELECT id FROM holdfast.work WHERE queue = 'inbox' AND (payload->>'n')::int %% %s = 0 ORDER BY available_at, seq
"""


def run(bench: Bench) -> None:
    jobs = max(bench.sizes.horizon // PARTS, 1) * PARTS
    with bench.database() as url, crew(url, queues=["inbox"], concurrency=bench.sizes.concurrency) as workers:
        warm(workers, Load(jobs))
        with psycopg.connect(url) as old:
            old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            old.execute("SELECT count(*) FROM holdfast.queues")
            rates = parts(url, workers, jobs)
            old.rollback()
    fifth = PARTS // 5
    first, last = together(rates[:fifth]), together(rates[-fifth:])
    bench.add("horizon", "first fifth", "jobs/s", first)
    bench.add("horizon", "last fifth", "jobs/s", last)
    bench.add("horizon", "last / first", "x", last / first)
    bench.add("horizon", "rate over-time", "jobs/s", *rates)
    bench.say(f"horizon: first fifth {first:,.0f}, last fifth {last:,.0f} jobs/s")


def together(rates: list[float]) -> float:
    """The rate over parts of one size."""
    return len(rates) / sum(1 / rate for rate in rates)


def parts(url: str, workers: Crew, jobs: int) -> list[float]:
    """Jobs per second in each part of the drain."""
    size, rates = jobs // PARTS, []
    with psycopg.connect(url) as conn, Watcher(url) as watcher:
        Load(jobs).write(conn)
        markers = [str(row[0]) for row in conn.execute(MARKERS, [size]).fetchall()]
        conn.execute("SELECT holdfast.wake('{inbox}')")
        began = watcher.now()
        conn.commit()
        for marker in markers:
            ended = watcher.gone("inbox", marker, workers.check)
            rates.append(size / max(ended - began, 1e-3))
            began = ended
    return rates
