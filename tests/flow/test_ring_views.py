"""The ring is affinity only: whatever each worker believes of the others, a key's jobs run one at a time and in order."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
from tests.conftest import QUICK, await_until

from holdfast import Holdfast
from holdfast.model.bucket import BUCKETS, bucket
from holdfast.model.queue import QueueRules
from holdfast.model.ring import buckets_of
from holdfast.runtime import ring as runtime
from holdfast.runtime.claim.claimer import Ask, Shared
from holdfast.runtime.claim.held import HeldJobs
from holdfast.runtime.claim.ordered import OrderedClaimer
from holdfast.runtime.worker import Worker
from holdfast.testing import Kit

KEYS, DEPTH = 25, 8


class Log:
    """What the handlers did: (key, number, begins?) in the order it happened in this one process."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int, bool]] = []

    def check(self) -> None:
        """Each job once, in order, each over before the next of its key begins."""
        for key in {line[0] for line in self.lines}:
            mine = [line[1:] for line in self.lines if line[0] == key]
            assert mine == [(number, begins) for number in range(DEPTH) for begins in (True, False)], key
        assert len(self.lines) == 2 * KEYS * DEPTH


@pytest.fixture
def log(app: Holdfast) -> Log:
    log = Log()
    app.queue("orders", ordering="key")

    @app.task(queue="orders", name="step")
    async def step(key: str, number: int) -> None:
        log.lines.append((key, number, True))
        await asyncio.sleep(random.uniform(0, 0.01))
        log.lines.append((key, number, False))

    return log


@pytest.fixture
def kit(app: Holdfast, log: Log, holdfast_kit: Callable[..., Kit], request: pytest.FixtureRequest) -> Kit:
    """A look at the ring twenty times a second; others' keys after `takeover` seconds."""
    return holdfast_kit(app, replace(QUICK, ring=0.05, takeover=request.param, dead_after=10, lease=20))


def takeover(seconds: float) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kit", [seconds], indirect=True)


@asynccontextmanager
async def fleet(app: Holdfast, count: int) -> AsyncIterator[list[Worker]]:
    """Workers in this process, until the block ends."""
    workers: list[Worker] = []
    running = [asyncio.create_task(app._serve(["orders"], 4, on_start=workers.append)) for _ in range(count)]
    try:
        await await_until(lambda: len(workers) == count, "all have started")
        yield workers
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)


async def enqueue(kit: Kit) -> None:
    for number in range(DEPTH):
        await asyncio.to_thread(
            kit.sql,
            "SELECT holdfast.enqueue('step', jsonb_build_object('key', 'key ' || n, 'number', %s::int),"
            " queue => 'orders', partition_key => 'key ' || n) FROM generate_series(1, %s) AS n",
            [number, KEYS],
        )


def finished(kit: Kit) -> bool:
    return not kit.sql("SELECT 1 AS one FROM holdfast.work LIMIT 1")


@takeover(600)
async def test_two_workers_that_each_believe_to_be_alone_keep_order_and_exclusivity(
    app: Holdfast, log: Log, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_: runtime.Ring) -> float:
        return 3600.0

    monkeypatch.setattr(runtime.Ring, "tick", nothing)  # nobody ever learns of anybody
    async with fleet(app, 2):
        await enqueue(akit)
        await await_until(lambda: finished(akit), "every job is finished")
    log.check()
    owners = akit.sql("SELECT count(DISTINCT claimed_by) AS n FROM holdfast.archive")
    assert owners == [{"n": 2}]
    assert akit.sql("SELECT 1 AS one FROM holdfast.archive WHERE attempts <> 1") == []


@takeover(0.3)
async def test_workers_whose_views_change_at_random_all_the_time_keep_order_and_exclusivity(
    app: Holdfast, log: Log, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overlapping buckets, buckets of nobody, none at all: the database lets one have each key, and nothing is left."""

    def anything(_: int, seats: Collection[int]) -> list[int]:
        return sorted(random.sample(range(BUCKETS), random.choice([0, 10, 500, BUCKETS])))

    monkeypatch.setattr(runtime, "buckets_of", anything)
    async with fleet(app, 3):
        await enqueue(akit)
        await await_until(lambda: finished(akit), "every job is finished", 30)
    log.check()
    assert akit.sql("SELECT 1 AS one FROM holdfast.archive WHERE attempts <> 1") == []


def mine(worker: Worker) -> frozenset[int] | None:
    orders = worker._queues["orders"]
    assert isinstance(orders, OrderedClaimer)
    return orders._mine


@takeover(0.5)
async def test_what_nobody_looks_after_is_taken_after_a_while(
    app: Holdfast, log: Log, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "buckets_of", lambda *_: [])
    async with fleet(app, 2) as workers:
        await await_until(lambda: all(mine(w) == frozenset() for w in workers), "2 sit")
        await enqueue(akit)
        await await_until(lambda: finished(akit), "every job is finished")
    log.check()
    heads = "SELECT claimed_at - available_at AS waited FROM holdfast.archive WHERE payload->>'number' = '0'"
    assert min(row["waited"].total_seconds() for row in akit.sql(heads)) >= 0.5


@takeover(600)
async def test_each_of_two_that_agree_has_its_own_keys(app: Holdfast, log: Log, akit: Kit) -> None:
    async with fleet(app, 2) as workers:
        await await_until(
            lambda: all(mine(w) is not None for w in workers),
            "each knows of the other",
        )
        await enqueue(akit)
        await await_until(lambda: finished(akit), "every job is finished")
        seats = {row["worker"]: row["seat"] for row in akit.sql("SELECT worker, seat FROM holdfast.seats")}
    log.check()
    ran = akit.sql(
        "SELECT DISTINCT claimed_by, holdfast.bucket(partition_key) AS bucket FROM holdfast.archive"
    )
    assert all(row["bucket"] in buckets_of(seats[row["claimed_by"]], [0, 1]) for row in ran)
    assert len({row["claimed_by"] for row in ran}) == 2


@takeover(600)
async def test_what_is_due_for_others_is_not_passed(app: Holdfast, log: Log, akit: Kit) -> None:
    """A worker that joins a queue with much waiting in others' buckets does not walk over it, and finds its own at once."""
    deep = "deep"
    mine = [f"ours {n}" for n in range(8) if bucket(f"ours {n}") != bucket(deep)]
    enqueue = "SELECT holdfast.enqueue('step', queue => 'orders', partition_key => k) FROM unnest(%s::text[]) AS u(k)"
    akit.sql(enqueue, [[deep] * 50])
    akit.sql(enqueue, [mine])
    akit.sql("UPDATE holdfast.work SET available_at = available_at - interval '1 hour'")
    session = akit.database.session("test")
    rules = QueueRules("key")
    shared = Shared(session, HeldJobs(session, app.tasks), lambda _: uuid4(), 600)
    claimer = OrderedClaimer("orders", rules, 60, shared)
    claimer.look_after(sorted({bucket(key) for key in mine}))
    await claimer._look_around(Ask("", 100))
    assert sorted(claimer._found.take(100)) == mine
    (mark,) = claimer._marks.values()
    oldest = akit.sql("SELECT max(available_at) AS at FROM holdfast.work")[0]["at"]
    assert mark.at > oldest  # where the look along what is due begins
    await session.close()
