"""A deploy changes the signatures of tasks while both releases produce and work: nothing is buried, and all is done."""

import itertools
import signal
import threading
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash import evolving_new, evolving_old
from tests.crash.process import Scene, WorkerProcess

from holdfast.testing import Kit

KEYS = 5


class Producer:
    """One release of the app, enqueuing a little of everything until it is told to stop."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main)
        self.sent: dict[UUID, str] = {}  # job -> which release can run it

    def __enter__(self) -> "Producer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _main(self) -> None:
        for number in itertools.count():
            for task, arguments, runs in self._module.JOBS:
                self.sent[task.enqueue(*arguments).id] = runs
            for task, arguments, runs in self._module.ORDERED:
                keyed = task.using(partition_key=f"k{number % KEYS}")
                self.sent[keyed.enqueue(*arguments).id] = runs
            if self._stop.wait(0.05):
                return


@pytest.fixture
def kits(holdfast_kit: Callable[..., Kit]) -> None:
    holdfast_kit(evolving_old.app, QUICK)
    holdfast_kit(evolving_new.app, QUICK)


class Fleet:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.started: list[tuple[str, WorkerProcess]] = []

    def start(self, release: str) -> WorkerProcess:
        timings: dict[str, Any] = {"lease": 20.0, "heartbeat": 1.0, "dead_after": 8.0, "drain": 15.0}
        worker = self._scene.start(module=f"tests.crash.evolving_{release}", command_line=True, **timings)
        self.started.append((release, worker))
        return worker

    def replace(self, workers: list[WorkerProcess], release: str) -> list[WorkerProcess]:
        """One after the other, each once its successor is there."""
        fresh = []
        for worker in workers:
            fresh.append(self.start(release))
            self._progress()
            worker.kill(signal.SIGTERM)
            assert worker.wait() == 0
        return fresh

    def _progress(self) -> None:
        """Both releases are at work for a while: some more jobs end."""
        before = self._done()
        wait_until(lambda: self._done() >= before + 20, "jobs end while both releases are there", 60)

    def _done(self) -> int:
        (row,) = self._scene.kit.sql("SELECT count(*) AS n FROM holdfast.archive")
        return int(row["n"])

    def until_held(self, *tasks: str) -> None:
        wanted = set(tasks)

        def held() -> set[str]:
            return {
                r["task"] for r in self._scene.kit.sql("SELECT task FROM holdfast.work WHERE status = 'held'")
            }

        wait_until(lambda: wanted <= held(), f"jobs of {wanted} are set aside", 60)


@pytest.mark.slow
@pytest.mark.usefixtures("kits")
def test_a_deploy_and_its_rollback_bury_nothing_with_and_without_a_new_payload_version(scene: Scene) -> None:
    fleet = Fleet(scene)
    workers = [fleet.start("old"), fleet.start("old")]
    with Producer(evolving_old) as old, Producer(evolving_new) as new:
        fleet.until_held(
            "grows", "needs", "retyped", "bumped", "upgraded", "in_order"
        )  # nobody of the new release yet
        workers = fleet.replace(workers, "new")
        fleet.until_held("shrinks", "needs", "retyped", "bumped")  # and now nobody of the old one
        workers = fleet.replace(workers, "old")
        fleet.until_held("grows", "needs", "retyped", "bumped", "upgraded", "in_order")
        fleet.start("new")
    rows = scene.until_finished(120)

    sent = old.sent | new.sent
    assert {row["id"] for row in rows} == set(sent)
    assert {(row["status"], row["attempts"]) for row in rows} == {("completed", 1)}
    wrong = [row for row in rows if sent[row["id"]] not in ("either", row["result"])]
    assert wrong == []
    ordered = (
        "SELECT partition_key, seq FROM holdfast.archive WHERE queue = 'steps' ORDER BY completed_at, seq"
    )
    by_key: dict[str, list[int]] = {}
    for row in scene.kit.sql(ordered):
        by_key.setdefault(row["partition_key"], []).append(row["seq"])
    assert len(by_key) == KEYS
    assert all(done == sorted(done) for done in by_key.values())  # also while a job of the key was set aside
    back = Counter(event["job"] for _, worker in fleet.started for event in worker.events("job.released"))
    # No release has set one aside twice, but for one that a draining worker handed back.
    for release in ("old", "new"):
        aside = Counter(
            event["job"]
            for name, worker in fleet.started
            if name == release
            for event in worker.events("job.held")
            if event["task"] != "after"  # nobody refuses a name that it does not know
        )
        assert aside, release
        assert {job: count for job, count in aside.items() if count > 1 + back[job]} == {}, release
