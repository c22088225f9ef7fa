"""Workers are killed while they settle attempts with rows: each end has its rows once, and no row is without its end."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import QUICK
from tests.crash.process import Scene
from tests.shapes import notes

from holdfast.testing import Kit


@pytest.fixture
def scene(holdfast_kit: Callable[..., Kit], tmp_path: Path) -> Iterator[Scene]:
    kit = holdfast_kit(notes.app, QUICK)
    kit.sql(notes.TABLE)
    scene = Scene(kit, tmp_path)
    yield scene
    scene.end()


@pytest.mark.parametrize("hop", ["settle.beside", "settle.committed"])
def test_a_kill_leaves_the_settle_and_its_rows_or_neither(scene: Scene, hop: str) -> None:
    ids = [notes.note.enqueue(n=n).id for n in range(6)]
    dying = scene.start(failpoints=f"{hop}=kill", ready=False, module="tests.shapes.notes")
    assert dying.wait() == -signal.SIGKILL
    settled = scene.kit.sql("SELECT id FROM holdfast.archive ORDER BY id")
    assert bool(settled) == (hop == "settle.committed")
    assert scene.kit.sql("SELECT DISTINCT job_id AS id FROM holdfast.notes ORDER BY job_id") == settled
    scene.start(ready=False, module="tests.shapes.notes")
    scene.until_finished()
    rows = scene.kit.sql("SELECT job_id, count(*) AS n FROM holdfast.notes GROUP BY job_id ORDER BY job_id")
    assert [(row["job_id"], row["n"]) for row in rows] == [(job, 2) for job in sorted(ids)]
