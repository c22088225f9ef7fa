"""A fleet of worker processes on one queue, and what its handlers left in the file of runs."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.conftest import wait_until
from tests.crash.nursery import plain_environment
from tests.crash.process import TIMINGS, WorkerProcess, lines
from tests.crash.ring_app import post, step

from holdfast.model.bucket import bucket
from holdfast.model.ring import buckets_of
from holdfast.operate.operator import Operator
from holdfast.operate.ring import RingReport
from holdfast.tasks.newjob import NewJob
from holdfast.testing import Kit

# Nobody is taken for dead because the machine is busy, and what moves is moved by the ring.
PATIENT = {"ring": 0.2, "takeover": 600.0, "dead_after": 10.0, "lease": 20.0}
RUN = """
import asyncio, signal
from tests.crash.ring_app import app

async def main():
    loop = asyncio.get_running_loop()
    await app._serve([{queue!r}], on_start=lambda worker: loop.add_signal_handler(signal.SIGTERM, worker.stop))

asyncio.run(main())
"""


class Fleet:
    def __init__(self, kit: Kit, folder: Path, queue: str = "streams") -> None:
        self.kit = kit
        self.queue = queue
        self.folder = folder
        self._workers: list[WorkerProcess] = []

    def start(self, count: int = 1, *, concurrency: int = 4, **settings: float) -> list[WorkerProcess]:
        """Workers that look at the ring five times a second."""
        environment = plain_environment() | {
            "HOLDFAST_DATABASE_URL": self.kit.url,
            "HOLDFAST_CONCURRENCY": f"{concurrency}",
            "CRASH_FOLDER": f"{self.folder}",
        }
        for name, value in (TIMINGS | PATIENT | settings).items():
            environment[f"HOLDFAST_{name.upper()}"] = f"{value}"
        program, before = RUN.format(queue=self.queue), len(self._workers)
        started = [WorkerProcess(program, environment, self.folder, before + n) for n in range(count)]
        self._workers += started
        return [worker.until_ready() for worker in started]

    def ring(self) -> RingReport:
        (report,) = Operator(self.kit.database, "ann").rings(self.queue)
        return report

    def until_agreed(self, workers: list[WorkerProcess]) -> RingReport:
        """Until these and no others sit in the ring, and each of them knows it."""

        def agreed() -> bool:
            if {w.pid for w in self.ring().workers} != {w.pid for w in workers}:
                return False
            last = [worker.events("ring.changed")[-1:] for worker in workers]
            return all(event and event[0]["workers"] == f"{len(workers)}" for event in last)

        wait_until(agreed, f"{len(workers)} workers have agreed on the ring", 30)
        return self.ring()

    def mine(self, worker: WorkerProcess, keys: list[str]) -> list[str]:
        """Those of the keys that a worker owns."""
        workers = self.ring().workers
        seat = next(w.seat for w in workers if w.pid == worker.pid)
        held = set(buckets_of(seat, [w.seat for w in workers]))
        return [key for key in keys if bucket(key) in held]

    def job(self, key: str, number: int, seconds: float = 0.0, gate: str = "") -> NewJob[None]:
        task = step if self.queue == "streams" else post
        return task.using(partition_key=key).job(key, number, seconds, gate)

    def enqueue(self, keys: list[str], numbers: range, seconds: float = 0.0, gate: str = "") -> None:
        self.kit.app.enqueue_many([self.job(key, n, seconds, gate) for n in numbers for key in keys])

    def open(self, gate: str) -> None:
        (self.folder / f"gate-{gate}").touch()

    def runs(self) -> list[dict[str, Any]]:
        return lines(self.folder / "runs")

    def ran_on(self) -> dict[str, set[int]]:
        """Key -> the processes that ran its jobs."""
        found: dict[str, set[int]] = defaultdict(set)
        for line in self.runs():
            found[line["key"]].add(line["pid"])
        return found

    def until_finished(self, seconds: float = 30.0) -> None:
        live = "SELECT 1 AS one FROM holdfast.work LIMIT 1"
        wait_until(lambda: not self.kit.sql(live), "every job is finished", seconds)

    def check_order(self, count: int) -> None:
        """Of every key 0, 1, 2, ... one at a time, each once."""
        found: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for line in self.runs():
            found[line["key"]].append((line["kind"], line["number"]))
        for key, did in found.items():
            assert did == [(kind, n) for n in range(len(did) // 2) for kind in ("start", "end")], key
        assert sum(len(did) for did in found.values()) == 2 * count

    def end(self) -> None:
        for worker in self._workers:
            worker.end()
