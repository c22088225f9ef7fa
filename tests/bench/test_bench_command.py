"""`holdfast bench` as a person gives it: what it measures, and mistakes that end in one line."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from holdfast.bench.__main__ import main as measuring
from holdfast.bench.server import temporary_server
from holdfast.cli import main
from holdfast.db.embedded import EmbeddedOptions
from holdfast.runtime.processes.origin import python
from holdfast.testing import TestServer

HOLDFAST = [str(Path(sys.executable).parent / "holdfast"), "bench"]
Called = Callable[..., tuple[int, str, str]]


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HOLDFAST, *words], capture_output=True, text=True, check=False, timeout=500)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Called]:
    """`holdfast bench WORDS` in this process, with the program that it starts called instead: code, stdout, stderr."""
    program = list(python("holdfast.bench"))

    def call(command: list[str]) -> int:
        assert command[: len(program)] == program
        return measuring(command[len(program) :])

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["holdfast", "bench", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    monkeypatch.setattr("holdfast.cli.bench._run", call)
    before = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["drian"], "there is no scenario 'drian'"),
        (["drian"], "Did you mean 'drain'?"),
        ([], "name a scenario: limit, drain"),
        (["drain", "--repeats", "0"], "Invalid value for '--repeats'"),
        (["drain", "--claimed", "few"], "'few' is not a whole number of at least 1"),
        (["drain", "--rate", "nan"], "'nan' is not a number of at least 1"),
        (["drain", "--append"], "--append needs --json FILE"),
        (
            ["drain", "--quiet-check", "--repeats", "2"],
            "--quiet-check compares rounds: it needs --repeats 3 or more",
        ),
        (
            ["drain", "--json", "nowhere/x.json"],
            "--json nowhere/x.json: there is no folder nowhere. Make it first",
        ),
        (["drain", "--nope"], "unrecognized arguments: --nope"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_measured(called: Called, words: list[str], said: str) -> None:
    code, out, err = called(*words)
    assert (code, out) == (2, "")
    assert said in err


def test_a_mistake_ends_the_program_too() -> None:
    done = bench("drian")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no scenario 'drian'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_something_else_is_refused_before_anything_is_measured(
    called: Called, tmp_path: Path
) -> None:
    (tmp_path / "x.json").write_text("{}")
    code, out, err = called("drain", "--json", str(tmp_path / "x.json"), "--append")
    assert (code, out) == (2, "")
    assert "holds no results" in err


def test_nothing_of_its_own_server_stays() -> None:
    """Also not where root's data is put, because nobody else may enter a temporary folder."""
    with temporary_server(EmbeddedOptions()) as server:
        with psycopg.connect(server.dsn("postgres")) as conn:
            ((data,),) = conn.execute("SHOW data_directory").fetchall()
        area = Path(data).parent
        assert area.is_dir()
    assert not area.exists()


def test_the_scenarios_are_listed(called: Called) -> None:
    code, out, _ = called("list")
    assert code == 0
    for name in (
        "limit",
        "drain",
        "enqueue",
        "steady",
        "latency",
        "idle",
        "backlog",
        "horizon",
        "history",
        "wal",
    ):
        assert f"\n{name} " in "\n" + out


def test_a_run_on_a_server_of_its_own_prints_tables_and_writes_json(
    tmp_path: Path, holdfast_server: TestServer
) -> None:
    path = tmp_path / "results.json"
    words = [
        "--quick",
        "--jobs",
        "500",
        "--only",
        "async-1",
        "--only",
        "batch-500",
        "--repeats",
        "2",
        "--json",
        str(path),
    ]
    done = bench("drain", "limit", *words)
    assert done.returncode == 0, done.stderr
    for text in ("PostgreSQL", "fsync on", "cores", "async-1", "batch-500", "drain, one process, of `limit`"):
        assert text in done.stdout
    found = json.loads(path.read_text())
    by_name = {(r["scenario"], r["variant"]): r for r in found["results"]}
    assert len(by_name["drain", "async-1"]["runs"]) == 2
    meta = found["meta"]
    assert (meta["repeats"], meta["settings"]["fsync"], meta["settings"]["autovacuum"]) == (2, "on", "on")
    assert {
        "holdfast",
        "python",
        "loop",
        "psycopg",
        "postgresql",
        "machine",
        "command",
        "date",
        "runs",
    } <= set(meta)
    assert meta["runs"]["drain"]["sizes"]["jobs"] == 500
    url = holdfast_server.url("postgres")
    again = bench(
        "enqueue", "--jobs=500", "--single=20", "--repeats=1", "--json", str(path), "--append", "--url", url
    )
    assert again.returncode == 0, again.stderr
    names = {r["scenario"] for r in json.loads(path.read_text())["results"]}
    assert names == {"drain", "limit", "enqueue"}


@contextlib.contextmanager
def role(server: TestServer, may: str = "") -> Iterator[tuple[str, str]]:
    """A role of this test alone: its name, and the URL of the server with it."""
    name = f"bench_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.url("postgres"), autocommit=True) as conn:
        conn.execute(sql.SQL(f"CREATE ROLE {{}} LOGIN {may}").format(sql.Identifier(name)))
        yield name, make_conninfo(server.url("postgres"), user=name)
        conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_a_role_that_may_not_create_databases_is_told_what_to_do(holdfast_server: TestServer) -> None:
    with role(holdfast_server) as (name, url):
        done = bench("limit", "--quick", "--url", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"ALTER ROLE {name} CREATEDB" in done.stderr


def test_a_server_that_is_away_is_one_line() -> None:
    done = bench("limit", "--quick", "--url", "postgresql://ann:s3cret@127.0.0.1:1/none")
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not answer" in done.stderr
    assert "s3cret" not in done.stderr


def test_ctrl_c_leaves_nothing_behind(holdfast_server: TestServer) -> None:
    """A role that still owned a database could not be dropped. It may create databases and nothing else."""
    with role(holdfast_server, "CREATEDB") as (_, url):
        running = subprocess.Popen(
            [*HOLDFAST, "drain", "--jobs", "1000000", "--url", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert running.stderr is not None
        with running.stderr as lines:
            assert "round 1" in lines.readline()
            time.sleep(2)
            os.killpg(running.pid, signal.SIGINT)
            assert running.wait(300) == 130
