"""`idle`: what workers with nothing to do cost: statements per second of each, and processor time.

Counted by pg_stat_statements from another database, so that counting is not counted; without it, transactions are.
"""

import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..context import Bench
from ..crew import crew

STATEMENTS = """
SELECT s.userid || ' ' || s.queryid || ' ' || s.toplevel, s.calls
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = %s
"""
TRANSACTIONS = "SELECT '', xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
SETTLING = 15.0  # seconds until a worker has slept for ten, and only its pulse is left


def run(bench: Bench) -> None:
    for processes in (1, 2):
        measure(bench, processes)


def measure(bench: Bench, processes: int) -> None:
    seconds = bench.sizes.idle
    with bench.database() as url, crew(url, queues=["inbox"], processes=processes) as workers:
        name = str(conninfo_to_dict(url)["dbname"])
        time.sleep(min(SETTLING, seconds))
        unit, first = calls(bench, name)
        before = workers.look()
        time.sleep(seconds)
        _, last = calls(bench, name)
        cpu = sum(b.cpu - a.cpu for a, b in zip(before, workers.look(), strict=True))
    each = made(first, last) / seconds / processes
    bench.add("idle", f"workers-{processes}", f"{unit}/s per worker", each)
    bench.add("idle", f"workers-{processes} CPU", "ms/s per worker", cpu / seconds / processes * 1000)
    bench.say(f"idle workers-{processes}: {each:.2f} {unit}/s per worker")


def made(first: Mapping[str, int], last: Mapping[str, int]) -> int:
    """How many were added. A server that knows many statements forgets some, and counts them from the start again."""
    return sum(
        count - first.get(what, 0) if count >= first.get(what, 0) else count for what, count in last.items()
    )


def calls(bench: Bench, database: str) -> tuple[str, dict[str, int]]:
    """The counters, and their current values."""
    with psycopg.connect(bench.server.url(bench.server.template), autocommit=True) as conn:
        known: Any = conn.execute("SELECT FROM pg_extension WHERE extname = 'pg_stat_statements'").fetchone()
        unit, query = ("transactions", TRANSACTIONS) if known is None else ("statements", STATEMENTS)
        counts = conn.execute(query.encode(), [database]).fetchall()
    return unit, {what: int(count) for what, count in counts}
