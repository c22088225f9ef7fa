"""Hard limits: a handler that runs or takes too much is ended, whatever it does, and its worker goes on."""

import logging
import os
import resource
import sys
import threading

import pytest
from tests.conftest import await_until
from tests.flow.test_run import working
from tests.processes.conftest import Scene, is_gone
from tests.processes.process_app import (
    LIMIT,
    block_the_loop,
    endless,
    keep,
    log_and_hang,
    pid,
    sleep_long,
    small,
    take,
    take_and_retry,
    take_shared,
    take_together,
)

from holdfast.runtime.processes import child_thread
from holdfast.runtime.processes.memory import MemoryLimit, limited, used, used_together
from holdfast.runtime.processes.process import ChildProcess

pytestmark = pytest.mark.usefixtures("adopted")

MB = 1024 * 1024
TOO_MUCH = "MemoryLimit: used more than its memory_limit of 128 MB"


def test_a_timeout_kills_a_handler_in_a_loop_and_one_in_c_code_that_is_deaf_to_signals(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.settings(lease=60.0, dead_after=20.0)
    monkeypatch.setattr(child_thread, "DUMP", 1.0)
    where = {
        "python": "in endless",
        "print": "xxxx",
        "talk": "",
        "c": "in stay_in_c",
    }
    jobs = {how: endless.enqueue(how) for how in where}
    after = pid.using(priority=-1).enqueue()
    scene.kit.run_worker(concurrency=2)
    for how, handle in jobs.items():
        error = "JobTimeout: ran longer than its timeout of 0.5 s"
        assert scene.end(handle.id) == ("scheduled", 1, error)
        assert where[how] in scene.trace(handle.id)
    pids = {p for p, _ in scene.notes("start")}
    assert len(pids) == 4
    assert all(is_gone(p) for p in pids)
    assert after.result(timeout=25) not in pids


def test_a_handler_that_ends_while_it_is_asked_where_it_is_was_late(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.settings(lease=60.0, dead_after=20.0)
    monkeypatch.setattr(child_thread, "DUMP", 4.0)  # it ends 1.5 s after it is asked
    late = endless.enqueue("a little")
    scene.kit.run_worker()
    assert scene.end(late.id) == ("scheduled", 1, "JobTimeout: ran longer than its timeout of 0.5 s")
    assert "in endless" in scene.trace(late.id)


TALKER = """
import socket, sys
link = socket.socket(fileno=int(sys.argv[1]))
body = b'{"frame": "log", "text": "%s"}' % (b"x" * 1000)
while True:
    link.sendall(len(body).to_bytes(4, "big") + body)
"""


def test_a_child_that_never_stops_talking_is_heard_in_parts() -> None:
    child = ChildProcess([sys.executable, "-c", TALKER])
    try:
        count = 0
        child.wait(50)
        for _ in child.receive():
            count += 1
            if count > 2000:  # 2 MB
                break
            child.wait(50)  # until there is more
        assert 0 < count <= 1100
    finally:
        child.kill()
        child.close()


async def test_a_timeout_does_not_wait_for_those_who_listen(scene: Scene) -> None:
    heard, free = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.set()
            free.wait(150)

    slow = Slow()
    logging.getLogger("crunch").addHandler(slow)
    try:
        handle = log_and_hang.enqueue()
        async with working(scene.kit, concurrency=1):
            await await_until(lambda: scene.end(handle.id)[0] == "dead_letter", "it is ended")
            assert heard.is_set()
            assert is_gone(scene.notes("start")[0][0])
            free.set()
    finally:
        free.set()
        logging.getLogger("crunch").removeHandler(slow)
    assert scene.end(handle.id)[2] == "JobTimeout: ran longer than its timeout of 0.5 s"
    await scene.kit.database.aclose()


async def test_a_timeout_does_not_depend_on_the_event_loop_of_the_worker(scene: Scene) -> None:
    late = sleep_long.enqueue()
    async with working(scene.kit, concurrency=2):
        await await_until(lambda: scene.notes("start"), "it runs")
        blocked = block_the_loop.enqueue(scene.notes("start")[0][0])
        await await_until(lambda: scene.end(late.id)[0] == "dead_letter", "it is ended")
        assert await blocked.aresult(timeout=150)
    await scene.kit.database.aclose()


def test_two_gigabytes_over_the_limit_end_the_attempt_and_the_policy_decides(scene: Scene) -> None:
    over = LIMIT // MB + 2048
    buried, retried, fine = take.enqueue(over), take_and_retry.enqueue(over), take.enqueue(60)
    after = pid.using(priority=-1).enqueue()
    scene.kit.run_worker(concurrency=1)
    assert scene.end(buried.id) == ("dead_letter", 1, TOO_MUCH)
    assert scene.end(retried.id) == ("scheduled", 1, TOO_MUCH)
    trace = scene.trace(buried.id).splitlines()
    assert trace[1].endswith(", in take")  # where the handler is, and nothing of what leads there
    assert trace[2].strip() == "return len(bytearray(mb * 1024 * 1024))"
    assert fine.result(timeout=25) == 60 * MB
    starts = [p for p, _ in scene.notes("start")]
    assert starts[0] != starts[1]  # nobody uses a child again that ran out of memory
    assert after.result(timeout=25) == starts[1]


def test_shared_memory_and_what_programs_use_together_count_too(scene: Scene) -> None:
    shared, together = take_shared.enqueue(200), take_together.enqueue(3, 80)
    scene.kit.run_worker(concurrency=2)
    for handle in (shared, together):
        status, attempts, error = scene.end(handle.id)
        assert (status, attempts) == ("dead_letter", 1)
        assert error is not None
        assert error.startswith(f"{TOO_MUCH}: it and what it started used ")
    assert len(scene.notes("program")) == 3
    assert all(is_gone(int(program)) for _, program in scene.notes("program"))


def test_a_limit_applies_to_its_own_task_only(scene: Scene) -> None:
    first = keep.enqueue(200)
    limited_one = small.using(priority=-1).enqueue()
    free = keep.using(priority=-2).enqueue(1)
    scene.kit.run_worker(concurrency=1)
    big = first.result(timeout=25)
    assert (
        limited_one.result(timeout=25) != big
    )  # the child that is too big already is left alone, or replaced
    assert scene.end(limited_one.id)[:2] == ("completed", 1)  # at once: it was never tried in the big one
    assert scene.end(free.id)[0] == "completed"


def test_a_limit_below_what_the_process_takes_anyway_says_so() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(MemoryLimit) as caught, limited(MB):
        pass
    assert str(caught.value).startswith("its memory_limit of 1 MB is less than the ")
    assert str(caught.value).endswith(
        " MB that the process takes before the handler begins. Raise memory_limit"
    )
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_limit_ends_with_its_block() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used().resident + 64 * MB
    with limited(limit):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] < 2**62
        assert len(bytearray(16 * MB)) == 16 * MB
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    with pytest.raises(MemoryLimit), limited(limit):
        bytearray(2048 * MB)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_what_is_known_of_a_process() -> None:
    assert used().resident > 10 * MB
    assert used().data >= used().resident // 2
    assert used_together(os.getpid()) > 10 * MB
    assert used(2**22 + 1).resident == 0  # no such process
