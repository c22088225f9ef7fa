# ruff: noqa: E501
"""Everything that can happen to jobs, once: for a role, or under a search_path, that is to be shown to be enough or harmless."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.conftest import QUICK
from tests.guests.async_kinds import asyncpg_address

from holdfast import (
    AsyncTransaction,
    Backoff,
    Breaker,
    DeadLetter,
    Event,
    Holdfast,
    Job,
    Rate,
    Snooze,
    Transaction,
)
from holdfast.db.database import Database
from holdfast.model.clock import Clock
from holdfast.model.worker import WorkerIdentity
from holdfast.store.claim import claim
from holdfast.store.workers import register

AT_ONCE = Backoff(first=0, jitter=False)
PLACE = WorkerIdentity("host", 1, "b" * 12)
# The tasks of which a job completes when all that `produce` made has run.
COMPLETED = {
    "plain",
    "naps",
    "careful",
    "careful_sync",
    "lends",
    "lends_sync",
    "in_order",
    "in_turn",
    "within",
    "mail_it",
}


def as_role(url: str, role: str) -> str:
    return make_conninfo(**{**conninfo_to_dict(url), "user": role})  # type: ignore[arg-type]


class Life:
    """An app with a task of every kind. `shown` has the search_path that handlers saw."""

    def __init__(self) -> None:  # noqa: C901
        self.app = app = Holdfast("postgresql://unused.invalid/none")
        self.clock = Clock()
        self.shown: list[str] = []
        self.settings = replace(QUICK, statement_timeout=60.0)
        app.queue("ordered", ordering="key", on_dead_letter="park")
        app.queue("fair", fair=True, key_concurrency=2)
        app.queue("limited", concurrency=2, rate=Rate(1000))

        @app.task
        async def plain(n: int) -> int:
            return n

        @app.task(retry=AT_ONCE, max_attempts=2)
        async def fails(n: int) -> None:
            raise ValueError(f"no {n}")

        @app.task
        async def dies(n: int) -> None:
            raise DeadLetter("for good")

        @app.task
        async def naps(job: Job) -> None:
            if job.generation == 1:
                raise Snooze(0)

        @app.task(timeout=60)
        async def careful(job: Job, tx: AsyncTransaction, n: int) -> int:
            self.shown.append((await (await tx.execute("SHOW search_path")).fetchone())[0])  # type: ignore[index]
            job.progress(0.5, "half")
            await job.aonce("step", nothing)
            await job.aguard(conn=tx, resource="ledger")
            await plain.using(conn=tx).aenqueue(n)
            await app.aenqueue_many([plain.using(idempotency_key=f"k{n}").job(n), plain.job(n)], conn=tx)
            return n

        @app.task(timeout=60)
        def careful_sync(job: Job, tx: Transaction, n: int) -> int:
            self.shown.append(tx.execute("SHOW search_path").fetchone()[0])  # type: ignore[index]
            job.once("step", lambda: 1)
            job.guard(conn=tx, resource="ledger")
            plain.using(conn=tx, then=plain.job(n)).enqueue(n)
            app.group([plain.job(n), plain.job(n)], then=plain.job(n), conn=tx)
            return n

        @app.task
        async def lends(job: Job, n: int) -> int:
            conn = await asyncpg.connect(**asyncpg_address(self.url))
            try:
                async with conn.transaction():
                    await plain.using(conn=conn).aenqueue(n)
                    await app.aenqueue_many([plain.job(n), plain.using(tags=["a"]).job(n)], conn=conn)
                    await app.agroup([plain.job(n)], then=plain.job(n), conn=conn)
                    await job.aguard(conn=conn, resource="ledger")
                    await job.acomplete(conn=conn, result=n)
            finally:
                await conn.close()
            return n

        @app.task
        def lends_sync(job: Job, n: int) -> int:
            with psycopg.connect(self.url) as conn:
                plain.using(conn=conn).enqueue(n)
                job.guard(conn=conn, resource="ledger")
                job.complete(conn=conn, result=n)
            return n

        @app.task(breaker=Breaker(failures=1, cooldown=0.1), max_attempts=1)
        async def breaks(n: int) -> None:
            raise ValueError("broken")

        @app.task(queue="ordered", retry=AT_ONCE, max_attempts=2)
        async def in_order(n: int) -> None:
            if n == 3:
                raise ValueError("no three")

        @app.task(queue="fair")
        async def in_turn(n: int) -> None: ...

        @app.task(queue="limited")
        async def within(n: int) -> None: ...

        @app.task
        async def tick() -> None: ...

        @app.on("order.*", start="start")
        async def mail_it(event: Event[Any]) -> None: ...

        @app.projection("orders_seen", on=["order.*"])
        async def orders_seen(tx: AsyncTransaction, event: Event[Any]) -> None:
            self.shown.append((await (await tx.execute("SHOW search_path")).fetchone())[0])  # type: ignore[index]

        app.schedule(timedelta(hours=6), tick.job(), missed="run_once")

        async def nothing() -> int:
            return 1

        self.plain, self.fails, self.dies, self.naps = plain, fails, dies, naps
        self.careful, self.careful_sync, self.lends, self.lends_sync = (
            careful,
            careful_sync,
            lends,
            lends_sync,
        )
        self.breaks, self.in_order, self.in_turn, self.within = breaks, in_order, in_turn, within
        self.url = ""

    def use(self, url: str) -> Database:
        """From now on the app is on this database, under this role."""
        if self.app._opened is not None:
            self.app._opened.close()
        self.url = url
        self.app._opened = database = Database(url, self.settings, self.clock)
        self.app._writer.forget()
        return database

    def produce(self) -> dict[str, UUID]:
        """Jobs of every kind, by every way in; some of them by name."""
        self.plain.using(idempotency_key="once", metadata={"a": [1]}).enqueue(1)
        self.plain.using(replace_key="latest", run_after=3600).enqueue(1)
        self.plain.using(replace_key="latest", run_after=3600).enqueue(2)
        self.app.enqueue_many([self.plain.using(priority=n).job(n) for n in range(20)])
        self.app.group([self.plain.job(1), self.fails.job(2)], then=self.plain.job(3), when="finished")
        for task in (
            self.fails,
            self.dies,
            self.careful,
            self.careful_sync,
            self.lends,
            self.lends_sync,
            self.breaks,
        ):
            task.enqueue(1)
        self.naps.enqueue()
        for n in range(6):
            self.in_order.using(partition_key=f"key{n % 2}").enqueue(n)
            self.in_turn.using(partition_key=f"key{n % 2}").enqueue(n)
            self.within.enqueue(n)
        with psycopg.connect(self.url) as conn:
            self.plain.using(conn=conn).enqueue(1)
            self.app.enqueue_many([self.plain.job(n) for n in range(3)], conn=conn)
            self.app.publish("order.paid", {"n": 1}, key="order:1", id=uuid4(), conn=conn)
        self.app.publish_many([("order.paid", {"n": n}, f"order:{n}") for n in range(3)])
        self.app.events.append("order:9", [("order.paid", {"n": 9})], expected_version=0)
        return {
            "later": self.plain.using(run_after=7200).enqueue(7).id,
            "cancel": self.plain.using(run_after=7200).enqueue(8).id,
        }

    def leave_a_dead_worker(self) -> None:
        """One that claimed and was never heard of again."""
        database = self.app.database
        database.run(lambda: register(PLACE, queues=["inbox"], tasks=["plain"], concurrency=1, release="-"))
        taken = database.run(lambda: claim("inbox", PLACE.id, uuid4(), lease=1, limit=2, marks=[(0, None)]))
        assert taken

    def work(self) -> None:
        """Until nothing is due: run, retry, bury, sweep."""

        async def main() -> None:
            try:
                await self.app.run_worker(until_idle=True)
            finally:
                await self.app.database.aclose()

        asyncio.run(main())

    def completed(self, url: str) -> set[str]:
        """Tasks of which a job has completed."""
        with psycopg.connect(url, options="-c search_path=pg_catalog") as conn:
            return {
                row[0]
                for row in conn.execute(
                    "SELECT DISTINCT task FROM holdfast.archive WHERE status = 'completed'"
                )
            }

    def days_pass(self, days: int) -> None:
        self.clock.advance(days * 86_400)

    def close(self) -> None:
        if self.app._opened is not None:
            self.app._opened.close()


def count(url: str, query: str, *params: Any) -> int:
    with psycopg.connect(url, options="-c search_path=pg_catalog") as conn:
        (found,) = conn.execute(query.encode(), params).fetchone() or (0,)
        return int(found)
