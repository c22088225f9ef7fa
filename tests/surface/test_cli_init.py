"""`holdfast init` in an empty folder: what it writes can be run and tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from holdfast import ConfigurationError
from holdfast.cli import app as cli
from holdfast.cli import main
from holdfast.cli.init import NEW
from holdfast.settings import load_settings


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_writes_an_app_settings_a_compose_file_and_a_test(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = CliRunner().invoke(cli, ["init"])
    assert done.exit_code == 0, done.output
    assert done.output == (
        "jobs.py: an app with one task\nholdfast.toml: its settings\ncompose.yaml: a PostgreSQL in a container\n"
        "test_jobs.py: a test\n\nNext:\n  holdfast dev jobs:app\n"
    )
    assert sorted(path.name for path in empty.iterdir()) == sorted(NEW)
    monkeypatch.delenv("HOLDFAST_DATABASE_URL", raising=False)
    assert load_settings().database_url == "embedded:"
    services = yaml.safe_load((empty / "compose.yaml").read_text())["services"]
    assert services["database"]["ports"] == ["127.0.0.1:5432:5432"], "nobody else reaches it"


def test_its_test_passes_and_its_job_runs(empty: Path) -> None:
    assert (
        CliRunner()
        .invoke(cli, ["init", "shop"])
        .output.endswith("\nNext:\n  cd shop\n  holdfast dev jobs:app\n")
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=empty / "shop",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


def test_its_settings_name_the_app_and_are_found_from_its_subfolders(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`order_id=x` is read by the task's own types with no word of an app, and no server is made for it."""
    CliRunner().invoke(cli, ["init", "shop"])
    (empty / "shop" / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(empty / "shop" / "deep" / "er")
    for name in ("HOLDFAST_APP", "HOLDFAST_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", sys.path[:])
    with pytest.raises(SystemExit) as left:
        main(["enqueue", "send_receipt", "order_id=x"])
    sys.modules.pop("jobs", None)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith(
        "holdfast: argument 'order_id' of send_receipt must be int, not str 'x'."
    )
    with pytest.raises(SystemExit):
        main(["config", "show", "--json"])
    shown = json.loads(capsys.readouterr().out)
    sys.modules.pop("jobs", None)
    file = str(empty / "shop" / "holdfast.toml")
    assert {"name": "app", "value": "jobs:app", "source": file} in shown["settings"]
    assert (shown["app"], shown["app_source"], shown["file"]) == ("jobs:app", file, file)
    assert "HOLDFAST_APP" not in os.environ
    assert not list(empty.rglob(".holdfast"))


def test_nothing_is_written_over(empty: Path) -> None:
    (empty / "jobs.py").write_text("mine")
    (empty / "compose.yaml").symlink_to("nowhere")
    error = CliRunner().invoke(cli, ["init"]).exception
    assert isinstance(error, ConfigurationError)
    assert str(error) == (
        f"jobs.py, compose.yaml exist in {empty} already, so nothing was written. "
        "Name another folder: holdfast init FOLDER"
    )
    assert (empty / "jobs.py").read_text() == "mine"
    assert sorted(path.name for path in empty.iterdir()) == ["compose.yaml", "jobs.py"]


def test_a_folder_that_cannot_be_made_is_said(empty: Path) -> None:
    (empty / "file").write_text("")
    error = CliRunner().invoke(cli, ["init", "file/below"]).exception
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith("file/below cannot be written: ")
