"""`holdfast worker` and `holdfast dev` as processes: start, signals, drain, exit code, log."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from tests.conftest import wait_until, within

from holdfast.model.release import own_version
from holdfast.testing import Kit

SHOP = """
import asyncio, contextlib, logging, os, time
from pathlib import Path
from holdfast import Holdfast, Settings

log = logging.getLogger("shop")


@contextlib.asynccontextmanager
async def lifespan(app):
    log.info("lifespan")
    if os.environ.get("SLOW_START"):
        await asyncio.sleep(3600)
    yield


app = Holdfast(
    os.environ["SHOP_URL"], lifespan=lifespan, settings=Settings(drain=float(os.environ.get("SHOP_DRAIN", "30")))
)


@app.task
async def good(n: int) -> int:
    log.info("good runs", extra={"order": n})
    return n


@app.task
def threaded(n: int) -> None:
    log.warning("threaded runs")


@app.task(max_attempts=1)
def bad(n: int) -> None:
    raise ValueError("no \\x1b[31m")


@app.task
async def gated(path: str) -> None:
    log.info("gated runs")
    while not Path(path).exists():
        await asyncio.sleep(0.01)


@app.task
def forever() -> None:
    log.info("forever runs")
    while True:
        time.sleep(0.1)


@app.task
async def stuck() -> None:
    log.info("stuck runs")
    await asyncio.to_thread(time.sleep, 3600)
"""

Start = Callable[..., "Process"]


class Process:
    """A `holdfast` process whose stderr goes to a file that can be looked at while it runs."""

    def __init__(self, folder: Path, words: tuple[str, ...], environment: dict[str, str]) -> None:
        self._log = folder / f"log{len(list(folder.glob('log*')))}"
        with self._log.open("w") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *words],
                cwd=folder,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def err(self) -> str:
        return self._log.read_text()

    def said(self, *texts: str) -> None:
        wait_until(
            lambda: all(text in self.err for text in texts) or self.popen.poll() is not None,
            f"{texts} in the log",
        )
        assert all(text in self.err for text in texts), self.err

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def end(self, seconds: float = 20.0) -> int:
        try:
            return self.popen.wait(within(seconds))
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(50)
            raise AssertionError(f"still running after {within(seconds):g} s:\n{self.err}") from None

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.err.splitlines()]


@pytest.fixture
def start(tmp_path: Path, dsn: str) -> Iterator[Start]:
    """`start("worker", "shop")` starts a process in a folder with the module `shop`, on this test's database."""
    (tmp_path / "shop.py").write_text(SHOP)
    started: list[Process] = []

    def make(*words: str, **environment: str) -> Process:
        url = make_conninfo(dsn, password="s3cret")
        started.append(Process(tmp_path, words, {"SHOP_URL": url, "HOLDFAST_APP": "shop", **environment}))
        return started[-1]

    yield make
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait(50)


def test_exit_when_idle_runs_what_is_due_and_leaves(kit: Kit, start: Start) -> None:
    kit.app.send("good", {"n": 1})
    kit.app.send("good", {"n": 2}, run_after=3600)
    worker = start("worker", "shop:app", "--exit-when-idle", "--log-format", "console", "-c", "3")
    assert worker.end() == 0
    first, *rest = worker.err.splitlines()
    assert first.startswith(f"holdfast {own_version()}: queue inbox; 3 at a time; database '")
    assert "durability" in rest[0]
    assert "s3cret" not in worker.err
    assert "\x1b" not in worker.err
    assert sorted(job["status"] for job in kit.jobs()) == ["completed", "scheduled"]
    assert [row["status"] for row in kit.sql("SELECT status FROM holdfast.workers")] == ["gone"]


def test_a_misspelled_setting_is_in_the_log_of_a_worker(kit: Kit, start: Start) -> None:
    worker = start(
        "worker", "shop", "--exit-when-idle", "--log-format", "json", HOLDFAST_LEESE="1", HOLDFAST_TOKEN="1"
    )
    assert worker.end() == 0
    (line,) = [line for line in worker.lines() if line["event"] == "setting.unknown"]
    assert (line["variable"], line["advice"]) == ("HOLDFAST_LEESE", "did you mean HOLDFAST_LEASE?")


def test_a_worker_on_uvloop_runs_and_drains(kit: Kit, start: Start) -> None:
    for task in ("good", "threaded"):
        kit.app.send(task, {"n": 1})
    assert start("worker", "shop:app", "--exit-when-idle", "--loop", "uvloop").end() == 0
    assert {job["status"] for job in kit.jobs()} == {"completed"}
    worker = start("worker", "shop:app", "--loop", "uvloop", "--processes", "2")
    wait_until(
        lambda: len(kit.sql("SELECT id FROM holdfast.workers WHERE status = 'alive'")) == 2, "both are there"
    )
    worker.send(signal.SIGTERM)
    assert worker.end() == 0


def test_a_loop_that_is_not_there_is_one_line(kit: Kit, start: Start, tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError('No module named uvloop')\n")
    worker = start(
        "worker", "shop:app", "--loop", "uvloop", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path])
    )
    assert worker.end() == 2
    assert "pip install 'holdfast-pg[uvloop]'" in worker.err
    assert "Traceback" not in worker.err


def test_a_worker_serves_only_the_queues_it_was_told(kit: Kit, start: Start) -> None:
    kit.sql("SELECT holdfast.create_queue('mail')")
    kit.app.send("good", {"n": 1})
    wanted = kit.app.send("good", {"n": 2}, queue="mail")
    assert start("worker", "shop:app", "--queue", "mail", "--exit-when-idle").end() == 0
    assert {row["id"]: row["status"] for row in kit.jobs()}[wanted.id] == "completed"
    assert [row["status"] for row in kit.jobs() if row["queue"] == "inbox"] == ["pending"]


def test_json_lines_carry_the_job(kit: Kit, start: Start) -> None:
    tasks = ("good", "threaded", "bad")
    ids = {task: str(kit.app.send(task, {"n": 7}, max_attempts=1).id) for task in tasks}
    worker = start(
        "worker", "--exit-when-idle", "--log-level", "debug"
    )  # the app by its variable, the format by stderr
    assert worker.end() == 0
    lines = worker.lines()
    banner = {"event": "worker.starting", "holdfast": own_version(), "queues": "inbox", "concurrency": 10}
    assert {key: lines[0][key] for key in banner} == banner
    (me,) = {line["worker"] for line in lines if line["event"] == "worker.started"}
    for event, task in (("good runs", "good"), ("threaded runs", "threaded")):
        (line,) = (line for line in lines if line["event"] == event)
        context = {"job": ids[task], "task": task, "queue": "inbox", "attempt": 1, "worker": me}
        assert {key: line[key] for key in context} == context
        assert line["logger"] == "shop"
    (dead,) = (line for line in lines if line["event"] == "job.dead_letter")
    assert (dead["job"], dead["level"]) == (ids["bad"], "error")
    assert dead["exception"].startswith("Traceback (most recent call last):")
    assert "ValueError: no \x1b[31m" in dead["exception"]
    completed = [line["job"] for line in lines if line["event"] == "job.completed"]
    assert sorted(completed) == sorted([ids["good"], ids["threaded"]])  # each event once
    assert [line["promise"] for line in lines if line["event"] == "durability"]


def test_at_info_jobs_are_summed_up_and_failures_are_told(kit: Kit, start: Start) -> None:
    for n in range(5):
        kit.app.send("good", {"n": n})
    kit.app.send("bad", {"n": 7}, max_attempts=1)
    worker = start("worker", "--exit-when-idle")
    assert worker.end() == 0
    lines = worker.lines()
    names = [line["event"] for line in lines]
    assert not {"job.completed", "job.started"} & set(names)
    assert names.count("job.dead_letter") == 1
    summaries = [line for line in lines if line["event"] == "worker.summary"]
    assert sum(line["jobs"] for line in summaries) == 6
    assert sum(line["failed"] for line in summaries) == sum(line["dead"] for line in summaries) == 1
    assert all(line["rate"].endswith("/s") and line["p95"] >= 0 for line in summaries)


def test_a_signal_says_what_is_waited_for_and_what_another_does(kit: Kit, start: Start) -> None:
    kit.app.send("forever", {})
    worker = start("worker")
    worker.said("forever runs")
    worker.send(signal.SIGINT)
    worker.said("drain.waiting")
    (line,) = (line for line in worker.lines() if line["event"] == "drain.waiting")
    assert (line["running"], line["tasks"], line["seconds"]) == (1, "forever", 30.0)
    assert line["advice"] == "a second Ctrl-C or SIGTERM hands them back at once, with no attempt spent"
    worker.send(signal.SIGINT)  # and so it does
    assert worker.end() == 0
    assert [(row["status"], row["attempts"]) for row in kit.jobs()] == [("pending", 0)]


def test_sigterm_lets_the_running_job_finish(kit: Kit, start: Start, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    kit.app.send("gated", {"path": str(gate)})
    worker = start("worker", "shop")
    worker.said("gated runs")
    worker.send(signal.SIGTERM)
    worker.said("worker.draining")
    left = kit.app.send("good", {"n": 1})
    gate.touch()
    assert worker.end() == 0
    assert [job["status"] for job in kit.jobs("gated")] == ["completed"]
    assert kit.job(left.id)["status"] == "pending"
    assert worker.lines()[-1]["event"] == "worker.stopped"


def test_a_second_signal_leaves_at_once_whatever_runs(kit: Kit, start: Start) -> None:
    kit.app.send("forever", {})
    kit.app.send("stuck", {})
    worker = start("worker", "shop", SHOP_DRAIN="3600")
    worker.said("forever runs", "stuck runs")
    worker.send(signal.SIGINT)
    worker.said("worker.draining")
    worker.send(signal.SIGINT)
    assert worker.end() == 0
    assert worker.lines()[-1]["event"] == "worker.threads_left"  # the thread of asyncio.to_thread never ends
    assert [(job["status"], job["attempts"]) for job in kit.jobs()] == [("pending", 0)] * 2


def test_a_drain_does_not_wait_for_a_daemon_thread(kit: Kit, start: Start) -> None:
    kit.app.send("forever", {})
    worker = start("worker", "shop", SHOP_DRAIN="0.2")
    worker.said("forever runs")
    worker.send(signal.SIGTERM)
    assert worker.end() == 0
    assert worker.lines()[-1]["event"] == "worker.stopped"
    assert [job["status"] for job in kit.jobs()] == ["pending"]


def test_a_signal_before_the_worker_runs_ends_it_too(kit: Kit, start: Start) -> None:
    worker = start("worker", "shop", SLOW_START="1")
    worker.said("lifespan")
    worker.send(signal.SIGTERM)
    assert worker.end() == 0
    assert "Traceback" not in worker.err
    assert kit.sql("SELECT FROM holdfast.workers") == []


def test_a_queue_that_does_not_exist_is_one_line(kit: Kit, start: Start) -> None:
    kit.sql("SELECT holdfast.create_queue('mail')")
    worker = start("worker", "shop", "-q", "mial", "--log-format", "console")
    assert worker.end() == 2
    assert worker.err.splitlines()[-1] == (
        "holdfast: queue 'mial' does not exist (known: inbox, mail). Did you mean 'mail'? "
        "Create it: holdfast queue create mial"
    )
    assert "Traceback" not in worker.err


def test_dev_brings_its_own_server(tmp_path: Path) -> None:
    (tmp_path / "mini.py").write_text(
        "from holdfast import Holdfast\n\napp = Holdfast()\n\n\n"
        "@app.task(queue='mail')\nasync def hello() -> None: ...\n\n\n"
        "@app.task(queue='notes')\nasync def note() -> None: ...\n\n\n"
        "app._lifespan = lambda app: first(app)\n\n\n"
        "import contextlib\n\n\n"
        "@contextlib.asynccontextmanager\nasync def first(app):\n    await hello.aenqueue()\n    yield\n"
    )
    names = ("HOLDFAST_DATABASE_URL", "DATABASE_URL", "PGHOST", "PGDATABASE")
    home = {"HOLDFAST_HOME": str(tmp_path / "home"), **dict.fromkeys(names, "")}
    dev = Process(tmp_path, ("dev", "mini", "--exit-when-idle"), home)
    assert dev.end(60) == 0, dev.err
    assert "worker.summary" in dev.err
    first, *rest = dev.err.splitlines()
    assert first == f"embedded PostgreSQL in {tmp_path / 'home' / 'postgres'}, for development or one host"
    assert any(
        line.startswith(f"holdfast {own_version()}: queues inbox, mail, notes; 10 at a time; ")
        for line in rest
    )
    assert "worker.stopped" in rest[-1]
