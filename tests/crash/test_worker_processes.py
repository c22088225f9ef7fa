"""`holdfast worker --processes`: real workers below a supervisor, on a real database."""

import os
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.conftest import wait_until
from tests.crash.crash_app import aplain, plain, record
from tests.crash.process import Scene, WorkerProcess
from tests.crash.supervision import has_ended
from typer.testing import CliRunner

from holdfast.cli import app as cli

Start = Callable[..., WorkerProcess]


def alive(scene: Scene) -> list[int]:
    rows = scene.kit.sql("SELECT pid FROM holdfast.workers WHERE status = 'alive' ORDER BY started_at")
    return [row["pid"] for row in rows]


def is_left(scene: Scene) -> bool:
    rows = scene.kit.sql("SELECT status, ended FROM holdfast.workers")
    return bool(rows) and all(row == {"status": "gone", "ended": "left"} for row in rows)


@pytest.fixture
def start(scene: Scene) -> Iterator[Start]:
    """`start()`: two worker processes below one; a heartbeat that a busy machine does not miss."""

    def begin(*words: str, **settings: Any) -> WorkerProcess:
        timings = {"lease": 20.0, "dead_after": 8.0, "drain": 10.0} | settings
        return scene.start(words=("--processes", "2", *words), ready=False, **timings)

    yield begin
    scene.end()
    for row in scene.kit.sql("SELECT pid FROM holdfast.workers WHERE status <> 'gone'"):
        if not has_ended(row["pid"]):
            os.kill(row["pid"], signal.SIGKILL)


def both(scene: Scene, supervisor: WorkerProcess) -> list[int]:
    wait_until(lambda: len(alive(scene)) == 2 or not supervisor.is_running, "two are in the registry", 30)
    assert supervisor.is_running, supervisor.output
    return alive(scene)


def test_the_jobs_are_run_by_the_children_and_sigterm_drains_them_all(scene: Scene, start: Start) -> None:
    jobs = [plain.enqueue("go").id for _ in range(6)]
    supervisor = start(concurrency=3, prefetch=0)
    children = both(scene, supervisor)
    assert supervisor.pid not in children
    for job in jobs:
        scene.until_noted("start", job)
    assert {note.pid for note in scene.notes("start")} == set(children)
    supervisor.kill(signal.SIGTERM)
    wait_until(lambda: alive(scene) == [], "both drain")
    scene.open("go")
    assert supervisor.wait() == 0
    assert [(j["status"], j["attempts"]) for j in scene.kit.jobs()] == [("completed", 1)] * 6
    assert is_left(scene)
    assert all(has_ended(pid) for pid in children)
    assert supervisor.output.count("worker.starting") == 1  # announced once


def test_a_killed_worker_is_replaced_and_its_job_runs_again(scene: Scene, start: Start) -> None:
    job = plain.enqueue("go").id
    supervisor = start(lease=1.5, dead_after=1.2)
    children = both(scene, supervisor)
    (first,) = scene.until_noted("start", job)
    os.kill(first.pid, signal.SIGKILL)
    (died,) = wait_until(lambda: supervisor.events("supervisor.child_died"), "it is missed")
    assert (died["pid"], died["error"]) == (str(first.pid), "the process was killed by signal 9 (SIGKILL)")
    assert not os.path.exists(f"/proc/{first.pid}")  # reaped
    scene.open("go")
    scene.until_status(job, "completed")
    wait_until(lambda: len(set(alive(scene)) - set(children)) == 1, "there are two again")
    supervisor.kill(signal.SIGTERM)
    assert supervisor.wait() == 0


def test_a_signal_to_every_process_at_once_counts_once(scene: Scene, start: Start) -> None:
    """As systemd sends it, and some who type kill."""
    job = aplain.enqueue("go").id
    supervisor = start()
    children = both(scene, supervisor)
    scene.until_noted("start", job)
    for pid in (*children, supervisor.pid):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: alive(scene) == [], "both drain")
    wait_until(lambda: supervisor.events("supervisor.child_left"), "the idle one has left")
    assert not scene.notes("cancelled", job)
    scene.open("go")
    assert supervisor.wait() == 0
    assert (scene.kit.job(job)["status"], scene.kit.job(job)["attempts"]) == ("completed", 1)


def test_a_second_signal_leaves_at_once_and_gives_back(scene: Scene, start: Start) -> None:
    job = aplain.enqueue("never").id
    supervisor = start(drain=600)
    both(scene, supervisor)
    scene.until_noted("start", job)
    os.killpg(supervisor.pid, signal.SIGINT)  # Ctrl-C
    wait_until(lambda: supervisor.events("supervisor.child_left"), "the idle one has left")
    assert not scene.notes("cancelled", job)
    os.killpg(supervisor.pid, signal.SIGINT)
    assert supervisor.wait() == 0
    assert scene.notes("cancelled", job)
    assert (scene.kit.job(job)["status"], scene.kit.job(job)["attempts"]) == ("pending", 0)
    assert is_left(scene)


def test_workers_whose_supervisor_is_killed_drain_and_leave(scene: Scene, start: Start) -> None:
    job = plain.enqueue("go").id
    supervisor = start()
    children = both(scene, supervisor)
    scene.until_noted("start", job)
    supervisor.kill(signal.SIGKILL)
    wait_until(lambda: alive(scene) == [], "both drain")
    scene.open("go")
    wait_until(lambda: all(has_ended(pid) for pid in children), "nobody is left")
    assert (scene.kit.job(job)["status"], scene.kit.job(job)["attempts"]) == ("completed", 1)
    assert is_left(scene)


def test_each_leaves_when_idle_and_then_the_supervisor(scene: Scene, start: Start) -> None:
    jobs = [record.enqueue().id for _ in range(20)]
    supervisor = start("--exit-when-idle")
    assert supervisor.wait() == 0
    assert scene.ledger() == dict.fromkeys(jobs, 1)
    assert is_left(scene)
    assert len(scene.workers()) == 2


def test_a_worker_that_an_operator_drains_is_not_started_again(scene: Scene, start: Start) -> None:
    supervisor = start()
    first, second = both(scene, supervisor)
    (row,) = scene.kit.sql("SELECT id FROM holdfast.workers WHERE pid = %s", [first])
    for words in ([row["id"]], ["--all", "--yes"]):
        result = CliRunner().invoke(cli, ["workers", "drain", *words, "--wait", "20", "-d", scene.kit.url])
        assert result.exit_code == 0, result.output
        if second in alive(scene):
            wait_until(lambda: supervisor.events("supervisor.child_left"), "the supervisor knows")
            assert supervisor.is_running
    assert supervisor.wait() == 0
    assert len(scene.workers()) == 2


def test_a_mistake_is_one_line_and_exit_code_2(scene: Scene, start: Start) -> None:
    supervisor = start("--queue", "mial")
    assert supervisor.wait() == 2
    lines = [line for line in supervisor.output.splitlines() if not line.startswith("{")]
    assert lines == [
        "holdfast: queue 'mial' does not exist (known: inbox). Create it: holdfast queue create mial"
    ]
    assert scene.workers() == {}


def _two_free_ports() -> int:
    """The first of two in a row."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
            return port


def test_every_process_has_a_health_port_and_hands_it_on(scene: Scene, start: Start) -> None:
    port = _two_free_ports()

    def metrics(place: int) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port + place}/metrics", timeout=10) as reply:
            return str(reply.read().decode())

    supervisor = start("--health-port", str(port))
    old = both(scene, supervisor)
    assert "holdfast_" in metrics(0)
    assert "holdfast_" in metrics(1)
    supervisor.kill(signal.SIGHUP)
    wait_until(lambda: supervisor.events("supervisor.rolled"), "both are replaced", 30)
    assert not set(old) & set(both(scene, supervisor))
    assert "holdfast_" in metrics(0)
    assert "holdfast_" in metrics(1)
    supervisor.kill(signal.SIGTERM)
    assert supervisor.wait() == 0
    assert is_left(scene)


def test_a_health_port_that_is_taken_is_one_line(scene: Scene, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        supervisor = start("--health-port", str(port))
        assert supervisor.wait() == 2
    assert supervisor.output == (
        f"holdfast: health port {port} of 127.0.0.1 is in use, perhaps by another worker. Choose another one "
        "(--health-port, HOLDFAST_HEALTH_PORT), or 0 for any free one\n"
    )


def test_ports_beyond_the_last_one_are_refused(scene: Scene, start: Start) -> None:
    supervisor = start("--health-port", "65535")
    assert supervisor.wait() == 2
    assert supervisor.output == (
        "holdfast: health port 65535 with 2 processes would go up to 65536; ports end at 65535. Choose a lower one, "
        "or 0 for any free ones\n"
    )


def test_a_supervisor_fd_that_is_no_socket_is_refused(scene: Scene, start: Start) -> None:
    supervisor = start("--supervisor-fd", "77")
    assert supervisor.wait() == 2
    assert supervisor.output == (
        "holdfast: descriptor 77 is no socket of a supervisor: Bad file descriptor. "
        "Only holdfast worker --processes passes one\n"
    )
