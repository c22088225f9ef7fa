"""`holdfast runbook`: what a person on call reads, and what a program gets."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli import app as cli
from holdfast.cli.refusals import words as words_of
from holdfast.errors import ConfigurationError, UnknownQueue
from holdfast.store.runbook import QUESTIONS
from holdfast.testing import Kit

Call = Callable[..., Result]
NASTY = "\x1b[31mred\x07\x9b2J\u202e"


@pytest.fixture
def call(kit: Kit) -> Call:
    """`call("keys")` asks on this test's database."""

    def run(*words: str) -> Result:
        result = CliRunner().invoke(cli, ["runbook", *words, "-d", kit.url])
        assert result.exit_code == 0, result.output
        return result

    return run


@pytest.fixture
def refused(kit: Kit) -> Callable[..., str]:
    """The message of the error that it ends with."""

    def run(kind: type[Exception], *words: str) -> str:
        result = CliRunner().invoke(cli, ["runbook", *words, "-d", kit.url])
        assert isinstance(result.exception, kind), result.exception
        return words_of(result.exception)

    return run


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No database is named anywhere."""
    for name in ("HOLDFAST_DATABASE_URL", "DATABASE_URL", "HOLDFAST_APP", "PGHOST", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Kit:
    """Two dead letters, one with a key and an error that would like to drive the terminal; and a job that waits."""

    @app.task(max_attempts=1)
    def bad(text: str) -> None:
        raise ValueError(f"cannot\n{text}")

    bad.using(partition_key="plain").enqueue(text="x")
    bad.using(partition_key=f"key{NASTY}").enqueue(text=NASTY)
    kit.run_worker()
    app.send("later", {}, run_after=3600)
    return kit


def lines(result: Result) -> list[str]:
    return result.stdout.splitlines()


def safe(text: str) -> bool:
    """Nothing in it can drive a terminal."""
    return not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


@pytest.mark.usefixtures("nowhere")
def test_without_a_name_the_questions_are_listed_and_no_database_is_needed() -> None:
    result = CliRunner().invoke(cli, ["runbook"])
    assert result.exit_code == 0
    listed = [re.split(r"  +", line) for line in lines(result)]
    assert listed == [["name", "asks"], *([q.name, q.asks] for q in QUESTIONS.values())]
    found = json.loads(CliRunner().invoke(cli, ["runbook", "--json"]).stdout)
    assert found[0] == {
        "name": "oldest-due",
        "view": "holdfast.oldest_due",
        "asks": "how long the oldest due job of each queue has waited",
    }
    assert [q["name"] for q in found] == list(QUESTIONS)


@pytest.mark.usefixtures("nowhere")
def test_the_query_is_printed_without_a_database() -> None:
    printed = CliRunner().invoke(cli, ["runbook", "throughput", "--sql", "-q", "mail", "-n", "7"])
    assert printed.exit_code == 0, printed.output
    assert printed.stdout == (
        "-- What each queue finished in each minute of the last hour, the newest first.\n"
        "SELECT minute, queue, completed, failed, dead, cancelled, mean_run, mean_wait, max_wait\n"
        "FROM holdfast.throughput_per_minute\n"
        "WHERE queue = 'mail'\n"
        "  AND minute >= holdfast.now() - interval '1 hour'\n"
        "ORDER BY minute DESC, queue\n"
        "LIMIT 7;\n"
    )
    found = json.loads(CliRunner().invoke(cli, ["runbook", "storage", "--sql", "--json"]).stdout)
    assert found["name"] == "storage"
    assert found["sql"].endswith("\nLIMIT 50;")


def test_every_question_is_answered_with_a_judgement(call: Call, shop: Kit) -> None:
    for name in QUESTIONS:
        last = lines(call(name))[-1]
        assert re.match(r"(Good: .+|Not good: .+\. Good is: .+)\.( See also: holdfast .+)?$", last), last
        answer = json.loads(call(name, "--json").stdout)
        assert (answer["name"], answer["view"]) == (name, QUESTIONS[name].view)
        assert all(row.keys() == set(QUESTIONS[name].columns) for row in answer["rows"])
        assert answer["good"] == last.startswith("Good: ")
        assert answer["found"]
        assert answer["expected"]


def test_rows_and_what_is_wrong_with_them(call: Call, shop: Kit) -> None:
    heads, first, second, empty, verdict = lines(call("dead-letters"))
    assert heads.split() == [
        *(
            "queue",
            "task",
            "partition_key",
            "dead",
            "first_died_at",
            "last_died_at",
            "latest_job_id",
            "latest_error",
        )
    ]
    assert {line.split()[0] for line in (first, second)} == {"inbox"}
    assert any("plain" in line and "ValueError: cannot x" in line for line in (first, second))
    assert empty == ""
    assert verdict == "Not good: 2 of bad. Good is: none. See also: holdfast doctor --only dead"
    assert lines(call("stranded-jobs")) == ["Good: every job in processing has its claim."]


def test_nothing_in_a_row_can_drive_a_terminal(call: Call, shop: Kit) -> None:
    text = call("dead-letters").stdout
    assert "red" in text
    assert safe(text)
    raw = call("dead-letters", "--json").stdout
    assert safe(raw)
    keys = {row["partition_key"] for row in json.loads(raw)["rows"]}
    assert keys == {"plain", f"key{NASTY}"}


def test_values_are_shown_as_people_read_them(call: Call, kit: Kit, app: Holdfast) -> None:
    app.send("work", {})
    kit.sql("UPDATE holdfast.work SET available_at = available_at - interval '7 min'")
    kit.sql("UPDATE holdfast.queues SET paused_at = now()")
    _, row, _, verdict = lines(call("oldest-due"))
    assert re.match(r"inbox  7 min  yes +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \w+  [0-9a-f-]{36}  work$", row)
    assert verdict.startswith("Not good: waiting for 7 min in inbox (paused). ")
    kit.sql("UPDATE holdfast.archive_slots SET day = '2026-05-01' WHERE slot = 3")
    storage = json.loads(call("storage", "--json").stdout)["rows"]
    assert [r["relation"] for r in storage if r["archive_day"] == "2026-05-01"] == ["archive_03"]
    assert re.search(r"^archive_03 +\d+ kB .* 2026-05-01$", call("storage").stdout, re.MULTILINE)


def test_what_a_dead_worker_holds(call: Call, kit: Kit, app: Holdfast) -> None:
    handles = [app.send("work", {"n": n}) for n in range(3)]
    token = "6dc1d3c0-0000-4000-8000-000000000001"
    kit.sql("UPDATE holdfast.work SET status = 'processing', claim_token = %s", [token])
    kit.sql(
        """INSERT INTO holdfast.claims (token, queue, worker, claimed_at, lease_expires_at, job_ids)
           VALUES (%s, 'inbox', 'web-1', now(), now() - interval '90 s', %s)""",
        [token, [h.id for h in handles]],
    )
    _, row, _, verdict = lines(call("expired-claims"))
    assert re.split(r"  +", row)[:3] == ["inbox", "web-1", "-"]
    assert row.endswith(f"3  {handles[0].id} and 2 more")
    assert verdict.startswith("Not good: 3 jobs in 1 claim, expired for up to 1 min. ")
    assert " -1 min" in call("worker-jobs").stdout


def test_no_more_rows_than_asked_for_and_the_way_to_more(call: Call, shop: Kit) -> None:
    text = call("dead-letters", "--limit", "1").stdout
    assert "There may be more: --limit 10\n" in text
    assert len(lines(call("dead-letters", "--limit", "1"))) == 5
    assert "There may be more" not in call("dead-letters", "--limit", "3").stdout


def test_queue_narrows_it(call: Call, shop: Kit) -> None:
    shop.sql("SELECT holdfast.create_queue('mail')")
    assert [
        row["queue"] for row in json.loads(call("oldest-due", "-q", "mail", "--json").stdout)["rows"]
    ] == ["mail"]
    assert lines(call("dead-letters", "-q", "mail")) == ["Good: there are no dead letters."]


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        (ConfigurationError, ["dead-leters"], "Did you mean 'dead-letters'?"),
        (
            ConfigurationError,
            ["--sql"],
            "say which query: holdfast runbook NAME --sql. Without --sql they are listed",
        ),
        (ConfigurationError, ["keys", "--limit", "0"], "--limit must be between 1 and 10000, not 0"),
        (ConfigurationError, ["keys", "--limit", "20000"], "--limit must be between 1 and 10000, not 20000"),
        (ConfigurationError, ["storage", "-q", "inbox"], "storage is not about a queue. Leave --queue out"),
        (ConfigurationError, ["keys", "--sql", "-q", "x' OR '1"], "queue"),
        (
            UnknownQueue,
            ["keys", "-q", "mial"],
            "queue 'mial' does not exist (known: inbox). Create it: holdfast queue create mial",
        ),
    ],
)
def test_mistakes_are_said(
    refused: Callable[..., str], kind: type[Exception], words: list[str], message: str
) -> None:
    assert message in refused(kind, *words)


def test_a_mistake_is_one_line_and_exit_code_2() -> None:
    done: Any = subprocess.run(
        [sys.executable, "-m", "holdfast", "runbook", "nothing"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"holdfast: the runbook has no query 'nothing' \(it has: .+\)\.\n", done.stderr)
