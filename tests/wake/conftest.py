"""Workers that sleep. They poll every ten minutes, longer than any test: whatever they find in time, they were told of."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from tests.doctor.conftest import odd_server as odd_server
from tests.doctor.conftest import pgbouncer as pgbouncer

from holdfast import Holdfast
from holdfast.runtime.local_enqueues import LocalEnqueues
from holdfast.testing import Kit

SLEEPY = replace(QUICK, poll=600.0)
LISTENER = """
SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast listen' AND datname = current_database()
"""


class Notes:
    """A task that says that it ran, and ends as it is told to."""

    def __init__(self, app: Holdfast) -> None:
        self.ran: list[int] = []
        self.ends: list[BaseException] = []
        self.gate = asyncio.Event()

        @app.task(max_attempts=2)
        async def note(n: int) -> None:
            self.ran.append(n)
            if self.ends:
                raise self.ends.pop(0)

        @app.task
        async def wait(n: int) -> None:
            self.ran.append(n)
            await self.gate.wait()

        self.task = note
        self.wait = wait

    async def until(self, *ran: int) -> None:
        await await_until(lambda: self.ran == list(ran), f"{ran} ran")


@pytest.fixture(autouse=True)
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers here are of the same process as the worker, which would not need to be notified of them."""
    monkeypatch.setattr(LocalEnqueues, "look", lambda _: None)


@pytest.fixture
def notes(app: Holdfast) -> Notes:
    return Notes(app)


@pytest.fixture
def sleepy(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    return holdfast_kit(app, SLEEPY)


@pytest.fixture
async def asleep(sleepy: Kit, notes: Notes) -> AsyncIterator[Kit]:
    """One worker that sleeps in the queue `inbox`."""
    async with working(sleepy):
        await until_asleep(sleepy)
        yield sleepy
    await sleepy.database.aclose()


@contextlib.asynccontextmanager
async def working(kit: Kit, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """A worker in this process until the block ends."""
    worker = asyncio.create_task(kit.app.run_worker(**options))
    try:
        yield worker
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


def sleepers(kit: Kit) -> list[str]:
    return [r["worker"] for r in kit.sql("SELECT worker FROM holdfast.sleepers ORDER BY worker, queue")]


async def until_asleep(kit: Kit, count: int = 1, seconds: float = 20.0) -> list[str]:
    await await_until(lambda: len(sleepers(kit)) == count, f"{count} sleep", seconds)
    return sleepers(kit)


class Ear:
    """Somebody who listens to what producers say, without a row among the sleepers."""

    def __init__(self, url: str) -> None:
        self._conn = psycopg.connect(url, autocommit=True)
        self._conn.execute("LISTEN holdfast_inbox")
        self._conn.execute("LISTEN holdfast_mail")
        self._conn.execute("LISTEN holdfast_orders")
        self._conn.execute("LISTEN over")

    def heard(self) -> list[tuple[str, str]]:
        """(channel, payload) of everything that was committed before this call: they come in the order of commits."""
        self._conn.execute("NOTIFY over")
        found: list[tuple[str, str]] = []
        for note in self._conn.notifies(timeout=20):
            if note.channel == "over":
                break
            found.append((note.channel, note.payload))
        return found

    def close(self) -> None:
        self._conn.close()


@pytest.fixture
def ear(sleepy: Kit) -> Iterator[Ear]:
    made = Ear(sleepy.url)
    yield made
    made.close()
