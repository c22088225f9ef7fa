"""Long payloads: through a slow line, and in the memory of a worker."""

import random
import string
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash import heavy_app
from tests.crash.heavy_app import memory, weigh
from tests.crash.process import Scene
from tests.crash.proxy import Proxy

from holdfast.testing import Kit

LENGTH = 250_000
JOBS = 60


@pytest.fixture
def slow(scene: Scene, proxy: Proxy, holdfast_kit: Callable[..., Kit]) -> Proxy:
    """A line of 2 MB/s, and a time limit in which 8 MB come through."""
    kit = holdfast_kit(heavy_app.app, QUICK)
    text = "".join(random.choices(string.printable[:90], k=LENGTH))
    heavy_app.app.enqueue_many([weigh.job(text) for _ in range(JOBS)])
    assert len(kit.jobs(weigh)) == JOBS
    proxy.throttle(2_000_000)
    return proxy


def _all_arrive(scene: Scene, proxy: Proxy, **settings: Any) -> list[str]:
    timings: dict[str, Any] = {
        "statement_timeout": 2.0,
        "connect_timeout": 2.0,
        "lease": 30.0,
        "dead_after": 15.0,
        "heartbeat": 3.0,
    }
    worker = scene.start(
        url=proxy.url, concurrency=JOBS, module="tests.crash.heavy_app", **timings, **settings
    )
    rows = scene.until_finished(120)
    assert {(row["status"], row["result"]) for row in rows} == {("completed", LENGTH)}
    return [event["error"] for event in worker.events("claim.failed")]


@pytest.mark.slow
def test_long_payloads_arrive_through_a_slow_line(scene: Scene, slow: Proxy) -> None:
    _all_arrive(scene, slow)


@pytest.mark.slow
def test_a_claim_that_did_not_arrive_in_time_is_followed_by_one_of_half_the_size(
    scene: Scene, slow: Proxy
) -> None:
    failed = _all_arrive(scene, slow, claim_bytes=10**9)
    assert failed  # all of them at once are too many


@pytest.mark.slow
def test_payloads_that_are_small_on_disk_do_not_fill_the_memory(
    scene: Scene, holdfast_kit: Callable[..., Kit]
) -> None:
    kit = holdfast_kit(heavy_app.app, QUICK)
    heavy_app.app.enqueue_many([memory.job() for _ in range(500)])  # so quick that hundreds are claimed ahead
    scene.start(concurrency=2, module="tests.crash.heavy_app")
    wait_until(
        lambda: not kit.sql("SELECT 1 AS one FROM holdfast.work LIMIT 1"), "the short ones are done", 60
    )
    before = max(row["result"] for row in kit.jobs(memory))
    kit.sql(
        """INSERT INTO holdfast.work (id, queue, task, payload)
           SELECT holdfast.uuid7(), 'inbox', 'memory', jsonb_build_object('text', repeat('a', 250000))
           FROM generate_series(1, 800)"""
    )
    (size,) = kit.sql("SELECT sum(pg_column_size(payload)) AS stored FROM holdfast.work")
    assert size["stored"] < 10_000_000
    scene.until_finished(120)
    rows = kit.jobs(memory)
    assert {row["status"] for row in rows} == {"completed"}
    assert max(row["result"] for row in rows) - before < 60  # MiB; the payloads are 190
