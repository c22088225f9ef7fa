"""Behind PgBouncer in transaction mode everything works but being woken; a direct address for LISTEN brings that back."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from tests.doctor.bouncer import bouncer
from tests.wake.conftest import SLEEPY, Notes, sleepers, until_asleep, working

from holdfast import AsyncTransaction, Backoff, Batch, Breaker, Holdfast, Job, Rate, Transaction
from holdfast.db.database import Database
from holdfast.tasks.copy import LEAST
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


async def test_many_workers_work_too(
    app: Holdfast, holdfast_kit: Callable[..., Kit], events: list[Event]
) -> None:
    """Ordered and fair queues, limits, the ring, follow-ups, groups, replaced jobs, schedules, batches, a breaker."""
    app.queue("orders", ordering="key")
    app.queue("shared", fair=True, concurrency=3, key_rate=Rate(1000))
    ran: dict[str, list[int]] = {}
    ticks: list[str] = []

    @app.task(queue="orders", retry=Backoff(first=0.01), breaker=Breaker(failures=50))
    async def step(job: Job, n: int) -> None:
        if n % 7 == 0 and job.attempt == 1:
            raise ValueError("once")
        ran.setdefault(job.partition_key or "", []).append(n)

    @app.task(queue="shared")
    async def share(n: int) -> None: ...

    @app.batch_task(size=10, wait=0.05)
    async def together(batch: Batch[int]) -> None: ...

    @app.task
    async def tick() -> None:
        ticks.append("tick")

    app.schedule(timedelta(seconds=1), tick.job())
    kit = holdfast_kit(app, QUICK)
    with bouncer(kit.url, "transaction") as url:
        app._opened = Database(url, replace(QUICK, poll=0.3))
        async with working(kit, concurrency=8), working(kit, concurrency=8):
            await app.aenqueue_many(step.using(partition_key=f"k{n % 5}").job(n=n) for n in range(100))
            await app.aenqueue_many(share.using(partition_key=f"t{n % 4}").job(n=n) for n in range(40))
            await app.aenqueue_many(together.job(n) for n in range(30))
            await app.agroup([share.using(partition_key="g").job(n=n) for n in range(5)], then=tick.job())
            await tick.using(then=tick.job(), replace_key="one").aenqueue()
            live = "SELECT count(*) AS n FROM holdfast.work WHERE task <> 'tick'"
            await await_until(lambda: kit.sql(live)[0]["n"] == 0, "all are done")
            await await_until(lambda: len(ticks) >= 4, "what follows and what is scheduled runs")
        await app.database.aclose()
        app.close()
    assert {key: len(numbers) for key, numbers in ran.items()} == {f"k{n}": 20 for n in range(5)}
    assert all(numbers == sorted(numbers) for numbers in ran.values())
    assert kit.sql("SELECT count(*) AS n FROM holdfast.dead_letters") == [{"n": 0}]
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


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_many_jobs_go_by_copy_whatever_dates_look_like_there(
    app: Holdfast, holdfast_kit: Callable[..., Kit], notes: Notes, way: str
) -> None:
    """A pooler's connections have the DateStyle of their database, and the driver reads no other than ISO."""
    kit = holdfast_kit(app, QUICK)
    (row,) = kit.sql("SELECT current_database() AS name")
    kit.sql(f"ALTER DATABASE {row['name']} SET datestyle = 'German'")
    jobs = [notes.task.job(n) for n in range(LEAST)]
    with bouncer(kit.url, "transaction") as url:
        app._opened = database = Database(url, QUICK)
        made = app.enqueue_many(jobs) if way == "sync" else await app.aenqueue_many(jobs)
        copied = app.enqueue_copy(jobs) if way == "sync" else await app.aenqueue_copy(jobs)
        await database.aclose()
        database.close()
    assert len(made) == copied == LEAST
    assert app._writer._may_copy
    assert kit.sql("SELECT count(*), count(DISTINCT id) AS ids FROM holdfast.work") == [
        {"count": 2 * LEAST, "ids": 2 * LEAST}
    ]
