"""A crash or a cut at the worst moment never leaves a follow-up without its completion, nor the other way round."""

import signal

import pytest
from tests.conftest import wait_until
from tests.crash.crash_app import plain, record
from tests.crash.process import Scene
from tests.crash.proxy import Proxy

from holdfast.tasks.task import Task


@pytest.mark.parametrize(
    ("hop", "task"),
    [("settle.before", plain), ("settle.committed", plain), ("transaction.commit", record)],
    ids=["before the settle", "after its commit", "before a handler's own commit"],
)
def test_a_kill_leaves_both_or_neither(scene: Scene, hop: str, task: Task[..., object]) -> None:
    count = 4
    group = scene.kit.app.group(
        [task.using(then=record.using(metadata={"follows": 1}).job()).job() for _ in range(count)],
        then=record.using(metadata={"callback": 1}).job(),
    )
    dying = scene.start(failpoints=f"{hop}=kill", ready=False)
    assert dying.wait() == -signal.SIGKILL
    for job in group.jobs:  # whatever it got to: who is completed is followed, who is not is not
        row = scene.kit.job(job.id)
        query = "SELECT count(*) AS n FROM holdfast.jobs WHERE parent_id = %s AND metadata ? 'follows'"
        follows = scene.kit.sql(query, [job.id])
        assert follows == [{"n": 1 if row["status"] == "completed" else 0}]
    scene.start()
    scene.until_finished()
    followed = scene.kit.sql(
        "SELECT parent_id, count(*) AS n FROM holdfast.jobs WHERE metadata ? 'follows' GROUP BY parent_id"
    )
    assert {r["parent_id"]: r["n"] for r in followed} == {job.id: 1 for job in group.jobs}
    assert scene.kit.sql("SELECT count(*) AS n FROM holdfast.jobs WHERE metadata ? 'callback'") == [{"n": 1}]
    assert (group.status().open, group.status().state) == (0, "finished")


def test_a_settle_in_doubt_is_followed_once(scene: Scene, proxy: Proxy) -> None:
    proxy.cut_after("COMMIT", name="holdfast settle")
    group = scene.kit.app.group([plain.using(then=plain.job()).job()], then=plain.job())
    worker = scene.start(url=proxy.url)
    proxy.until_cut()
    scene.until_finished()
    wait_until(lambda: len(worker.events("job.completed")) >= 3, "the worker knows that all is done")
    assert len(scene.kit.jobs()) == 3
    assert group.status().state == "finished"
    assert not worker.events("job.lost")


def test_a_handlers_commit_in_doubt_is_followed_once(scene: Scene, proxy: Proxy) -> None:
    proxy.cut_after("COMMIT", name="holdfast")
    job = record.using(then=plain.job()).enqueue().id
    scene.start(url=proxy.url)
    proxy.until_cut()
    scene.until_finished()
    assert scene.ledger() == {job: 1}
    assert [r["parent_id"] for r in scene.kit.jobs(plain)] == [job]
