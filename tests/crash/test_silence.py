"""A worker dies or falls silent: others go on, its jobs run again at once, and one that kills its process is found apart."""

import signal
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.conftest import wait_until, within
from tests.crash.crash_app import (
    crash,
    crash_async,
    crash_batch,
    crash_tx,
    exit_beside,
    plain,
    quick,
    record,
)
from tests.crash.process import DEAD_AFTER, SWEEP, Scene, WorkerProcess, settle_down

from holdfast.model.queue import QueueRules, Rate
from holdfast.operate.operator import Operator
from holdfast.settings import Settings

# What a crash may cost anybody, plus room for a machine that is five times slower.
BOUND = DEAD_AFTER + SWEEP + 3.0
SLOW = 5 * 3.0
CANNOT_IMPORT = """
import asyncio
import tests.crash.crash_app as module
tasks = module.app
del module.app
asyncio.run(tasks.run_worker())
"""


def _kill(worker: WorkerProcess) -> None:
    worker.kill(signal.SIGKILL)
    worker.wait()


def _short_jobs_until(scene: Scene, done: Callable[[], bool], what: str) -> None:
    """Enqueue a short job again and again, and wait for each, until something is true."""
    deadline = time.monotonic() + BOUND + SLOW
    while not done():
        assert time.monotonic() < deadline, what
        scene.until_status(quick.enqueue().id, "completed", BOUND + SLOW)


def _all_started(scene: Scene, jobs: list[UUID], times: int) -> bool:
    return all(len(scene.notes("start", job)) >= times for job in jobs)


def _crashes(scene: Scene) -> set[tuple[int, int]]:
    rows = scene.kit.sql("SELECT crashes, suspect FROM holdfast.work WHERE task = 'plain'")
    return {(r["crashes"], r["suspect"]) for r in rows}


def test_all_long_jobs_of_a_killed_worker_start_again_at_once_and_short_ones_go_on(scene: Scene) -> None:
    long = [plain.enqueue("end").id for _ in range(6)]
    first = scene.start(concurrency=6)
    wait_until(lambda: _all_started(scene, long, 1), "six run")
    second = scene.start(concurrency=10)
    _kill(first)
    _short_jobs_until(scene, lambda: _all_started(scene, long, 2), "all six start again")
    assert {scene.notes("start", job)[1].pid for job in long} == {second.pid}, "as every other job"
    assert _crashes(scene) == {(1, 0)}

    # A second death makes suspects of them: each in a process of its own, all at once, and short jobs still go on.
    third = scene.start(concurrency=10)
    _kill(second)
    _short_jobs_until(scene, lambda: _all_started(scene, long, 3), "all six start a third time")
    assert _crashes(scene) == {(2, 1)}
    children = {scene.notes("start", job)[2].pid for job in long}
    assert len(children) == 6
    assert third.pid not in children
    scene.open("end")
    rows = {r["id"]: r for r in scene.until_finished()}
    assert {(rows[job]["status"], rows[job]["attempts"], rows[job]["lease_generation"]) for job in long} == {
        ("completed", 1, 3)
    }
    # What is known is said: nobody saw them die.
    kinds = scene.kit.sql("SELECT DISTINCT kind FROM holdfast.errors")
    assert kinds == [{"kind": "WorkerSilent"}]


DEFAULTS = Settings()
DEFAULT_TIMINGS = {
    name: getattr(DEFAULTS, name) for name in ("lease", "heartbeat", "dead_after", "sweep", "poll")
}
DEFAULT_BOUND = DEFAULTS.dead_after + DEFAULTS.sweep + within(3.0)


def _start_again_in_time(scene: Scene, victim: WorkerProcess, jobs: list[UUID], times: int) -> None:
    """Kill a worker. Its jobs start again within the bound, and so does each short job that is enqueued meanwhile."""
    _kill(victim)
    died = time.time()
    while not _all_started(scene, jobs, times):
        asked = time.monotonic()
        scene.until_status(quick.enqueue().id, "completed", DEFAULT_BOUND)
        assert time.monotonic() - asked < DEFAULT_BOUND, "a short job"
        assert time.time() - died < 2 * DEFAULT_BOUND, "the jobs of the dead worker do not start again"
    last = max(scene.notes("start", job)[times - 1].at for job in jobs)
    assert last - died < DEFAULT_BOUND


@pytest.mark.slow
def test_after_a_crash_nobody_waits_longer_than_promised_at_default_timings(scene: Scene) -> None:
    long = [plain.enqueue("end").id for _ in range(6)]
    first = scene.start(concurrency=6, **DEFAULT_TIMINGS)
    wait_until(lambda: _all_started(scene, long, 1), "six run")
    second = scene.start(concurrency=10, **DEFAULT_TIMINGS)
    _start_again_in_time(scene, first, long, 2)
    scene.start(concurrency=10, **DEFAULT_TIMINGS)
    _start_again_in_time(scene, second, long, 3)
    assert len({scene.notes("start", job)[2].pid for job in long}) == 6, "each in a process of its own"
    scene.open("end")
    scene.until_finished()


KINDS = {
    "ordered": QueueRules("key", "skip"),
    "fair": QueueRules(fair=True, key_concurrency=2),
    "limited": QueueRules(concurrency=2),
    "rated": QueueRules(rate=Rate(50, burst=1)),
}
STEPS = """
import asyncio
from {module} import app
asyncio.run(app.run_worker(queues=["steps"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_killer_in_any_kind_of_queue_is_buried_and_its_neighbours_complete(scene: Scene, kind: str) -> None:
    Operator(scene.kit.database, "ann").create_queue("steps", rules=KINDS[kind])
    poison = crash.using(queue="steps", partition_key="a").enqueue("kill").id
    neighbours = [
        record.using(queue="steps", partition_key=key).enqueue(seconds=0.01).id for key in ("a", "b") * 3
    ]
    for _ in range(2):
        dying = scene.start(program=STEPS, ready=False)
        assert dying.wait(BOUND + SLOW) == -signal.SIGKILL
    worker = scene.start(program=STEPS)
    row = scene.until_status(poison, "dead_letter", BOUND + SLOW)
    assert row["crashes"] <= 4
    rows = {r["id"]: r["status"] for r in scene.until_finished()}
    assert {rows[job] for job in neighbours} == {"completed"}
    assert worker.is_running


@pytest.mark.parametrize("form", [crash, crash_async, crash_tx, crash_batch], ids=lambda task: task.name)
def test_a_job_that_kills_its_process_is_found_in_a_child_and_takes_no_neighbour_with_it(
    scene: Scene, form: Any
) -> None:
    poison = form.enqueue("kill").id
    for _ in range(2):
        dying = scene.start(concurrency=4)
        assert dying.wait(BOUND + SLOW) == -signal.SIGKILL
    neighbour = plain.enqueue("end").id
    worker = scene.start(concurrency=4)
    row = scene.until_status(poison, "dead_letter", BOUND + SLOW)
    assert row["last_error"] == (
        "ProcessDied: the process was killed by signal 9 (SIGKILL); "
        "processes that had this job died or fell silent 3 times"
    )
    assert row["crashes"] == 3
    assert len(scene.notes("start", poison)) == 3
    scene.until_noted("start", neighbour)
    scene.open("end")
    row = scene.until_status(neighbour, "completed")
    assert (row["lease_generation"], row["crashes"]) == (1, 0)
    assert worker.is_running


def test_where_no_child_can_import_the_app_one_suspect_at_a_time_runs_beside_the_others(scene: Scene) -> None:
    env = {"PYTHONWARNINGS": "ignore"}
    suspects = [plain.enqueue("end").id for _ in range(2)]
    poison = crash.enqueue("exit").id
    scene.kit.sql("UPDATE holdfast.work SET crashes = 2, suspect = 1")
    innocent = [record.enqueue(seconds=0.01).id for _ in range(5)]
    worker = scene.start(program=CANNOT_IMPORT, env=env)
    scene.until_noted("start", suspects[0])
    for job in innocent:  # the others go on
        scene.until_status(job, "completed")
    settle_down(3 * SWEEP)
    started = [job for job in [*suspects, poison] if scene.notes("start", job)]
    assert len(started) == 1
    assert scene.notes("start", suspects[0])[0].pid == worker.pid
    scene.open("end")
    # The third and the fourth death, and nobody else is buried.
    for _ in range(2):
        assert worker.wait(BOUND + SLOW) == 3
        worker = scene.start(program=CANNOT_IMPORT, env=env, ready=False)
    row = scene.until_status(poison, "dead_letter", BOUND + SLOW)
    assert row["last_error"] == (
        "WorkerSilent: processes that had this job died or fell silent 4 times; the last one fell silent"
    )
    rows = [r for r in scene.until_finished() if r["id"] != poison]
    assert {(r["id"], r["status"]) for r in rows} == {(job, "completed") for job in [*suspects, *innocent]}


def _make_suspects(scene: Scene) -> None:
    scene.kit.sql("UPDATE holdfast.work SET crashes = 2, suspect = 1")


@pytest.mark.parametrize("concurrency", [2, 10])
def test_suspects_leave_half_of_the_slots_to_jobs_that_wait(scene: Scene, concurrency: int) -> None:
    """They never end here, so whatever completes has slots of its own. Once nothing else waits, they use those too."""
    suspects = [plain.enqueue("end").id for _ in range(concurrency)]
    _make_suspects(scene)
    short = [quick.enqueue().id for _ in range(100)]
    scene.start(concurrency=concurrency)
    for job in short:
        scene.until_status(job, "completed")
    wait_until(lambda: _all_started(scene, suspects, 1), "suspects have what is free")


def test_a_suspect_that_ends_makes_room_for_a_job_that_waits_before_the_next_suspect(scene: Scene) -> None:
    first, second = plain.enqueue("first").id, plain.enqueue("end").id
    _make_suspects(scene)
    scene.start(concurrency=2)
    wait_until(lambda: _all_started(scene, [first, second], 1), "both slots have a suspect")
    more = [plain.using(priority=100).enqueue("end").id for _ in range(3)]
    _make_suspects(scene)
    short = quick.enqueue().id
    scene.open("first")
    scene.until_status(short, "completed")
    wait_until(lambda: any(scene.notes("start", job) for job in more), "then it is a suspect's turn")


def test_a_worker_that_is_frozen_again_and_again_buries_nothing(scene: Scene) -> None:
    job = plain.enqueue("end").id
    workers = [scene.start(), scene.start()]
    for times in range(1, 4):
        owner = scene.until_noted("start", job, times, BOUND + SLOW)[-1].pid
        (frozen,) = [worker for worker in workers if worker.pid == owner]
        frozen.kill(signal.SIGSTOP)
        scene.until_noted("start", job, times + 1, BOUND + SLOW)
        frozen.kill(signal.SIGCONT)
        # It takes back what its silence counted, though another worker has the job.
        wait_until(lambda: _crashes(scene) == {(0, 0)}, "the count is taken back", SLOW)
    kinds = scene.kit.sql("SELECT kind, count(*) AS n FROM holdfast.errors GROUP BY kind")
    assert kinds == [{"kind": "WorkerFrozen", "n": 3}]
    scene.open("end")
    row = scene.until_status(job, "completed")
    assert (row["attempts"], row["crashes"]) == (1, 0)


SCRIPT = """
import asyncio, os
from pathlib import Path
from holdfast import Holdfast
folder = Path(os.environ["CRASH_FOLDER"])
with (folder / "runs").open("a") as file:
    file.write("run ")
app = Holdfast()

@app.task
def where() -> int:
    return os.getpid()

if __name__ == "__main__":
    asyncio.run(app.run_worker())
"""


def test_a_script_is_not_run_a_second_time_for_a_suspect(scene: Scene) -> None:
    job = scene.kit.app.send("where", {}).id
    scene.kit.sql("UPDATE holdfast.work SET crashes = 2, suspect = 1")
    script = scene.folder / "script.py"
    script.write_text(SCRIPT)
    worker = scene.start(
        program=f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", ready=False
    )
    row = scene.until_status(job, "completed")
    assert row["result"] == worker.pid
    assert (scene.folder / "runs").read_text() == "run "


def test_a_task_of_a_handler_that_exits_fails_its_job_and_not_the_worker(scene: Scene) -> None:
    worker = scene.start(command_line=True)
    neighbour = plain.enqueue("end").id
    scene.until_noted("start", neighbour)
    leaver = exit_beside.enqueue().id
    row = scene.until_status(leaver, "dead_letter")
    assert (row["last_error"], row["attempts"], row["crashes"]) == ("SystemExit: 3", 1, 0)
    (event,) = worker.events("worker.exit_ignored")
    assert event["code"] == "int 3"
    scene.open("end")
    row = scene.until_status(neighbour, "completed")
    assert (row["lease_generation"], row["attempts"]) == (1, 1)
    worker.kill(signal.SIGTERM)
    assert worker.wait() == 0


def test_what_a_supervisor_saw_is_said(scene: Scene) -> None:
    job = crash.enqueue("exit").id
    scene.start(words=("--processes", "2"), ready=False)
    row = scene.until_status(job, "dead_letter", 2 * (BOUND + SLOW))
    assert row["last_error"] == (
        "ProcessDied: the process ended with exit code 3; processes that had this job died or fell silent 3 times"
    )
    errors = (
        "SELECT DISTINCT kind FROM holdfast.errors WHERE message LIKE 'the process ended with exit code 3%'"
    )
    silent = "SELECT 1 AS one FROM holdfast.errors WHERE kind = 'WorkerSilent'"
    # Each is reported by the process that takes its place, before the sweep or after it.
    wait_until(lambda: not scene.kit.sql(silent), "the deaths are called deaths", BOUND + SLOW)
    assert scene.kit.sql(errors) == [{"kind": "ProcessDied"}]
