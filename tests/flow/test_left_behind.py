"""Steps and progress that a job recorded go when it is over for good, in the transaction that ends it."""

from typing import Any

import psycopg
import pytest

from holdfast import Backoff, Batch, Cancel, DeadLetter, Holdfast, Job, Retry, Transaction
from holdfast.operate.job_acts import RETRY
from holdfast.operate.operator import Operator
from holdfast.store import owner
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

AT_ONCE = Backoff(first=0, jitter=False)


def report(kit: Kit, job: Job) -> None:
    """Progress as a heartbeat writes it, without waiting for one."""
    job.progress(0.5, "half way")
    kit.database.run(lambda: owner.progress([(job._grant, 0.5, "half way")]))


def left(kit: Kit) -> tuple[int, int]:
    """Steps and progress."""
    (row,) = kit.sql(
        "SELECT (SELECT count(*) FROM holdfast.once) AS o, (SELECT count(*) FROM holdfast.progress) AS p"
    )
    return row["o"], row["p"]


def test_a_job_that_completes_leaves_no_steps_and_no_progress(app: Holdfast, kit: Kit) -> None:
    seen = []

    @app.task
    def work(job: Job) -> None:
        job.once("step", lambda: 1)
        report(kit, job)
        seen.append(left(kit))

    for _ in range(3):
        work.enqueue()
    kit.run_worker(concurrency=1)
    assert seen[0] == (1, 1)
    assert left(kit) == (0, 0)
    assert kit.sql("SELECT count(*) AS n FROM holdfast.archive") == [{"n": 3}]


def test_what_an_earlier_attempt_recorded_goes_too(app: Holdfast, kit: Kit) -> None:
    @app.task(retry=AT_ONCE)
    def work(job: Job) -> None:
        if job.attempt == 1:
            job.once("step", lambda: 1)
            report(kit, job)
            raise Retry("again")

    @app.task
    def plain() -> None: ...

    for _ in range(3):
        work.enqueue()
        plain.enqueue()
    kit.run_worker(concurrency=1)
    assert left(kit) == (0, 0)
    assert kit.sql("SELECT count(*) AS n FROM holdfast.archive") == [{"n": 6}]


def test_a_completion_in_a_transaction_takes_them_along_or_not_at_all(app: Holdfast, kit: Kit) -> None:
    kit.sql("CREATE TABLE notes (text text)")

    @app.task
    def inside(job: Job, tx: Transaction) -> None:
        job.once("step", lambda: 1)
        report(kit, job)

    @app.task(retry=AT_ONCE)
    def by_hand(job: Job) -> None:
        job.once("step", lambda: 1)
        report(kit, job)
        with psycopg.connect(kit.url) as conn:
            job.complete(conn=conn)
            if job.attempt == 1:
                conn.rollback()
                assert left(kit) == (1, 1)
                raise Retry("rolled back")

    inside.enqueue()
    kit.run_worker()
    assert left(kit) == (0, 0)
    by_hand.enqueue()
    kit.run_worker()
    assert left(kit) == (0, 0)
    assert kit.sql("SELECT count(*) AS n FROM holdfast.archive") == [{"n": 2}]


def test_a_job_of_a_batch_leaves_nothing(app: Holdfast, kit: Kit) -> None:
    @app.batch_task(size=5)
    def together(batch: Batch[int]) -> None:
        for item in batch:
            item.job.once("step", lambda: 1)
            report(kit, item.job)

    for n in range(3):
        together.enqueue(n)
    kit.run_worker()
    assert left(kit) == (0, 0)


def test_a_dead_letter_keeps_its_steps_and_a_redrive_finds_them(app: Holdfast, kit: Kit) -> None:
    ran = []

    @app.task
    def work(job: Job) -> None:
        job.once("step", lambda: ran.append(1))
        if job.generation == 1:
            raise DeadLetter("no")

    handle = work.enqueue()
    kit.run_worker()
    assert left(kit)[0] == 1
    Operator(kit.database, "ann").act_on(RETRY, [handle.id])
    kit.run_worker()
    assert (ran, left(kit)) == ([1], (0, 0))


def test_a_cancelled_job_keeps_its_steps_and_no_progress_and_a_retry_finds_them(
    app: Holdfast, kit: Kit
) -> None:
    ran = []

    @app.task
    def work(job: Job) -> None:
        job.once("step", lambda: ran.append(1))
        report(kit, job)
        if job.generation == 1:
            raise Cancel("no")

    handle = work.enqueue()
    kit.run_worker()
    assert left(kit) == (1, 0)
    Operator(kit.database, "ann").act_on(RETRY, [handle.id])
    kit.run_worker()
    assert (ran, left(kit)) == ([1], (0, 0))


def test_a_job_that_was_lost_keeps_the_steps_of_its_new_owner(app: Holdfast, kit: Kit) -> None:
    seen: list[Any] = []

    @app.task
    def work(job: Job) -> None:
        job.once("step", lambda: 1)
        if job.generation == 1:
            kit.sql(
                "UPDATE holdfast.work SET status = 'pending', available_at = available_at + interval '1 hour'"
            )

    work.enqueue()
    kit.run_worker()
    seen.append(left(kit))
    kit.clock.advance(3700)
    kit.run_worker()
    seen.append(left(kit))
    assert seen == [(1, 0), (0, 0)]
