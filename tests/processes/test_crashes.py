"""A handler that kills its process ends its own attempt, with the reason, and disturbs nobody."""

import asyncio
import os
import signal

import pytest
from tests.conftest import await_until
from tests.flow.test_run import working
from tests.processes.conftest import Scene, is_gone
from tests.processes.process_app import die, die_twice, in_a_thread, in_the_loop, pid

from holdfast import telemetry
from holdfast.runtime.processes.memory import out_of_memory_kills
from holdfast.runtime.processes.process import ended_by

pytestmark = pytest.mark.usefixtures("adopted")

WAYS = {
    "segfault": "ProcessDied: the process was killed by signal 11 (SIGSEGV)",
    "exit": "ProcessDied: the process ended with exit code 7",
    "exit 0": "ProcessDied: the process ended with exit code 0",
    "abort": "ProcessDied: the process was killed by signal 6 (SIGABRT)",
    "killed": "ProcessDied: the process was killed by signal 9 (SIGKILL)",
}


async def test_every_death_of_a_child_is_a_reason_and_its_worker_lives(
    scene: Scene, events: list[telemetry.Event]
) -> None:
    neighbours = [in_the_loop.enqueue("go"), in_a_thread.enqueue("go")]
    jobs = {how: die.enqueue(how) for how in WAYS}
    async with working(scene.kit, concurrency=4):
        await await_until(lambda: "killed" in [how for _, how in scene.notes("start")], "all of them run", 30)
        ((victim, _),) = [found for found in scene.notes("start") if found[1] == "killed"]
        os.kill(victim, signal.SIGKILL)
        await await_until(
            lambda: all(scene.end(h.id)[0] == "dead_letter" for h in jobs.values()), "all ended"
        )
        after = pid.enqueue()
        assert await after.aresult(timeout=150) != os.getpid()
        assert [scene.end(handle.id)[0] for handle in neighbours] == ["processing"] * 2
        scene.open("go")
        assert [await handle.aresult(timeout=150) for handle in neighbours] == [os.getpid()] * 2
        workers = scene.kit.sql("SELECT status FROM holdfast.workers")
        assert [row["status"] for row in workers] == ["alive"]
    await scene.kit.database.aclose()
    for how, handle in jobs.items():
        assert scene.end(handle.id) == ("dead_letter", 1, WAYS[how])
        assert "about to die" in scene.trace(handle.id)
    assert "Fatal Python error: Segmentation fault" in scene.trace(jobs["segfault"].id)
    assert "in die" in scene.trace(jobs["segfault"].id)
    assert not [e for e in events if e.name in ("suspects.claimed", "worker.fenced")]


def test_the_policy_decides_between_another_attempt_and_the_end(scene: Scene) -> None:
    handle = die_twice.enqueue()
    scene.kit.run_worker(concurrency=1)
    assert handle.result(timeout=25) == 3
    errors = scene.kit.sql("SELECT kind, message FROM holdfast.errors ORDER BY attempt")
    assert [f"{row['kind']}: {row['message']}" for row in errors] == [WAYS["exit"]] * 2
    (row,) = scene.kit.sql("SELECT crashes FROM holdfast.jobs WHERE id = %s", [handle.id])
    assert not row["crashes"]


def test_a_handler_that_meddles_with_the_socket_is_ended(scene: Scene) -> None:
    silent, loud = die.enqueue("hang up"), die.enqueue("babble")
    scene.kit.run_worker(concurrency=1)
    assert scene.end(silent.id) == ("dead_letter", 1, WAYS["killed"])
    said = "ProcessDied: it sent a frame of 4294967295 bytes, and was ended"
    assert scene.end(loud.id) == ("dead_letter", 1, said)
    assert all(is_gone(child) for child, _ in scene.notes("start"))


@pytest.mark.usefixtures("started")
def test_a_signal_to_stop_is_for_the_worker_not_for_its_children(scene: Scene) -> None:
    async def main() -> None:
        handle = die.enqueue("nothing")
        async with working(scene.kit, concurrency=1):
            await await_until(lambda: scene.notes("start"), "it runs")
            child = scene.notes("start")[0][0]
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(child, number)
            other = pid.enqueue()
            assert scene.end(handle.id)[0] == "processing"
            os.kill(child, signal.SIGKILL)
            await other.aresult(timeout=150)
        assert scene.end(handle.id)[2] == WAYS["killed"]
        await scene.kit.database.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "memory", "text"),
    [
        (3, False, "the process ended with exit code 3"),
        (-11, False, "the process was killed by signal 11 (SIGSEGV)"),
        (-63, False, "the process was killed by signal 63 (unknown)"),
        (
            -9,
            True,
            "the process was killed by signal 9 (SIGKILL); the kernel was killing processes because memory had run out",
        ),
    ],
)
def test_an_exit_code_in_words(code: int, memory: bool, text: str) -> None:
    assert ended_by(code, memory) == text


def test_the_kernel_says_how_often_memory_ran_out() -> None:
    assert out_of_memory_kills() >= 0
