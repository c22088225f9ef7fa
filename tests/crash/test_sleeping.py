"""A worker that dies in its sleep."""

import signal

from tests.conftest import wait_until
from tests.crash.process import Scene


def test_a_worker_killed_while_it_sleeps_leaves_no_row_among_the_sleepers(scene: Scene) -> None:
    look = "SELECT s.worker, w.pid FROM holdfast.sleepers s LEFT JOIN holdfast.workers w ON w.id = s.worker"
    worker = scene.start(poll=30)
    wait_until(lambda: [r["pid"] for r in scene.kit.sql(look)] == [worker.pid], "it sleeps")
    worker.kill()
    worker.wait()
    assert len(scene.kit.sql(look)) == 1
    other = scene.start(poll=30, command_line=True)
    wait_until(lambda: [r["pid"] for r in scene.kit.sql(look)] == [other.pid], "the other one sleeps alone")
    other.kill(signal.SIGTERM)
    assert other.wait() == 0
    assert scene.kit.sql(look) == []
