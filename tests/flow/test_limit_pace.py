"""Limits at speed: jobs are taken ahead from what is spare, and starts follow a rate evenly."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import QUICK, await_until
from tests.flow.test_drain import serving
from tests.flow.test_flow_control import claimer, limited, running, workers
from tests.sql.test_limit_starts import most_beyond

from holdfast import Holdfast, Job, Rate
from holdfast.model.queue import QueueRules
from holdfast.operate.job_acts import cancel_verb
from holdfast.operate.operator import Operator
from holdfast.runtime.claim.claimer import Ask
from holdfast.testing import Kit

Make = Callable[..., Kit]


@pytest.mark.parametrize("rules", [{"rate": Rate(20, burst=1)}, {"key_rate": Rate(20, burst=1)}])
async def test_a_rate_without_burst_is_used_and_its_starts_do_not_cluster(
    app: Holdfast, holdfast_kit: Make, rules: dict[str, Any]
) -> None:
    app.queue("limited", **rules)
    starts: list[float] = []

    @app.task(queue="limited")
    async def work(job: Job) -> None:
        starts.append(time.monotonic())

    holdfast_kit(app)
    await app.aenqueue_many(work.using(partition_key="a").job() for _ in range(80))
    async with running(app, concurrency=10):
        await await_until(lambda: len(starts) == 80, "all have started")
    assert most_beyond(starts, 20, 1) < 1  # not one more, though a machine that is busy holds up some of them
    best = max(19 / (starts[n + 19] - starts[n]) for n in range(60))
    assert best >= 0.95 * 20


async def test_places_that_are_spare_are_claimed_ahead_of_the_slots(
    app: Holdfast, holdfast_kit: Make
) -> None:
    """Half of what is left to the first; then each no more than its part."""
    kit, _, work = limited(app, holdfast_kit, concurrency=40)
    await app.aenqueue_many(work.job() for _ in range(100))
    async with claimer(kit, concurrency=40) as (one, first), claimer(kit, concurrency=40) as (two, second):
        assert len(await one.claim(Ask(first, 100, 2))) == 20
        assert len(await two.claim(Ask(second, 100, 2))) == 10
        assert len(await one.claim(Ask(first, 100, 2))) == 2  # for its slots: it has its part
        assert len(await two.claim(Ask(second, 100, 2))) == 4


async def test_a_claim_is_trimmed_when_half_of_it_is_over(app: Holdfast, holdfast_kit: Make) -> None:
    """What claims list is what a limit counts first."""
    app.queue("limited", concurrency=1000)
    gate = asyncio.Event()

    @app.task(queue="limited")
    async def work(n: int) -> None:
        if n == 0:
            await gate.wait()

    kit = holdfast_kit(app)
    await app.aenqueue_many(work.job(n=n) for n in range(300))

    def listed() -> int:
        return int(kit.sql("SELECT coalesce(sum(cardinality(job_ids)), 0) AS n FROM holdfast.claims")[0]["n"])

    async with running(app, concurrency=10):
        await await_until(lambda: len(kit.sql("SELECT id FROM holdfast.archive")) == 299, "but for one")
        await app.aenqueue_many(work.job(n=n) for n in range(1, 3))
        await await_until(lambda: listed() <= 5, "the claims list little more than what runs")
        gate.set()
    await workers(app, 1)
    assert len(kit.sql("SELECT id FROM holdfast.archive")) == 302


async def test_a_job_that_waits_for_its_token_is_cancelled_and_handed_back(
    app: Holdfast, holdfast_kit: Make
) -> None:
    """The rate was lowered meanwhile, so their tokens are far away."""
    app.queue("limited", rate=Rate(100, burst=1))
    started: list[int] = []

    @app.task(queue="limited")
    async def work(n: int) -> None:
        started.append(n)

    kit = holdfast_kit(app, QUICK)
    await app.aenqueue_many(work.job(n) for n in range(100))
    async with serving(app) as stage:
        worker = await stage.until_started()
        await await_until(lambda: len(worker._attempts.dispatcher.early) > 5, "some wait for their tokens")
        slow = QueueRules(rate=Rate(0.001, burst=1))
        worker._queues._rules["limited"] = slow  # as an operator's change is known
        early = list(worker._attempts.dispatcher.early)
        assert len(early) > 2
        victim = early[-1].claimed
        Operator(kit.database, "ann").act_on(cancel_verb(), [victim.id])
        await await_until(
            lambda: kit.job(victim.id)["status"] == "cancelled", "it does not wait for its token"
        )
    rows = kit.sql("SELECT DISTINCT status, attempts, crashes FROM holdfast.work")
    assert [*rows] == [{"status": "pending", "attempts": 0, "crashes": 0}]
    await kit.database.aclose()
