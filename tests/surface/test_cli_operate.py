"""The commands that look at a database and change it, as a person and as a program use them."""

import json
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner, Result

from holdfast import Holdfast, Job
from holdfast.cli import app as cli
from holdfast.errors import ConfigurationError, EnqueueError, UnknownQueue
from holdfast.testing import Kit

Call = Callable[..., Result]
NASTY = "\x1b[31mred\x07\x9b2J\u202e"


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
        return str(result.exception)

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


def safe(text: str) -> bool:
    """Nothing in it can drive a terminal."""
    return not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_status(shop: Kit, call: Call) -> None:
    shop.app.send("good", {"text": "a"})
    shop.app.send("good", {"text": "b"}, run_after=60)
    text = call("status").stdout
    heads, inbox = (line.split() for line in text.splitlines()[:2])
    assert heads == ["queue", "pending", "oldest", "scheduled", "processing", "held", "quarantined", "dead"]
    assert [inbox[0], inbox[1], *inbox[4:]] == ["inbox", "1", "1", "0", "0", "0", "0"]
    assert re.search(r"^workers     0 alive, 0 draining$", text, re.MULTILINE)
    assert re.search(r"^finished    0 in the last minute$", text, re.MULTILINE)
    assert re.search(r"^database    '\w+' at .+, PostgreSQL \d+\.\d+, schema 1$", text, re.MULTILINE)
    assert "\ndurability  " in text
    assert "\x1b" not in text

    found = read(call("status", "--json"))
    assert list(found) == [
        "queues",
        "dead_letters",
        "dead_letters_by_queue",
        "workers",
        "finished_last_minute",
        "finished_is_estimate",
        "schema_version",
        "server_version",
        "durability",
    ]
    assert found["queues"][0]["pending"] == {"count": 1, "capped": False}
    assert found["workers"] == {"alive": 0, "draining": 0, "late": 0}


def test_queues(kit: Kit, call: Call, refused: Callable[..., str]) -> None:
    assert call("queue", "create", "mail", "--lease", "30").stdout == "Queue mail created.\n"
    assert call("queue", "create", "mail").stdout == "Queue mail exists already.\n"
    assert kit.sql("SELECT lease FROM holdfast.queues WHERE name = 'mail'") == [{"lease": 30.0}]
    assert "with a lease of 30 s" in refused(ConfigurationError, "queue", "create", "mail", "--lease", "5")
    assert "'Mail'" in refused(ConfigurationError, "queue", "create", "Mail")
    assert "more than 0 seconds" in refused(ConfigurationError, "queue", "create", "x", "--lease", "0")
    assert [line.split() for line in call("queue", "list").stdout.splitlines()] == [
        ["queue", "pending", "processing"],
        ["inbox", "0", "0"],
        ["mail", "0", "0"],
    ]
    assert [q["name"] for q in read(call("queue", "list", "--json"))["queues"]] == ["inbox", "mail"]


def test_jobs_list(shop: Kit, call: Call, refused: Callable[..., str]) -> None:
    assert call("jobs", "list").stdout == "No jobs.\n"
    ids = [str(shop.app.send("good", {"text": str(n)}).id) for n in range(3)]
    shop.run_worker()
    later = str(shop.app.send("bad", {"text": "x"}, run_after=60).id)
    lines = call("jobs", "list").stdout.splitlines()
    assert lines[0].split() == ["id", "queue", "task", "state", "attempts", "created", "note"]
    assert [line.split()[0] for line in lines[1:]] == [later, *reversed(ids)]
    assert lines[1].split()[1:5] == ["inbox", "bad", "scheduled", "0/1"]
    assert (
        call("jobs", "list", "--task", "bad", "--queue", "inbox", "-s", "scheduled").stdout.count("\n") == 2
    )

    first = call("jobs", "list", "-s", "completed", "-n", "2").stdout
    assert first.splitlines()[-1] == f"There may be more: --after {ids[1]}"
    page = read(call("jobs", "list", "-s", "completed", "-n", "2", "--after", ids[1], "--json"))
    assert [job["id"] for job in page["jobs"]] == [ids[0]]
    assert (page["next"], page["cut"]) == (None, False)
    assert "there is no state 'done' (known: pending," in refused(
        ConfigurationError, "jobs", "list", "-s", "done"
    )
    assert call("jobs", "list", "--after", "x").exit_code == 2


def test_jobs_show(shop: Kit, call: Call, refused: Callable[..., str]) -> None:
    good = str(shop.app.send("good", {"text": NASTY}, partition_key="k" + NASTY, tags=["t"]).id)
    bad = str(shop.app.send("bad", {"text": NASTY}).id)
    shop.run_worker()
    shop.sql("INSERT INTO holdfast.progress VALUES (%s, 'inbox', 1, 0.5, %s, now())", [good, NASTY])
    text = call("jobs", "show", good).stdout
    assert safe(text.replace("\n", ""))
    for part in (
        f"job         {good}",
        "task        good (version 1)",
        "state       completed",
        "attempts    1 of 5",
        "generation  1",
        "progress    50% \\x1b[31mred",
        "payload\n  {\n",
        "steps\n  ",
        "result\n  ",
    ):
        assert part in text, part
    text = call("jobs", "show", bad).stdout
    assert safe(text.replace("\n", ""))
    assert "state       dead_letter" in text
    assert re.search(r"^attempt 1 \(generation 1, worker \S+\) at ", text, re.MULTILINE)
    assert "  Traceback (most recent call last):\n" in text
    assert "\n  ValueError: cannot\n  \\x1b[31mred\\x07\\x9b2J" in text

    raw = call("jobs", "show", bad, "--json").stdout
    assert safe(raw.rstrip("\n"))
    report = json.loads(raw)
    assert list(report) == ["job", "errors", "progress", "steps"]
    assert report["job"]["payload"] == {"text": NASTY}
    assert report["errors"][0]["kind"] == "ValueError"
    stranger = uuid4()
    assert f"there is no job {stranger}" in refused(ConfigurationError, "jobs", "show", str(stranger))


def test_dead_list_and_redrive(shop: Kit, call: Call, refused: Callable[..., str]) -> None:
    assert call("dead", "list").stdout == "No dead letters.\n"
    ids = [str(shop.app.send("bad", {"text": NASTY}).id) for _ in range(3)]
    shop.run_worker()
    text = call("dead", "list").stdout
    assert safe(text.replace("\n", ""))
    assert text.splitlines()[0].split() == ["id", "queue", "task", "attempts", "died", "error"]
    assert {line.split()[0] for line in text.splitlines()[1:]} == set(ids)
    page = read(call("dead", "list", "-n", "1", "--json"))
    rest = read(call("dead", "list", "--after", page["next"], "--json"))["dead_letters"]
    assert {d["id"] for d in [*page["dead_letters"], *rest]} == set(ids)
    assert "is not a place in the list" in refused(ConfigurationError, "dead", "list", "--after", "x")

    assert call("dead", "redrive", ids[0]).stdout == "Redriven: 1\n"
    assert shop.job(UUID(ids[0]))["status"] == "pending"
    assert "is no dead letter" in refused(EnqueueError, "dead", "redrive", ids[0], ids[1])
    shop.run_worker()
    assert shop.job(UUID(ids[0]))["lease_generation"] == 2

    for words in ([], ["--all", "--task", "bad"], [ids[0], "--all"]):
        assert "say which dead letters" in refused(ConfigurationError, "dead", "redrive", *words)
    assert "this puts 3 dead letters of bad back to work. Say so: --yes" in refused(
        ConfigurationError, "dead", "redrive", "--task", "bad"
    )
    assert call("dead", "redrive", "--task", "other", "--yes").stdout == "Redriven: 0\n"
    shop.sql("UPDATE holdfast.dead_letters SET queue = 'lost' WHERE id = %s", [ids[2]])
    done = call("dead", "redrive", "--all", "--yes").stdout
    assert done.splitlines() == [
        "Redriven: 2",
        "Left: 1 of queue lost, which does not exist. Create it: holdfast queue create lost",
    ]
    call("queue", "create", "lost")
    assert read(call("dead", "redrive", "--all", "--yes", "--json")) == {"ids": [ids[2]], "left": {}}


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
        "queues",
    ]
    assert line.split()[:4] == [gone["id"], gone["host"], str(gone["pid"]), "gone"]


def test_an_app_that_asks_for_an_unknown_queue(kit: Kit) -> None:
    with pytest.raises(UnknownQueue):
        kit.run_worker(queues=["nowhere"])
