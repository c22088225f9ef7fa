"""`holdfast worker` with several processes: what the setting says, and the embedded server that they share."""

from pathlib import Path

from tests.surface.test_cli_worker import Process

from holdfast.cli.supervising import how_many
from holdfast.model.release import own_version

MODULE = """
import contextlib
from holdfast import Holdfast


@contextlib.asynccontextmanager
async def lifespan(app):
    await hello.aenqueue()
    yield


app = Holdfast(lifespan=lifespan)


@app.task
async def hello() -> None: ...
"""


def test_processes_share_an_embedded_server(tmp_path: Path) -> None:
    (tmp_path / "mini.py").write_text(MODULE)
    home = tmp_path / "home"
    environment = {
        "HOLDFAST_HOME": str(home),
        "HOLDFAST_DATABASE_URL": "embedded:",
        "HOLDFAST_PROCESSES": "2",
    }
    words = (
        "worker",
        "mini",
        "--exit-when-idle",
        "--log-format",
        "console",
        "-c",
        "3",
        "--log-level",
        "debug",
    )
    worker = Process(tmp_path, words, environment)
    assert worker.end(60) == 0, worker.err
    banners = [line for line in worker.err.splitlines() if line.startswith(f"holdfast {own_version()}: ")]
    (banner,) = banners  # once, by the one above them
    assert banner.startswith(f"holdfast {own_version()}: queue inbox; 2 processes, each 3 at a time; ")
    assert worker.err.count("worker.started") == worker.err.count("worker.stopped") == 2
    assert worker.err.count("job.completed") == 2
    assert not (home / "postgres" / "data" / "postmaster.pid").exists()  # the last one stopped it


def test_0_is_one_per_processor() -> None:
    assert how_many(0) >= 1
    assert how_many(3) == 3
