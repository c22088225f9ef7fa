"""Owners and the server are killed with -9 after every statement by which events are read, applied, rebuilt and swapped."""

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash import rebuild_app, statements
from tests.crash.events_app import TABLES, app
from tests.crash.process import Scene
from tests.crash.test_events_crash import MODULE, each_once, effects, publish, scene
from tests.events.log_support import own_server

from holdfast import DatabaseError
from holdfast.db.embedded import EmbeddedServer
from holdfast.shapes import events
from holdfast.testing import Kit

__all__ = ["scene"]

REBUILD = "tests.crash.rebuild_app"
READ = [
    "subscribe",
    "own_subscriptions",
    "turn_and_look",
    "read_events",
    "parked_event_keys",
    "hold_position",
]
OWNER = [*READ, "want_shards", "advance", "advance_jobs"]
BUILDER = [
    *(*READ, "want_shards", "advance"),
    *("build_of", "live_position", "wait_for_locks", "lock_positions", "enter_shadow", "current_xid"),
    *("written_beside", "swap_projection"),
]
BEGIN = {"subscribe", "parked_event_keys", "want_shards"}  # once in the life of a worker
OTHERWISE = {
    "empty_event_slots",
    "prune_event_ids",
    "owned_subscriptions",
    "end_backend",
    "release_subscriptions",
}
OURS = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
TOTALS = "SELECT key, n FROM totals ORDER BY key"


def check_all_are_listed(folder: Path, listed: Iterable[str]) -> None:
    """Whatever else the workers asked of the log is housekeeping."""
    known = set(OURS.findall((Path(events.__file__).parent / "queries.sql").read_text(encoding="utf-8")))
    assert statements.seen(folder) & known - OTHERWISE == set(listed)


@pytest.mark.slow
def test_an_owner_that_is_killed_after_any_statement_loses_and_repeats_nothing(scene: Scene) -> None:
    for name in OWNER:
        publish(2)
        dying = scene.start(failpoints=f"statement.{name}=kill", ready=False, module=MODULE)
        assert dying.wait() == -signal.SIGKILL, name
    scene.start(module=MODULE)
    publish(2)
    each_once(scene, range(1, 2 * len(OWNER) + 3))
    check_all_are_listed(scene.folder, OWNER)


@pytest.fixture
def rebuilding(holdfast_kit: Callable[..., Kit], tmp_path: Path) -> Iterator[Scene]:
    kit = holdfast_kit(rebuild_app.app, QUICK)
    kit.sql(rebuild_app.TABLE)
    scene = Scene(kit, tmp_path)
    yield scene
    scene.end()


def count(number: int) -> None:
    rebuild_app.app.publish_many([("counted", {}, f"k{n % 5}") for n in range(number)])


@pytest.mark.slow
def test_a_worker_that_is_killed_after_any_statement_of_a_rebuild_loses_and_repeats_nothing(
    rebuilding: Scene,
) -> None:
    """One rebuild that many die over; what it swaps in is what the log says."""
    kit = rebuilding.kit
    count(50)
    first = rebuilding.start(ready=False, module=REBUILD)
    wait_until(lambda: kit.sql("SELECT 1 FROM holdfast.subscriptions WHERE position = 50"), "applied", 60)
    first.kill(signal.SIGKILL)
    first.wait()
    kit.sql("UPDATE totals SET n = 0")  # what the rebuild puts right
    rebuild_app.totals.rebuild()
    for name in BUILDER:
        count(5)
        dying = rebuilding.start(failpoints=f"statement.{name}=kill", ready=False, module=REBUILD)
        assert dying.wait(60) == -signal.SIGKILL, name
    rebuilding.start(ready=False, module=REBUILD)
    last = 50 + 5 * len(BUILDER)
    building = "SELECT 1 FROM holdfast.subscriptions WHERE name <> 'totals' OR position < %s"
    wait_until(lambda: not kit.sql(building, [last]), "the tables are swapped", 60)
    assert kit.sql(TOTALS) == [{"key": f"k{n}", "n": last // 5} for n in range(5)]
    check_all_are_listed(rebuilding.folder, BUILDER)


def arm(server: EmbeddedServer, folder: Path, name: str) -> None:
    """The worker that runs this statement next kills the server."""
    (folder / "server.new").write_text(f"{name} {server._place.data / 'postmaster.pid'}", encoding="utf-8")
    os.rename(folder / "server.new", folder / "server")


def kill_at(
    server: EmbeddedServer, folder: Path, name: str, act: Callable[[], object], then: str | None = None
) -> None:
    """The worker that has run this statement kills the server; it is started again. `then`: the next statement, which is
    armed before a worker can run it."""
    pid = server.pid
    assert pid
    if not (folder / "server").exists():
        arm(server, folder, name)
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        wait_until(lambda: not (folder / "server").exists() or server.pid != pid, f"{name} was run", 60)
        wait_until(lambda: server.pid != pid, "the server is gone", 60)
        if then is not None:
            arm(server, folder, then)
        server.ensure_running()
        acting.result()


def publish_surely(count: int) -> None:
    """Until they are known to be there: their ids make each one event."""
    made = [app.events.new("thing.done", {}, key=f"key:{n % 3}", id=uuid4()) for n in range(count)]

    def done() -> bool:
        try:
            app.publish_many(made)
        except DatabaseError:
            return False
        return True

    wait_until(done, "they are published", 60)


@pytest.mark.slow
def test_a_server_that_is_killed_after_any_statement_of_an_owner_loses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    with own_server(None, synchronous_commit="on") as server:
        kit = Kit(app, server.dsn(), QUICK)
        kit.sql(TABLES)
        scene = Scene(kit, tmp_path)
        try:
            scene.start(module=MODULE)
            publish_surely(1)
            wait_until(lambda: len(effects(scene)) == 3, "it works", 60)
            # More than is read together with the turn of a page, so that some are read by themselves.
            for name in (name for name in OWNER if name not in BEGIN):
                kill_at(server, tmp_path, name, lambda: publish_surely(150))
            publish_surely(1)
            each_once(scene, range(1, 150 * (len(OWNER) - len(BEGIN)) + 3))
        finally:
            scene.end()
            kit.close()


@pytest.mark.slow
def test_a_server_that_is_killed_after_any_statement_of_a_rebuild_loses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    with own_server(None, synchronous_commit="on") as server:
        kit = Kit(rebuild_app.app, server.dsn(), QUICK)
        kit.sql(rebuild_app.TABLE)
        scene = Scene(kit, tmp_path)
        try:
            count(100)
            scene.start(ready=False, module=REBUILD)
            wait_until(
                lambda: kit.sql("SELECT 1 FROM holdfast.subscriptions WHERE position = 100"), "applied", 60
            )
            kit.sql("UPDATE totals SET n = 0")
            steps = [name for name in BUILDER if name not in OWNER]
            for name, then in zip(steps, [*steps[1:], None], strict=True):
                rebuild = rebuild_app.totals.rebuild if name == steps[0] else None
                kill_at(server, tmp_path, name, rebuild or (lambda: None), then)
            building = "SELECT 1 FROM holdfast.subscriptions WHERE name <> 'totals'"
            wait_until(lambda: not kit.sql(building), "the tables are swapped", 60)
            assert kit.sql(TOTALS) == [{"key": f"k{n}", "n": 20} for n in range(5)]
            assert kit.sql("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, 'holdfast_')") == [
                {"nspname": "holdfast_old_totals"}
            ]
        finally:
            scene.end()
            kit.close()
