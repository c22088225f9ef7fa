"""Long payloads that wait in a worker keep no slot empty, and do not pile up."""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import QUICK, await_until
from tests.flow.test_drain import serving

from holdfast import Batch, Holdfast
from holdfast.runtime import dispatch
from holdfast.runtime.worker import Worker
from holdfast.testing import Kit

Make = Callable[..., Kit]
LONG = "x" * 50_000
BUDGET = 200_000
SETTINGS = replace(QUICK, claim_bytes=BUDGET)


def _has(ran: list[int], wanted: int) -> bool:
    return len(ran) == wanted


async def _others_run(app: Holdfast, short: Any, worker: Worker, ran: list[int]) -> None:
    """One after the other, and many at once."""
    for count in (1, 2, 3, 50):
        wanted = len(ran) + count
        await app.aenqueue_many(short.job(n=n) for n in range(count))
        await await_until(functools.partial(_has, ran, wanted), "short jobs run")
    assert worker._context.inflight.idle_bytes(0) <= 2 * BUDGET


async def test_jobs_behind_a_long_one_of_their_key_keep_no_slot_empty(
    app: Holdfast, holdfast_kit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.queue("orders", ordering="key")
    gate, ran, in_order = asyncio.Event(), list[int](), list[int]()

    @app.task(queue="orders")
    async def step(n: int, data: str = "") -> None:
        if n == 0:
            await gate.wait()
        in_order.append(n)

    @app.task
    async def short(n: int) -> None:
        ran.append(n)

    kit = holdfast_kit(app, SETTINGS)
    one = step.using(partition_key="a")
    await app.aenqueue_many([one.job(n=0), *[one.job(n=n, data=LONG) for n in range(1, 20)]])
    monkeypatch.setattr(dispatch, "_STALE", 3600.0)
    async with serving(app) as stage:
        worker = await stage.until_started()
        await await_until(lambda: worker.slots.running == 1, "the first of its key runs")
        await _others_run(app, short, worker, ran)
        assert worker._context.inflight.idle_bytes(0) >= BUDGET
        monkeypatch.undo()
        # They go back after a while, and others are claimed as usual.
        await await_until(lambda: len(worker._context.inflight) == 1, "what waits behind it is handed back")
        await _others_run(app, short, worker, ran)
        gate.set()
        await await_until(lambda: len(in_order) == 20, "the key goes on")
    assert in_order == list(range(20))
    assert not kit.sql("SELECT id FROM holdfast.work")
    await kit.database.aclose()


@pytest.mark.parametrize("tasks", [1, 3])
async def test_jobs_that_gather_keep_no_slot_empty(app: Holdfast, holdfast_kit: Make, tasks: int) -> None:
    ran, sizes = list[int](), list[int]()

    def gathering(name: str) -> Any:
        @app.batch_task(name=name, size=1000, wait=60.0)
        async def many(batch: Batch[str]) -> None:
            sizes.append(len(batch))

        return many

    every = [gathering(f"many-{n}") for n in range(tasks)]

    @app.task
    async def short(n: int) -> None:
        ran.append(n)

    kit = holdfast_kit(app, SETTINGS)
    await app.aenqueue_many(every[n % tasks].job(LONG) for n in range(30))
    async with serving(app) as stage:
        worker = await stage.until_started()
        await await_until(lambda: sum(sizes) > 20, "batches go when they have come to so many bytes")
        assert max(sizes) <= BUDGET // len(LONG) + 1
        await _others_run(app, short, worker, ran)
    await kit.database.aclose()
