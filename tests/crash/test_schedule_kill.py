"""A worker is killed while it fires a schedule: the slot has a job and a firing, or neither."""

import signal
from datetime import timedelta

import pytest
from tests.conftest import wait_until
from tests.crash.crash_app import app, plain
from tests.crash.process import Scene


@pytest.mark.parametrize("hop", ["schedules.enqueued", "schedules.committed"])
def test_a_kill_while_a_slot_fires_loses_no_slot_and_fires_none_twice(scene: Scene, hop: str) -> None:
    """Before the commit nothing of the slot is there; after it, all of it. Another worker goes on from either."""
    app.schedules.add("tick", timedelta(seconds=1), plain.job(), missed="run_all")
    (row,) = scene.kit.sql("SELECT decided_to FROM holdfast.schedules")
    dying = scene.start(failpoints=f"{hop}=kill", ready=False)
    assert dying.wait() == -signal.SIGKILL
    fired = scene.kit.sql("SELECT job_id FROM holdfast.firings")
    jobs = [job["id"] for job in scene.kit.jobs("plain")]
    assert [f["job_id"] for f in fired] == jobs
    if hop == "schedules.enqueued":
        assert fired == []
    scene.start()
    wait_until(lambda: len(scene.kit.sql("SELECT slot FROM holdfast.firings")) >= 4, "slots fire")
    app.schedules.pause("tick")
    rows = scene.kit.sql("SELECT slot, job_id FROM holdfast.firings ORDER BY slot")
    first = row["decided_to"].replace(microsecond=0) + timedelta(seconds=1)
    assert [r["slot"] for r in rows] == [first + timedelta(seconds=n) for n in range(len(rows))]
    assert sorted(r["job_id"] for r in rows) == sorted(job["id"] for job in scene.kit.jobs("plain"))
