"""Follow-ups and groups of jobs that run in child processes."""

import pytest
from tests.processes.conftest import Scene
from tests.processes.process_app import app, family, pid

pytestmark = pytest.mark.usefixtures("adopted")


def test_a_child_process_is_followed_and_knows_its_parent(scene: Scene) -> None:
    group = app.group([family.using(then=family.using(then=pid.job()).job()).job()], then=pid.job())
    scene.kit.run_worker(concurrency=1)
    first, second = scene.kit.jobs(family)
    assert first["result"][:2] == ["None", str(group.id)]
    assert second["result"][:2] == [str(first["id"]), "None"]
    last = scene.kit.jobs(pid)
    assert {row["parent_id"] for row in last} == {first["id"], second["id"]}
    assert {row["status"] for row in scene.kit.jobs()} == {"completed"}
    assert group.status().state == "finished"
