"""Handlers in child processes keep the order of a key, also when they fail and when their process dies."""

import pytest
from tests.processes.conftest import Scene
from tests.processes.process_app import app, in_order

pytestmark = pytest.mark.usefixtures("adopted")


def test_handlers_in_processes_run_one_after_the_other_within_a_key(scene: Scene) -> None:
    app.enqueue_many(
        in_order.using(partition_key=key, max_attempts=10).job(key=key, n=n)
        for n in range(1, 6)
        for key in ("a", "b")
    )
    for _ in range(10):  # a child that was killed costs its job a short pause
        scene.kit.clock.advance(60)
        scene.kit.run_worker(concurrency=4)
    assert scene.kit.sql("SELECT id FROM holdfast.work") == []
    lines = (scene.folder / "notes").read_text(encoding="utf-8").splitlines()
    for key in ("a", "b"):
        noted = [line.split(" ", 2) for line in lines if line.split()[-2:-1] == [key]]
        steps = [(kind, int(text.split()[1])) for kind, _, text in noted]
        begun = [n for kind, n in steps if kind == "begins"]
        assert begun == sorted(begun)
        assert begun.count(2) == 2
        assert begun.count(3) >= 2
        assert steps == [(kind, n) for n in begun for kind in ("begins", "ends")]
