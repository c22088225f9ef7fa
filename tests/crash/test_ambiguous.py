"""The connection breaks after the server has done its part and before anybody heard of it."""

import signal

import pytest
from tests.conftest import wait_until
from tests.crash.crash_app import arecord_behind, fail_first, plain, quick, record
from tests.crash.process import Scene
from tests.crash.proxy import Proxy

from holdfast import DatabaseUnavailable, Holdfast


def test_a_settle_in_doubt_is_recognised_as_done(scene: Scene, proxy: Proxy) -> None:
    proxy.cut_after("COMMIT", name="holdfast settle")
    job = plain.enqueue().id
    worker = scene.start(url=proxy.url)
    proxy.until_cut()
    row = scene.until_status(job, "completed")
    assert (row["attempts"], row["lease_generation"], row["result"]) == (1, 1, "done")
    wait_until(lambda: worker.events("job.completed"), "the worker knows that it is done")
    assert not worker.events("job.lost")
    assert len(scene.notes("start", job)) == 1
    assert scene.kit.sql("SELECT count(*) AS n FROM holdfast.archive") == [{"n": 1}]


def test_a_quick_settle_in_doubt_is_recognised_as_done(scene: Scene, proxy: Proxy) -> None:
    """It is one statement, and its own commit: the cut comes after it."""
    proxy.cut_after("DELETE FROM holdfast.inbox", name="holdfast settle")
    jobs = [quick.enqueue().id for _ in range(3)]
    worker = scene.start(url=proxy.url)
    proxy.until_cut()
    rows = scene.until_finished(15)
    assert {(r["id"], r["status"], r["attempts"], r["lease_generation"]) for r in rows} == {
        (job, "completed", 1, 1) for job in jobs
    }
    wait_until(lambda: len(worker.events("job.completed")) == 3, "the worker knows that they are done")
    assert not worker.events("job.lost")
    assert len(scene.notes("start")) == 3
    assert scene.kit.sql("SELECT count(*) AS n FROM holdfast.archive") == [{"n": 3}]


def test_a_failure_in_doubt_spends_one_attempt(scene: Scene, proxy: Proxy) -> None:
    proxy.cut_after("COMMIT", name="holdfast settle")
    job = fail_first.enqueue().id
    scene.start(url=proxy.url)
    proxy.until_cut()
    row = scene.until_status(job, "completed")
    assert row["attempts"] == 2
    assert len(scene.notes("start", job)) == 2
    assert scene.kit.sql("SELECT attempt, message FROM holdfast.errors") == [
        {"attempt": 1, "message": "the first time"}
    ]


@pytest.mark.parametrize("task", [record, arecord_behind], ids=["sync", "async"])
def test_a_commit_in_doubt_of_a_handlers_transaction_is_recognised_as_done(
    scene: Scene, proxy: Proxy, task: object
) -> None:
    proxy.cut_after("COMMIT", name="holdfast")
    job = (record if task is record else arecord_behind).enqueue().id
    worker = scene.start(url=proxy.url)
    proxy.until_cut()
    row = scene.until_status(job, "completed")
    assert (row["attempts"], row["lease_generation"]) == (1, 1)
    after = record.enqueue().id  # the worker goes on
    scene.until_status(after, "completed")
    assert scene.ledger() == {job: 1, after: 1}
    assert len(scene.notes("start", job)) == 1
    assert not worker.events("job.lost")
    assert scene.kit.sql("SELECT count(*) AS n FROM holdfast.archive") == [{"n": 2}]
    wait_until(
        lambda: not scene.kit.sql("SELECT 1 AS one FROM holdfast.claims"), "the worker holds nothing any more"
    )


def test_jobs_of_a_claim_in_doubt_are_handed_back_long_before_the_lease_ends(
    scene: Scene, proxy: Proxy
) -> None:
    proxy.cut_after("lease_generation + 1", name="holdfast claim")
    jobs = [record.enqueue().id for _ in range(3)]
    scene.start(url=proxy.url, lease=120, dead_after=60)
    proxy.until_cut()
    rows = scene.until_finished(8)
    assert {(r["id"], r["status"], r["attempts"], r["crashes"], r["lease_generation"]) for r in rows} == {
        (job, "completed", 1, 0, 2) for job in jobs
    }
    assert scene.ledger() == dict.fromkeys(jobs, 1)
    assert len(scene.notes("start")) == 3


def test_a_claim_in_doubt_right_before_the_end_accuses_no_job(scene: Scene, proxy: Proxy) -> None:
    """The worker leaves before it could claim again: its doubtful jobs are handed back, not taken for crashed."""
    proxy.cut_after("lease_generation + 1", name="holdfast claim")
    job = record.enqueue().id
    worker = scene.start(url=proxy.url, command_line=True, ready=False, poll=30)
    proxy.until_cut()
    worker.kill(signal.SIGTERM)
    assert worker.wait() == 0
    scene.start()
    row = scene.until_status(job, "completed")
    assert (row["attempts"], row["crashes"]) == (1, 0)
    assert not scene.kit.sql("SELECT 1 AS one FROM holdfast.errors")


def test_an_enqueue_in_doubt_can_be_repeated_with_its_key(scene: Scene, proxy: Proxy) -> None:
    with Holdfast(proxy.url, settings=scene.kit.database.settings) as producer:
        proxy.cut_after("enqueue_many", name="holdfast")
        with pytest.raises(DatabaseUnavailable):
            producer.send("record", {}, idempotency_key="order:1")
        proxy.until_cut()
        (written,) = scene.kit.jobs()
        again = producer.send("record", {}, idempotency_key="order:1")
        assert again.id == written["id"]
        assert len(scene.kit.jobs()) == 1
