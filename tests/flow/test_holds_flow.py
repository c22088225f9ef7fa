"""Held keys while workers run: they are left alone, others go on, and what comes after the end or a lift is found."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import QUICK, await_until
from tests.flow.test_pausing import working

from holdfast import Holdfast, Job
from holdfast.model.worker import WorkerIdentity
from holdfast.operate.operator import Operator
from holdfast.runtime.claim.claimer import Ask, Shared
from holdfast.runtime.claim.fair import FairClaimer
from holdfast.runtime.claim.held import HeldJobs
from holdfast.runtime.claim.keyed import KeyedClaimer
from holdfast.runtime.claim.ordered import OrderedClaimer
from holdfast.store.holds import hold_keys, lift_keys
from holdfast.store.queues import queue_rules
from holdfast.store.workers import register
from holdfast.testing import Kit

RULES: dict[str, dict[str, Any]] = {
    "fair": {"fair": True},
    "limited": {"fair": True, "key_concurrency": 50, "concurrency": 100},
    "ordered": {"ordering": "key"},
}


@pytest.fixture(params=RULES)
def queue(request: pytest.FixtureRequest, app: Holdfast) -> str:
    app.queue(request.param, **RULES[request.param])
    return str(request.param)


@pytest.fixture
def ran(app: Holdfast, queue: str) -> list[str]:
    """The keys of the jobs that ran, in their order."""
    found: list[str] = []

    @app.task(queue=queue)
    async def work(job: Job) -> None:
        found.append(job.partition_key or "")

    return found


def put(app: Holdfast, queue: str, key: str, count: int = 1) -> None:
    for _ in range(count):
        app.send("work", {}, queue=queue, partition_key=key)


def test_a_held_key_is_left_alone_and_the_others_go_on(
    app: Holdfast, kit: Kit, queue: str, ran: list[str]
) -> None:
    kit.create_queues()
    put(app, queue, "a", 3)
    put(app, queue, "b", 3)
    Operator(kit.database, "ann").hold_keys(queue, ["a"], seconds=60)
    kit.run_worker()
    assert ran == ["b"] * 3
    kit.clock.advance(61)
    kit.run_worker()
    assert ran[3:] == ["a"] * 3


def test_one_job_is_tried_and_the_rest_runs_when_the_hold_is_lifted(
    app: Holdfast, kit: Kit, queue: str, ran: list[str]
) -> None:
    kit.create_queues()
    put(app, queue, "a", 4)
    put(app, queue, "b")
    Operator(kit.database, "ann").hold_keys(queue, ["a"], seconds=60, trial=True)
    kit.run_worker()
    kit.clock.advance(61)
    kit.run_worker()
    kit.run_worker()
    assert ran == ["b", "a"]
    (hold,) = Operator(kit.database, "ann").held_keys(queue).holds
    assert (hold.trial_state, hold.jobs.count) == ("over", 3)
    Operator(kit.database, "ann").lift_keys(queue, ["a"])
    kit.run_worker()
    assert ran == ["b", "a", "a", "a", "a"]


def test_the_handler_of_the_trial_decides(app: Holdfast, kit: Kit, queue: str) -> None:
    """As a shape does it: in a transaction of its own, with the claim of the job."""
    ran: list[bool] = []
    good = False

    @app.task(queue=queue)
    async def deliver(job: Job) -> None:
        ran.append(good)
        keys, token = [job.partition_key or ""], job._grant.token
        session = kit.database.session("deliver")
        if good:
            assert await session.flow(lambda: lift_keys(queue, keys, trial=token)) in (keys, [])
        else:
            await session.flow(lambda: hold_keys(queue, keys, 60, trial=True))
        await session.close()

    kit.create_queues()
    for _ in range(4):
        app.send("deliver", {}, queue=queue, partition_key="a")
    Operator(kit.database, "ann").hold_keys(queue, ["a"], seconds=60, trial=True)
    for tried in (1, 2):
        kit.clock.advance(61)
        kit.run_worker()
        assert ran == [False] * tried
    good = True
    kit.clock.advance(61)
    kit.run_worker()
    assert ran == [False, False, True, True]


@pytest.fixture
async def dozing(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> AsyncIterator[Kit]:
    """Its workers look by themselves once in ten minutes."""
    kit = holdfast_kit(app, replace(QUICK, poll=600.0))
    yield kit
    await kit.database.aclose()


async def test_a_worker_that_sleeps_wakes_when_a_hold_is_lifted(
    app: Holdfast, dozing: Kit, queue: str, ran: list[str]
) -> None:
    dozing.create_queues()
    operator = Operator(dozing.database, "ann")
    operator.hold_keys(queue, ["a"])
    put(app, queue, "a")
    async with working(dozing):
        put(app, queue, "b")
        await await_until(lambda: ran == ["b"], "the other key runs")
        await asyncio.to_thread(operator.lift_keys, queue, ["a"])
        await await_until(lambda: ran == ["b", "a"], "the lifted key runs")


async def test_a_worker_comes_again_when_a_hold_ends(
    app: Holdfast, dozing: Kit, queue: str, ran: list[str]
) -> None:
    dozing.create_queues()
    Operator(dozing.database, "ann").hold_keys(queue, ["a"], seconds=1.5)
    Operator(dozing.database, "ann").hold_keys(queue, ["b"], seconds=1.5, trial=True)
    put(app, queue, "a")
    put(app, queue, "b", 2)
    async with working(dozing):
        await await_until(lambda: sorted(ran) == ["a", "b"], "what waited for the end of its hold ran")


async def test_two_workers_try_one_job(app: Holdfast, akit: Kit, queue: str, ran: list[str]) -> None:
    akit.create_queues()
    operator = Operator(akit.database, "ann")
    operator.hold_keys(queue, ["a"], seconds=0.5, trial=True)
    put(app, queue, "a", 10)
    async with working(akit), working(akit):
        await await_until(lambda: ran == ["a"], "one was tried")
        put(app, queue, "b", 5)
        await await_until(lambda: ran.count("b") == 5, "others run")
        assert ran.count("a") == 1
        await asyncio.to_thread(operator.lift_keys, queue, ["a"])
        await await_until(lambda: ran.count("a") == 10, "the rest runs")


async def test_a_claimer_with_held_keys_alone_proposes_nothing_and_says_when_to_come(
    app: Holdfast, akit: Kit, queue: str, ran: list[str]
) -> None:
    akit.create_queues()
    for key in ("a", "b", "c"):
        put(app, queue, key, 5)
    Operator(akit.database, "ann").hold_keys(queue, ["a", "b", "c"], seconds=40)
    session = akit.database.session("test")
    me = WorkerIdentity("host", 1, uuid4().hex)
    await session.run(register(me, queues=[queue], tasks=["work"], concurrency=1, release="1"))
    rules = (await session.run(queue_rules([queue])))[queue]
    shared = Shared(session, HeldJobs(session, app.tasks), lambda _: uuid4(), 60.0)
    kind: type[KeyedClaimer] = OrderedClaimer if rules.ordered else FairClaimer
    claimer = kind(queue, rules, 60.0, shared)
    assert await claimer.claim(Ask(me.id, 10)) == []
    assert len(claimer._found) == 0
    assert claimer.again_in is not None
    assert 0 < claimer.again_in <= 40
    await session.close()
