"""A worker that stands still: stopped as a whole, or blocked by one of its handlers."""

import signal
import time
from uuid import UUID

from tests.conftest import wait_until
from tests.crash.crash_app import arecord_behind, block_the_loop, careful, plain, record, record_behind
from tests.crash.process import DEAD_AFTER, HEARTBEAT, LEASE, SWEEP, Scene, WorkerProcess

TAKEN = LEASE + SWEEP + 2 * HEARTBEAT + 4.0


def _stop_until_taken(scene: Scene, paused: WorkerProcess, jobs: list[UUID]) -> list[WorkerProcess]:
    """Stop the worker; answers others that have taken every job of it."""
    paused.kill(signal.SIGSTOP)
    others = [scene.start(ready=False), scene.start(ready=False)]
    for job in jobs:
        scene.until_noted("start", job, 2, seconds=TAKEN)
    return others


def _identities(scene: Scene, worker: WorkerProcess) -> list[str]:
    rows = scene.kit.sql("SELECT id FROM holdfast.workers WHERE pid = %s ORDER BY started_at", [worker.pid])
    return [r["id"] for r in rows]


def test_a_paused_owner_can_change_nothing_and_goes_on_under_a_new_identity(scene: Scene) -> None:
    """Four handlers of one paused worker; each learns in its own way that it lost, and none changes anything."""
    jobs = {
        "sync transaction": record_behind.enqueue("go").id,
        "async transaction": arecord_behind.enqueue("go").id,
        "settled late": plain.enqueue("go").id,
        "asks": careful.enqueue("go").id,
    }
    paused = scene.start()
    for job in jobs.values():
        scene.until_noted("start", job)
    (old,) = _identities(scene, paused)
    others = _stop_until_taken(scene, paused, list(jobs.values()))
    assert scene.workers()[old] == "gone"

    paused.kill(signal.SIGCONT)
    # The one that asks learns it by itself, while its new owner still waits at the gate.
    (lost,) = scene.until_noted("lost", jobs["asks"])
    assert (lost.pid, lost.generation) == (paused.pid, 1)
    wait_until(lambda: len(_identities(scene, paused)) == 2, "a new identity")
    fresh = _identities(scene, paused)[1]
    assert scene.workers()[fresh] == "alive"

    scene.open("go")  # for both owners at once
    rows = scene.until_finished()
    assert {(r["id"], r["status"], r["lease_generation"], r["attempts"]) for r in rows} == {
        (job, "completed", 2, 1) for job in jobs.values()
    }
    assert scene.ledger() == {jobs["sync transaction"]: 1, jobs["async transaction"]: 1}
    assert {r["pid"] for r in scene.kit.sql("SELECT pid FROM ledger")} <= {o.pid for o in others}
    wait_until(
        lambda: len(paused.events("job.lost")) == len(jobs), "the paused worker knows that it lost all"
    )

    for other in others:
        other.kill(signal.SIGKILL)
        other.wait()
    later = record.enqueue().id
    row = scene.until_status(later, "completed")
    assert row["claimed_by"] == fresh


def test_an_owner_stopped_right_before_its_commit_is_waited_for(scene: Scene) -> None:
    """Its transaction holds the row: nobody can take the job, so its commit is the only one. With metadata, because the
    end of a plain job is sent with its COMMIT. Async: it runs in the main thread, which a stop signal stops at once."""
    job = arecord_behind.using(metadata={"end": "before the commit"}).enqueue().id
    stopped = scene.start(failpoints="transaction.commit=stop")
    scene.until_noted("end", job)
    (old,) = _identities(scene, stopped)
    scene.start()
    wait_until(lambda: scene.workers()[old] == "gone", "the stopped worker is fenced", DEAD_AFTER + 5)
    revoked = "SELECT 1 AS one FROM holdfast.claims WHERE worker = %s AND revoked_at IS NOT NULL"
    wait_until(lambda: scene.kit.sql(revoked, [old]), "its claim is revoked", TAKEN)
    other = record.enqueue().id  # the others' work goes on beside the row that is held
    scene.until_status(other, "completed")
    stopped.kill(signal.SIGCONT)
    row = scene.until_status(job, "completed")
    assert row["lease_generation"] == 1
    assert scene.ledger() == {job: 1, other: 1}
    assert len(scene.notes("start", job)) == 1


def test_an_owner_stopped_before_its_end_and_its_commit_are_sent_commits_nothing(scene: Scene) -> None:
    """They are one message, and nobody waits for it: the job is taken over, and what comes late is refused."""
    job = arecord_behind.enqueue().id
    stopped = scene.start(failpoints="transaction.commit=stop")
    scene.until_noted("end", job)
    other = scene.start()
    row = scene.until_status(job, "completed")
    assert row["lease_generation"] == 2
    stopped.kill(signal.SIGCONT)
    wait_until(lambda: stopped.events("job.lost"), "the stopped worker knows that it lost its job")
    assert scene.ledger() == {job: 1}
    assert {r["pid"] for r in scene.kit.sql("SELECT pid FROM ledger")} == {other.pid}


def test_a_handler_that_blocks_the_event_loop_keeps_its_lease_and_is_named(scene: Scene) -> None:
    job = block_the_loop.enqueue(3 * LEASE).id
    blocked = scene.start(env={"CRASH_BLOCKED": "0.5"})
    scene.until_noted("start", job)
    scene.start()
    row = scene.until_status(job, "completed", 3 * LEASE + 10)
    assert (row["lease_generation"], row["attempts"]) == (1, 1)
    assert len(scene.notes("start", job)) == 1
    (event,) = blocked.events("loop.blocked")
    assert "block_the_loop" in event["running"]
    assert "time.sleep(seconds)" in event["trace"]
    assert "gone" not in scene.workers().values()


def test_handlers_that_hold_every_connection_keep_their_leases(scene: Scene) -> None:
    jobs = [record_behind.enqueue("go").id for _ in range(2)] + [
        arecord_behind.enqueue("go").id for _ in range(2)
    ]
    scene.start(concurrency=4, pool_size=2)
    for job in jobs:
        scene.until_noted("start", job)
    scene.start(concurrency=4)
    held_until = time.monotonic() + 2 * LEASE
    wait_until(lambda: time.monotonic() > held_until, "two leases pass", 3 * LEASE)
    scene.open("go")
    rows = scene.until_finished()
    assert {(r["status"], r["lease_generation"], r["attempts"]) for r in rows} == {("completed", 1, 1)}
    assert scene.ledger() == dict.fromkeys(jobs, 1)
    assert "gone" not in scene.workers().values()
