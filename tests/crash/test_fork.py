"""A handler forks: parent and child each have connections of their own."""

from tests.crash.crash_app import fork_enqueue, fork_idle, record
from tests.crash.process import Scene


def test_a_handler_may_fork_and_parent_and_child_share_no_connection(scene: Scene) -> None:
    forks = [
        fork_idle.enqueue().id,
        fork_enqueue.enqueue().id,
        fork_idle.enqueue().id,
        fork_enqueue.enqueue().id,
    ]
    others = [record.enqueue(seconds=0.02).id for _ in range(10)]
    worker = scene.start()
    rows = scene.until_finished()
    assert worker.is_running
    assert {r["status"] for r in rows} == {"completed"}, rows
    by_id = {r["id"]: r for r in rows}
    assert [by_id[job]["result"] for job in forks] == [0, 0, 0, 0]
    assert len(rows) == len(forks) + len(others) + 2  # two were enqueued by children
    assert scene.ledger() == dict.fromkeys(by_id, 1)
    assert {r["attempts"] for r in rows} == {1}
