"""Children of a worker process: they do not outlive it, and they do not die of what was meant for it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import wait_until
from tests.processes.conftest import Scene, is_gone
from tests.processes.process_app import behind, deaf

ROOT = Path(__file__).parents[2]
Start = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(scene: Scene) -> Iterator[Start]:
    """`holdfast worker` in a session of its own, as a terminal would start it."""
    workers: list[subprocess.Popen[bytes]] = []

    def begin() -> "subprocess.Popen[bytes]":
        env = {
            **os.environ,
            "HOLDFAST_DATABASE_URL": scene.kit.url,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        }
        command = [sys.executable, "-m", "holdfast", "worker", "tests.processes.process_app:app"]
        with (scene.folder / "log").open("wb") as log:
            workers.append(
                subprocess.Popen(
                    command, env=env, cwd=ROOT, stdout=log, stderr=log, stdin=log, start_new_session=True
                )
            )
        return workers[-1]

    yield begin
    for worker in workers:
        worker.kill()
        worker.wait()


def below(pid: int) -> list[int]:
    """Every process that this one started, and those started."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += [int(child), *below(int(child))]
    return found


@pytest.mark.parametrize("how", ["family", "stuck", "session", "stuck session"])
def test_a_killed_worker_leaves_no_process(scene: Scene, start: Start, how: str) -> None:
    deaf.enqueue(how)
    worker = start()
    child = scene.until_noted("start")[0][0]
    processes = below(worker.pid)
    assert child in processes
    assert len(processes) == (2 if how == "stuck" else 3)  # with the reaper
    assert {int(text) for _, text in scene.notes("program")} <= set(processes)
    worker.kill()
    worker.wait()
    wait_until(lambda: all(is_gone(pid) for pid in processes), "all are gone")


def test_ctrl_c_is_for_the_worker_and_its_child_may_finish(scene: Scene, start: Start) -> None:
    handle = behind.enqueue("go")
    worker = start()
    child = scene.until_noted("start")[0][0]
    os.killpg(worker.pid, signal.SIGINT)
    log = scene.folder / "log"
    wait_until(lambda: "worker.draining" in log.read_text(encoding="utf-8"), "it drains")
    assert not is_gone(child)
    scene.open("go")
    assert worker.wait(100) == 0
    assert handle.result(timeout=25) == child
    assert is_gone(child)


def test_a_second_ctrl_c_kills_the_child_and_gives_the_job_back(scene: Scene, start: Start) -> None:
    handle = deaf.enqueue("family")
    worker = start()
    child = scene.until_noted("start")[0][0]
    processes = below(worker.pid)
    log = scene.folder / "log"
    os.killpg(worker.pid, signal.SIGINT)
    wait_until(lambda: "worker.draining" in log.read_text(encoding="utf-8"), "it drains")
    os.killpg(worker.pid, signal.SIGINT)
    assert worker.wait(100) == 0
    assert all(is_gone(pid) for pid in [child, *processes])
    (row,) = scene.kit.sql("SELECT status, attempts FROM holdfast.work WHERE id = %s", [handle.id])
    assert row == {"status": "pending", "attempts": 0}


HELD_OPEN = """
import os, subprocess, sys, time
from holdfast.runtime.processes.reaper import Reaper

nothing = subprocess.DEVNULL
program = subprocess.Popen(["sleep", "600"], stdout=nothing, stderr=nothing, start_new_session=True)
reaper = Reaper()
reaper.keep(program.pid)
heir = os.fork()
if heir == 0:
    os.closerange(0, 3)
    time.sleep(600)  # it has the reaper's pipe open
print(program.pid, heir, flush=True)
os._exit(0)
"""


def test_a_process_that_somebody_forked_off_the_worker_does_not_deceive_the_reaper() -> None:
    done = subprocess.run([sys.executable, "-c", HELD_OPEN], capture_output=True, text=True, check=True)
    program, heir = [int(word) for word in done.stdout.split()]
    try:
        wait_until(lambda: is_gone(program), "it is gone")
    finally:
        os.kill(heir, signal.SIGKILL)
