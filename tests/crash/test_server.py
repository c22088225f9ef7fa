"""The server goes away: for a moment, for longer than every lease, or one backend at a time."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash.conftest import LEDGER
from tests.crash.crash_app import app, careful, plain, record
from tests.crash.process import DEAD_AFTER, HEARTBEAT, LEASE, Scene, settle_down
from tests.crash.proxy import Proxy
from tests.pg_versions import server_folder

from holdfast.db import migrate
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer
from holdfast.model.worker import WorkerIdentity
from holdfast.runtime.sweep import Sweeper
from holdfast.store.workers import register
from holdfast.testing import Kit

SERVICES = 4  # claim, renew, settle, sweep


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for the path of a socket, and open to the user that the server runs as."""
    path = server_folder()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.acquire(folder / "postgres", EmbeddedOptions(durable=True)) as server:
        yield server


def test_a_crash_of_the_server_under_load_loses_nothing(server: EmbeddedServer, tmp_path: Path) -> None:
    server.ensure_database()
    migrate.up(server.dsn())
    kit = Kit(app, server.dsn(), QUICK)
    scene = Scene(kit, tmp_path)
    try:
        kit.sql(LEDGER)
        ids = {record.enqueue(seconds=0.1).id for _ in range(120)}
        workers = [scene.start(), scene.start()]
        wait_until(lambda: len(scene.ledger()) > 10, "work is going on")
        marks = [len(w.every_event()) for w in workers]
        postmaster = server.pid
        assert postmaster
        os.kill(postmaster, signal.SIGQUIT)  # what pg_ctl stop -m immediate does
        wait_until(lambda: server.pid is None, "the server is gone")
        down = time.monotonic()
        wait_until(lambda: time.monotonic() - down > 2.0, "it stays away for a while", 5)
        server.ensure_running()
        outage = time.monotonic() - down
        before = min(len(scene.ledger()), len(ids) - 1)  # on a slow machine all may be done by now
        wait_until(lambda: len(scene.ledger()) > before, "work goes on", 10)
        for worker, mark in zip(workers, marks, strict=True):
            assert worker.is_running
            loud = [e for e in worker.every_event()[mark:] if e["name"] in ("service.failed", "claim.failed")]
            # A line per second and loop, and one for each job that ended in the outage and woke its loops (4 slots).
            assert len(loud) <= SERVICES * (outage + 3) + 2 * 4
        rows = scene.until_finished(40)
        assert {r["id"] for r in rows} == ids
        assert {r["status"] for r in rows} == {"completed"}
        assert scene.ledger() == dict.fromkeys(ids, 1)
    finally:
        scene.end()
        kit.close()


def test_an_outage_longer_than_every_lease_takes_no_job_from_a_living_owner(
    scene: Scene, proxy: Proxy
) -> None:
    jobs = [
        plain.enqueue("go").id,
        careful.enqueue("go").id,
        plain.enqueue("go").id,
        careful.enqueue("go").id,
    ]
    workers = [scene.start(url=proxy.url, concurrency=2, prefetch=0) for _ in range(2)]
    for job in jobs:
        scene.until_noted("start", job)
    proxy.refuse()
    down = time.monotonic()
    wait_until(
        lambda: time.monotonic() - down > LEASE + 3 * DEAD_AFTER, "an outage longer than every lease", 15
    )
    proxy.heal()
    scene.start(url=proxy.url)  # a newcomer sweeps at once; the owners come back when their pauses end
    kept = """SELECT count(*) AS n FROM holdfast.work w JOIN holdfast.claims c ON c.token = w.claim_token
              WHERE w.status = 'processing' AND w.lease_generation = 1 AND c.lease_expires_at > holdfast.now()"""
    wait_until(lambda: scene.kit.sql(kept) == [{"n": len(jobs)}], "every owner has renewed", 8)
    settle_down(2 * HEARTBEAT + 2 * DEAD_AFTER)
    scene.open("go")
    rows = scene.until_finished()
    assert {(r["id"], r["status"], r["lease_generation"], r["attempts"]) for r in rows} == {
        (job, "completed", 1, 1) for job in jobs
    }
    assert len(scene.notes("start")) == len(jobs)
    assert all(worker.is_running for worker in workers)
    assert set(scene.workers().values()) == {"alive"}


def test_an_outage_a_little_shorter_than_dead_after_fences_nobody(scene: Scene) -> None:
    """The last beat came before the outage, and the sweeper is back before the beats are."""
    database, settings = scene.kit.database, scene.kit.database.settings
    owner = WorkerIdentity.create()

    async def main() -> None:
        sweeper = Sweeper(database, lambda: None)
        try:
            await database.arun(
                lambda: register(owner, queues=["inbox"], tasks=[], concurrency=1, release="-")
            )
            scene.kit.sql(
                "UPDATE holdfast.workers SET last_seen_at = holdfast.now() - make_interval(secs => %s)",
                [settings.dead_after + 0.5 * settings.heartbeat],
            )
            scene.kit.sql(
                "UPDATE holdfast.engine SET last_sweep_at = holdfast.now() - make_interval(secs => %s)",
                [settings.dead_after - 0.25 * settings.heartbeat],
            )
            await sweeper.tick()
        finally:
            await sweeper.stop()
            await database.aclose()

    asyncio.run(main())
    assert scene.workers() == {owner.id: "alive"}


def test_a_table_locked_for_longer_than_a_statement_may_take_is_waited_out(scene: Scene) -> None:
    job = plain.enqueue("go").id
    worker = scene.start(lease=30, dead_after=20, statement_timeout=0.5)
    scene.until_noted("start", job)
    with scene.kit.connect() as conn:
        conn.execute("LOCK TABLE holdfast.work IN ACCESS EXCLUSIVE MODE")
        scene.open("go")
        wait_until(lambda: worker.events("claim.failed"), "the claim gives up for now", 10)
        failed = lambda: {e["service"] for e in worker.events("service.failed")} >= {"renew", "settle"}  # noqa: E731
        wait_until(failed, "the others too", 10)
        assert worker.is_running
    row = scene.until_status(job, "completed", 12)
    assert (row["attempts"], row["lease_generation"]) == (1, 1)
    scene.until_status(record.enqueue().id, "completed", 12)


def test_killing_every_backend_again_and_again_commits_each_job_once(scene: Scene) -> None:
    ids = {record.enqueue(seconds=0.1).id for _ in range(50)}
    workers = [scene.start(), scene.start()]
    kill = """SELECT array_agg(pid) FILTER (WHERE pg_terminate_backend(pid)) AS pids FROM pg_stat_activity
              WHERE datname = current_database() AND application_name LIKE 'holdfast%' AND pid <> pg_backend_pid()"""
    left = "SELECT pid FROM pg_stat_activity WHERE pid = ANY (%s)"
    killed = 0
    for _ in range(5):
        before = len(scene.ledger())
        ids |= {record.enqueue(seconds=0.1).id for _ in range(10)}  # there is always work to go on with
        wait_until(lambda seen=before: len(scene.ledger()) > seen, "work goes on", 15)  # type: ignore[misc]
        pids = scene.kit.sql(kill)[0]["pids"]
        wait_until(lambda gone=pids: not scene.kit.sql(left, [gone]), "they have ended")  # type: ignore[misc]
        killed += len(pids)
    assert killed > 5 * 4
    rows = scene.until_finished(40)
    assert {r["id"] for r in rows} == ids
    assert {r["status"] for r in rows} == {"completed"}
    assert scene.ledger() == dict.fromkeys(ids, 1)
    assert all(worker.is_running for worker in workers)
