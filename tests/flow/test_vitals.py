"""What a worker says of its process with its heartbeat, and what is kept of an owner that was lost."""

import time
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.conftest import wait_until
from tests.sql.support import Conn, enqueue, register, run, sweep_all, take, take_one
from typer.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli import app as cli
from holdfast.model.vitals import Vitals, read_vitals
from holdfast.runtime import vitals
from holdfast.runtime.vitals import Measured, load, memory
from holdfast.store.renew import heartbeat
from holdfast.store.sweep import disown, return_disowned
from holdfast.testing import Kit

BUSY = Vitals(200 * 2**20, 0.5, 0.25, 9)


@pytest.fixture
def conn(kit: Kit) -> Any:
    with psycopg.connect(kit.url, autocommit=True) as conn:
        yield conn


@pytest.fixture
def app() -> Holdfast:
    made = Holdfast("postgresql://unused.invalid/none")

    @made.task
    async def block() -> None:
        time.sleep(1.5)

    return made


def test_a_worker_says_how_its_process_is(kit: Kit, app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory, connections, and that a handler has blocked its loop."""
    monkeypatch.setattr("holdfast.runtime.renew.REPORTED", 0.0)
    lags: list[float] = []
    monkeypatch.setattr(Measured, "lagged", lambda _, seconds: lags.append(seconds))
    app.send("block", {})
    kit.run_worker()
    (row,) = kit.sql("SELECT vitals FROM holdfast.workers")
    said = read_vitals(row["vitals"])
    assert said is not None
    assert said.memory is not None
    assert 10 * 2**20 < said.memory < 8 * 2**30
    assert 1 <= said.connections <= 40
    assert said.load is None or said.load >= 0
    assert max(lags) >= 0.2  # it is asked every 1.25 s or oftener, and was blocked for longer


def test_how_late_the_loop_was_is_the_worst_since_the_last_report(kit: Kit) -> None:
    measured = Measured(kit.database)
    assert measured.due(vitals.ASLEEP)
    measured.lagged(0.3)
    measured.lagged(0.1)
    assert measured.take().lag == 0.3
    assert (measured.take().lag, measured.due(vitals.REPORTED)) == (0.0, False)


async def test_connections_are_counted_while_they_are_open(akit: Kit) -> None:
    database = akit.database
    before = database.connections
    session = database.session("test")
    assert database.connections == before
    await session.run(heartbeat("nobody"))
    assert database.connections == before + 1
    await session.close()
    assert database.connections == before


def test_a_heartbeat_without_vitals_leaves_them(kit: Kit, conn: Conn) -> None:
    worker = register(conn)
    assert run(conn, heartbeat(worker, BUSY)) == "alive"
    run(conn, heartbeat(worker))
    (row,) = kit.sql("SELECT vitals FROM holdfast.workers")
    assert read_vitals(row["vitals"]) == BUSY
    assert "200 MiB, load 0.5, lag 250 ms, 9 connections" in call(kit, "workers")


def test_what_another_release_says_is_left_out(kit: Kit, conn: Conn) -> None:
    register(conn)
    kit.sql("""UPDATE holdfast.workers SET vitals = '{"mood": "good"}'""")
    assert "MiB" not in call(kit, "workers")
    assert (read_vitals(None), memory() is not None, (load() or 0.0) >= 0) == (None, True, True)


def call(kit: Kit, *words: str) -> str:
    return CliRunner().invoke(cli, words, env={"HOLDFAST_DATABASE_URL": kit.url, "COLUMNS": "400"}).stdout


# Owners that were lost -----------------------------------------------------------------------------------------------


def errors(kit: Kit, job: UUID) -> list[tuple[str, int]]:
    rows = kit.sql("SELECT kind, generation FROM holdfast.errors WHERE job_id = %s ORDER BY at", [job])
    return [(row["kind"], row["generation"]) for row in rows]


def test_a_lease_that_ran_out_leaves_an_entry(kit: Kit, conn: Conn) -> None:
    """Its worker is heard of, and did not renew."""
    (job,) = enqueue(conn)
    worker = register(conn)
    take_one(conn, worker)
    conn.execute("UPDATE holdfast.claims SET lease_expires_at = holdfast.now() - interval '1 hour'")
    sweep_all(conn)
    assert errors(kit, job) == [("LeaseLost", 1)]
    shown = call(kit, "jobs", "show", str(job))
    assert f"owner lost (generation 1, worker {worker})" in shown
    assert "LeaseLost: the lease ran out at " in shown
    (row,) = kit.sql("SELECT status, attempts, crashes FROM holdfast.work")
    assert tuple(row.values()) == ("pending", 0, 0)


def test_a_worker_that_fell_silent_leaves_one_entry(kit: Kit, conn: Conn) -> None:
    (job,) = enqueue(conn)
    take_one(conn, register(conn))
    conn.execute("UPDATE holdfast.workers SET last_seen_at = holdfast.now() - interval '1 hour'")
    conn.execute("UPDATE holdfast.claims SET lease_expires_at = holdfast.now() - interval '1 hour'")
    sweep_all(conn, dead_after=60.0)
    assert errors(kit, job) == [("WorkerSilent", 1)]


def test_a_claim_that_was_disowned_leaves_none(kit: Kit, conn: Conn) -> None:
    """Nobody ran its jobs."""
    (job,) = enqueue(conn)
    worker, token = register(conn), uuid4()
    take(conn, worker, token=token)
    run(conn, disown(worker, [token]))
    run(conn, return_disowned(token, 3))
    assert errors(kit, job) == []
    wait_until(lambda: kit.sql("SELECT FROM holdfast.work WHERE status = 'pending'"), "it waits again")
