"""Behind PgBouncer in transaction mode everything works but being woken; a direct address for LISTEN brings that back."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from tests.doctor.bouncer import bouncer
from tests.wake.conftest import SLEEPY, Notes, sleepers, until_asleep, working

from holdfast import AsyncTransaction, Holdfast, Job, Transaction
from holdfast.db.database import Database
from holdfast.telemetry import Event
from holdfast.testing import Kit

pytestmark = pytest.mark.usefixtures("pgbouncer")


@pytest.fixture
def pooled(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Iterator[Kit]:
    """The app behind a pooler; the kit itself looks at the server."""
    kit = holdfast_kit(app, QUICK)
    with bouncer(kit.url, "transaction") as url:
        app._opened = Database(url, QUICK)
        yield kit
        app._opened.close()


async def test_everything_else_works(app: Holdfast, pooled: Kit, events: list[Event]) -> None:
    """Enqueue, claim, transactions of both kinds, steps, retries, progress, heartbeats, sweeps, a drain."""
    pooled.sql("CREATE TABLE ledger (n int)")

    async def double(n: int) -> int:
        return n * 2

    @app.task(max_attempts=3)
    async def plain(job: Job, n: int) -> int:
        job.progress(0.5, "half")
        if n % 10 == 0 and job.attempt == 1:
            raise ValueError("once")
        return await job.aonce("step", double, n)

    @app.task
    async def asynchronous(tx: AsyncTransaction, n: int) -> None:
        await tx.execute("INSERT INTO ledger VALUES (%s)", [n])

    @app.task
    def synchronous(tx: Transaction, n: int) -> None:
        tx.execute("INSERT INTO ledger VALUES (%s)", [n])

    app.database.settings = replace(QUICK, poll=0.3)
    async with working(pooled, concurrency=8):
        for n in range(20):
            for task in (plain, asynchronous, synchronous):
                await task.using(idempotency_key=f"{task.name} {n}").aenqueue(n=n)
        await app.aenqueue_many(plain.job(n=n) for n in range(100, 300))
        done = "SELECT count(*) AS n FROM holdfast.jobs WHERE status = 'completed'"
        await await_until(lambda: pooled.sql(done)[0]["n"] == 260, "all are done")
    await app.database.aclose()
    assert pooled.sql("SELECT count(*) AS n, count(DISTINCT n) AS d FROM ledger") == [{"n": 40, "d": 20}]
    assert [e for e in events if "failed" in e.name] == []


async def test_no_setting_of_ours_stays_on_a_connection_that_others_get(app: Holdfast, pooled: Kit) -> None:
    @app.task
    async def nothing(tx: AsyncTransaction) -> None:
        return None

    names = (
        "enable_seqscan",
        "statement_timeout",
        "plan_cache_mode",
        "jit",
        "idle_in_transaction_session_timeout",
    )
    look = f"SELECT {', '.join(f'current_setting({name!r})' for name in names)}"
    with psycopg.connect(pooled.url) as direct:
        usual = direct.execute(look.encode()).fetchone()
    async with working(pooled):
        for _ in range(5):
            await nothing.aenqueue()
        done = "SELECT count(*) AS n FROM holdfast.jobs WHERE status = 'completed'"
        await await_until(lambda: pooled.sql(done)[0]["n"] == 5, "all are done")
        conns = [
            await psycopg.AsyncConnection.connect(app.database.dsn, prepare_threshold=None) for _ in range(3)
        ]
        seen = [
            await (await conn.execute(look.encode())).fetchone() for conn in conns
        ]  # each in a transaction
        for conn in conns:
            await conn.close()
    await app.database.aclose()
    assert seen == [usual] * 3


async def test_nobody_is_woken_and_the_worker_says_why_once(
    app: Holdfast, pooled: Kit, notes: Notes, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.notify._ECHO", 0.3)
    monkeypatch.setattr("holdfast.runtime.notify._PROVE", 0.2)  # so that it tries again, and again
    app.database.settings = replace(SLEEPY, poll=0.4)
    async with working(pooled):
        await await_until(lambda: [e for e in events if e.name == "listen.deaf"], "it says so")
        for n in range(3):
            await asyncio.sleep(0.8)  # longer than it takes to fall asleep
            await notes.task.aenqueue(n)
            assert sleepers(pooled) == []
        await notes.until(0, 1, 2)
    (said,) = [e for e in events if e.name == "listen.deaf"]
    assert "polls every 0.4 s" in said.fields["error"]
    assert "set listen_url (HOLDFAST_LISTEN_URL) to the server's own address" in said.fields["error"]
    assert [e for e in events if e.name in ("listen.ready", "service.failed")] == []
    await app.database.aclose()


async def test_a_direct_address_for_listen_brings_it_back(app: Holdfast, pooled: Kit, notes: Notes) -> None:
    app.database.settings = replace(SLEEPY, listen_url=pooled.url)
    async with working(pooled):
        await until_asleep(pooled)
        await notes.task.aenqueue(1)
        await notes.until(1)
    assert sleepers(pooled) == []
    await app.database.aclose()
