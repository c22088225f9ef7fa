"""The database goes away and comes back while a worker of this process runs."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from tests.crash.proxy import Proxy
from tests.doctor.conftest import TEMPLATE
from tests.doctor.conftest import odd_server as odd_server

from holdfast import Holdfast, telemetry
from holdfast.db.embedded import EmbeddedServer
from holdfast.runtime.service import Service
from holdfast.testing import Kit

OUTAGE = ("service.failed", "service.recovered", "claim.failed")
PATIENT = replace(QUICK, lease=300.0, dead_after=200.0)  # no outage here is long enough to lose a job


@asynccontextmanager
async def working(kit: Kit) -> AsyncIterator[None]:
    worker = asyncio.create_task(kit.app.run_worker(concurrency=2))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await kit.database.aclose()
        kit.close()


def failed(events: list[telemetry.Event]) -> set[str]:
    return {event.fields["service"] for event in events if event.name == "service.failed"}


def recovered(events: list[telemetry.Event]) -> set[str]:
    return {event.fields["service"] for event in events if event.name == "service.recovered"}


async def test_the_first_session_that_reconnects_ends_the_pauses_of_all(
    app: Holdfast, holdfast_url: str, events: list[telemetry.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.service._FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(Service, "longest_pause", 3600.0)
    gate, started = asyncio.Event(), asyncio.Event()

    @app.task
    async def wait() -> None:
        started.set()
        await gate.wait()

    proxy = Proxy(holdfast_url)
    try:
        async with working(Kit(app, proxy.url, PATIENT)):
            job = await wait.aenqueue()
            await started.wait()
            proxy.refuse()
            gate.set()
            await await_until(lambda: failed(events) >= {"renew", "settle", "sweep"}, "all loops pause", 60)
            proxy.heal()
            await job.aresult(timeout=60)
            await await_until(lambda: recovered(events) >= {"settle", "sweep"}, "all loops go on", 60)
    finally:
        proxy.close()
    loud = [
        e for e in events if e.level >= logging.INFO and (e.name in OUTAGE or e.name.startswith("database."))
    ]
    assert [e.name for e in loud] == [
        "database.lost",
        "database.back",
    ]  # whoever noticed it, and however often
    assert loud[0].level == logging.WARNING
    assert loud[1].fields["seconds"] > 0


async def test_a_service_that_the_pool_refuses_says_nothing_of_an_outage(
    app: Holdfast, holdfast_url: str, events: list[telemetry.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no connection that could break: it gets none."""
    monkeypatch.setattr("holdfast.shapes.operations.service.EVERY", 0.05)
    gate, started = asyncio.Event(), asyncio.Event()

    @app.task
    async def wait() -> None:
        started.set()
        await gate.wait()

    def refused() -> bool:
        return any(
            e.fields["service"] == "operations" and "cannot be reached" in e.fields["error"]
            for e in events
            if e.name == "service.failed"
        )

    proxy = Proxy(holdfast_url)
    try:
        async with working(Kit(app, proxy.url, replace(PATIENT, connect_timeout=1.0))):
            job = await wait.aenqueue()
            await started.wait()
            proxy.refuse()
            await await_until(refused, "the pool gives up", 60)
            proxy.heal()
            gate.set()
            await job.aresult(timeout=60)
            await await_until(lambda: "operations" in recovered(events), "it goes on", 60)
    finally:
        proxy.close()
    loud = [
        e.name
        for e in events
        if e.level >= logging.INFO and e.name in (*OUTAGE, "database.lost", "database.back")
    ]
    assert loud == ["database.lost", "database.back"]


@pytest.fixture
def crowded(odd_server: EmbeddedServer) -> Iterator[str]:
    """A database on a server that nobody else uses."""
    name = f"crowded_{uuid4().hex[:8]}"
    with psycopg.connect(odd_server.dsn("postgres"), autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}".encode())
        yield odd_server.dsn(name)
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


async def test_a_server_without_a_free_connection_is_waited_out(
    app: Holdfast, crowded: str, events: list[telemetry.Event]
) -> None:
    """Every connection of the worker is cut, and others take all places: it heals when they leave."""
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    def crowd(stack: ExitStack) -> None:
        with pytest.raises(psycopg.OperationalError, match=r"too many clients|remaining connection slots"):
            while True:
                stack.enter_context(psycopg.connect(crowded))

    async with working(Kit(app, crowded, PATIENT)):
        await note.aenqueue(1)
        await await_until(lambda: ran == [1], "the worker works", 60)
        with psycopg.connect(crowded, autocommit=True) as conn, ExitStack() as others:

            def squeeze() -> bool:
                """Again and again: a connection may come back in between, into the place that it had."""
                crowd(others)
                conn.execute(
                    """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE datname = current_database() AND application_name LIKE 'holdfast%'"""
                )
                crowd(others)
                return failed(events) >= {"renew", "sweep"} and claims_failed(events) >= 3

            await asyncio.to_thread(crowd, others)
            await await_until(squeeze, "it knows", 60)
            conn.execute("SELECT holdfast.enqueue('note', '{\"n\": 2}')")
            assert ran == [1]
        await await_until(lambda: ran == [1, 2], "it heals", 60)


def claims_failed(events: list[telemetry.Event]) -> int:
    return sum(event.name == "claim.failed" for event in events)
