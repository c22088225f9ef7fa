"""How a child finds the app, and what happens when it does not, or dies before it has a job."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import QUICK, await_until, wait_until
from tests.flow.test_run import working
from tests.processes.conftest import Scene, is_gone
from tests.processes.process_app import app as importable
from tests.processes.process_app import babble_later, behind, pid

from holdfast import ConfigurationError, Holdfast, telemetry
from holdfast.model.outcome import Outcome
from holdfast.runtime.processes import child_thread
from holdfast.runtime.processes.assignment import NotStarted
from holdfast.runtime.processes.child_thread import ChildThread
from holdfast.runtime.processes.pool import Pool
from holdfast.runtime.processes.process import ChildProcess
from holdfast.runtime.processes.reaper import Reaper, family
from holdfast.testing import Kit

Events = list[telemetry.Event]
ROOT = Path(__file__).parents[2]

SCRIPT = """
import asyncio, os, sys
from holdfast import Holdfast

app = Holdfast()


@app.task(process=True)
def whoami() -> list[object]:
    return [__name__, os.getpid()]


async def main() -> None:
    async with app:
        handle = await whoami.aenqueue()
        await app.run_worker(until_idle="--once" in sys.argv)
        print(*await handle.aresult(timeout=150), os.getpid())


"""
GUARDED = SCRIPT + 'if __name__ == "__main__":\n    asyncio.run(main())\n'
UNGUARDED = SCRIPT + "asyncio.run(main())\n"
REFUSED = (
    "ConfigurationError: a worker was started in a child process of a worker, most likely while it imported the app. "
    'Put the call under: if __name__ == "__main__":'
)


def run(kit: Kit, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "HOLDFAST_DATABASE_URL": kit.url, "HOLDFAST_POLL": "0.05"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_app_of_a_script(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(GUARDED, encoding="utf-8")
    done = run(kit, tmp_path, "shop.py", "--once")
    name, child, parent = done.stdout.split() or [done.stderr, "", ""]
    assert name == "__holdfast_main__"
    assert child != parent


def test_the_example_of_the_documentation_runs(kit: Kit, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")
    (tmp_path / "shop.py").write_text(
        re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], encoding="utf-8"
    )
    handle = kit.app.send("resize", {"width": 640, "height": 480})
    done = run(kit, tmp_path, "-m", "holdfast", "worker", "shop:app", "--exit-when-idle")
    assert kit.job(handle.id)["status"] == "completed", done.stderr
    assert handle.result(timeout=25) == 0


def test_the_app_of_a_module_that_is_run(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__main__.py").write_text(GUARDED, encoding="utf-8")
    done = run(kit, tmp_path, "-m", "shop", "--once")
    assert done.stdout.split()[:1] == ["shop.__main__"], done.stderr


def test_a_script_that_starts_its_worker_whenever_it_is_loaded(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(UNGUARDED, encoding="utf-8")
    done = run(kit, tmp_path, "shop.py")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"holdfast.errors.ConfigurationError: tasks with process=True cannot run: {REFUSED}"


def test_an_app_that_nobody_can_import(app: Holdfast, kit: Kit) -> None:
    @app.task(process=True)
    def crunch() -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        kit.run_worker()
    assert str(caught.value) == (
        "task 'crunch' has process=True, but a child process cannot import its app: it is no global variable of a "
        "module. Write app = Holdfast(...) at the top level of a file"
    )


@pytest.fixture
def with_late_task(scene: Scene) -> Iterator[str]:
    @importable.task(process=True, name="late", max_attempts=1)
    def late() -> None: ...

    yield "late"
    del importable._tasks["late"]


def test_a_task_that_the_child_does_not_know(scene: Scene, with_late_task: str) -> None:
    handle = importable.send(with_late_task, {})
    with pytest.raises(ConfigurationError) as caught:
        scene.kit.run_worker(until_idle=False)
    assert str(caught.value) == (
        "tasks with process=True cannot run: a child process that imports tests.processes.process_app does not know "
        "late. Declare them when the module is imported, not inside a function"
    )
    after = pid.enqueue()
    scene.kit.run_worker(concurrency=1)  # until idle: nothing is tried before a job needs it
    error = "ProcessNotStarted: no worker here knows late version 1"
    assert scene.end(handle.id) == ("dead_letter", 1, error)
    assert after.result(timeout=25) != os.getpid()


async def test_a_child_that_cannot_start_costs_no_attempt(
    scene: Scene, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCESS_BROKEN", "1")
    handle = pid.enqueue()

    def told() -> list[telemetry.Event]:
        return [e for e in events if e.name == "process.not_started"]

    async with working(scene.kit, concurrency=1):
        await await_until(told, "it is told")
        await await_until(lambda: scene.end(handle.id)[0] == "scheduled", "it waits")
        assert scene.end(handle.id) == ("scheduled", 0, None)
        event = told()[0]
        assert event.fields["error"] == "RuntimeError: no model file"
        assert 'raise RuntimeError("no model file")' in event.fields["trace"]
        monkeypatch.delenv("PROCESS_BROKEN")
        assert await handle.aresult(timeout=150) != os.getpid()
    assert scene.end(handle.id) == ("completed", 1, None)
    await scene.kit.database.aclose()


def test_until_idle_a_child_that_cannot_start_is_a_failure(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    handle = pid.using(max_attempts=1).enqueue()
    scene.kit.run_worker(concurrency=1)
    status, attempts, error = scene.end(handle.id)
    assert (status, attempts) == ("dead_letter", 1)
    assert error is not None
    assert error.startswith("ProcessNotStarted: no child process can be started: [Errno 2] No such file")


def test_a_child_that_is_never_ready_is_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_thread, "START", 1.5)
    monkeypatch.setenv("PROCESS_SLOW", "1")
    handle = pid.using(max_attempts=1).enqueue()
    scene.kit.run_worker(concurrency=1)
    error = "ProcessNotStarted: a child process was not ready after 1.5 s"
    assert scene.end(handle.id) == ("dead_letter", 1, error)
    assert all(is_gone(child) for child, _ in scene.notes("enter") if child != os.getpid())


async def test_a_slow_start_is_told(scene: Scene, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_thread, "SLOW", 0.01)
    async with working(scene.kit, concurrency=1):
        await await_until(lambda: [e for e in events if e.name == "process.slow_start"], "it is told")
    await scene.kit.database.aclose()


async def test_a_child_that_dies_before_it_begins_its_job_is_replaced(scene: Scene) -> None:
    async with working(scene.kit, concurrency=1):
        first = await pid.enqueue().aresult(timeout=150)
        os.kill(first, signal.SIGSTOP)
        handle = behind.enqueue("go")
        await await_until(lambda: scene.end(handle.id)[0] == "processing", "it is claimed")
        os.kill(first, signal.SIGKILL)
        scene.open("go")
        assert await handle.aresult(timeout=150) != first
        second = await pid.enqueue().aresult(timeout=150)
        os.kill(second, signal.SIGKILL)  # while it is idle
        await await_until(lambda: is_gone(second), "it is gone")
        assert await pid.enqueue().aresult(timeout=150) not in (first, second)
    rows = scene.kit.jobs()
    assert [(r["status"], r["attempts"]) for r in rows] == [("completed", 1)] * 4
    await scene.kit.database.aclose()


async def test_a_job_that_comes_while_an_idle_child_dies_is_not_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, ended = threading.Event(), Pool.ended

    def late(self: Pool, thread: ChildThread, pid: int | None) -> None:
        """The end is decided, and the pool does not know yet: it gives this thread the next job."""
        if not dying.is_set():
            dying.set()
            wait_until(lambda: thread not in self._idle, "the pool wants to use it", 30)
        ended(self, thread, pid)

    async with working(scene.kit, concurrency=1):
        first = await pid.enqueue().aresult(timeout=150)
        monkeypatch.setattr(Pool, "ended", late)
        os.kill(first, signal.SIGKILL)
        await await_until(dying.is_set, "it dies")
        handle = pid.enqueue()
        assert await handle.aresult(timeout=50) != first
        assert scene.end(handle.id) == ("completed", 1, None)
    await scene.kit.database.aclose()


async def test_a_job_that_a_thread_took_after_it_decided_to_end_is_not_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = ChildThread._finish

    def late(self: ChildThread, child: ChildProcess, end: Outcome | NotStarted | None = None) -> None:
        if end is None and self._job is None and not child.hung_up:
            with self._lock:
                self._closed = False
            wait_until(lambda: self._job is not None, "it is given a job", 30)
        finish(self, child, end)

    async with working(scene.kit, concurrency=1):
        first = await babble_later.enqueue("babble").aresult(timeout=150)
        monkeypatch.setattr(ChildThread, "_finish", late)
        scene.open("babble")
        await await_until(lambda: scene.notes("babbled"), "the idle child breaks the rules")
        handle = pid.enqueue()
        await await_until(lambda: scene.end(handle.id)[0] == "completed", "another child takes it", 10)
        monkeypatch.undo()
        assert handle.result(timeout=25) != first
        assert scene.end(handle.id)[1] == 1
    await scene.kit.database.aclose()


async def test_idle_children_that_die_as_jobs_come_cost_nothing(scene: Scene) -> None:
    async with working(scene.kit, concurrency=2):
        for _ in range(3):
            child = await pid.enqueue().aresult(timeout=150)
            os.kill(child, signal.SIGKILL)
            handles = [pid.enqueue() for _ in range(4)]
            assert child not in [await handle.aresult(timeout=150) for handle in handles]
    assert {(r["status"], r["attempts"]) for r in scene.kit.jobs()} == {("completed", 1)}
    await scene.kit.database.aclose()


def reapers() -> list[int]:
    found = [each for each in family(os.getpid())[1:] if not is_gone(each)]
    return [each for each in found if b"reaper.py" in Path(f"/proc/{each}/cmdline").read_bytes()]


async def test_a_reaper_that_cannot_start_costs_no_attempt_and_one_that_died_is_replaced(
    scene: Scene, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = Reaper._start, ["once"]

    def fail_once(self: Reaper) -> None:
        if failures:
            failures.pop()
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        start(self)

    async with working(scene.kit, concurrency=1):
        first = await pid.enqueue().aresult(timeout=150)
        monkeypatch.setattr(Reaper, "_start", fail_once)
        (reaper,) = reapers()
        for each in (reaper, first):
            os.kill(each, signal.SIGKILL)
            await await_until(partial(is_gone, each), "it is gone")
        handle = pid.enqueue()
        assert await handle.aresult(timeout=150) != first
        assert scene.end(handle.id) == ("completed", 1, None)
        (event,) = [e for e in events if e.name == "process.not_started"]
        assert "Resource temporarily unavailable" in event.fields["error"]
        assert len(reapers()) == 1
        assert reapers() != [reaper]
    await scene.kit.database.aclose()


async def test_a_child_that_does_not_take_its_job_is_replaced(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_thread, "BEGIN", 0.5)
    async with working(scene.kit, concurrency=1):
        first = await pid.enqueue().aresult(timeout=150)
        os.kill(first, signal.SIGSTOP)
        assert await pid.enqueue().aresult(timeout=150) != first
        assert is_gone(first)
    await scene.kit.database.aclose()


def test_the_app_is_found_where_it_was_made(holdfast_kit: Callable[..., Kit]) -> None:
    from holdfast.runtime.processes.origin import Origin, find

    assert find(importable, importable._made_in) == Origin("tests.processes.process_app", "app")
    assert find(object(), "nowhere") is None
    assert QUICK.process_jobs == 1000
