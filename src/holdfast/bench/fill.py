"""Jobs written by the server itself, so that no client's speed is measured; and waiting until they are done."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

# %(keys)s = 0: no key. Otherwise job n belongs to key n mod keys, so that every key has its jobs spread over the whole load.
# Its bucket is written too, as enqueue() does: a claim with affinity would compute it for every row.
FILL = """
INSERT INTO holdfast.work (id, queue, task, payload, partition_key, partition_bucket, available_at)
SELECT holdfast.uuid7(), %(queue)s, %(task)s, jsonb_build_object(%(argument)s::text, n) || %(extra)s::jsonb,
       k.key, coalesce(holdfast.bucket(k.key), 0),
       holdfast.now() + make_interval(secs => %(after)s) + make_interval(secs => n * 1e-6)
FROM generate_series(1, %(count)s) AS n
CROSS JOIN LATERAL (SELECT CASE WHEN %(keys)s > 0 THEN %(name)s || ':' || (n %% %(keys)s) END AS key) AS k
"""
PATIENCE = 1200.0
LAST = """
SELECT id FROM holdfast.work WHERE queue = %s AND hold_reason IS NULL
ORDER BY priority, available_at DESC, seq DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Load:
    count: int
    task: str = "nothing"
    queue: str = "inbox"
    keys: int = 0
    after: float = -10.0  # seconds from now until the first is due
    name: str = "key"  # the keys begin with it
    extra: str = "{}"
    argument: str = "n"  # that the handler takes: the number of the job

    def write(self, conn: psycopg.Connection[Any]) -> None:
        names = ("count", "task", "queue", "keys", "after", "extra", "name", "argument")
        values = {name: getattr(self, name) for name in names}
        conn.execute(FILL, values)


@contextlib.contextmanager
def held(url: str, load: Load) -> Iterator[Callable[[], str]]:
    """Write a load and keep it uncommitted. The returned function commits it, wakes sleepers, and returns the id of its
    job."""
    with psycopg.connect(url) as conn:
        load.write(conn)
        row = conn.execute(LAST, [load.queue]).fetchone()
        assert row is not None

        def commit() -> str:
            conn.execute("SELECT holdfast.wake(%s)", [[load.queue]])
            conn.commit()
            return str(row[0])

        yield commit


def write(url: str, *loads: Load) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for load in loads:
            load.write(conn)


class Watcher:
    """Sees from outside when jobs are gone. It looks for one id by its key, which costs the server next to nothing."""

    def __init__(self, url: str) -> None:
        self._conn = psycopg.connect(url, autocommit=True)

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *_: object) -> None:
        self._conn.close()

    def _there(self, query: str, parameters: list[Any]) -> bool:
        return self._conn.execute(query.encode(), parameters).fetchone() is not None

    def gone(self, queue: str, job: str, check: Callable[[], None], patience: float = PATIENCE) -> float:
        """Wait until this job has left the queue; returns when that was (monotonic)."""
        self._wait("SELECT FROM holdfast.work WHERE queue = %s AND id = %s", [queue, job], patience, check)
        return time.monotonic()

    def empty(self, queue: str, check: Callable[[], None], patience: float = PATIENCE) -> float:
        """Wait until every job has left it: singly, since a search for any job passes all finished ones."""
        while rows := self._conn.execute(
            "SELECT id FROM holdfast.work WHERE queue = %s LIMIT 1", [queue]
        ).fetchall():
            self.gone(queue, str(rows[0][0]), check, patience)
        return time.monotonic()

    def _wait(self, query: str, parameters: list[Any], patience: float, check: Callable[[], None]) -> None:
        deadline = time.monotonic() + patience
        while self._there(query, parameters):
            if time.monotonic() > deadline:
                raise TimeoutError(f"jobs were left after {patience:g} s: the worker does not work")
            check()
            time.sleep(0.004)

    @staticmethod
    def now() -> float:
        return time.monotonic()

    def finished(self) -> int:
        ((count,),) = self._conn.execute("SELECT count(*) FROM holdfast.archive").fetchall()
        return int(count)
