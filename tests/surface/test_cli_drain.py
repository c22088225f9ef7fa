"""`holdfast workers drain` and a worker process: it learns of it, drains, and ends with 0."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from tests.conftest import wait_until
from tests.surface.test_cli_worker import Process
from typer.testing import CliRunner

from holdfast.cli import app as cli
from holdfast.cli.exits import TIMED_OUT
from holdfast.testing import Kit

MODULE = """
import asyncio
from pathlib import Path
from holdfast import Holdfast

app = Holdfast()


@app.task
async def gated(path: str) -> None:
    while not Path(path).exists():
        await asyncio.sleep(0.01)
"""


@pytest.fixture
def worker(tmp_path: Path, kit: Kit) -> Iterator[Process]:
    """One slot, quick heartbeats, a short patience with handlers that do not end."""
    (tmp_path / "gate_app.py").write_text(MODULE)
    settings = {"HEARTBEAT": "0.2", "DRAIN": "2", "DATABASE_URL": kit.url}
    process = Process(
        tmp_path, ("worker", "gate_app", "-c", "1"), {f"HOLDFAST_{k}": v for k, v in settings.items()}
    )
    yield process
    if process.popen.poll() is None:
        process.popen.kill()
        process.popen.wait(50)


def drain(kit: Kit, *words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["workers", "drain", *words, "-d", kit.url])
    return result.exit_code, result.stdout, result.stderr


def state(kit: Kit, job: UUID) -> tuple[str, int]:
    row = kit.job(job)
    return row["status"], row["attempts"]


def test_the_running_job_finishes_and_the_process_ends_with_0(
    kit: Kit, worker: Process, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    running, waiting = (kit.app.send("gated", {"path": str(gate)}).id for _ in range(2))
    wait_until(lambda: {r["status"] for r in kit.jobs()} == {"processing"}, "one runs, one is prefetched")
    (me,) = (row["id"] for row in kit.sql("SELECT id FROM holdfast.workers"))
    assert drain(kit, me[:-4]) == (0, f"Worker {me} is asked to drain.\n", "")
    worker.said("worker.drain_asked", "worker.draining")
    wait_until(lambda: state(kit, waiting) == ("pending", 0), "what has not started is handed back")
    assert drain(kit, me.rpartition(":")[2], "--wait", "0") == (
        TIMED_OUT,
        f"Worker {me} drains already.\n",
        f"holdfast: not gone after 0 s: {me}\n",
    )
    gate.touch()
    assert worker.end() == 0
    assert worker.lines()[-1]["event"] == "worker.stopped"
    assert (state(kit, running), state(kit, waiting)) == (("completed", 1), ("pending", 0))
    assert drain(kit, me) == (0, f"Worker {me} is gone already.\n", "")


def test_a_job_past_the_drain_limit_is_released(kit: Kit, worker: Process) -> None:
    job = kit.app.send("gated", {"path": "/nowhere/never"}).id
    wait_until(lambda: state(kit, job)[0] == "processing", "it runs")
    (me,) = (row["id"] for row in kit.sql("SELECT id FROM holdfast.workers"))
    assert drain(kit, "--all", "--yes", "--wait", "20") == (0, f"Worker {me} has left.\n", "")
    assert worker.end() == 0
    assert state(kit, job) == ("pending", 0)
