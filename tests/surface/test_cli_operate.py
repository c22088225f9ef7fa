"""The commands that look at a database and change it, as a person and as a program use them."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import QUICK
from typer.testing import CliRunner, Result

from holdfast import Holdfast, Job
from holdfast.cli import app as cli
from holdfast.cli.refusals import words as words_of
from holdfast.errors import ConfigurationError, UnknownQueue
from holdfast.model.release import own_version
from holdfast.testing import Kit

Call = Callable[..., Result]


@pytest.fixture
def call(dsn: str) -> Call:
    """`call("jobs", "list")` runs a command on this test's database."""

    def run(*words: str) -> Result:
        result = CliRunner().invoke(cli, [*words, "-d", dsn])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@pytest.fixture
def refused(dsn: str) -> Callable[..., str]:
    """The message of the error that a command ends with."""

    def run(kind: type[Exception], *words: str) -> str:
        result = CliRunner().invoke(cli, [*words, "-d", dsn])
        assert isinstance(result.exception, kind), result.exception
        return words_of(result.exception)

    return run


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Kit:
    """Two tasks; `bad` fails with an error that would like to drive the terminal."""

    @app.task
    def good(job: Job, text: str) -> str:
        job.once("step " + text, lambda: 1)
        return text

    @app.task(max_attempts=1)
    def bad(text: str) -> None:
        raise ValueError(f"cannot\n{text}")

    return kit


def read(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_status(shop: Kit, call: Call) -> None:
    shop.app.send("good", {"text": "a"})
    shop.app.send("good", {"text": "b"}, run_after=60)
    text = call("status").stdout
    heads, inbox = (line.split() for line in text.splitlines()[:2])
    assert heads == ["queue", "pending", "oldest", "scheduled", "processing", "held", "quarantined", "dead"]
    assert [inbox[0], inbox[1], *inbox[4:]] == ["inbox", "1", "1", "0", "0", "0", "0"]
    assert re.search(r"^workers     0 alive, 0 draining$", text, re.MULTILINE)
    assert re.search(r"^finished    0 in the last minute$", text, re.MULTILINE)
    assert re.search(r"^database    '\w+' at .+, PostgreSQL \d+\.\d+, schema \d+$", text, re.MULTILINE)
    assert "\ndurability  " in text
    assert "\x1b" not in text

    found = read(call("status", "--json"))
    assert list(found) == [
        "queues",
        "paused_tasks",
        "dead_letters",
        "dead_letters_by_queue",
        "workers",
        "finished_last_minute",
        "finished_is_estimate",
        "schema_version",
        "server_version",
        "durability",
        "unserved",
    ]
    assert found["queues"][0]["pending"] == {"count": 1, "capped": False}
    assert found["workers"] == {"alive": 0, "draining": 0, "late": 0}


def test_queues(kit: Kit, call: Call, refused: Callable[..., str]) -> None:
    assert call("queue", "create", "mail", "--lease", "30s").stdout == "Queue mail created.\n"
    assert call("queue", "create", "mail").stdout == "Queue mail exists already.\n"
    assert kit.sql("SELECT lease FROM holdfast.queues WHERE name = 'mail'") == [{"lease": 30.0}]
    assert "with a lease of 30 s" in refused(ConfigurationError, "queue", "create", "mail", "--lease", "5")
    assert "'Mail'" in refused(ConfigurationError, "queue", "create", "Mail")
    assert "between 1 second and a day" in refused(ConfigurationError, "queue", "create", "x", "--lease", "0")
    names = [line.split()[0] for line in call("queue", "list").stdout.splitlines()]
    assert names == ["queue", "inbox", "mail"]
    assert [q["name"] for q in read(call("queue", "list", "--json"))["queues"]] == ["inbox", "mail"]


def test_workers(shop: Kit, call: Call) -> None:
    assert call("workers").stdout.startswith("No workers.")
    shop.run_worker()
    (gone,) = read(call("workers", "--all", "--json"))["workers"]
    assert (gone["status"], gone["queues"], gone["running"]) == ("gone", ["inbox"], 0)
    heads, line = call("workers", "--all").stdout.splitlines()
    assert heads.split() == [
        "worker",
        "host",
        "pid",
        "status",
        "last",
        "seen",
        "running",
        "release",
        "process",
        "queues",
    ]
    assert line.split()[:4] == [gone["id"], gone["host"], str(gone["pid"]), "gone"]


def test_an_app_that_asks_for_an_unknown_queue(kit: Kit) -> None:
    with pytest.raises(UnknownQueue):
        kit.run_worker(queues=["nowhere"])


def test_a_worker_says_its_applications_release_and_labels(dsn: str, call: Call) -> None:
    app = Holdfast(dsn, release="2026.5", settings=replace(QUICK, labels="zone=a,team=mail"))
    seen: list[Any] = []

    @app.task
    def work() -> None:
        seen.append(read(call("workers", "--json"))["workers"])
        seen.append(call("workers").stdout)

    with app:
        work.enqueue()
        asyncio.run(app.run_worker(until_idle=True))
    ((worker,), table) = seen
    assert (worker["release"], worker["holdfast"], worker["running"]) == ("2026.5", own_version(), 1)
    assert worker["labels"] == {"zone": "a", "team": "mail"}
    assert worker["load"] == worker["running"] / worker["concurrency"]
    assert "2026.5" in table
    assert "team=mail,zone=a" in table
