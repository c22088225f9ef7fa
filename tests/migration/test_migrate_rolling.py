"""Each migration is applied under load while workers and producers of the commit before it go on working.

The old code is taken from the history of this repository (before.toml). Then workers and producers of this tree join, the
old ones leave, and everything that was ever committed has run exactly once.
"""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import wait_until
from tests.crash.process import WorkerProcess, lines
from tests.migration.servers import Database

from holdfast import sql as files
from holdfast.db import migrate
from holdfast.db.migrate.text import Migration

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BEFORE = tomllib.loads((HERE / "before.toml").read_text(encoding="utf-8"))
LATER = [number for number, _, _ in files.migrations() if number >= 2]
# Migrations of one release have the same commit before them, and are applied in one go.
STEPS = [
    (commit, [n for n in LATER if BEFORE.get(str(n)) == commit]) for commit in dict.fromkeys(BEFORE.values())
]
READS_NEEDS_CODE = (
    3  # code before migration 2 knows nothing of needs_code, so it refuses to start on a newer database
)

HAS_WORKFLOWS = 10  # their migration: where only later ones are applied, the code before them has workflows

LEDGER = "CREATE TABLE ledger (place bigserial, tag text NOT NULL, key text, n int NOT NULL)"
SETTINGS = {
    "lease": 40.0,
    "heartbeat": 1.0,
    "dead_after": 30.0,
    "sweep": 1.0,
    "poll": 0.2,
    "metrics_snapshot": 0.5,
}
UNFINISHED = """
    SELECT g.id, g.created_at, g.total, g.open, g.fault, g.callback, c.ended, j.id, j.task, j.status, j.lease_generation
    FROM holdfast.groups g
    LEFT JOIN holdfast.group_counts c ON c.group_id = g.id
    LEFT JOIN holdfast.jobs j ON j.group_id = g.id
    WHERE g.finished_at IS NULL ORDER BY g.id LIMIT 20"""
# (event, task): fsync is off in tests, and these tasks fail as they are told to
EXPECTED = {
    ("durability", None),
    ("job.retry", "failing"),
    ("job.retry", "stepped"),
    ("job.dead_letter", "doomed"),
}


def test_every_migration_names_the_commit_before_it() -> None:
    assert sorted(BEFORE, key=int) == [str(number) for number in LATER]


def test_every_migration_lets_the_code_before_it_run() -> None:
    """Otherwise every upgrade over it would need all workers to be stopped first."""
    for one in (Migration(*found) for found in files.migrations() if found[0] >= 2):
        assert one.needs_code < one.number, f"{one} says that it needs code >= {one.needs_code}"


def source_of(commit: str, folder: Path) -> Path:
    """The sources at that commit. Without the history a checkout cannot be tested: an error in CI, else a skip."""
    git = ["git", "-C", str(ROOT), "archive", commit, "src"]
    try:
        done = subprocess.run(git, capture_output=True, check=False)
        problem = done.stderr.decode(errors="replace").strip() if done.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        said = f"the code of commit {commit} cannot be had: {problem}. Fetch the whole history (git fetch --unshallow)"
        if os.environ.get("CI"):
            pytest.fail(said)
        pytest.skip(said)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


class Stage:
    """One run: the database, the processes of both releases, and what they noted."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self.processes: list[WorkerProcess] = []
        self.workflows = False  # used too

    def _start(self, release: str, source: Path, *words: str) -> WorkerProcess:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PG", "DATABASE_URL"))}
        env |= {f"HOLDFAST_{name.upper()}": f"{value}" for name, value in SETTINGS.items()}
        env |= {
            "HOLDFAST_DATABASE_URL": self.database.dsn,
            "PYTHONPATH": f"{source}{os.pathsep}{ROOT}",
            "PYTHONUNBUFFERED": "1",
            "ROLLING_FOLDER": str(self.folder),
            "ROLLING_RELEASE": release,
            "ROLLING_WORKFLOWS": "1" if self.workflows else "",
        }
        process = WorkerProcess([sys.executable, *words], env, self.folder, len(self.processes))
        self.processes.append(process)
        return process

    def work(self, release: str, source: Path) -> WorkerProcess:
        words = ("--log-format", "json", "--health-port", "0", "-c", "6")
        worker = self._start(
            release, source, "-m", "holdfast", "worker", "tests.migration.rolling_app:app", *words
        )
        self.until(lambda: "worker.started" in worker.output, f"a worker of {release} has started")
        return worker

    def produce(self, release: str, source: Path) -> WorkerProcess:
        producer = self._start(release, source, str(HERE / "rolling_producer.py"), release)
        self.until(lambda: f"rolling producer with {source}" in producer.output, f"a producer of {release}")
        return producer

    def until(self, condition: Callable[[], Any], what: str) -> None:
        def look() -> Any:
            for process in self.processes:
                assert process.is_running or process.wait() == 0, process.output[-4000:]
            return condition()

        wait_until(look, what, 120)

    def noted(self, name: str) -> list[dict[str, Any]]:
        return [line for file in sorted(self.folder.glob(f"{name}-*")) for line in lines(file)]

    def rounds(self, release: str) -> int:
        """Rounds of this release's producer that are made whole."""
        return sum(
            line["kind"] == "amany" and line["tags"][0].startswith(f"{release}-")
            for line in self.noted("due")
        )

    def a_round_ran(self, release: str, since: int) -> bool:
        """A whole round that was begun after `since` rounds were made has run to its end."""
        mine = [line for line in self.noted("due") if line["tags"][0].startswith(f"{release}-")]
        wanted = {tag for line in mine if line["round"] == since + 1 for tag in line["tags"]}
        done = {line["tag"] for line in self.noted("ran")}
        return self.rounds(release) > since + 1 and bool(wanted) and wanted <= done

    def until_a_round_ran(self, release: str, when: str) -> None:
        since = self.rounds(release)
        self.until(
            lambda: self.a_round_ran(release, since), f"a round of the {release} producer has run {when}"
        )

    def stop_producing(self, release: str, producer: WorkerProcess) -> None:
        (self.folder / f"stop-{release}").touch()
        assert producer.wait(120) == 0, producer.output[-4000:]

    def end(self) -> None:
        for process in self.processes:
            process.end()


@pytest.fixture
def stage(database: Database, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(database, tmp_path)
    yield stage
    stage.end()


def drain(*workers: WorkerProcess) -> None:
    for worker in workers:
        worker.kill(signal.SIGTERM)
    assert [worker.wait(120) for worker in workers] == [0] * len(workers)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("commit", "numbers"), STEPS, ids=[f"{step[0]}-{step[-1]}" for _, step in STEPS])
def test_a_migration_under_load_of_the_code_before_it(
    commit: str, numbers: list[int], stage: Stage, tmp_path: Path, database: Database
) -> None:
    old, new = source_of(commit, tmp_path / "before"), ROOT / "src"
    known = files.migrations()
    stage.workflows = numbers[0] > HAS_WORKFLOWS
    migrate.up(database.dsn, migrations=known[: numbers[0] - 1])
    database.run(LEDGER)
    make_queues(stage, old)
    workers = [stage.work("old", old) for _ in range(2)]
    producer = stage.produce("old", old)
    stage.until_a_round_ran("old", "before the migration")

    assert migrate.up(database.dsn, migrations=known[: numbers[-1]]) == numbers
    stage.until_a_round_ran("old", "after the migration")
    migrate.up(database.dsn)
    if numbers[0] >= READS_NEEDS_CODE:
        workers.append(stage.work("old", old))  # the application is rolled back
    fresh = [stage.work("new", new) for _ in range(2)]
    newer = stage.produce("new", new)
    stage.until_a_round_ran("old", "beside the new code")
    stage.until_a_round_ran("new", "beside the old code")

    stage.stop_producing("old", producer)
    drain(*workers)
    stage.until_a_round_ran("new", "alone")
    stage.stop_producing("new", newer)
    # A schedule never ends: what is left of it does not count.
    left = "SELECT task, status, queue FROM holdfast.work WHERE task <> 'tick' LIMIT 5"
    stage.until(lambda: not database.ask(left), "every job has ended")
    # A callback that could not be enqueued at once is enqueued when a worker tidies up.
    late = "SELECT id FROM holdfast.groups WHERE fault IS NOT NULL"
    stage.until(lambda: not database.ask(late) and not database.ask(left), "every callback has run")
    drain(*fresh)
    judge(stage)


def make_queues(stage: Stage, source: Path) -> None:
    program = (
        "from tests.migration.rolling_app import app; from tests.migration.rolling_producer import verb; "
        "verb('queues', 'sync_queues')(app.tasks.queue_rules()); app.close()"
    )
    done = stage._start("old", source, "-c", program)
    assert done.wait(120) == 0, done.output[-4000:]


def judge(stage: Stage) -> None:
    said = [found for process in stage.processes for found in complaints(process.output)]
    assert said == []
    database = stage.database
    assert database.ask(UNFINISHED) == []
    due = Counter(tag for line in stage.noted("due") for tag in line["tags"])
    ran = Counter(line["tag"] for line in stage.noted("ran"))
    slots = {tag: times for tag, times in ran.items() if tag.startswith("slot ")}
    assert ran - Counter(slots) == due, "every job that was enqueued has run once, and no other"
    assert len(slots) > 5
    assert set(slots.values()) == {1}
    assert {line["release"] for line in stage.noted("ran")} == {"old", "new"}

    states = database.ask("SELECT task, status, count(*) FROM holdfast.archive GROUP BY 1, 2 ORDER BY 1, 2")
    assert {(task, status) for task, status, _ in states if status != "completed"} == {("plain", "cancelled")}
    assert database.ask("SELECT count(*) FROM holdfast.dead_letters") == [(0,)]
    assert (
        database.ask("SELECT status, ended FROM holdfast.workers WHERE ended IS DISTINCT FROM 'left'") == []
    )
    ledger = database.ask("SELECT tag FROM ledger GROUP BY tag HAVING count(*) > 1")
    assert ledger == [], "a transaction was committed twice"
    by_key: dict[str, list[int]] = {}
    for key, n in database.ask("SELECT key, n FROM ledger WHERE key IS NOT NULL ORDER BY place"):
        by_key.setdefault(key, []).append(n)
    assert len(by_key) == 6
    assert [key for key, seen in by_key.items() if seen != sorted(seen)] == []


def complaints(output: str) -> list[str]:
    """What a process said that it should not have: warnings and errors that nobody expects, and what is no log line."""
    found = []
    for line in output.splitlines():
        if line.startswith("rolling producer with "):
            continue
        try:
            said = json.loads(line)
        except ValueError:
            found.append(line)
            continue
        if said["level"] not in ("debug", "info") and (said["event"], said.get("task")) not in EXPECTED:
            found.append(line)
    return found
