"""Workers that sleep: their poll interval is longer than any test, so whatever they find in time, they were told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.conftest import QUICK, await_until

from holdfast import Holdfast
from holdfast.settings import Settings
from holdfast.testing import Kit

SLEEPY = replace(QUICK, poll=600.0)
Start = Callable[..., "contextlib.AbstractAsyncContextManager[None]"]


@pytest.fixture
def sleepy(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    return holdfast_kit(app, SLEEPY)


@pytest.fixture
async def asleep(sleepy: Kit) -> AsyncIterator[Kit]:
    """One worker that sleeps in the queue `inbox`."""
    async with working(sleepy):
        await until_asleep(sleepy)
        yield sleepy
    await sleepy.database.aclose()


@contextlib.asynccontextmanager
async def working(kit: Kit, settings: Settings | None = None, **options: Any) -> AsyncIterator[None]:
    """A worker in this process until the block ends."""
    if settings is not None:
        kit.database.settings = settings
    worker = asyncio.create_task(kit.app.run_worker(**options))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


def sleepers(kit: Kit) -> list[tuple[str, str]]:
    return [(r["queue"], r["worker"]) for r in kit.sql("SELECT queue, worker FROM holdfast.sleepers ORDER BY 1, 2")]


async def until_asleep(kit: Kit, count: int = 1) -> None:
    await await_until(lambda: len(sleepers(kit)) == count, f"{count} sleep")


async def until_up(kit: Kit) -> None:
    await until_asleep(kit, 0)


class Ear:
    """Somebody who listens to what producers say, with no sleeper's row of its own."""

    def __init__(self, url: str, *channels: str) -> None:
        self.conn = psycopg.connect(url, autocommit=True)
        for name in channels or ("holdfast_inbox",):
            self.conn.execute(f"LISTEN {name}".encode())
        self.all: list[tuple[str, str]] = []

    def heard(self) -> list[tuple[str, str]]:
        """(channel, payload) of everything that was committed before this call, each once."""
        self.conn.execute("SELECT 1")  # what was committed before comes with the answer, or before it
        found = [(n.channel, n.payload) for n in self.conn.notifies(timeout=0)]
        self.all += found
        return found


@pytest.fixture
def ear(sleepy: Kit) -> Iterator[Ear]:
    made = Ear(sleepy.url)
    yield made
    made.conn.close()
