"""Limits and shares: how many run at once, how fast, and whose turn it is, over all workers."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import await_until

from holdfast import Backoff, Holdfast, Job, Rate
from holdfast.testing import Kit

Make = Callable[..., Kit]

_DEAD_WORKER = """
INSERT INTO holdfast.workers (id, host, pid, status, last_seen_at, started_at, queues, tasks, concurrency, release)
VALUES ('dead', 'host', 1, 'alive', holdfast.now() - interval '1 hour', holdfast.now(), '{limited}', '{}', 1, '-')
"""
_ITS_CLAIM = """
WITH taken AS (
    UPDATE holdfast.work
    SET status = 'processing', claim_token = '11111111-1111-1111-1111-111111111111', lease_generation = 1
    WHERE id = (SELECT id FROM holdfast.work ORDER BY seq LIMIT 1) RETURNING id
)
INSERT INTO holdfast.claims (token, queue, worker, claimed_at, lease_expires_at, job_ids)
SELECT '11111111-1111-1111-1111-111111111111', 'limited', 'dead', holdfast.now(),
       holdfast.now() + interval '1 hour', array_agg(id)
FROM taken
"""


class Watch:
    """How many run at once, in all and by key."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most = 0
        self.most_of: Counter[str] = Counter()
        self.ran: list[str] = []

    async def run(self, key: str, seconds: float = 0.002) -> None:
        self.now[key] += 1
        self.most = max(self.most, self.now.total())
        self.most_of[key] = max(self.most_of[key], self.now[key])
        await asyncio.sleep(seconds)
        self.now[key] -= 1
        self.ran.append(key)


async def workers(app: Holdfast, count: int, **options: Any) -> None:
    await asyncio.gather(*(app.run_worker(until_idle=True, **options) for _ in range(count)))


def limited(app: Holdfast, holdfast_kit: Make, **rules: Any) -> tuple[Kit, Watch, Any]:
    app.queue("limited", **rules)
    watch = Watch()

    @app.task(queue="limited", retry=Backoff(first=0.01))
    async def work(job: Job) -> None:
        await watch.run(job.partition_key or "-")

    return holdfast_kit(app), watch, work


async def done(kit: Kit, count: int) -> None:
    def all_done() -> bool:
        return len(kit.sql("SELECT id FROM holdfast.archive")) == count

    await await_until(all_done, "all jobs are done")


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_queue_never_runs_more_than_its_concurrency(
    app: Holdfast, holdfast_kit: Make, limit: int
) -> None:
    kit, watch, work = limited(app, holdfast_kit, concurrency=limit)
    await app.aenqueue_many(work.job() for _ in range(40))
    while kit.sql("SELECT id FROM holdfast.work"):
        await workers(app, 3)
    assert watch.most == limit
    assert len(watch.ran) == 40


async def test_a_key_never_runs_more_than_its_concurrency(app: Holdfast, holdfast_kit: Make) -> None:
    kit, watch, work = limited(app, holdfast_kit, key_concurrency=2)
    await app.aenqueue_many(work.using(partition_key=f"k{n % 3}").job() for n in range(60))
    while kit.sql("SELECT id FROM holdfast.work"):
        await workers(app, 2)
    assert set(watch.most_of.values()) == {2}
    assert watch.most > 2
    assert len(watch.ran) == 60


async def test_an_ordered_queue_keeps_its_limit_too(app: Holdfast, holdfast_kit: Make) -> None:
    kit, watch, work = limited(app, holdfast_kit, ordering="key", concurrency=2)
    await app.aenqueue_many(work.using(partition_key=f"k{n % 5}").job() for n in range(40))
    while kit.sql("SELECT id FROM holdfast.work"):
        await workers(app, 2)
    assert watch.most == 2
    assert set(watch.most_of.values()) == {1}
    assert len(watch.ran) == 40


async def test_a_rate_starts_its_burst_and_then_what_time_brings(app: Holdfast, holdfast_kit: Make) -> None:
    kit, watch, work = limited(app, holdfast_kit, rate=Rate(1, per=60, burst=5))
    await app.aenqueue_many(work.job() for _ in range(20))
    await workers(app, 2)
    assert len(watch.ran) == 5
    kit.clock.advance(120)
    await workers(app, 2)
    assert len(watch.ran) == 7
    kit.clock.advance(3600)
    await workers(app, 2)
    assert len(watch.ran) == 12  # a long quiet brings no more than the burst


async def test_a_key_has_a_rate_of_its_own(app: Holdfast, holdfast_kit: Make) -> None:
    kit, watch, work = limited(app, holdfast_kit, key_rate=Rate(1, per=60, burst=2))
    await app.aenqueue_many(work.using(partition_key=f"k{n % 3}").job() for n in range(30))
    await workers(app, 2)
    assert Counter(watch.ran) == {"k0": 2, "k1": 2, "k2": 2}
    kit.clock.advance(60)
    await workers(app, 2)
    assert Counter(watch.ran) == {"k0": 3, "k1": 3, "k2": 3}


async def test_ten_jobs_do_not_wait_for_ten_thousand(app: Holdfast, holdfast_kit: Make) -> None:
    _, watch, work = limited(app, holdfast_kit, fair=True)
    await app.aenqueue_many(work.using(partition_key="big").job() for _ in range(1000))
    await app.aenqueue_many(work.using(partition_key="small").job() for _ in range(10))
    await workers(app, 1)
    assert len(watch.ran) == 1010
    assert [n for n, key in enumerate(watch.ran) if key == "small"][-1] < 60


async def test_weights_say_how_often_the_turn_of_a_key_comes(app: Holdfast, holdfast_kit: Make) -> None:
    _, watch, work = limited(app, holdfast_kit, fair=True, weights={"vip": 3})
    for key in ("vip", "plain"):
        await app.aenqueue_many(work.using(partition_key=key).job() for _ in range(300))
    await workers(app, 1)
    first = Counter(watch.ran[:200])
    assert 135 <= first["vip"] <= 165


async def test_waiting_counts_as_priority(app: Holdfast, holdfast_kit: Make) -> None:
    kit, watch, work = limited(app, holdfast_kit, aging=1)
    await app.aenqueue_many(work.using(priority=-5, partition_key="low").job() for _ in range(3))
    kit.clock.advance(10)
    await app.aenqueue_many(work.using(priority=0, partition_key="high").job() for _ in range(30))
    await app.run_worker(until_idle=True, concurrency=1)
    assert [n for n, key in enumerate(watch.ran) if key == "low"][-1] < 10


async def test_without_aging_priority_is_all(app: Holdfast, holdfast_kit: Make) -> None:
    kit, watch, work = limited(app, holdfast_kit)
    await app.aenqueue_many(work.using(priority=-5, partition_key="low").job() for _ in range(3))
    kit.clock.advance(10)
    await app.aenqueue_many(work.using(priority=0, partition_key="high").job() for _ in range(30))
    await app.run_worker(until_idle=True, concurrency=1)
    assert watch.ran[-3:] == ["low"] * 3


async def test_a_dead_worker_leaks_no_place(app: Holdfast, holdfast_kit: Make) -> None:
    kit, watch, work = limited(app, holdfast_kit, concurrency=1)
    await app.aenqueue_many(work.job() for _ in range(3))
    with kit.connect(autocommit=True) as conn:  # a worker that took the place and died
        conn.execute(_DEAD_WORKER)
        conn.execute(_ITS_CLAIM)
    await app.run_worker(until_idle=True)
    task = asyncio.create_task(app.run_worker())
    try:
        await done(kit, 3)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert watch.most == 1
