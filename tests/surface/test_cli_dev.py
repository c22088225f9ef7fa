"""`holdfast dev`: what it prints for the next terminal, its server from any subfolder, and reload on save."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.conftest import wait_until
from tests.surface.test_cli_worker import Process
from typer.testing import CliRunner

from holdfast import ConfigurationError, Holdfast, NoDatabase
from holdfast.cli import app as cli
from holdfast.cli import main
from holdfast.cli.dev import sample_enqueue
from holdfast.cli.reloading import _Stop, changed, python_files, run_reloading
from holdfast.db.embedded import default_path, stop
from holdfast.testing import Kit

APP = """
from holdfast import ConfigurationError, Holdfast, NoDatabase
from holdfast.cli import app as cli
from holdfast.cli import main

app = Holdfast()


@app.task
async def greet(name: str, times: int = 1) -> str:
    return f"hello {name}"
"""
NONE = dict.fromkeys(("HOLDFAST_DATABASE_URL", "DATABASE_URL", "PGHOST", "PGDATABASE", "HOLDFAST_APP"), "")


def holdfast(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        cwd=folder,
        env={**os.environ, **NONE, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "hello.py").write_text(APP)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    yield tmp_path
    stop(tmp_path / ".holdfast" / "postgres", force=True)


def test_a_look_makes_no_server_and_finds_that_of_dev_from_any_subfolder(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in NONE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(project)
    for words in (("status",), ("jobs", "list"), ("doctor",), ("queue", "list")):
        refused = CliRunner().invoke(cli, [*words, "-d", "embedded:"]).exception
        assert isinstance(refused, ConfigurationError)
        assert str(refused) == (
            f"there is no embedded server in {project}/.holdfast/postgres yet, and this command makes none. "
            "Start it: holdfast dev MODULE:APP, or holdfast db start"
        )
    assert not (project / ".holdfast").exists()
    assert isinstance(CliRunner().invoke(cli, ["status"]).exception, NoDatabase)

    dev = Process(project, ("dev", "hello:app", "--no-web", "--no-reload"), NONE)
    try:
        dev.said("worker.started")
        assert "in another terminal:\n" in dev.err
        assert (
            f"  export HOLDFAST_APP=hello:app HOLDFAST_DATABASE_URL=embedded://{project}/.holdfast/postgres\n"
            in dev.err
        )
        (sample,) = (line.strip() for line in dev.err.splitlines() if line.startswith("  holdfast enqueue"))
        assert sample == "holdfast enqueue greet name=hello"
        done = holdfast(project, *sample.split()[1:], "--app", "hello:app", "--wait", "60")
        assert (done.returncode, done.stdout) == (0, '"hello hello"\n'), done.stderr
        found = holdfast(
            project / "deep" / "er", "status", "--json"
        )  # nothing is named, and it is not made anew
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)["workers"]["alive"] == 1
        assert not (project / "deep" / "er" / ".holdfast").exists()
        shown = json.loads(holdfast(project / "deep" / "er", "config", "show", "--json").stdout)["settings"]
        assert shown[0] == {
            "name": "database_url",
            "value": f"embedded://{project}/.holdfast/postgres",
            "source": "the server in that folder",
        }
        exported = dict(pair.split("=", 1) for pair in dev.err.split("  export ")[1].splitlines()[0].split())
        below = holdfast(project / "deep", *sample.split()[1:], "--wait", "60", **exported)
        assert (below.returncode, below.stdout) == (0, '"hello hello"\n'), below.stderr
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        looked = holdfast(elsewhere, "jobs", "list", "--json", **exported)
        assert looked.returncode == 0, looked.stderr
        assert len(json.loads(looked.stdout)["jobs"]) == 2
        assert looked.stderr == (
            "note: HOLDFAST_APP is not used, the database is that of HOLDFAST_DATABASE_URL: there is no module 'hello' "
            f"in {elsewhere} (it has no Python files). Run this in the folder that has your package\n"
        )
        unnamed = holdfast(elsewhere, "status", HOLDFAST_APP="hello:app")
        assert unnamed.returncode == 2
    finally:
        dev.send(signal.SIGTERM)
        assert dev.end(60) == 0, dev.err


def test_reload_on_save(kit: Kit, tmp_path: Path) -> None:
    file = tmp_path / "hello.py"
    file.write_text(APP)
    dev = Process(tmp_path, ("dev", "hello:app", "--no-web"), {**NONE, "HOLDFAST_DATABASE_URL": kit.url})
    try:
        dev.said("worker.started")
        file.write_text(APP.replace("hello {name}", "good day {name}") + "\n\nsyntax error\n")
        dev.said("hello.py changed: starting again", "waiting for a change of a Python file")
        file.write_text(APP.replace("hello {name}", "good day {name}"))
        wait_until(lambda: dev.err.count("worker.started") == 2, "it runs again")
        assert kit.app.send("greet", {"name": "Bo"}).result(timeout=60) == "good day Bo"
    finally:
        dev.send(signal.SIGINT)
        assert dev.end(60) == 0, dev.err


def test_a_signal_that_comes_while_the_files_are_read_again_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    reads = 0

    def read(_: Path) -> dict[str, int]:
        nonlocal reads
        reads += 1
        if reads == 3:
            signal.raise_signal(signal.SIGINT)
        return {str(tmp_path / "hello.py"): reads}

    def start(self: _Stop, _: Sequence[str]) -> subprocess.Popen[bytes]:
        assert not started, "nobody would stop the second one"
        child = subprocess.Popen(["sleep", "60"])
        started.append(child)
        return child

    monkeypatch.setattr("holdfast.cli.reloading.python_files", read)
    monkeypatch.setattr(_Stop, "start", start)
    assert run_reloading(["dev"], tmp_path) == -signal.SIGTERM
    assert len(started) == 1


def test_what_is_watched(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.py", ".venv/x.py", "node_modules/y.py", "b/readme.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    before = python_files(tmp_path)
    assert sorted(before) == [str(tmp_path / "a.py"), str(tmp_path / "b/c.py")]
    assert changed(before, python_files(tmp_path)) is None
    (tmp_path / "b/c.py").unlink()
    assert changed(before, python_files(tmp_path)) == str(tmp_path / "b/c.py")
    (tmp_path / "b/c.py").write_text("")
    os.utime(tmp_path / "a.py", ns=(1, 1))
    assert changed(before, python_files(tmp_path)) == str(tmp_path / "a.py")


def test_a_sample_is_of_a_task_whose_arguments_can_be_made_up() -> None:
    app = Holdfast("postgresql://h/d")

    @app.task
    def alpha(when: list[int]) -> None: ...

    assert sample_enqueue(app.tasks) is None

    @app.task
    def beta(order_id: int, note: str, paid: bool, cents: float = 1.0) -> None: ...

    assert sample_enqueue(app.tasks) == "holdfast enqueue beta order_id=1 note=hello paid=true"


def test_a_server_of_somebody_else_above_is_not_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    (tmp_path / ".holdfast" / "postgres").mkdir(parents=True)  # no server in it
    assert default_path() == below / ".holdfast" / "postgres"


@pytest.mark.parametrize("words", [["dev", "hello:app", "--no-web"], ["dev"]])
def test_whoever_starts_it_the_child_gets_the_same_words(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program, as manage.py is, hands its own words over."""
    given: list[list[str]] = []

    def noted(child: list[str], _: Path) -> int:
        given.append(child)
        return 3

    monkeypatch.setattr("holdfast.cli.dev.run_reloading", noted)
    monkeypatch.setattr("sys.argv", ["manage.py", "holdfast", *words])
    with pytest.raises(SystemExit) as left:
        main(words, "manage.py holdfast")
    assert left.value.code == 3
    assert given == [[*words, "--no-reload"]]
