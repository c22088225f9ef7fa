"""Owners of subscriptions are killed, stopped and cut off: no event is lost, and none takes effect twice."""

import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash import rebuild_app
from tests.crash.events_app import TABLES, app
from tests.crash.process import DEAD_AFTER, Scene, WorkerProcess
from tests.pg_versions import server_folder

from holdfast import DatabaseError
from holdfast.db import migrate
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer
from holdfast.testing import Kit

MODULE = "tests.crash.events_app"
WHO = ("consume", "asynchronous", "threaded")


@pytest.fixture
def scene(holdfast_kit: Callable[..., Kit], tmp_path: Path) -> Iterator[Scene]:
    kit = holdfast_kit(app, QUICK)
    kit.sql(TABLES)
    scene = Scene(kit, tmp_path)
    yield scene
    scene.end()


def publish(count: int, **data: object) -> None:
    app.publish_many([("thing.done", data, f"key:{n % 3}") for n in range(count)])


def effects(scene: Scene) -> Counter[tuple[str, int]]:
    return Counter((r["who"], r["position"]) for r in scene.kit.sql("SELECT who, position FROM effects"))


def jobs(scene: Scene) -> Counter[int]:
    """How many jobs each position became."""
    rows = scene.kit.sql("SELECT (payload -> 'event' ->> 'position')::int AS position FROM holdfast.jobs")
    return Counter(row["position"] for row in rows)


def each_once(scene: Scene, positions: range) -> None:
    """All of it took effect, and now nothing is behind: then each event did so once."""
    wanted = {(who, position) for who in WHO for position in positions}
    wait_until(lambda: wanted <= effects(scene).keys(), "every event takes effect", 60)
    assert effects(scene) == dict.fromkeys(wanted, 1)
    assert jobs(scene) == dict.fromkeys(positions, 1)


HOPS = [
    "subscriptions.turn_and_look.done",
    "subscriptions.subscribe.done",
    "subscriptions.own_subscriptions.done",  # owned, and nobody here knows
    "events.read",
    "events.advanced",  # in the transaction, before the jobs
    "events.enqueued",  # in the transaction, after them
    "events.jobs.done",  # committed, and nobody here knows
    "transaction.commit",  # everything written, not committed
    "events.projected",
]


@pytest.mark.parametrize("hop", HOPS)
def test_a_kill_at_any_step_loses_no_event_and_repeats_no_effect(scene: Scene, hop: str) -> None:
    publish(7)
    dying = scene.start(failpoints=f"{hop}=kill", ready=False, module=MODULE)
    assert dying.wait() == -signal.SIGKILL
    scene.start(module=MODULE)
    publish(3)
    each_once(scene, range(1, 11))


def test_kills_again_and_again_under_load(scene: Scene) -> None:
    workers = [scene.start(module=MODULE), scene.start(module=MODULE)]
    total = 0
    for number in range(4):
        before = sum(effects(scene).values())
        publish(60)
        total += 60
        wait_until(lambda before=before: sum(effects(scene).values()) > before, "it goes on")  # type: ignore[misc]
        victim = workers[number % 2]
        victim.kill(signal.SIGKILL)
        victim.wait()
        workers[number % 2] = scene.start(module=MODULE, ready=False)
    each_once(scene, range(1, total + 1))


def test_an_owner_that_stood_still_past_its_lease_commits_nothing(scene: Scene) -> None:
    """It has read a batch and is stopped; another takes over and passes it; then it goes on with what it had read."""
    publish(5)
    stopped = scene.start(failpoints="events.read=stop", ready=False, module=MODULE)
    wait_until(lambda: _state(stopped) == "T", "it is stopped with a batch in its hands")
    other = scene.start(module=MODULE)
    each_once(scene, range(1, 6))
    _go_on(stopped)
    other.kill(signal.SIGKILL)
    other.wait()
    publish(2)

    def done() -> bool:
        _go_on(stopped)  # the next read stops it once more
        return len(effects(scene)) == 3 * 7

    wait_until(done, "the one that stood still goes on", 60)
    each_once(scene, range(1, 8))
    last = scene.kit.sql("SELECT DISTINCT pid FROM effects WHERE position > 5 AND who <> 'consume'")
    assert last == [{"pid": stopped.pid}]


def _state(worker: WorkerProcess) -> str:
    return Path(f"/proc/{worker.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]


def _go_on(worker: WorkerProcess) -> None:
    worker.kill(signal.SIGCONT)


@pytest.mark.parametrize("how", ["block", "gate"])
def test_a_batch_longer_than_the_lease_of_a_living_owner_is_its_own(scene: Scene, how: str) -> None:
    """The event loop stands still, or a thread waits, for three leases; another worker is there, and takes nothing."""
    first = scene.start(module=MODULE)
    who = {"block": "asynchronous", "gate": "threaded"}[how]
    owner = "SELECT owner FROM holdfast.subscriptions WHERE name = %s AND owner IS NOT NULL"
    wait_until(lambda: scene.kit.sql(owner, [who]), "it is owned")
    publish(1, **{how: "go"})
    begun = wait_until(
        lambda: (scene.folder / "begun").exists() and (scene.folder / "begun").read_text(), "it begins"
    )
    assert begun == f"{first.pid}\n"
    scene.start(module=MODULE)
    expired = """SELECT 1 FROM holdfast.subscriptions
                 WHERE name = %s AND lease_expires_at < holdfast.now() - %s * interval '1 second'"""
    wait_until(lambda: scene.kit.sql(expired, [who, 2 * DEAD_AFTER]), "three leases are over")
    scene.open("go")
    each_once(scene, range(1, 2))
    assert scene.kit.sql("SELECT pid FROM effects WHERE who = %s", [who]) == [{"pid": first.pid}]
    assert (scene.folder / "begun").read_text() == begun, "nobody else began it"


def test_what_a_killed_owner_had_is_taken_over(scene: Scene) -> None:
    first = scene.start(module=MODULE)
    owned = """SELECT count(*) AS n FROM holdfast.subscriptions
               WHERE owner IN (SELECT id FROM holdfast.workers WHERE pid = %s)"""
    wait_until(lambda: scene.kit.sql(owned, [first.pid]) == [{"n": 3}], "the first has all")
    second = scene.start(module=MODULE)
    wait_until(lambda: scene.kit.sql(owned, [second.pid])[0]["n"] in (1, 2), "they share")
    first.kill(signal.SIGKILL)
    first.wait()
    wait_until(lambda: scene.kit.sql(owned, [second.pid]) == [{"n": 3}], "the second has all")
    publish(3)
    each_once(scene, range(1, 4))


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for the path of a socket, and open to the user that the server runs as."""
    path = server_folder()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.slow
def test_a_crash_of_the_server_under_load_loses_and_doubles_nothing(folder: Path, tmp_path: Path) -> None:
    with EmbeddedServer.acquire(folder / "postgres", EmbeddedOptions(durable=True)) as server:
        server.ensure_database()
        migrate.up(server.dsn())
        kit = Kit(app, server.dsn(), QUICK)
        kit.sql(TABLES)
        scene = Scene(kit, tmp_path)
        stop = threading.Event()
        published: list[int] = [0, 0]

        def keep_publishing(which: int) -> None:
            """Each event until it is known to be there: its id makes it one."""
            while not stop.is_set():
                event = uuid4()
                while True:
                    try:
                        app.publish("thing.done", {}, key=f"key:{which}", id=event)
                        break
                    except DatabaseError:
                        stop.wait(0.05)
                published[which] += 1
                stop.wait(0.005)

        threads = [threading.Thread(target=keep_publishing, args=(n,)) for n in (0, 1)]
        try:
            scene.start(module=MODULE)
            scene.start(module=MODULE)
            for thread in threads:
                thread.start()
            for _ in range(2):
                before = len(effects(scene))
                wait_until(lambda before=before: len(effects(scene)) > before + 30, "work goes on", 60)  # type: ignore[misc]
                postmaster = server.pid
                assert postmaster
                os.kill(postmaster, signal.SIGQUIT)  # what pg_ctl stop -m immediate does
                wait_until(lambda: server.pid is None, "the server is gone")
                server.ensure_running()
            before = len(effects(scene))
            wait_until(lambda: len(effects(scene)) > before, "work goes on", 60)
            stop.set()
            for thread in threads:
                thread.join(60)
            assert app.events.last_position() == sum(published)
            each_once(scene, range(1, sum(published) + 1))
        finally:
            stop.set()
            scene.end()
            kit.close()


@pytest.mark.parametrize(
    "hop", ["rebuild.batch", "rebuild.locked", "rebuild.swapped", "projection.commit", "events.projected"]
)
def test_a_kill_at_any_step_of_a_rebuild_loses_and_doubles_nothing(
    holdfast_kit: Callable[..., Kit], tmp_path: Path, hop: str
) -> None:
    module = "tests.crash.rebuild_app"
    kit = holdfast_kit(rebuild_app.app, QUICK)
    kit.sql(rebuild_app.TABLE)
    scene = Scene(kit, tmp_path)
    try:
        rebuild_app.app.publish_many([("counted", {}, f"k{n % 5}") for n in range(300)])
        first = scene.start(ready=False, module=module)
        wait_until(
            lambda: kit.sql("SELECT 1 FROM holdfast.subscriptions WHERE position = 300"), "all applied", 60
        )
        first.kill(signal.SIGKILL)
        first.wait()
        kit.sql("UPDATE totals SET n = 0")  # what the rebuild puts right
        rebuild_app.totals.rebuild()
        dying = scene.start(failpoints=f"{hop}=kill", ready=False, module=module)
        assert dying.wait(60) == -signal.SIGKILL
        scene.start(ready=False, module=module)
        rebuild_app.app.publish_many([("counted", {}, f"k{n % 5}") for n in range(10)])
        building = "SELECT 1 FROM holdfast.subscriptions WHERE name <> 'totals' OR position < 310"
        wait_until(lambda: not kit.sql(building), "the tables are swapped", 60)
        assert kit.sql("SELECT DISTINCT n FROM totals") == [{"n": 62}]
        assert kit.sql("SELECT sum(n) AS n FROM holdfast_old_totals.totals")[0]["n"] <= 10
    finally:
        scene.end()
