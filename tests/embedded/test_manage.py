"""Addresses, stop, reset, and the `holdfast db` commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.db import app
from holdfast.db.embedded import EmbeddedServer, default_path, parse_embedded_url, reset, shared, status, stop
from holdfast.errors import ConfigurationError, EmbeddedError

from .conftest import FAST, IMPORTS, Start, eventually, is_stopped


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    assert parse_embedded_url("embedded:") == default_path() == tmp_path / ".holdfast" / "postgres"
    assert parse_embedded_url("embedded:///srv/a%20b") == Path("/srv/a b")
    assert parse_embedded_url("embedded:/srv/pg") == Path("/srv/pg")
    assert parse_embedded_url("embedded:rel/pg") == tmp_path / "rel" / "pg"
    monkeypatch.setenv("HOLDFAST_HOME", "/srv/home")
    assert parse_embedded_url("embedded:") == Path("/srv/home/postgres")
    for wrong in ("embedded", "postgresql:///x", "embedded://host/x", "embedded:x?fsync=off"):
        with pytest.raises(ConfigurationError, match=wrong.split("?")[0]):
            parse_embedded_url(wrong)


def test_stop_is_refused_while_it_is_used_unless_forced(ready: Path, user: Start) -> None:
    assert stop(ready.parent / "nothing") is False
    assert stop(ready) is False
    one = user(ready)
    one.hear()
    assert status(ready).users == 1
    with pytest.raises(EmbeddedError, match="in use by 1 process"):
        stop(ready)
    with pytest.raises(EmbeddedError, match="in use by 1 process"):
        reset(ready)
    assert stop(ready, force=True) is True
    assert is_stopped(ready)
    one.tell("ensure")
    assert one.hear()["server"] == status(ready).pid
    one.leave()


def test_status_takes_no_lock_and_makes_nothing(home: Path) -> None:
    assert status(home).state == "stopped"
    assert not home.parent.exists()
    EmbeddedServer.acquire(home, FAST).release()
    eventually(lambda: status(home).users == 0)


def test_reset_removes_only_what_is_ours(ready: Path) -> None:
    (ready / "notes").write_text("mine")
    assert reset(ready)
    assert [entry.name for entry in ready.iterdir()] == ["notes"]
    assert not reset(ready)


def test_one_shared_hold_per_process(ready: Path) -> None:
    one = shared(ready, FAST)
    assert shared(ready, FAST) is one
    assert status(ready).users == 1
    one.release()
    assert is_stopped(ready)
    two = shared(ready, FAST)
    assert two is not one
    two.release()


def test_ctrl_c_while_the_last_user_stops_it_leaves_without_a_traceback(ready: Path) -> None:
    """A second Ctrl-C comes often just then. Its watcher stops the server."""
    code = """
import sys
from pathlib import Path
from holdfast.db.embedded import EmbeddedOptions, postmaster, shared

def cut(_):
    raise KeyboardInterrupt

shared(Path(sys.argv[1]), EmbeddedOptions(durable=False))
postmaster.stop = cut
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(ready)],
        env={**os.environ, "PYTHONPATH": IMPORTS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    eventually(lambda: is_stopped(ready))


def test_start_keeps_it_running_for_the_commands_until_stop(ready: Path, user: Start) -> None:
    path = f"--path={ready}"
    started = run("start", path)
    assert started.exit_code == 0, started.output
    dsn = started.stdout.splitlines()[-1]
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE greeting AS SELECT 'hello' AS word")
    said = json.loads(run("status", path, "--json").stdout)
    assert (said["state"], said["kept"], said["dsn"]) == ("running", True, dsn)
    one = user(ready)
    assert one.hear()["server"] == said["pid"]
    one.leave()
    assert f"process {said['pid']}" in run("status", path).stdout
    one = user(ready)
    one.hear()
    one.kill()
    assert status(ready).pid == said["pid"]
    assert run("stop", path).stdout.startswith("Stopped")
    assert run("stop", path).stdout.startswith("No server runs")
    assert run("status", path).stdout.startswith("stopped")


def test_env_is_a_line_with_which_other_programs_find_it(ready: Path) -> None:
    path = f"--path={ready}"
    stopped = run("env", path)
    assert str(stopped.exception) == f"no server runs in {ready}. Start it: holdfast db start"
    run("start", path)
    line = run("env", path).stdout
    code = "import psycopg; print(psycopg.connect().execute('SELECT current_database()').fetchone()[0])"
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    shell = ["sh", "-c", 'eval "$1" && exec "$2" -c "$3"', "sh", line, sys.executable, code]
    seen = subprocess.run(shell, env=bare, capture_output=True, text=True, check=False)
    assert (seen.stdout, seen.stderr) == ("holdfast\n", "")
    run("stop", path)


def test_psql_and_dump_pass_their_arguments_through(ready: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = f"--path={ready}"
    nothing = run("psql", f"--path={ready}-not", "-c", "select 1")
    assert isinstance(nothing.exception, ConfigurationError)
    assert run("psql", path, "-XAtqc", "CREATE TABLE t AS SELECT 41 + 1 AS n").exit_code == 0
    assert run("psql", path, "-XAtc", "SELECT n FROM t").exit_code == 0
    assert capfd.readouterr().out.splitlines()[-1] == "42"
    assert run("psql", path, "-XAtc", "SELECT nonsense").exit_code == 1
    assert run("dump", path, "--schema-only").exit_code == 0
    out = capfd.readouterr().out
    assert "CREATE TABLE public.t" in out
    assert "COPY" not in out
    assert is_stopped(ready)


def test_reset_wants_a_yes(ready: Path) -> None:
    path = f"--path={ready}"
    refused = run("reset", path)
    assert isinstance(refused.exception, ConfigurationError)
    assert "--yes" in str(refused.exception)
    assert status(ready).exists
    assert run("reset", path, "--yes").exit_code == 0
    assert not status(ready).exists
    assert run("reset", path, "--yes").stdout.startswith("There is nothing")


def test_start_with_tcp_prints_an_address_with_a_password(ready: Path) -> None:
    started = run("start", f"--path={ready}", "--tcp")
    assert started.exit_code == 0, started.output
    dsn = started.stdout.splitlines()[-1]
    assert "@127.0.0.1:" in dsn
    psycopg.connect(dsn).close()
    assert stop(ready)
