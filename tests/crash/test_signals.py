"""A worker that is told to leave: it loses nothing, spends no attempt, and does leave."""

import signal
from typing import Any
from uuid import UUID

import pytest
from tests.conftest import wait_until
from tests.crash.crash_app import aplain, deaf, plain
from tests.crash.process import Scene, WorkerProcess

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])


def _start(scene: Scene, **settings: Any) -> WorkerProcess:
    return scene.start(command_line=True, **settings)


def _untouched(scene: Scene, job: UUID) -> None:
    """Handed back as if it had never been claimed, but for its generation."""
    (row,) = scene.kit.sql(
        "SELECT status, attempts, crashes, suspect FROM holdfast.work WHERE id = %s", [job]
    )
    assert row == {"status": "pending", "attempts": 0, "crashes": 0, "suspect": 0}


def _is_left(scene: Scene) -> None:
    assert set(scene.workers().values()) == {"gone"}
    assert not scene.kit.sql("SELECT 1 AS one FROM holdfast.work WHERE status = 'processing'")


@BOTH
def test_the_first_signal_hands_back_what_waits_and_lets_the_rest_finish(scene: Scene, number: int) -> None:
    ids = [plain.enqueue("go").id for _ in range(3)]
    worker = _start(scene, concurrency=1)
    scene.until_noted("start", ids[0])
    held = lambda: [scene.kit.job(i)["status"] for i in ids] == ["processing"] * 3  # noqa: E731
    wait_until(held, "two jobs are prefetched behind the first", 5)
    worker.kill(number)
    for waiting in ids[1:]:
        scene.until_status(waiting, "pending")
        _untouched(scene, waiting)
    assert scene.kit.job(ids[0])["status"] == "processing"
    assert "draining" in scene.workers().values()
    scene.open("go")
    assert worker.wait() == 0
    row = scene.kit.job(ids[0])
    assert (row["status"], row["attempts"], row["lease_generation"]) == ("completed", 1, 1)
    for waiting in ids[1:]:
        _untouched(scene, waiting)
        assert not scene.notes("start", waiting)
    _is_left(scene)


@BOTH
def test_the_second_signal_cancels_a_running_handler_without_an_attempt(scene: Scene, number: int) -> None:
    job = aplain.enqueue("never").id
    worker = _start(scene, drain=600.0)
    scene.until_noted("start", job)
    worker.kill(number)
    wait_until(lambda: worker.events("worker.draining"), "it drains")
    assert worker.is_running
    worker.kill(number)
    assert worker.wait(10) == 0
    assert scene.notes("cancelled", job)
    _untouched(scene, job)
    _is_left(scene)


def test_a_handler_that_cannot_be_stopped_is_released_and_the_process_leaves_in_time(scene: Scene) -> None:
    job = deaf.enqueue().id
    worker = _start(scene, drain=1.0)
    scene.until_noted("start", job)
    worker.kill(signal.SIGTERM)
    assert worker.wait(10) == 0  # the handler sleeps for ten minutes
    _untouched(scene, job)
    _is_left(scene)


def test_a_signal_during_a_claim_loses_nothing(scene: Scene) -> None:
    worker = _start(scene, failpoints=f"claim.after=sleep:0.3;claim.claim.done=hit:{scene.folder / 'claims'}")
    jobs = [plain.enqueue().id for _ in range(8)]
    claims = scene.folder / "claims"
    before = len(claims.read_text().splitlines()) if claims.exists() else 0
    wait_until(
        lambda: claims.exists() and len(claims.read_text().splitlines()) > before, "it is inside a claim"
    )
    worker.kill(signal.SIGTERM)
    assert worker.wait() == 0
    _is_left(scene)
    scene.start()
    rows = scene.until_finished()
    assert {(r["id"], r["status"], r["attempts"], r["crashes"]) for r in rows} == {
        (job, "completed", 1, 0) for job in jobs
    }
    assert all(len(scene.notes("start", job)) == 1 for job in jobs)
