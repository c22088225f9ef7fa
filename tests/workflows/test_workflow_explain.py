"""`holdfast explain` of a job that is a run: what it waits for, and why it does not go on."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from tests.workflows.support import QUEUE, Runs, step, waits
from typer.testing import CliRunner

from holdfast.cli import app as cli
from holdfast.model.job import Grant
from holdfast.shapes.workflows.journal import Record, Wait

Explain = Callable[[UUID], dict[str, Any]]


@pytest.fixture
def runs(dsn: str) -> Iterator[Runs]:
    made = Runs.on(dsn)
    yield made
    made.conn.close()


@pytest.fixture
def explain(dsn: str) -> Explain:
    def run(job: UUID) -> dict[str, Any]:
        result = CliRunner().invoke(cli, ["explain", str(job), "-d", dsn, "--json"])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert isinstance(found, dict)
        return found

    return run


def at(runs: Runs, text: str) -> datetime:
    found = runs.one(f"SELECT {text}")
    assert isinstance(found, datetime)
    return found


def codes(found: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in found["reasons"]]


def claimed(runs: Runs, key: str = "order:1") -> Grant:
    return runs.claim(runs.start(key))


WAITS = [
    (Wait("wait", 0, "signal", "decided"), "signal decided"),
    (Wait("ship.result", 0, "child", "child:ship"), "the end of child ship"),
    (Wait("thumbs", 0, "call", "call:thumbs"), "the end of call thumbs"),
]


@pytest.mark.parametrize(("wait", "said"), WAITS)
def test_a_run_that_waits_says_for_what(runs: Runs, explain: Explain, wait: Wait, said: str) -> None:
    grant = claimed(runs)
    assert runs.suspend(grant, wait) == "suspended"
    found = explain(grant.id)
    assert (found["code"], found["sentence"]) == ("run_waits", f"Run order:1 of checkout waits for {said}.")
    assert codes(found) == ["run_waits", "no_worker"]
    assert found["advice"][0] == f"holdfast workflow show {grant.id}"
    signals = [f"holdfast workflow signal {grant.id} decided JSON"] if wait.kind == "signal" else []
    assert found["advice"][1:] == signals


def test_a_wait_with_a_time_says_until_when(runs: Runs, explain: Explain) -> None:
    grant = claimed(runs)
    until = at(runs, "'2100-01-01Z'::timestamptz")
    assert runs.suspend(grant, waits("decided", until=until)) == "suspended"
    assert explain(grant.id)["sentence"] == (
        "Run order:1 of checkout waits for signal decided, until 2100-01-01 00:00:00 UTC."
    )
    runs.signal(grant.id, "decided")
    assert codes(explain(grant.id)) == ["no_worker"], "what it waited for is there: it waits its turn"


def test_a_run_that_sleeps_is_told_from_a_step_that_is_tried_again(runs: Runs, explain: Explain) -> None:
    until = at(runs, "'2100-01-01Z'::timestamptz")
    grant = claimed(runs)
    assert runs.suspend(grant, Wait("sleep", 0, "sleep", until=until)) == "suspended"
    found = explain(grant.id)
    assert found["sentence"].startswith("Run order:1 of checkout sleeps until 2100-01-01 00:00:00 UTC (in ")
    assert codes(found) == ["run_sleeps", "no_worker"]
    other = claimed(runs, "order:2")
    failed = Record(
        "charge", "step", "retrying", 0, error='{"kind": "Down", "message": "no bank"}', attempts=3
    )
    runs.record(other, failed)
    assert runs.suspend(other, Wait("charge", 0, "retry", until=until)) == "suspended"
    found = explain(other.id)
    assert found["code"] == "run_retries"
    assert found["sentence"].endswith("): step charge is tried again after 3 failed: Down: no bank")
    later = runs.start("order:3", delay="1 hour")
    assert codes(explain(later)) == ["run_delayed", "no_worker"]


def test_a_paused_a_diverged_and_a_cancelled_run_say_why(runs: Runs, explain: Explain) -> None:
    grant = claimed(runs)
    assert runs.suspend(grant, waits("decided")) == "suspended"
    runs.one("SELECT holdfast.workflow_pause('checkout', 'order:1')")
    found = explain(grant.id)
    assert codes(found) == ["run_paused", "run_waits", "no_worker"]
    assert found["advice"] == [f"holdfast workflow resume {grant.id}"]
    runs.one("SELECT holdfast.workflow_cancel('checkout', 'order:1', 'fraud')")
    found = explain(grant.id)
    assert found["code"] == "run_cancel"
    assert "ends at its next call, its compensations first, as was asked for at " in found["sentence"]
    assert found["sentence"].endswith(": fraud")
    parted = runs.start("order:2")
    runs.conn.execute(
        "UPDATE holdfast.work SET status = 'held', hold_reason = 'diverged: at 4' WHERE id = %s", [parted]
    )
    runs.conn.execute("UPDATE holdfast.workflow_runs SET state = 'diverged' WHERE id = %s", [parted])
    found = explain(parted)
    assert (found["code"], found["sentence"]) == (
        "run_diverged",
        "Run order:2 of checkout is set aside: diverged: at 4",
    )
    assert codes(found) == ["run_diverged", "no_worker"]
    assert found["advice"] == [
        f"holdfast workflow retry {parted}",
        f"holdfast workflow retry {parted} --accept --app MODULE:APP",
    ]


def test_an_ended_run_and_a_plain_job(runs: Runs, explain: Explain) -> None:
    grant = claimed(runs)
    runs.record(grant, step("charge"))
    runs.one("SELECT holdfast.workflow_terminate('checkout', 'order:1', 'stuck')")
    found = explain(grant.id)
    assert codes(found) == ["run_terminated"]
    assert found["sentence"].startswith("Run order:1 of checkout was terminated at ")
    assert found["sentence"].endswith(": Terminated: stuck")
    plain = runs.one("SELECT id FROM holdfast.enqueue('plain', '{}', %s)", QUEUE)
    assert codes(explain(plain)) == ["no_worker"]
