"""`holdfast enqueue`: one job by hand, checked by its task, and waited for."""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli import app as cli
from holdfast.cli.apps import load_app
from holdfast.cli.exits import ENVIRONMENT, TIMED_OUT
from holdfast.errors import (
    ConfigurationError,
    EnqueueError,
    IdempotencyConflict,
    InvalidArguments,
    InvalidOption,
)
from holdfast.store import jobs
from holdfast.testing import Kit

MODULE = """
from datetime import date
from decimal import Decimal
from enum import Enum
from uuid import UUID
from holdfast import Holdfast, Job

app = Holdfast()


class Colour(Enum):
    red = "red"


@app.task(queue="mail", priority=3, max_attempts=1, aliases=["plus"])
def add(job: Job, a: int, b: int = 2) -> int:
    return a + b


@app.task
def typed(day: date, price: Decimal, ident: UUID, colour: Colour, half: float, yes: bool, text: str = "") -> None: ...


@app.task(max_attempts=1)
def fail() -> None:
    raise ValueError("no \\x1b[31m luck")


@app.task(version=2, upgrade={1: lambda p: {"name": p["first"]}})
def greet(name: str) -> str:
    return name
"""
IDENT = "00000000-0000-0000-0000-000000000001"
Send = Callable[..., Result]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kit: Kit) -> Iterator[str]:
    """The module `handshop`, on this test's database, named by the environment."""
    (tmp_path / "handshop.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", kit.url)
    monkeypatch.setenv("HOLDFAST_APP", "handshop")
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann")
    kit.sql("SELECT holdfast.create_queue('mail')")
    yield "handshop"
    sys.modules.pop("handshop", None)


def send(*words: str) -> Result:
    result = CliRunner().invoke(cli, ["enqueue", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(kind: type[Exception], *words: str) -> str:
    result = CliRunner().invoke(cli, ["enqueue", *words])
    assert isinstance(result.exception, kind), result.output
    assert result.stdout == ""
    return str(result.exception)


def work() -> Callable[[], None]:
    """Run a worker with the app of the module, in a thread; answers how to stop it."""

    async def main() -> None:
        async with load_app("handshop") as app:
            await app.run_worker(until_idle=False)

    task: dict[str, Any] = {}

    def run() -> None:
        loop = asyncio.new_event_loop()
        task["loop"], task["main"] = loop, loop.create_task(main())
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task["main"])
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()

    def stop() -> None:
        task["loop"].call_soon_threadsafe(task["main"].cancel)
        thread.join(100)

    return stop


def test_the_task_gives_queue_priority_and_attempts_and_the_id_is_all_that_is_printed(
    kit: Kit, shop: str
) -> None:
    done = send("add", "a:=1")
    assert done.stderr == ""
    row = kit.job(UUID(done.stdout.strip()))
    assert (row["task"], row["queue"], row["priority"], row["max_attempts"]) == ("add", "mail", 3, 1)
    assert row["payload"] == {"a": 1}
    assert send("plus", "a:=1").exit_code == 0  # by its other name: the job gets the one it has now
    assert {row["task"] for row in kit.jobs()} == {"add"}
    assert kit.sql("SELECT actor, action, selection, count FROM holdfast.audit ORDER BY id LIMIT 1") == [
        {
            "actor": "ann",
            "action": "enqueue",
            "selection": {"task": "add", "queue": "mail", "id": str(row["id"])},
            "count": 1,
        }
    ]


def test_every_option(kit: Kit, shop: str) -> None:
    words = ["add", "a:=1", "b:=5", "--queue", "inbox", "--key", "k", "--priority", "-7", "--delay", "1h"]
    words += ["--idempotency-key", "i", "--tag", "x", "--tag", "y", "--max-attempts", "9", "--json"]
    first = json.loads(send(*words).stdout)
    assert first["created"] is True
    row = kit.job(UUID(first["id"]))
    assert (row["queue"], row["partition_key"], row["priority"]) == ("inbox", "k", -7)
    assert (row["status"], row["tags"], row["max_attempts"]) == ("scheduled", ["x", "y"], 9)
    assert json.loads(send(*words).stdout) == {"id": first["id"], "created": False}
    again = send(*words[:-1])
    assert (again.stdout, again.stderr) == (
        f"{first['id']}\n",
        "note: a job with this idempotency key was there already\n",
    )
    assert "was used by job" in refused(IdempotencyConflict, *words[:2], *words[3:])
    assert len(kit.sql("SELECT id FROM holdfast.audit")) == 1
    later = UUID(send("add", "a:=1", "--run-after", "2030-01-31T12:00:00Z").stdout.strip())
    assert kit.job(later)["available_at"].isoformat().startswith("2030-01-31T12:00:00")


def test_a_text_is_also_a_date_a_decimal_a_uuid_an_enum(kit: Kit, shop: str) -> None:
    done = send(
        "typed",
        "day=2030-01-31",
        "price=1.50",
        f"ident={IDENT}",
        "colour=red",
        "half:=1",
        "yes:=true",
        "text=5",
    )
    assert kit.job(UUID(done.stdout.strip()))["payload"] == {
        "day": "2030-01-31",
        "price": "1.50",
        "ident": IDENT,
        "colour": "red",
        "half": 1.0,
        "yes": True,
        "text": "5",
    }


MISTAKES = {
    "add a=1.5": "argument 'a' of add must be int, not str '1.5'. For a value that is no text, use a:=JSON",
    "add a=NaN": "argument 'a' of add must be int, not str 'NaN'. For a value that is no text, use a:=JSON",
    "add a=one": "argument 'a' of add must be int, not str 'one'. For a value that is no text, use a:=JSON",
    "add a:=true": "argument 'a' of add must be int, not bool True",
    "add": "add: missing a required argument: 'a'. Call it as add(a: int, b: int = 2)",
    "add a:=1 c:=2": "add: got an unexpected keyword argument 'c'. Call it as add(a: int, b: int = 2)",
    "add a:=1 self:=1": "add: got an unexpected keyword argument 'self'. Call it as add(a: int, b: int = 2)",
    "add job:=1 a:=1": "add: 'job' is injected by the worker; leave it out. Call it as add(a: int, b: int = 2)",
    "greet name=x --version 7": "greet takes payload version 1, 2, not 7",
    "greet last=x --version 1": "upgrading the payload of greet from version 1 to 2 failed: KeyError: 'first'",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_wrong_arguments_name_the_right_ones(kit: Kit, shop: str, line: str) -> None:
    assert refused(InvalidArguments, *line.split()) == MISTAKES[line]
    assert kit.jobs() == []


def test_other_mistakes(kit: Kit, shop: str) -> None:
    assert refused(EnqueueError, "ad", "a:=1") == (
        "the app has no task 'ad' (known: add, fail, greet, plus, typed). Did you mean 'add'?"
    )
    assert "is no argument" in refused(ConfigurationError, "add", "a")
    assert refused(EnqueueError, "add", "a:=1", "-q", "mial") == (
        "queue 'mial' does not exist (known: inbox, mail). Did you mean 'mail'? Create it: holdfast queue create mial"
    )
    for words in (
        ["--priority", "101"],
        ["--tag", ""],
        ["--max-attempts", "0"],
        ["--version", "0"],
        ["--idempotency-key", ""],
        ["--delay", "9999999999"],
    ):
        assert refused(InvalidOption, "add", "a:=1", *words)
    assert "give --delay or --run-after" in refused(
        ConfigurationError, "add", "a:=1", "--delay", "1", "--run-after", "2030-01-31"
    )
    for words in (
        ["--run-after", "soon"],
        ["--run-after", "2030-01-31T12:00:00"],
        ["--delay", "-1"],
        ["--wait", "x"],
    ):
        assert words[0] in refused(ConfigurationError, "add", "a:=1", *words)
    assert kit.jobs() == []
    assert kit.sql("SELECT id FROM holdfast.audit") == []


def test_an_older_version_is_stored_as_it_is(kit: Kit, shop: str) -> None:
    row = kit.job(UUID(send("greet", "first=ann", "--version", "1").stdout.strip()))
    assert (row["version"], row["payload"]) == (1, {"first": "ann"})


def test_without_an_app_it_is_sent_as_given(kit: Kit, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_APP")
    done = send("from.elsewhere", "n=1", "m:=[1, null]", "--version", "3")
    assert done.stderr == "note: the arguments were not checked: no app was named (--app MODULE:APP)\n"
    row = kit.job(UUID(done.stdout.strip()))
    assert (row["payload"], row["version"], row["queue"]) == ({"n": "1", "m": [1, None]}, 3, "inbox")
    assert "task must be 1 to 200 letters" in refused(InvalidOption, "a b")


def test_wait_prints_the_result_or_the_failure(kit: Kit, shop: str) -> None:
    stop = work()
    try:
        done = send("add", "a:=1", "--wait", "20")
        assert (done.exit_code, done.stdout) == (0, "3\n")
        assert "waiting for its result" in done.stderr
        found = json.loads(send("add", "a:=1", "--wait", "20", "--json").stdout)
        assert (found["state"], found["result"], found["created"]) == ("completed", 3, True)
        done = send("fail", "--wait", "20")
        assert (done.exit_code, done.stdout) == (ENVIRONMENT, "")
        last = done.stderr.splitlines()[-1]
        assert last.startswith("holdfast: job ")
        assert last.endswith("is a dead letter after 1 attempt: ValueError: no \\x1b[31m luck")
        done = send("fail", "--wait", "20", "--json")
        found = json.loads(done.stdout)
        assert (done.exit_code, found["state"], "luck" in found["error"]) == (
            ENVIRONMENT,
            "dead_letter",
            True,
        )
    finally:
        stop()


def test_wait_ends_with_124_when_nothing_happens(kit: Kit, shop: str) -> None:
    done = send("add", "a:=1", "--wait", "0.05")
    assert (done.exit_code, done.stdout) == (TIMED_OUT, "")
    *_, why, last = done.stderr.splitlines()
    assert "is still waiting after 0.05 s" in last
    assert why.startswith("note: No live worker ")
    done = send("add", "a:=1", "--wait", "0", "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["state"]) == (TIMED_OUT, "waiting")
    assert [row["status"] for row in kit.jobs()] == ["pending", "pending"]


def test_wait_for_a_job_that_is_cancelled(kit: Kit, shop: str) -> None:
    first = json.loads(send("add", "a:=1", "--idempotency-key", "k", "--json").stdout)
    kit.database.run(lambda: jobs.cancel(UUID(first["id"]), "mail", "not needed"))
    done = send("add", "a:=1", "--idempotency-key", "k", "--wait", "5")
    assert (done.exit_code, done.stdout) == (ENVIRONMENT, "")
    assert done.stderr.splitlines()[-1].endswith("was cancelled: not needed")


def test_a_text_is_read_as_its_parameter_wants_it(kit: Kit, shop: str) -> None:
    done = send("add", "a=1", "b=-5")
    assert kit.job(UUID(done.stdout.strip()))["payload"] == {"a": 1, "b": -5}
    typed = send(
        "typed",
        "day=2030-01-31",
        "price=1.50",
        f"ident={IDENT}",
        "colour=red",
        "half=1",
        "yes=true",
        "text=5",
    )
    payload = kit.job(UUID(typed.stdout.strip()))["payload"]
    assert (payload["half"], payload["yes"], payload["text"]) == (1.0, True, "5")
