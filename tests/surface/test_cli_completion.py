"""What a shell gets when TAB is pressed: asked as the shells ask, in a process of its own."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer, reset, status
from holdfast.testing import Kit

MODULE = """
import sys, threading, time
from holdfast import Holdfast

print("this line is not for the shell")
app = Holdfast()
if "hang" in __name__:
    threading.Thread(target=time.sleep, args=(3600,), daemon=False).start()


@app.task
def send_mail() -> None: ...


@app.task
def send_receipt() -> None: ...
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Nothing named, in a folder with two apps."""
    for name in ("tabshop", "tabshop_hang"):
        (tmp_path / f"{name}.py").write_text(MODULE)
    named = ("HOLDFAST_", "PG", "DATABASE_URL")
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(named)},
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def complete(folder: Path, environment: dict[str, str], line: str, **more: str) -> list[str]:
    """The words offered for the last one of the line, as bash asks for them."""
    words = line.split(" ")
    asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast"],
        cwd=folder,
        env={**environment, **asked, **more},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_commands_options_and_states(tmp_path: Path, environment: dict[str, str]) -> None:
    assert complete(tmp_path, environment, "holdfast queue pa") == ["pause"]
    assert complete(tmp_path, environment, "holdfast enq") == ["enqueue"]
    assert "--database-url" in complete(tmp_path, environment, "holdfast queue list --")
    assert complete(tmp_path, environment, "holdfast jobs list --state pro") == ["processing"]


def test_queues_tasks_and_workers_of_the_database(
    kit: Kit, tmp_path: Path, environment: dict[str, str]
) -> None:
    kit.sql("SELECT holdfast.create_queue('mail'), holdfast.create_queue('main')")
    kit.sql(
        """INSERT INTO holdfast.workers (id, host, pid, last_seen_at, started_at, queues, tasks, concurrency, release)
           VALUES ('web:7:abcdef', 'web', 7, now() + interval '1 hour', now(), '{inbox}', '{billing.charge}', 1, '1')"""
    )
    here = {"HOLDFAST_DATABASE_URL": kit.url}
    assert complete(tmp_path, environment, "holdfast queue pause ma", **here) == ["mail", "main"]
    assert complete(tmp_path, environment, "holdfast task pause bill", **here) == ["billing.charge"]
    assert complete(tmp_path, environment, "holdfast workers drain a", **here) == ["abcdef"]
    assert complete(tmp_path, environment, "holdfast enqueue billing.charge --queue i", **here) == ["inbox"]


def test_tasks_of_the_app_whatever_it_prints_and_starts(tmp_path: Path, environment: dict[str, str]) -> None:
    for app in ("tabshop", "tabshop_hang"):
        found = complete(tmp_path, environment, "holdfast task pause send_", HOLDFAST_APP=app)
        assert found == ["send_mail", "send_receipt"]


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"postgresql://127.0.0.1:{server.getsockname()[1]}/none"


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"HOLDFAST_DATABASE_URL": "{silent}"},
        {"HOLDFAST_DATABASE_URL": "nonsense"},
        {"HOLDFAST_DATABASE_URL": "embedded:", "HOLDFAST_HOME": "{home}"},
        {"HOLDFAST_APP": "tabbroken"},
    ],
    ids=["no database", "silent server", "no address", "embedded", "broken app"],
)
def test_nothing_is_offered_and_nothing_is_said_when_it_cannot_be_found(
    tmp_path: Path, environment: dict[str, str], silent: str, named: dict[str, str]
) -> None:
    (tmp_path / "tabbroken.py").write_text("import sys\nprint('x')\nsys.exit(3)\n")
    home = tmp_path / "home"
    more = {name: value.format(silent=silent, home=home) for name, value in named.items()}
    assert complete(tmp_path, environment, "holdfast queue pause ", **more) == []
    assert not home.exists()  # no server is started for a TAB


def test_no_server_that_was_stopped_is_started_for_a_tab(tmp_path: Path, environment: dict[str, str]) -> None:
    home = tmp_path / "home"
    EmbeddedServer.acquire(home, EmbeddedOptions(durable=False)).release()
    try:
        log = status(home).log
        assert log is not None
        before = log.read_bytes()
        named = {"HOLDFAST_DATABASE_URL": f"embedded://{home}"}
        assert complete(tmp_path, environment, "holdfast queue pause ", **named) == []
        assert (status(home).state, log.read_bytes()) == ("stopped", before)
    finally:
        reset(home, force=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(shell: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "--show-completion", shell],
        env={**environment, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(rf"_HOLDFAST_COMPLETE=complete_{shell}", done.stdout)
