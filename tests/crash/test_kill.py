"""A worker process is killed: its jobs run again, nothing is lost, nothing is done twice in the database."""

import signal
import time
from typing import Any
from uuid import UUID

import pytest
from tests.conftest import wait_until, within
from tests.crash.crash_app import crash, plain, quick, record, record_behind
from tests.crash.process import DEAD_AFTER, HEARTBEAT, LEASE, SWEEP, Scene, WorkerProcess, settle_down

# A dead worker is fenced after DEAD_AFTER and swept within SWEEP; the rest is room for a busy machine.
RERUN = DEAD_AFTER + SWEEP + 2 * HEARTBEAT + 3.0


def test_a_job_of_a_killed_worker_runs_again_with_a_higher_fence_and_no_attempt_spent(scene: Scene) -> None:
    job = record_behind.enqueue("second").id
    first = scene.start()
    (begun,) = scene.until_noted("start", job)
    scene.start()
    first.kill(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    again = scene.until_noted("start", job, 2, seconds=RERUN)[1]
    assert (begun.generation, again.generation) == (1, 2)
    assert again.fence > begun.fence
    assert begun.attempt == again.attempt == 1
    scene.open("second")
    row = scene.until_status(job, "completed")
    assert row["attempts"] == 1
    assert scene.ledger() == {job: 1}
    assert scene.kit.sql("SELECT generation FROM ledger") == [{"generation": 2}]


def test_a_killed_worker_is_fenced_long_before_a_long_lease_ends(scene: Scene) -> None:
    job = record_behind.enqueue("second").id
    first = scene.start(lease=120)
    scene.until_noted("start", job)
    scene.start(lease=120)
    first.kill(signal.SIGKILL)
    scene.until_noted("start", job, 2, seconds=RERUN)


HOPS = [
    ("claim.claim.done", "record"),  # the server has claimed, the answer is just in
    ("claim.after", "record"),  # claimed, nothing started
    ("transaction.commit", "record"),  # everything written, not committed
    ("settle.before", "plain"),  # the handler ended, nothing written
    ("settle.committed", "plain"),  # settled, and nobody here knows
    ("settle.before", "quick"),
    ("settle.settle_done.done", "quick"),  # the same of jobs without a result, which go the quick way
]
KINDS: dict[str, Any] = {"record": record, "plain": plain, "quick": quick}


@pytest.mark.parametrize(("hop", "kind"), HOPS, ids=[f"{hop}-{kind}" for hop, kind in HOPS])
def test_a_kill_between_two_steps_loses_nothing_and_repeats_no_commit(
    scene: Scene, hop: str, kind: str
) -> None:
    count = 6
    ids = [KINDS[kind].enqueue().id for _ in range(count)]
    dying = scene.start(failpoints=f"{hop}=kill", ready=False)
    assert dying.wait() == -signal.SIGKILL
    scene.start()
    rows = scene.until_finished()
    assert {r["id"]: (r["status"], r["attempts"]) for r in rows} == dict.fromkeys(ids, ("completed", 1))
    if hop in ("settle.committed", "settle.settle_done.done"):  # what was settled does not run again
        again = [job for job in ids if len(scene.notes("start", job)) > 1]
        settled = {r["id"] for r in rows if r["lease_generation"] == 1}
        assert settled
        assert settled.isdisjoint(again)
    if kind == "record":
        assert scene.ledger() == dict.fromkeys(ids, 1)
    assert scene.kit.sql("SELECT count(*) AS n FROM holdfast.archive") == [{"n": count}]
    wait_until(lambda: not scene.kit.sql("SELECT 1 AS one FROM holdfast.claims"), "no claim is left behind")


def test_kills_again_and_again_under_load_lose_nothing(scene: Scene) -> None:
    ids: set[UUID] = set()
    workers = [scene.start(), scene.start()]
    for round_ in range(3):
        before = len(scene.ledger())
        ids |= {record.enqueue(seconds=0.1).id for _ in range(35)}
        wait_until(lambda seen=before: len(scene.ledger()) > seen, "work goes on", 15)  # type: ignore[misc]
        victim = workers[round_ % 2]
        victim.kill(signal.SIGKILL)
        victim.wait()
        workers[round_ % 2] = scene.start(ready=False)
    rows = scene.until_finished(40)
    assert {r["id"] for r in rows} == ids
    assert {(r["status"], r["attempts"]) for r in rows} == {("completed", 1)}
    assert scene.ledger() == dict.fromkeys(ids, 1)


def _supervise(scene: Scene, seconds: float, most: int) -> int:
    """Restart a worker whenever it dies, until nothing is live. Answers how often it died."""

    def start() -> WorkerProcess:
        return scene.start(ready=False, lease=0.8, heartbeat=0.2, dead_after=0.6, sweep=0.1)

    deaths = 0
    worker = start()
    deadline = time.monotonic() + within(seconds)
    while scene.kit.sql("SELECT 1 AS one FROM holdfast.work LIMIT 1"):
        assert time.monotonic() < deadline, f"still live after {deaths} deaths: {scene.kit.jobs()}"
        if not worker.is_running:
            deaths += 1
            assert deaths <= most, "the crasher is not found"
            worker = start()
        time.sleep(0.02)
    return deaths


def test_a_job_that_kills_its_process_is_buried_and_its_neighbours_live(scene: Scene) -> None:
    innocent: set[UUID] = {record.enqueue(seconds=0.05).id for _ in range(3)}
    poison = crash.enqueue("kill").id
    innocent |= {record.enqueue(seconds=0.05).id for _ in range(4)}
    assert _supervise(scene, 60, 2) == 2  # the third death is that of a child process, which nobody shares
    row = scene.kit.job(poison)
    assert row["status"] == "dead_letter"
    assert row["last_error"].startswith("ProcessDied")
    assert row["crashes"] == 3
    rest = [r for r in scene.kit.jobs() if r["id"] != poison]
    assert {(r["id"], r["status"], r["attempts"]) for r in rest} == {(i, "completed", 1) for i in innocent}
    assert scene.ledger() == dict.fromkeys(innocent, 1)


def test_two_crashers_of_other_kinds_are_both_found(scene: Scene) -> None:
    poison = {crash.enqueue("exit").id, crash.enqueue("segfault").id}
    innocent = {record.enqueue(seconds=0.02).id for _ in range(4)}
    _supervise(scene, 80, 4)
    rows = scene.kit.jobs()
    buried = [r for r in rows if r["status"] == "dead_letter"]
    assert {r["id"] for r in buried} == poison
    assert all(r["last_error"].startswith("ProcessDied") for r in buried)
    assert {(r["id"], r["attempts"]) for r in rows if r["status"] == "completed"} == {
        (i, 1) for i in innocent
    }
    assert scene.ledger() == dict.fromkeys(innocent, 1)


def test_a_worker_runs_no_more_at_once_than_it_was_told(scene: Scene) -> None:
    """What it claimed ahead waits for a slot: a crash would make suspects of everything that runs."""
    jobs = [plain.enqueue("go").id for _ in range(5)]
    scene.start(concurrency=2)
    claimed = "SELECT count(*) AS n FROM holdfast.work WHERE status = 'processing'"
    wait_until(lambda: scene.kit.sql(claimed) == [{"n": 4}], "two run and two are prefetched")
    wait_until(lambda: len(scene.notes("start")) >= 2, "two run")
    settle_down(0.3)
    assert len(scene.notes("start")) == 2
    scene.open("go")
    assert {r["id"] for r in scene.until_finished() if r["status"] == "completed"} == set(jobs)


def test_a_lease_is_not_lost_to_a_killed_neighbour(scene: Scene) -> None:
    """Only the dead worker's jobs are taken; a living one keeps what it runs."""
    job = record_behind.enqueue("end").id
    scene.start(concurrency=1)
    scene.until_noted("start", job)
    other = scene.start()
    other.kill(signal.SIGKILL)
    other.wait()
    gone = lambda: "gone" in scene.workers().values()  # noqa: E731
    wait_until(gone, "the dead worker is fenced", RERUN)
    scene.open("end")
    row = scene.until_status(job, "completed", LEASE + 5)
    assert (row["lease_generation"], row["attempts"]) == (1, 1)
