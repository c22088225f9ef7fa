"""Day after day of keyed jobs with steps, progress and errors: the tables beside the jobs stop growing."""

import asyncio

import pytest

from holdfast import Backoff, Holdfast, Job, Retry
from holdfast.runtime import tidy
from holdfast.runtime.sweep import Sweeper
from holdfast.store import owner
from holdfast.testing import Kit

pytestmark = [pytest.mark.versions, pytest.mark.slow]

DAY = 86_400
JOBS = 300
DAYS = 5
TABLES = ("idempotency", "once", "progress", "errors", "archive", "work")


async def tidied(kit: Kit) -> None:
    sweeper = Sweeper(kit.database, lambda: None)
    await sweeper.tidier.tidy_once(1, 600.0)
    await sweeper.stop()


def test_day_after_day_the_tables_stop_growing(
    app: Holdfast, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidy, "BATCH", 100)  # a day brings three batches
    kit.sql("UPDATE holdfast.engine SET retention_days = 1")

    @app.task(retry=Backoff(first=0, jitter=False))
    def work(job: Job, n: int) -> None:
        job.once("step", lambda: n)
        kit.database.run(lambda: owner.progress([(job._grant, 0.5, "")]))
        job.progress(0.9)
        if job.attempt == 1:
            raise Retry("once more")

    sizes = []
    for day in range(DAYS):
        app.enqueue_many(
            work.using(idempotency_key=f"{day}:{n}", idempotency_lifetime=DAY / 2).job(n) for n in range(JOBS)
        )
        kit.run_worker(concurrency=20)
        kit.clock.advance(DAY)
        asyncio.run(tidied(kit))
        (row,) = kit.sql("SELECT " + ", ".join(f"(SELECT count(*) FROM holdfast.{t}) AS {t}" for t in TABLES))
        sizes.append(row)
    full = {"idempotency": 0, "once": 0, "progress": 0, "errors": JOBS, "archive": 2 * JOBS, "work": 0}
    assert [size | {"errors": 0, "archive": 0} for size in sizes] == [
        full | {"errors": 0, "archive": 0}
    ] * DAYS
    assert max(size["errors"] for size in sizes) <= JOBS + 100  # a day's, and a batch at most
    assert max(size["archive"] for size in sizes) <= 3 * JOBS
