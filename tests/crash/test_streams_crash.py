"""Workers of an ordered queue are killed, stopped and replaced: by what the handlers themselves wrote down, each job of a
key started after the one before it had finished, and none was lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash.process import ROOT, TIMINGS
from tests.crash.stream_app import app, step

from holdfast.testing import Kit

KEYS = 30
DEEP = 7


class Fleet:
    def __init__(self, kit: Kit, folder: Path) -> None:
        self.kit = kit
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, count: int = 1) -> list[subprocess.Popen[bytes]]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PG", "DATABASE_URL"))}
        env |= {
            "HOLDFAST_DATABASE_URL": self.kit.url,
            "HOLDFAST_CONCURRENCY": "4",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        }
        env |= {f"HOLDFAST_{name.upper()}": f"{value}" for name, value in TIMINGS.items()}
        new = []
        for _ in range(count):
            with (self._folder / f"output-{len(self._processes)}").open("wb") as out:
                command = [sys.executable, "-m", "holdfast", "worker", "tests.crash.stream_app:app"]
                new.append(subprocess.Popen(command, env=env, cwd=ROOT, stdout=out, stderr=out))
            self._processes.append(new[-1])
        return new

    def until_alive(self, count: int) -> None:
        wait_until(lambda: self._alive() >= count, f"{count} workers are alive", 30)

    def _alive(self) -> int:
        rows = self.kit.sql("SELECT count(*) AS n FROM holdfast.workers WHERE status = 'alive'")
        return int(rows[0]["n"])

    def done(self) -> int:
        return int(self.kit.sql("SELECT count(*) AS n FROM holdfast.archive")[0]["n"])

    def until_done(self, count: int, seconds: float = 60.0) -> None:
        wait_until(lambda: self.done() >= count, f"{count} jobs are done", seconds)

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait(150)


@pytest.fixture
def fleet(holdfast_kit: Callable[..., Kit], tmp_path: Path) -> Iterator[Fleet]:
    kit = holdfast_kit(app, QUICK)
    kit.sql(
        "CREATE TABLE steps (key text, n int, generation bigint, pid int, started timestamptz, finished timestamptz)"
    )
    fleet = Fleet(kit, tmp_path)
    yield fleet
    fleet.end()


def fill(seconds: float) -> int:
    """Deep keys, enqueued round by round, so that every worker meets every key."""
    new = [(f"key {k}", n) for n in range(1, DEEP + 1) for k in range(KEYS)]
    app.enqueue_many(step.using(partition_key=k).job(key=k, n=n, seconds=seconds) for k, n in new)
    return len(new)


def check(kit: Kit) -> None:
    """Every job was done once; the attempt that finished it ended before the next job of its key started."""
    assert kit.sql("SELECT id FROM holdfast.work UNION ALL SELECT id FROM holdfast.dead_letters") == []
    assert kit.sql("SELECT count(*) AS n FROM holdfast.archive") == [{"n": KEYS * DEEP}]
    lost = kit.sql(
        """SELECT k AS key, n FROM (SELECT DISTINCT key AS k FROM steps) k CROSS JOIN generate_series(1, %s) n
           WHERE NOT EXISTS (SELECT FROM steps s WHERE s.key = k AND s.n = n.n AND s.finished IS NOT NULL)""",
        [DEEP],
    )
    assert lost == []
    assert kit.sql("SELECT count(DISTINCT key) AS n FROM steps") == [{"n": KEYS}]
    # The attempt that counts is the last one that was granted; whoever held the job before it may end whenever it likes.
    wrong = kit.sql(
        """WITH counts AS (SELECT DISTINCT ON (key, n) key, n, generation, finished FROM steps
                          ORDER BY key, n, generation DESC)
           SELECT a.key, a.n, a.generation, a.finished, b.generation AS next, b.started, b.pid
           FROM counts a JOIN steps b ON b.key = a.key AND b.n = a.n + 1
           WHERE a.finished IS NULL OR b.started < a.finished"""
    )
    assert wrong == []
    # And nobody starts a job that the stream is past: a worker that stood still looks first whose it is.
    late = kit.sql(
        "SELECT a.* FROM steps a JOIN steps b ON b.key = a.key AND b.n > a.n AND b.started < a.started"
    )
    assert late == []


def test_kill_9_breaks_no_order_and_loses_nothing(fleet: Fleet) -> None:
    count = fill(0.004)
    workers = fleet.start(4)
    for part in (1, 2, 3):
        fleet.until_done(part * count // 5)
        workers[part].kill()
        workers[part].wait(100)
        workers += fleet.start()
    fleet.until_done(count)
    check(fleet.kit)
    repeated = fleet.kit.sql("SELECT 1 AS one FROM steps WHERE n % 5 <> 0 AND generation > 1 LIMIT 1")
    assert repeated  # somebody's jobs were taken over


def test_a_worker_that_stands_still_breaks_no_order(fleet: Fleet) -> None:
    count = fill(0.01)
    workers = fleet.start(4)
    fleet.until_alive(4)
    fleet.until_done(count // 6)
    for part, stopped in enumerate(workers[:2], start=2):
        stopped.send_signal(signal.SIGSTOP)
        wait_until(
            lambda pid=stopped.pid: fleet.kit.sql(  # type: ignore[misc]
                "SELECT 1 AS one FROM holdfast.workers WHERE pid = %s AND status = 'gone'", [pid]
            ),
            "it is fenced",
            30,
        )
        fleet.until_done(part * count // 6)
        stopped.send_signal(signal.SIGCONT)
    fleet.until_done(count)
    check(fleet.kit)


def test_a_rolling_deploy_breaks_no_order_and_repeats_nothing(fleet: Fleet) -> None:
    count = fill(0.004)
    workers = fleet.start(4)
    fleet.until_alive(4)
    for part, old in enumerate(workers, start=1):
        fleet.until_done(part * count // 8)
        fleet.start()
        old.send_signal(signal.SIGTERM)
        assert old.wait(150) == 0
    fleet.until_done(count)
    check(fleet.kit)
    finished = fleet.kit.sql("SELECT count(*) AS n FROM steps WHERE finished IS NOT NULL")
    assert finished == [{"n": count}]  # a drain hands back what has not started
