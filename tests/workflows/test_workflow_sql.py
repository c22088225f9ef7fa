"""What owners and senders write: guards, decisions, suspends, ends."""

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.workflows.support import Runs, step, waits

from holdfast.shapes.workflows import store
from holdfast.shapes.workflows.journal import Wait


@pytest.fixture
def runs(dsn: str) -> Iterator[Runs]:
    made = Runs.on(dsn)
    yield made
    made.conn.close()


def test_a_run_is_a_job_of_the_same_id(runs: Runs) -> None:
    run = runs.start("checkout:1")
    assert runs.start("checkout:1") == run
    work = runs.work(run)
    assert work is not None
    assert work["task"] == "checkout"
    assert work["metadata"]["workflow"]["id"] == "checkout:1"


def test_records_are_written_once_and_only_by_the_owner(runs: Runs) -> None:
    owner = runs.started()
    assert runs.record(owner, step("a"), step("b", outcome="failed", error='{"kind": "E"}')).missing == []
    newer = runs.take_over(owner)
    assert runs.record(owner, step("c")).missing == [0]
    assert [row["key"] for row in runs.steps(owner.id)] == ["a", "b"]
    assert runs.run(store.check("workflows", [(owner, step("c"))]))[0].state == "lost"
    assert runs.record(newer, step("c"), shown='"half way"').missing == []
    assert runs.of(owner.id)["shown"] == "half way"


def test_a_signal_that_was_sent_before_is_taken_the_oldest_first(runs: Runs) -> None:
    owner = runs.started()
    assert runs.signal(owner.id, payload=1) == "sent"
    assert runs.signal(owner.id, payload=2) == "sent"
    for key, value in (("wait", 1), ("wait#2", 2)):
        assert runs.suspend(owner, waits()) == "go_on"
        found = runs.decide(owner, waits(key=key))
        assert found.stored is not None
        assert json.loads(found.stored.record.result or "")["value"] == value
    assert runs.decide(owner, waits(key="wait#3")).answer == "wait"
    assert runs.suspend(owner, waits(key="wait#3")) == "suspended"
    assert not runs.is_due(owner.id)
    assert runs.signal(owner.id, payload=3) == "sent"
    assert runs.is_due(owner.id)


def test_the_end_folds_what_was_recorded(runs: Runs) -> None:
    owner = runs.started()
    runs.record(owner, step("a"), step("b"))
    runs.signal(owner.id)
    runs.decide(owner, waits())
    before = runs.steps(owner.id)
    runs.one("SELECT holdfast.workflow_end(%s, '{completed}', '{1}', '{NULL}')", [owner.id])
    assert runs.steps(owner.id) == []
    assert runs.of(owner.id)["state"] == "completed"
    folded = runs.one("SELECT steps FROM holdfast.workflow_history WHERE run_id = %s", owner.id)
    assert [row["key"] for row in folded] == [row["key"] for row in before]
    assert runs.signal(owner.id) == "ended"


def test_a_time_that_is_over_decides(runs: Runs) -> None:
    owner = runs.started()
    now = runs.one("SELECT holdfast.now()")
    over = now - timedelta(seconds=1)
    assert runs.suspend(owner, Wait("sleep", 0, "sleep", until=over)) == "go_on"
    found = runs.decide(owner, Wait("sleep", 0, "sleep", until=over))
    assert found.stored is not None
    assert found.stored.record.outcome == "done"
    found = runs.decide(owner, waits(until=over))
    assert found.stored is not None
    assert found.stored.record.outcome == "timed_out"
