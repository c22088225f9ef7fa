"""Owners of a run are killed at its records, or told to leave: the next one goes on, and no body runs after its record."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash.process import Scene
from tests.workflows.workflow_app import GO, app, lanes, rests

from holdfast.testing import Kit

MODULE = "tests.workflows.workflow_app"
RESULT = ["FIRST", "0.0 0.1 0.2 0.3", "1.0 1.1 1.2", "2.0 2.1", "3.0", "LAST"]


@pytest.fixture
def scene(holdfast_kit: Callable[..., Kit], tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(holdfast_kit(app, QUICK), tmp_path)
    yield scene
    scene.end()


def test_a_gather_goes_on_on_other_workers_and_no_recorded_body_runs_again(scene: Scene) -> None:
    run = lanes.start()
    for failpoint in ("record.done=kill", "record.before=kill"):
        dying = scene.start(failpoints=failpoint, ready=False, module=MODULE)
        assert dying.wait() == -signal.SIGKILL
    recorded = {line.key for line in run.timeline()}
    before = Counter((scene.folder / "bodies").read_text().split())
    scene.start(ready=False, module=MODULE)
    wait_until(lambda: run.state()[0] == "completed", "the run ends")
    assert run.result(timeout=25) == RESULT
    bodies = Counter((scene.folder / "bodies").read_text().split())
    assert "note" in recorded
    assert {key: bodies[key] for key in recorded} == {key: before[key] for key in recorded}
    assert bodies["note"] == 1  # its record was committed before the first kill
    assert max(bodies.values()) <= 1 + 2
    assert set(bodies) == {line.key for line in run.timeline()}


def test_sigterm_puts_runs_away_that_rest_and_the_next_worker_goes_on(scene: Scene) -> None:
    kit = scene.kit
    runs = [rests.start() for _ in range(5)]
    leaving = scene.start(ready=False, module=MODULE, command_line=True)
    resting = "SELECT count(*) AS n FROM holdfast.work WHERE status = 'processing'"
    recorded = "SELECT count(*) AS n FROM holdfast.workflow_steps"
    wait_until(
        lambda: kit.sql(resting) == kit.sql(recorded) == [{"n": 5}], "all of them have a record, and rest"
    )
    leaving.kill(signal.SIGTERM)
    assert leaving.wait(60) == 0
    assert {run.state()[0] for run in runs} == {"suspended"}
    spent = kit.sql("SELECT DISTINCT status, attempts, crashes FROM holdfast.work")
    assert spent == [{"status": "pending", "attempts": 0, "crashes": 0}]
    scene.start(ready=False, module=MODULE)
    for run in runs:
        assert run.signal(GO("on"))
    assert [run.result(timeout=60) for run in runs] == ["on"] * 5
    assert Counter((scene.folder / "bodies").read_text().split()) == {"note": 5}
