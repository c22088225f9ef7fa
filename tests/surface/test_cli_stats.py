"""`holdfast stats`: what the workers summed up, and what takes the space."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.surface.running import Cli
from typer.testing import CliRunner, Result

from holdfast.cli import app as cli
from holdfast.cli.render import seconds
from holdfast.db.executors import drive
from holdfast.errors import ConfigurationError, UnknownQueue
from holdfast.operate.operator import Operator
from holdfast.operate.stats import _stats
from holdfast.operate.wording import size
from holdfast.testing import Kit

Call = Callable[..., Result]


@pytest.fixture
def call(dsn: str) -> Call:
    def run(*words: str) -> Result:
        result = CliRunner().invoke(cli, ["stats", *words, "-d", dsn])
        assert result.exit_code == 0, result.exception
        return result

    return run


@pytest.fixture
def summed(kit: Kit) -> Kit:
    """Two minutes of `inbox` with two tasks, one of `mail`, and something two hours ago."""
    kit.sql("SELECT holdfast.create_queue('mail')")
    kit.sql(
        """INSERT INTO holdfast.throughput (minute, queue, task, completed, failed, dead, cancelled, run_seconds,
                                           wait_seconds, max_run, max_wait)
           SELECT date_trunc('minute', now()) - ago * interval '1 minute', queue, task, c, f, d, 0, run, wait, 2, most
           FROM (VALUES (1, 'inbox', 'a', 60, 0, 0, 6.0, 3.0, 0.25), (2, 'inbox', 'a', 30, 10, 2, 4.0, 2.0, 7.5),
                        (1, 'inbox', 'b', 5, 0, 0, 10.0, 0.0, 0.0), (1, 'mail', 'a', 1, 1, 1, 1.0, 600.0, 400.0),
                        (120, 'inbox', 'old', 1000, 0, 0, 1.0, 1.0, 1.0)) AS v(ago, queue, task, c, f, d, run, wait, most)"""
    )
    return kit


def by_name(lines: list[dict[str, Any]]) -> dict[tuple[str, str | None], dict[str, Any]]:
    return {(line["queue"], line["task"]): line for line in lines}


def test_sums_rates_and_means(summed: Kit, call: Call) -> None:
    found = json.loads(call("--minutes", "10", "--json").stdout)
    tasks, queues = by_name(found["tasks"]), by_name(found["queues"])
    assert list(tasks) == [("inbox", "a"), ("inbox", "b"), ("mail", "a")]  # the busiest first
    assert list(queues) == [("inbox", None), ("mail", None)]
    a = tasks["inbox", "a"]
    assert (a["completed"], a["failed"], a["dead"], a["cancelled"]) == (90, 10, 2, 0)
    assert (a["mean_run"], a["mean_wait"], a["max_wait"]) == (pytest.approx(0.1), pytest.approx(0.05), 7.5)
    assert 10 <= found["window"]["minutes"] < 11
    assert a["completed_per_minute"] == pytest.approx(90 / found["window"]["minutes"], abs=0.01)
    assert (queues["inbox", None]["completed"], queues["inbox", None]["max_wait"]) == (95, 7.5)
    assert {line["task"] for line in json.loads(call("-m", "180", "--json").stdout)["tasks"]} == {
        "a",
        "b",
        "old",
    }


def test_the_tables(summed: Kit, call: Call) -> None:
    text = call("--minutes", "5").stdout
    first, second, storage, archive = (block.splitlines() for block in text.split("\n\n"))
    ends = ["completed", "failed", "dead", "per min"]
    numbers = [*ends, "mean run", "p95 run", "mean wait", "p95 wait", "max wait"]
    assert re.split(r"  +", first[0]) == ["queue", *numbers]
    assert re.split(r"  +", second[0]) == ["queue", "task", *numbers]
    assert re.split(r"  +", second[1])[:5] == ["inbox", "a", "90", "10", "2"]
    assert re.split(r"  +", second[1])[6:] == ["100 ms", "-", "50 ms", "-", "7.5 s"]
    assert re.split(r"  +", second[3])[:2] == ["mail", "a"]
    assert re.split(r"  +", second[3])[8:] == ["5 min", "-", "6 min"]
    assert re.split(r"  +", storage[0]) == ["table", "size", "rows, about"]
    assert len(storage) == 11
    assert re.fullmatch(r"archive     about 0 finished jobs, [\d.]+ [kM]B", archive[0])


def test_filters_and_nothing_found(summed: Kit, call: Call) -> None:
    found = json.loads(call("--queue", "mail", "--task", "a", "--json").stdout)
    assert [(line["queue"], line["task"]) for line in found["tasks"]] == [("mail", "a")]
    summed.sql("DELETE FROM holdfast.throughput")
    assert call("-q", "mail").stdout.startswith("Nothing was done since ")


def test_mistakes(summed: Kit) -> None:
    with pytest.raises(UnknownQueue, match="Did you mean 'mail'"):
        Operator(summed.database, "ann").stats(queue="mial")
    for minutes in (0, 1441):
        with pytest.raises(ConfigurationError, match="minutes must be between 1 and 1440"):
            Operator(summed.database, "ann").stats(minutes=minutes)


def test_no_job_is_counted(summed: Kit) -> None:
    """Neither live nor finished jobs are read, however many there are."""
    summed.sql(
        """INSERT INTO holdfast.work (id, queue, task, payload)
           SELECT holdfast.uuid7(), 'inbox', 'a', '{}' FROM generate_series(1, 1000)"""
    )
    reads = """SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) AS n FROM pg_stat_xact_user_tables
               WHERE relname ~ '^(inbox|archive_[0-9])'"""
    with summed.connect() as conn:
        drive(conn, _stats(60, None, None))
        row = conn.execute(reads).fetchone()
    assert row is not None
    assert row["n"] == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0004, "0 ms"), (0.25, "250 ms"), (1.0, "1.0 s"), (59.9, "59.9 s"), (200, "3 min")],
)
def test_short_times(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (8192, "8 kB"),
        (5 * 2**20, "5.0 MB"),
        (3 * 2**30, "3.0 GB"),
        (2**41, "2.0 TB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_the_history_of_a_queue(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Cli(kit.url, monkeypatch)
    assert cli.text("stats", "--history", "1h") == "No samples: no worker ran in this time.\n"
    kit.sql("SELECT holdfast.enqueue('mail', '{}')")
    kit.sql("SELECT holdfast.take_sample(30)")
    heads, line, said = cli.text("stats", "--history", "1h", "--queue", "inbox").splitlines()
    assert heads.split() == [
        "at",
        "queue",
        "due",
        "behind",
        "processing",
        "held",
        "blocked",
        "oldest",
        "workers",
    ]
    assert line.split()[-9:-3] == ["inbox", "1", "0", "0", "0", "0"]
    assert (
        said
        == "The most of every minute, and the fewest workers. `oldest` is the oldest due job that could run."
    )
    found = cli.json("stats", "--history", "30d")
    assert (found["step_minutes"], found["samples"][0]["due"]) == (180, 1)
    assert (
        cli.refused("stats", "--history", "1h", "--task", "mail")
        == "the history is by queue. Leave --task out"
    )
    assert cli.refused("stats", "--history", "90d") == (
        "since must be between 1 minute and 30 days, not 7,776,000 seconds"
    )
