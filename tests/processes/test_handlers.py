"""What a handler with process=True can do: everything a handler can, in a process of its own that is used again."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.conftest import await_until, wait_until
from tests.flow.test_run import working
from tests.processes.conftest import Scene, is_gone
from tests.processes.process_app import (
    Order,
    apid,
    app,
    awrite,
    behind,
    command,
    context,
    far,
    forgetful,
    leaky,
    pid,
    signals,
    steps,
    total,
    write,
)

import holdfast
from holdfast import telemetry
from holdfast.runtime.processes import child_thread, pool, wear

pytestmark = pytest.mark.usefixtures("adopted")


def test_a_child_is_used_again_for_sync_and_async_handlers(
    scene: Scene, events: list[telemetry.Event]
) -> None:
    handles = [pid.enqueue(), apid.enqueue(), pid.enqueue()]
    scene.kit.run_worker(concurrency=1)
    (one,) = {handle.result(timeout=25) for handle in handles}
    assert one != os.getpid()
    assert is_gone(one)
    assert [p for p, _ in scene.notes("enter")] == [os.getpid(), one]  # the lifespan, once in each process
    assert [p for p, _ in scene.notes("exit")] == [one, os.getpid()]
    assert scene.notes("middleware") == [(one, "pid"), (one, "apid"), (one, "pid")]
    hooks = [("thread" if "handler" in name else "task", p) for p, name in scene.notes("hook")]
    assert hooks == [("thread", one), ("task", one), ("thread", one)]
    told = [(e.name, e.fields["pid"]) for e in events if e.name in ("process.started", "process.ended")]
    assert told == [("process.started", one), ("process.ended", one)]


def test_a_child_is_replaced_after_process_jobs(scene: Scene) -> None:
    scene.settings(process_jobs=2)
    handles = [pid.enqueue() for _ in range(5)]
    scene.kit.run_worker(concurrency=1)
    a, b, c, d, e = [handle.result(timeout=25) for handle in handles]
    assert a == b
    assert c == d
    assert len({a, c, e}) == 3


def test_a_child_that_keeps_growing_is_replaced(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wear, "_LOOK", 1)  # after each job
    handles = [pid.enqueue(), pid.enqueue(), leaky.enqueue(), pid.enqueue()]
    scene.kit.run_worker(concurrency=1)
    a, b, c, d = [handle.result(timeout=25) for handle in handles]
    assert a == b == c
    assert d != c


def test_jobs_at_the_same_time_have_a_child_each(scene: Scene) -> None:
    handles = [behind.enqueue("go") for _ in range(2)]

    async def main() -> None:
        async with working(scene.kit, concurrency=2):
            await await_until(lambda: len(scene.notes("start")) == 2, "both run")
            scene.open("go")
            await await_until(lambda: all(scene.end(h.id)[0] == "completed" for h in handles), "both end")
        await scene.kit.database.aclose()

    asyncio.run(main())
    assert len({handle.result(timeout=25) for handle in handles}) == 2


async def test_idle_children_beyond_a_few_end_after_a_while(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_thread, "IDLE", 0.2)
    monkeypatch.setattr(pool, "SPARE", 1)
    handles = [behind.enqueue("go") for _ in range(2)]
    async with working(scene.kit, concurrency=2):
        await await_until(lambda: len(scene.notes("start")) == 2, "both run")
        scene.open("go")
        pids = [await handle.aresult(timeout=150) for handle in handles]
        await await_until(lambda: any(is_gone(p) for p in pids), "one of them ends")
        assert await pid.enqueue().aresult(timeout=150) in pids
    await scene.kit.database.aclose()


@pytest.mark.usefixtures("started")
def test_what_a_child_is_given(scene: Scene) -> None:
    """The payload, decoded and checked there; the context of its job; and no password on the command line."""
    text = "\x80\x04\x95 cos\nsystem\n(S'exit'\ntR."  # looks like a pickle, is a string
    good = total.enqueue(Order(id=7, lines=["a", "b"]), note=text)
    bad = app.send("total", {"order": {"id": "x", "lines": []}, "note": ""})
    about, line = context.enqueue(), command.enqueue()
    scene.kit.run_worker(concurrency=1)
    assert good.result(timeout=25) == [7, 2, text]
    aside = scene.kit.job(bad.id)
    assert (aside["status"], aside["attempts"]) == ("held", 0)
    assert "parameter 'order' of total must be Order" in aside["hold_reason"]
    said = scene.kit.sql(
        "SELECT signatures ->> 'total/1' = (SELECT signature FROM holdfast.misfits) AS same FROM holdfast.workers"
    )
    assert said == [{"same": True}]
    (worker,) = scene.kit.sql("SELECT id FROM holdfast.workers")
    assert about.result(timeout=25) == {
        "job": str(about.id),
        "task": "context",
        "queue": "inbox",
        "attempt": 1,
        "worker": worker["id"],
    }
    words = line.result(timeout=25)
    assert words[-3:-1] == ["-m", "holdfast.child"]
    assert words[-1].isdigit()
    assert scene.kit.url not in " ".join(words)


def test_no_pickle_anywhere() -> None:
    source = Path(holdfast.__file__).parent
    for file in source.rglob("*.py"):
        if "bench" in file.parts:
            continue  # its producers are processes of its own
        text = file.read_text(encoding="utf-8")
        for word in (
            "import pickle",
            "from pickle",
            "import multiprocessing",
            "from multiprocessing",
            "marshal",
        ):
            assert word not in text, f"{file.name}: {word}"


def test_how_a_handler_may_end(scene: Scene) -> None:
    ways = ["", "retry", "snooze", "dead", "cancel", "error", "exit"]
    jobs = {how: signals.using(metadata={"tenant": "t1"}).enqueue(how) for how in ways}
    scene.kit.run_worker(concurrency=1)
    found = {how: scene.end(handle.id) for how, handle in jobs.items()}
    assert found == {
        "": ("completed", 1, None),
        "retry": ("scheduled", 1, "Retry: the bank was busy"),
        "snooze": ("scheduled", 0, None),
        "dead": ("dead_letter", 1, "DeadLetter: no such order"),
        "cancel": ("cancelled", 1, "not needed"),
        "error": ("scheduled", 1, "ValueError: out of range"),
        "exit": ("scheduled", 1, "SystemExit: 3"),
    }
    result = jobs[""].result(timeout=25)
    assert result.startswith("signals 1 t1 ")
    assert 'raise ValueError("out of range")' in scene.trace(jobs["error"].id)


def test_writes_follow_ups_and_completion_commit_together_on_the_clock_of_the_kit(scene: Scene) -> None:
    scene.kit.sql("CREATE TABLE notes (text text)")
    scene.kit.clock.advance(86_400)
    one, two = write.enqueue("a"), awrite.enqueue("b")
    scene.kit.run_worker(concurrency=1)
    assert [r["text"] for r in scene.kit.sql("SELECT text FROM notes ORDER BY text")] == ["a", "b"]
    assert (one.result(timeout=25), two.result(timeout=25)) == ("a", "b")
    (worker,) = scene.kit.sql("SELECT id FROM holdfast.workers")
    for handle in (one, two):
        row = scene.kit.job(handle.id)
        assert (row["status"], row["attempts"], row["claimed_by"]) == ("completed", 1, worker["id"])
        assert row["completed_at"] > datetime.now(UTC) + timedelta(hours=23)
    assert [row["status"] for row in scene.kit.jobs(pid)] == ["completed"]
    (ids,) = scene.kit.sql(
        "SELECT n.xmin::text AS n, a.xmin::text AS a FROM notes n, holdfast.archive a "
        "WHERE a.id = %s AND n.text = 'a'",
        [one.id],
    )
    assert ids["n"] == ids["a"]


def test_a_step_is_recorded_once(scene: Scene) -> None:
    handle = steps.enqueue()
    scene.settings(process_jobs=1)  # each attempt in another process
    scene.kit.run_worker(concurrency=1)
    assert handle.result(timeout=25) in [p for p, _ in scene.notes("enter")]
    assert len(scene.notes("enter")) == 3
    assert scene.end(handle.id)[:2] == ("completed", 2)


async def test_progress_is_written_while_it_runs(scene: Scene) -> None:
    handle = far.enqueue("go")

    def written() -> bool:
        rows = scene.kit.sql("SELECT fraction, message FROM holdfast.progress WHERE job_id = %s", [handle.id])
        return rows == [{"fraction": 0.5, "message": "half way"}]

    async with working(scene.kit):
        await await_until(written, "the progress is in the row")
        scene.open("go")
        await handle.aresult(timeout=150)
    await scene.kit.database.aclose()


def test_a_child_that_does_not_end_is_killed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_thread, "PART", 0.3)
    handle = forgetful.enqueue()
    scene.kit.run_worker(concurrency=1)
    wait_until(lambda: is_gone(handle.result(timeout=25)), "it is gone")
