"""A queue has its turn beside a backlog of another one in the same worker, whatever its rules."""

import asyncio
from typing import Any

import pytest
from tests.conftest import await_until

from holdfast import Holdfast
from holdfast.testing import Kit

MANY = 20_000


@pytest.mark.parametrize(
    "rules",
    [{"fair": True}, {"fair": True, "key_concurrency": 2}, {"ordering": "key", "concurrency": 5}],
    ids=["fair", "limited by key", "ordered and limited"],
)
async def test_a_backlog_of_quick_jobs_starves_no_queue_with_keys(
    app: Holdfast, akit: Kit, rules: dict[str, Any]
) -> None:
    app.queue("keys", **rules)
    done = 0
    after: list[int] = []

    @app.task
    async def quick() -> None:
        nonlocal done
        done += 1

    @app.task(queue="keys")
    async def of_a_key() -> None:
        after.append(done)

    akit.create_queues()
    akit.sql("SELECT count(holdfast.enqueue('quick')) FROM generate_series(1, %s)", [MANY])
    worker = asyncio.create_task(app.run_worker(queues=["inbox", "keys"], concurrency=10))
    try:
        await await_until(lambda: done > 1000, "the worker is at work")
        akit.sql(
            "SELECT count(holdfast.enqueue('of_a_key', '{}', 'keys', 'k' || n)) FROM generate_series(1, 4) n"
        )
        await await_until(lambda: len(after) == 4, "the jobs of keys ran")
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert after[-1] < MANY, "they ran beside the others, not after all of them"
