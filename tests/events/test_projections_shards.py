"""Shards: each key in one of them, and their number changes under load without losing or reordering anything."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import QUICK, await_until
from tests.flow.test_run import working

from holdfast import AsyncTransaction, Event, Holdfast, failpoints
from holdfast.shapes.events import store
from holdfast.testing import Kit


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    kit = holdfast_kit(app, replace(QUICK, pool_size=16))
    kit.sql("CREATE TABLE applied (at bigserial, key text, position bigint, shard int)")
    return kit


def declare(app: Holdfast, shards: int) -> Any:
    @app.projection("ledger", on=["counted"], shards=shards, batch=9)
    async def ledger(tx: AsyncTransaction, events: list[Event[Any]]) -> None:
        for e in events:
            await tx.execute("INSERT INTO applied (key, position) VALUES (%s, %s)", [e.key, e.position])

    return ledger


def shards(kit: Kit) -> list[tuple[int, int]]:
    rows = kit.sql("SELECT shard, shards FROM holdfast.subscriptions WHERE name = 'ledger' ORDER BY shard")
    return [(row["shard"], row["shards"]) for row in rows]


def check(kit: Kit, last: int) -> None:
    """Every event once, and each key in order of position."""
    rows = kit.sql("SELECT key, position FROM applied ORDER BY at")
    assert sorted(row["position"] for row in rows) == list(range(1, last + 1))
    by_key: dict[str, list[int]] = {}
    for row in rows:
        by_key.setdefault(row["key"], []).append(row["position"])
    assert all(positions == sorted(positions) for positions in by_key.values())


async def _reshard_and_lose_a_worker(kit: Kit, number: int) -> None:
    """The other worker wants one shard when it starts: so the wish is said until a barrier is there."""
    before = len(shards(kit))
    want = """WITH l AS (SELECT name, shard FROM holdfast.subscriptions WHERE shards <> %s ORDER BY shard FOR UPDATE)
              UPDATE holdfast.subscriptions s SET wanted_shards = %s FROM l WHERE s.name = l.name AND s.shard = l.shard"""

    async def is_begun() -> bool:
        await asyncio.to_thread(
            kit.sql, want, [number, number]
        )  # it waits for a batch, which runs in this loop
        held = kit.sql("SELECT 1 FROM holdfast.subscriptions WHERE barrier IS NOT NULL")
        return bool(held) or len(shards(kit)) != before

    async with working(kit):
        begun: Any = is_begun
        await await_until(begun, "a barrier")
    await asyncio.to_thread(kit.sql, want, [number, number])
    await await_until(lambda: shards(kit) == [(n, number) for n in range(number)], f"{number} shards", 60)
    applied = len(kit.sql("SELECT 1 FROM applied"))
    await await_until(lambda: len(kit.sql("SELECT 1 FROM applied")) > applied + 50, "they are at work")


async def test_the_number_of_shards_changes_under_load(app: Holdfast, akit: Kit) -> None:
    """1 -> 8 -> 3, with an owner that crashes and one that is stopped on the way."""
    rng, stop = random.Random(5), asyncio.Event()
    hits = iter(range(100_000))

    def crash() -> None:
        if next(hits) % 11 == 10:
            raise ConnectionError("crashed")

    for point in ("reshard.barrier", "projection.commit", "events.projected"):
        failpoints.arm(point, crash)

    async def load() -> None:
        while not stop.is_set():
            await app.apublish_many(
                [("counted", {}, f"k{rng.randrange(40)}") for _ in range(rng.randrange(1, 30))]
            )
            await asyncio.sleep(0.01)

    ledger = declare(app, 1)
    async with working(akit):
        await await_until(lambda: shards(akit) == [(0, 1)], "it is there")
        loading = asyncio.create_task(load())
        try:
            for number in (8, 3):
                await _reshard_and_lose_a_worker(akit, number)
        finally:
            stop.set()
            await loading
        failpoints.disarm()
        last = await app.events.alast_position()
        await ledger.aread_your_writes(last, timeout=60)
    assert next(hits) > 2 * 11, "it crashed again and again"
    check(akit, last)


async def test_a_worker_that_starts_says_how_many_shards_there_are(app: Holdfast, akit: Kit) -> None:
    declare(app, 1)
    async with working(akit):
        await await_until(lambda: shards(akit) == [(0, 1)], "one shard")
    other = Holdfast(akit.database.url)
    ledger = declare(other, 4)
    worker = asyncio.create_task(other.run_worker())
    try:
        await await_until(lambda: len(shards(akit)) == 4, "four shards")
        await other.apublish_many([("counted", {}, f"k{n}") for n in range(30)])
        await ledger.aread_your_writes(30, timeout=60)
    finally:
        worker.cancel()
        await asyncio.wait([worker])
        await other.database.aclose()
    check(akit, 30)


async def test_a_shard_that_is_stopped_before_the_barrier_lets_the_others_go_on(
    app: Holdfast, akit: Kit
) -> None:
    declare(app, 2)
    async with working(akit):
        await await_until(lambda: len(shards(akit)) == 2, "two shards")
    await app.apublish_many([("counted", {}, f"k{n}") for n in range(30)])
    await app.events.alast_position()
    akit.sql(
        "UPDATE holdfast.subscriptions SET position = 30, seq = holdfast.event_seq_at(30) WHERE shard = 0"
    )
    await akit.database.arun(lambda: store.want_shards("ledger", 5, 1))
    assert await akit.database.arun(lambda: store.begin_reshard("ledger")) == 30
    assert await akit.database.arun(lambda: store.begin_reshard("ledger")) is None
    assert await akit.database.arun(lambda: store.finish_reshard("ledger")) is False
    akit.sql("UPDATE holdfast.subscriptions SET status = 'paused' WHERE shard = 1")
    assert await akit.database.arun(lambda: store.finish_reshard("ledger")) is False
    assert akit.sql("SELECT DISTINCT barrier FROM holdfast.subscriptions") == [{"barrier": None}]
    assert await akit.database.arun(lambda: store.begin_reshard("ledger")) is None
    assert len(shards(akit)) == 2


@pytest.mark.parametrize("how", ["reset", "moved"])
async def test_a_shard_that_is_put_beyond_the_barrier_does_not_wait_for_ever(
    app: Holdfast, akit: Kit, how: str
) -> None:
    ledger = declare(app, 2)
    async with working(akit):
        await await_until(lambda: len(shards(akit)) == 2, "two shards")
    await app.apublish_many([("counted", {}, f"k{n}") for n in range(40)])
    await app.events.alast_position()
    akit.sql(
        "UPDATE holdfast.subscriptions SET position = 30, seq = holdfast.event_seq_at(30) WHERE shard = 0"
    )
    await akit.database.arun(lambda: store.want_shards("ledger", 5, 1))
    assert await akit.database.arun(lambda: store.begin_reshard("ledger")) == 30
    if how == "reset":
        await ledger.areset(35)
    else:  # as an owner that knows of no barrier would
        akit.sql("UPDATE holdfast.subscriptions SET position = 35, seq = holdfast.event_seq_at(35)")
        assert await akit.database.arun(lambda: store.finish_reshard("ledger")) is False
    rows = akit.sql("SELECT DISTINCT barrier, wanted_shards, position FROM holdfast.subscriptions")
    assert rows == [{"barrier": None, "wanted_shards": 5, "position": 35}]
    assert await akit.database.arun(lambda: store.begin_reshard("ledger")) == 35
    assert await akit.database.arun(lambda: store.finish_reshard("ledger")) is True
    assert len(shards(akit)) == 5
