"""Workers that die or stand still while they hold the places of a limited queue: no place is lost, none is given twice."""

import signal

import pytest
from tests.conftest import wait_until
from tests.crash.crash_app import plain, record, record_behind
from tests.crash.process import DEAD_AFTER, HEARTBEAT, SWEEP, Scene

from holdfast.operate.operator import Operator

RERUN = DEAD_AFTER + SWEEP + 2 * HEARTBEAT + 5.0


def used(scene: Scene) -> int | None:
    return Operator(scene.kit.database, "ann").show_rules("inbox").running


def test_places_of_a_killed_worker_come_back(scene: Scene) -> None:
    Operator(scene.kit.database, "ann").set_queue("inbox", limits={"concurrency": 2})
    held = [record_behind.enqueue("go").id for _ in range(2)]
    first = scene.start()
    for job in held:
        scene.until_noted("start", job)
    behind = plain.enqueue().id
    scene.start()
    assert used(scene) == 2
    assert scene.notes("start", behind) == []
    first.kill(signal.SIGKILL)
    scene.open("go")
    scene.until_status(behind, "completed", RERUN)
    scene.until_finished(RERUN)
    assert used(scene) == 0


def test_a_kill_among_many_jobs_leaks_no_place_and_exceeds_nothing(scene: Scene) -> None:
    """It holds some that run, and some that it took ahead."""
    Operator(scene.kit.database, "ann").set_queue("inbox", limits={"concurrency": 20})
    ids = [record.enqueue().id for _ in range(300)]
    first = scene.start()
    wait_until(lambda: len(scene.ledger()) > 50, "it is in the middle of them", 30)
    first.kill(signal.SIGKILL)
    scene.start()
    most = 0

    def finished() -> bool:
        nonlocal most
        most = max(most, used(scene) or 0)
        return len(scene.ledger()) == len(ids) and used(scene) == 0

    wait_until(finished, "all are done, and no place is taken", 4 * RERUN)
    assert set(scene.ledger()) == set(ids)
    assert most <= 20


@pytest.mark.parametrize("hop", ["claim.limited", "claim.committed", "claim.after"])
def test_a_kill_in_the_middle_of_a_limited_claim_leaks_nothing(scene: Scene, hop: str) -> None:
    """Under the lock of the limits, just after the commit, and with the jobs in hand."""
    Operator(scene.kit.database, "ann").set_queue("inbox", limits={"concurrency": 1})
    ids = [record.enqueue().id for _ in range(3)]
    dying = scene.start(failpoints=f"{hop}=kill", ready=False)
    assert dying.wait() == -signal.SIGKILL
    scene.start()
    scene.until_finished(RERUN)
    assert scene.ledger() == dict.fromkeys(ids, 1)
    assert used(scene) == 0


def test_a_worker_that_stands_still_in_its_claim_holds_the_queue_for_two_seconds(scene: Scene) -> None:
    Operator(scene.kit.database, "ann").set_queue("inbox", limits={"concurrency": 1})
    job = record.enqueue().id
    still = scene.start(failpoints="claim.limited=stop", ready=False, statement_timeout=600)
    holds = "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction' AND application_name = 'holdfast claim'"
    wait_until(lambda: scene.kit.sql(holds), "it holds the limits", 30)
    scene.start(statement_timeout=600)
    scene.until_status(job, "completed", 20)
    assert scene.ledger() == {job: 1}
    still.kill(signal.SIGKILL)
