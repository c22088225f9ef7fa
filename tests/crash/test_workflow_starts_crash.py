"""Starts that come together, and their connection is cut: all of them are there, or none."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from tests.conftest import await_until
from tests.crash.proxy import Proxy

from holdfast import DatabaseUnavailable, Holdfast, Workflow, WorkflowType
from holdfast.testing import Kit

IDS = [f"order:{n}" for n in range(20)]
THERE = "SELECT r.key FROM holdfast.workflow_runs r JOIN holdfast.work w ON w.queue = r.queue AND w.id = r.id ORDER BY r.key"
ORPHANS = "SELECT w.id FROM holdfast.work w WHERE NOT EXISTS (SELECT FROM holdfast.workflow_runs r WHERE r.id = w.id)"
WAITS = """SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
           AND query LIKE '%workflow_start_many(%'"""

Flow = WorkflowType[[int], int]
Start = Callable[[Flow], Any]


async def gathered(flow: Flow) -> list[Any]:
    """As many callers of one moment."""
    return await asyncio.gather(
        *(flow.using(id=one).astart(n) for n, one in enumerate(IDS)), return_exceptions=True
    )


async def listed(flow: Flow) -> list[Any]:
    try:
        found: list[Any] = await flow.astart_many(flow.using(id=one).new(n) for n, one in enumerate(IDS))
    except DatabaseUnavailable as error:
        return [error] * len(IDS)
    return found


class Shop:
    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.proxy = Proxy(kit.url)
        self.app = Holdfast(self.proxy.url)

        @self.app.workflow(name="order")
        async def order(wf: Workflow, n: int) -> int:
            return n

        self.order = order

    def there(self) -> list[str]:
        """Runs with their jobs; a job without its run is nowhere."""
        assert self.kit.sql(ORPHANS) == []
        return [row["key"] for row in self.kit.sql(THERE)]


@pytest.fixture
async def shop(akit: Kit) -> AsyncIterator[Shop]:
    akit.sql("SELECT holdfast.create_queue('workflows')")
    made = Shop(akit)
    async with made.app:
        await made.order.using(id="first").astart(0)  # it is connected
        yield made
    made.proxy.close()


@pytest.mark.parametrize("start", [gathered, listed])
async def test_the_reply_to_many_starts_is_lost(shop: Shop, start: Start) -> None:
    shop.proxy.cut_after("holdfast.workflow_start_many(", name="holdfast")
    lost = await start(shop.order)
    assert shop.proxy.cuts == 1
    assert all(isinstance(one, DatabaseUnavailable) for one in lost)
    assert shop.there() == sorted(["first", *IDS])
    again = await start(shop.order)
    assert [(run.id, run.created) for run in again] == [(one, False) for one in IDS]
    assert shop.there() == sorted(["first", *IDS])


@pytest.mark.parametrize("start", [gathered, listed])
async def test_many_starts_are_cut_before_their_commit(shop: Shop, start: Start) -> None:
    """They wait for the last of them, which another is about to start; the jobs of the others are written by then."""
    with psycopg.connect(shop.kit.url) as other:
        shop.order.using(id=max(IDS), conn=other).start(1)
        begun = asyncio.ensure_future(start(shop.order))
        await await_until(lambda: shop.kit.sql(WAITS), "they wait for the other")
        shop.kit.sql(f"SELECT pg_terminate_backend(pid) FROM ({WAITS}) w")
        lost = await begun
        assert all(isinstance(one, DatabaseUnavailable) for one in lost)
        other.rollback()
    assert shop.there() == ["first"]
    again = await start(shop.order)
    assert [(run.id, run.created) for run in again] == [(one, True) for one in IDS]
    assert shop.there() == sorted(["first", *IDS])
