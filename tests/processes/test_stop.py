"""A child ends when its job must: on a cancellation, on a lost lease, when its worker drains, and with its worker."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from tests.conftest import await_until, wait_until
from tests.flow.test_run import working
from tests.processes.conftest import Scene, is_gone
from tests.processes.process_app import (
    acareful,
    behind,
    behind_in_transaction,
    block_the_loop,
    careful,
    deaf,
    pid,
    write,
)

from holdfast import telemetry
from holdfast.runtime.processes import child_thread, pool
from holdfast.runtime.processes.assignment import Assignment

pytestmark = pytest.mark.usefixtures("adopted")

Events = list[telemetry.Event]


def steal(scene: Scene, job_id: UUID) -> None:
    """Another owner took the job, as a claim after a sweep would."""
    scene.kit.sql(
        "UPDATE holdfast.work SET lease_generation = lease_generation + 1, claim_token = gen_random_uuid() WHERE id = %s",
        [job_id],
    )


async def _start(scene: Scene) -> int:
    await await_until(lambda: scene.notes("start"), "it runs")
    return scene.notes("start")[0][0]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_cancelled_handler_is_told_and_may_clean_up(scene: Scene, kind: str) -> None:
    handle = (careful if kind == "sync" else acareful).enqueue()
    async with working(scene.kit, concurrency=1):
        child = await _start(scene)
        handle.cancel()
        await await_until(lambda: scene.end(handle.id)[0] == "cancelled", "it is cancelled")
        assert scene.notes("told") == [(child, "")]
        assert await pid.enqueue().aresult(timeout=150) == child  # it ended its job, and goes on
    await scene.kit.database.aclose()


async def test_a_cancelled_handler_that_does_not_listen_is_killed(scene: Scene) -> None:
    handle = deaf.enqueue("stuck")
    async with working(scene.kit, concurrency=1):
        child = await _start(scene)
        handle.cancel()
        await await_until(lambda: scene.end(handle.id)[0] == "cancelled", "it is cancelled")
        assert is_gone(child)
        assert scene.end(handle.id)[2] == "cancelled while running"
    await scene.kit.database.aclose()


async def test_a_worker_that_is_cancelled_again_and_again_leaves_no_child_and_no_thread(scene: Scene) -> None:
    """As by a task group of anyio, until its task has ended."""
    before = _own_threads()
    handle = deaf.enqueue("stuck")
    serving = asyncio.create_task(scene.kit.app.run_worker(concurrency=1))
    child = await _start(scene)
    while not serving.done():
        serving.cancel()
        await asyncio.sleep(0)
    await await_until(
        lambda: is_gone(child) and _own_threads() <= before, "the child and all threads are gone"
    )
    assert scene.end(handle.id)[:2] == ("pending", 0)
    await scene.kit.database.aclose()


async def test_a_pool_that_is_cancelled_before_a_thread_is_free_is_closed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, before = pool.Pool.close, _own_threads()

    async def cancelled(self: pool.Pool) -> None:
        loop, gate, only = asyncio.get_running_loop(), threading.Event(), ThreadPoolExecutor(1)
        only.submit(gate.wait)
        loop.set_default_executor(only)
        loop.call_soon(asyncio.current_task().cancel)  # type: ignore[union-attr]
        try:
            await close(self)
        finally:
            gate.set()

    monkeypatch.setattr(pool.Pool, "close", cancelled)
    deaf.enqueue("stuck")
    serving = asyncio.create_task(scene.kit.app.run_worker(concurrency=1))
    child = await _start(scene)
    for _ in range(2):  # the second one waits for no handler
        serving.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([serving])
    await await_until(
        lambda: is_gone(child) and _own_threads() <= before, "the child and all threads are gone"
    )
    await scene.kit.database.aclose()


def _own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("holdfast-")}


async def test_a_lost_lease_kills_the_child_and_what_it_started(scene: Scene, events: Events) -> None:
    handle = deaf.enqueue("family")
    async with working(scene.kit, concurrency=1):
        child = await _start(scene)
        ((_, program),) = scene.notes("program")
        steal(scene, handle.id)
        await await_until(lambda: is_gone(child) and is_gone(int(program)), "both are gone")
        await await_until(lambda: [e for e in events if e.name == "job.lost"], "it is known to be lost")
        (row,) = scene.kit.sql("SELECT status, attempts FROM holdfast.work WHERE id = %s", [handle.id])
        assert row == {"status": "processing", "attempts": 0}
    await scene.kit.database.aclose()


async def test_a_job_that_is_lost_as_it_is_assigned_is_ended_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can be woken by the loss yet, and the child says nothing more."""
    right = pool.Pool._assign

    def assign(self: pool.Pool, job: Assignment) -> child_thread.ChildThread:
        found = right(self, job)
        wait_until(lambda: scene.notes("start"), "it runs")
        job.running.interrupt("lost")
        return found

    monkeypatch.setattr(pool.Pool, "_assign", assign)
    deaf.enqueue("stuck")
    async with working(scene.kit, concurrency=1):
        child = await _start(scene)
        await await_until(lambda: is_gone(child), "it is ended")
    await scene.kit.database.aclose()


async def test_a_lost_lease_kills_the_child_also_while_the_loop_is_blocked(scene: Scene) -> None:
    handle = deaf.enqueue("stuck")
    async with working(scene.kit, concurrency=2):
        child = await _start(scene)
        blocked = block_the_loop.enqueue(child)

        def steal_then() -> None:
            wait_until(lambda: scene.notes("blocked"), "the loop is blocked")
            steal(scene, handle.id)

        thief = threading.Thread(target=steal_then)
        thief.start()
        assert await blocked.aresult(timeout=150)
        assert is_gone(child)
        thief.join()
    await scene.kit.database.aclose()


async def test_a_job_that_completes_itself_is_not_taken_for_lost(scene: Scene, events: Events) -> None:
    """Its row is gone before its child says so: here the child waits between its commit and its answer."""
    scene.kit.sql("CREATE TABLE notes (text text)")
    handle = write.using(metadata={"linger": True}).enqueue("a")

    def beat() -> object:
        return scene.kit.sql("SELECT last_seen_at FROM holdfast.workers")

    async with working(scene.kit, concurrency=1):
        await await_until(lambda: scene.notes("lingers"), "it has committed")
        ((child, _),) = scene.notes("lingers")
        for _ in range(3):  # renewals that find the row gone
            before = beat()
            await await_until(lambda before=before: beat() != before, "a heartbeat")  # type: ignore[misc]
        scene.open("linger")
        await await_until(lambda: [e for e in events if e.name == "job.completed"], "it is known")
        assert await pid.enqueue().aresult(timeout=150) == child
    assert not [e for e in events if e.name == "job.lost"]
    assert scene.end(handle.id)[0] == "completed"
    await scene.kit.database.aclose()


async def test_a_drain_lets_a_handler_finish(scene: Scene) -> None:
    handle = behind.enqueue("go")
    worker = asyncio.create_task(scene.kit.arun_worker(until_idle=False))
    child = await _start(scene)
    worker.cancel()
    await await_until(lambda: _workers(scene) == ["draining"], "it drains")
    assert not is_gone(child)
    scene.open("go")
    await asyncio.wait([worker])
    assert handle.result(timeout=25) == child
    assert is_gone(child)
    await scene.kit.database.aclose()


def _workers(scene: Scene) -> list[str]:
    return [row["status"] for row in scene.kit.sql("SELECT status FROM holdfast.workers")]


async def test_a_drain_that_takes_too_long_kills_and_gives_back(scene: Scene, events: Events) -> None:
    scene.settings(drain=0.3)
    scene.kit.sql("CREATE TABLE notes (text text)")
    handles = [deaf.enqueue("stuck"), behind_in_transaction.enqueue("never")]
    worker = asyncio.create_task(scene.kit.arun_worker(until_idle=False))
    await await_until(lambda: len(scene.notes("start")) == 2, "both run")
    worker.cancel()
    await asyncio.wait([worker])
    assert all(is_gone(child) for child, _ in scene.notes("start"))
    for handle in handles:
        (row,) = scene.kit.sql(
            "SELECT status, attempts, crashes, suspect FROM holdfast.work WHERE id = %s", [handle.id]
        )
        assert row == {"status": "pending", "attempts": 0, "crashes": 0, "suspect": 0}
    assert not scene.kit.sql("SELECT * FROM notes")
    await scene.kit.database.aclose()


async def test_a_job_cancelled_while_its_child_starts_never_begins(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = behind.enqueue("go")
    monkeypatch.setenv("PROCESS_SLOW", "1")
    async with working(scene.kit, concurrency=1):
        await await_until(lambda: len(scene.notes("enter")) == 2, "the child is in its lifespan")
        await await_until(lambda: scene.end(handle.id)[0] == "processing", "the job is claimed")
        handle.cancel()
        await await_until(lambda: scene.end(handle.id)[0] == "cancelled", "it is cancelled")
    assert scene.notes("start") == []
    await scene.kit.database.aclose()
