"""Limits and shares: how many run at once, how fast, and whose turn it is, over all workers."""

import asyncio
import contextlib
import copy
import functools
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import await_until

from holdfast import AsyncTransaction, Backoff, Batch, Holdfast, Job, Rate, telemetry
from holdfast.model.outcome import Completed, Settlement
from holdfast.model.queue import QueueRules
from holdfast.model.worker import WorkerIdentity
from holdfast.operate.operator import Operator
from holdfast.runtime.claim.claimer import Ask
from holdfast.runtime.claim.fair import Turns
from holdfast.runtime.claim.plain import PlainClaimer
from holdfast.runtime.claim.queues import Queues
from holdfast.runtime.handler import Handler
from holdfast.store.settle import settle
from holdfast.store.workers import register
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


_REFUSE = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'this row is bad'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON holdfast.queue_limited FOR EACH ROW
    WHEN (OLD.task = 'bad') EXECUTE FUNCTION public.refuse();
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


class _Known:
    """The one task, for a claimer that runs nothing."""

    def find(self, task: str, version: int) -> Handler | None:
        return None

    def known(self) -> list[tuple[str, int]]:
        return [("work", 1)]


@contextlib.asynccontextmanager
async def claimer(kit: Kit, **rules: Any) -> AsyncIterator[tuple[Queues, str]]:
    """A claimer that knows these rules of the queue, without a worker around it."""
    claims = Queues(kit.database, _Known(), {"limited": 60.0}, {"limited": QueueRules(**rules)})
    identity = WorkerIdentity("host", 1, uuid4().hex)
    await kit.database.arun(
        lambda: register(identity, queues=["limited"], tasks=["work"], concurrency=10, release="test")
    )
    try:
        yield claims, identity.id
    finally:
        await claims.close()


@contextlib.asynccontextmanager
async def running(app: Holdfast, **options: Any) -> AsyncIterator[None]:
    """A worker that runs until the block ends."""
    task = asyncio.create_task(app.run_worker(**options))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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


_MANY = """
INSERT INTO holdfast.work (id, queue, task, payload, partition_key, available_at)
SELECT holdfast.uuid7(), 'limited', 'work', '{}', 'big', holdfast.now() - interval '1 hour' FROM generate_series(1, %s)
"""


async def test_the_ten_of_one_key_do_not_wait_for_the_hundred_thousand_of_another(
    app: Holdfast, holdfast_kit: Make
) -> None:
    """Turn by turn: the ten are among the first twenty, but for what the first claims take before every key is known."""
    kit, watch, work = limited(app, holdfast_kit, fair=True)
    kit.sql(_MANY, [100_000])
    await app.aenqueue_many(work.using(partition_key="small").job() for _ in range(10))
    async with running(app, concurrency=5):
        await await_until(lambda: watch.ran.count("small") == 10, "the ten are done")
        at = [n for n, key in enumerate(watch.ran) if key == "small"]
    assert at[-1] < 60
    assert watch.ran.count("big") < 1000


async def test_a_key_that_comes_later_gets_its_turn_too(app: Holdfast, holdfast_kit: Make) -> None:
    kit, watch, work = limited(app, holdfast_kit, fair=True)
    kit.sql(_MANY, [20_000])
    async with running(app, concurrency=5), running(app, concurrency=5):
        await await_until(lambda: len(watch.ran) > 50, "workers are busy with the one")
        await app.aenqueue_many(work.using(partition_key="small").job() for _ in range(10))
        await await_until(lambda: watch.ran.count("small") == 10, "the ten are done")
    assert kit.sql("SELECT id FROM holdfast.work LIMIT 1")  # with most of the others still waiting


async def test_weights_hold_over_several_workers(app: Holdfast, holdfast_kit: Make) -> None:
    _, watch, work = limited(app, holdfast_kit, fair=True, weights={"vip": 3})
    for key in ("vip", "plain"):
        await app.aenqueue_many(work.using(partition_key=key).job() for _ in range(300))
    await workers(app, 3)
    assert len(watch.ran) == 600
    assert 120 <= Counter(watch.ran[:200])["vip"] <= 180


async def test_many_keys_share_few_slots_alike(app: Holdfast, holdfast_kit: Make) -> None:
    _, watch, work = limited(app, holdfast_kit, fair=True)
    await app.aenqueue_many(work.using(partition_key=f"k{n % 30}").job() for n in range(300))
    await workers(app, 1, concurrency=4)
    assert len(watch.ran) == 300
    assert set(Counter(watch.ran[:150]).values()) <= {4, 5, 6}


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
    async with running(app):
        await done(kit, 3)
    assert watch.most == 1


# A queue at its limit keeps its pace ---------------------------------------------------------------------------------


async def test_what_a_limit_cut_off_is_found_by_the_next_claim(app: Holdfast, holdfast_kit: Make) -> None:
    """Not only by the next look from the start, a second later: the jobs here are older than any mark would be."""
    kit, _, work = limited(app, holdfast_kit, concurrency=1)
    await app.aenqueue_many(work.job() for _ in range(5))
    kit.clock.advance(60)
    async with claimer(kit, concurrency=1) as (claims, worker):
        for _ in range(5):
            (job,) = await claims.claim(Ask(worker, 10))
            assert await claims.claim(Ask(worker, 10)) == []
            plain = claims["limited"]
            assert isinstance(plain, PlainClaimer)
            plain._marks.full_at = math.inf  # no full scan any more
            ended = [Settlement(job.grant, Completed(None))]
            await kit.database.arun(functools.partial(settle, ended, worker))


async def test_a_limit_that_is_new_holds_for_a_worker_that_runs(app: Holdfast, holdfast_kit: Make) -> None:
    kit, _, work = limited(app, holdfast_kit, fair=True)
    await app.aenqueue_many(work.using(partition_key="a").job() for _ in range(5))
    async with claimer(kit, fair=True) as (claims, worker):
        await asyncio.to_thread(
            Operator(kit.database, "ann").set_queue, "limited", limits={"key_concurrency": 2}
        )
        assert await claims.claim(Ask(worker, 10)) == []  # it does not know yet
        claims.look_again(thorough=True)
        assert len(await claims.claim(Ask(worker, 10))) == 2


async def test_limits_of_keys_hold_also_where_the_worker_began_without(
    app: Holdfast, holdfast_kit: Make
) -> None:
    """Made for keys, and without a rule when the worker started: it claimed by priority, and now it claims key by key."""
    kit, _, work = limited(app, holdfast_kit, key_concurrency=1)
    await app.aenqueue_many(work.using(partition_key=key).job() for key in "aabb")
    set_none = {"key_concurrency": None}
    await asyncio.to_thread(Operator(kit.database, "ann").set_queue, "limited", limits=set_none)
    async with claimer(kit) as (claims, worker):
        await asyncio.to_thread(
            Operator(kit.database, "ann").set_queue, "limited", limits={"key_concurrency": 1}
        )
        claims.look_again(thorough=True)
        assert sorted(j.partition_key or "" for j in await claims.claim(Ask(worker, 10))) == ["a", "b"]


@pytest.mark.parametrize(
    "rules", [{"concurrency": 3}, {"fair": True, "key_concurrency": 3}, {"rate": Rate(1, per=3600, burst=3)}]
)
async def test_what_is_scarce_is_not_claimed_ahead_of_the_slots(
    app: Holdfast, holdfast_kit: Make, rules: dict[str, Any]
) -> None:
    kit, _, work = limited(app, holdfast_kit, **rules)
    await app.aenqueue_many(work.using(partition_key="a").job() for _ in range(9))
    async with claimer(kit, **rules) as (claims, worker):
        assert len(await claims.claim(Ask(worker, 10, 2))) == 2


async def test_bad_rows_of_a_limited_queue_are_set_aside_within_its_limit(
    app: Holdfast, holdfast_kit: Make
) -> None:
    kit, watch, work = limited(app, holdfast_kit, concurrency=1)

    @app.task(queue="limited")
    async def bad() -> None: ...

    kit.sql(_REFUSE)
    await app.aenqueue_many([bad.job(), *(work.job() for _ in range(5))])
    while kit.sql("SELECT id FROM holdfast.work WHERE task = 'work'"):
        await workers(app, 2)
    assert (watch.most, len(watch.ran)) == (1, 5)
    assert len(kit.sql("SELECT id FROM holdfast.quarantine")) == 1


@pytest.mark.parametrize("rules", [{"fair": True}, {"key_concurrency": 1}])
async def test_a_bad_row_of_a_key_costs_its_key_one_job(
    app: Holdfast, holdfast_kit: Make, rules: dict[str, Any]
) -> None:
    kit, watch, work = limited(app, holdfast_kit, **rules)

    @app.task(queue="limited")
    async def bad() -> None: ...

    kit.sql(_REFUSE)
    jobs = [bad.using(partition_key="a").job(), *(work.using(partition_key=k).job() for k in "aabb")]
    await app.aenqueue_many(jobs)
    while kit.sql("SELECT id FROM holdfast.work WHERE task = 'work'"):
        await workers(app, 1)
    assert Counter(watch.ran) == {"a": 2, "b": 2}


async def test_batches_and_transactions_keep_the_limit(app: Holdfast, holdfast_kit: Make) -> None:
    app.queue("limited", concurrency=3)
    sizes: list[int] = []

    @app.batch_task(queue="limited", size=10, wait=0.01)
    async def together(batch: Batch[int]) -> None:
        sizes.append(len(batch))

    @app.task(queue="limited")
    async def alone(tx: AsyncTransaction) -> None:
        await tx.execute("SELECT 1")

    kit = holdfast_kit(app)
    await app.aenqueue_many(together.job(n) for n in range(9))
    await app.aenqueue_many(alone.job() for _ in range(4))
    while kit.sql("SELECT id FROM holdfast.work"):
        await workers(app, 2)
    assert sum(sizes) == 9
    assert max(sizes) <= 3


async def test_keys_at_their_limit_do_not_hide_the_others(app: Holdfast, holdfast_kit: Make) -> None:
    kit, _, work = limited(app, holdfast_kit, key_concurrency=1)
    busy = [f"busy{n}" for n in range(300)]
    await app.aenqueue_many(work.using(partition_key=key).job() for key in busy + busy)
    async with claimer(kit, key_concurrency=1) as (claims, worker):
        claims.look_again(thorough=True)
        assert len(await claims.claim(Ask(worker, 300))) == 300
        await app.aenqueue_many(work.using(partition_key="free").job() for _ in range(2))
        claims.look_again(thorough=True)
        assert [j.partition_key for j in await claims.claim(Ask(worker, 10))] == ["free"]


async def test_the_app_is_told_that_the_database_has_other_limits(
    app: Holdfast, holdfast_kit: Make, events: list[telemetry.Event]
) -> None:
    kit, _, _ = limited(app, holdfast_kit, concurrency=5, aging=30)
    await asyncio.to_thread(
        Operator(kit.database, "ann").set_queue, "limited", limits={"concurrency": 9, "aging": None}
    )
    await workers(app, 1)
    (told,) = [e for e in events if e.name == "queue.differs"]
    assert (told.fields["queue"], told.fields["options"]) == ("limited", "concurrency, aging")


# Turns ---------------------------------------------------------------------------------------------------------------


def test_turns_follow_the_weights_and_forget_what_is_out() -> None:
    turns = Turns()
    for key in ("a", "b", "c"):
        turns.add(key)
    weights = {"a": 2.0}
    given: Counter[str] = Counter()
    for _ in range(40):
        for key, share, at in turns.take(4, lambda key: weights.get(key, 1.0)):
            given[key] += share
            turns.put_back(key, at + share / weights.get(key, 1.0))
    assert given == {"a": 80, "b": 40, "c": 40}
    assert {
        key: share for key, share, _ in copy.deepcopy(turns).take(40, lambda key: weights.get(key, 1.0))
    } == {
        "a": 20,
        "b": 10,
        "c": 10,
    }
    turns.take(1, lambda _: 1.0)
    assert len(turns) == 2


def test_a_key_that_comes_new_starts_where_the_others_are() -> None:
    """It gets its share from now on, and nothing for the time when it had no work."""
    turns = Turns()
    turns.add("old")
    for key, share, at in turns.take(100, lambda _: 1.0):
        turns.put_back(key, at + share)
    turns.add("new")
    shares = {key: share for key, share, _ in turns.take(10, lambda _: 1.0)}
    assert 4 <= shares["old"] <= 6


def test_a_key_that_is_put_back_unserved_is_next() -> None:
    turns = Turns()
    for key in ("a", "b"):
        turns.add(key)
    (first,) = turns.take(1, lambda _: 1.0)
    turns.put_back(first.key, first.at)
    assert turns.take(1, lambda _: 1.0) == [first]


def test_turns_of_fifty_thousand_keys_cost_those_that_are_taken() -> None:
    """The heap is not rebuilt for each claim."""
    turns = Turns()
    for n in range(50_000):
        turns.add(f"k{n}")
    rebuilt = 0
    keep = turns.keep

    def counting(wanted: Callable[[str], bool]) -> None:
        nonlocal rebuilt
        rebuilt += 1
        keep(wanted)

    turns.keep = counting  # type: ignore[method-assign]
    for _ in range(1000):
        for key, share, at in turns.take(10, lambda _: 1.0):
            turns.put_back(key, at + share)
    assert rebuilt <= 1
