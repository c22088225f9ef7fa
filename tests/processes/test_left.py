"""What a job leaves behind in its process: no other job pays for it."""

import signal

import pytest
from tests.conftest import await_until
from tests.flow.test_run import working
from tests.processes.conftest import Scene, is_gone
from tests.processes.process_app import afork, deaf, leave, pid, short, tfork, with_pool

from holdfast.runtime.processes import child_thread

pytestmark = pytest.mark.usefixtures("adopted")


async def test_a_job_is_not_charged_for_an_event_loop_that_an_earlier_one_left_blocked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_thread, "BEGIN", 1.0)
    async with working(scene.kit, concurrency=1):
        first = await leave.enqueue("blocked").aresult(timeout=150)
        await await_until(lambda: scene.notes("blocked"), "its loop is blocked")
        handle = short.enqueue()
        assert await handle.aresult(timeout=150) != first
        assert scene.end(handle.id) == ("completed", 1, None)
        assert is_gone(first)
    await scene.kit.database.aclose()


async def test_tasks_that_a_handler_leaves_in_the_event_loop_are_cancelled(scene: Scene) -> None:
    async with working(scene.kit, concurrency=1):
        first = await leave.enqueue("polite").aresult(timeout=150)
        assert scene.notes("told") == [(first, "")]
        assert await leave.enqueue("stubborn").aresult(timeout=150) == first
        assert await pid.enqueue().aresult(timeout=150) != first  # nobody gets a process that is not clean
        await await_until(lambda: is_gone(first), "it is ended")
    await scene.kit.database.aclose()


async def test_a_process_that_a_handler_forks_ends_with_the_handler(scene: Scene) -> None:
    async with working(scene.kit, concurrency=1):
        child = await pid.enqueue().aresult(timeout=150)
        for task in (afork, tfork):
            assert await task.enqueue("return").aresult(timeout=150) == 0
            assert await task.enqueue("raise").aresult(timeout=150) == 1
            assert await task.enqueue("exit").aresult(timeout=150) == 3
        assert await pid.enqueue().aresult(timeout=150) == child
    await scene.kit.database.aclose()


def test_multiprocessing_can_end_its_processes(scene: Scene) -> None:
    handle = with_pool.enqueue()
    scene.kit.run_worker(concurrency=1)
    assert scene.end(handle.id)[0] == "completed"
    assert handle.result(timeout=25) == [1, 2, 3, -signal.SIGTERM]


async def test_programs_with_a_session_of_their_own_are_killed_too(scene: Scene) -> None:
    scene.settings(process_jobs=1)
    async with working(scene.kit, concurrency=1):
        cancelled = deaf.enqueue("session")
        await await_until(lambda: scene.notes("start"), "it runs")
        cancelled.cancel()
        await leave.enqueue("program").aresult(timeout=150)
        assert scene.end(cancelled.id)[0] == "cancelled"
        killed, left = [int(text) for _, text in scene.notes("program")]
        assert is_gone(killed)
        await await_until(lambda: is_gone(left), "the process is let go, and what it left with it")
    await scene.kit.database.aclose()
