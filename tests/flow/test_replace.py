"""replace_key= as users have it: debounce, conflicts, and a storm beside workers."""

import asyncio
from datetime import timedelta

import pytest
from tests.conftest import await_until

from holdfast import Holdfast, ReplaceConflict
from holdfast.testing import Kit


def test_debounce_runs_once_with_the_last_payload(kit: Kit, app: Holdfast) -> None:
    ran: list[int] = []

    @app.task
    async def save(n: int) -> None:
        ran.append(n)

    debounced = save.using(replace_key="doc:1", run_after=timedelta(seconds=30))
    handles = []
    for n in range(4):
        handles.append(debounced.enqueue(n))
        kit.clock.advance(20)
        kit.run_worker()
        assert ran == []
    assert len({h.id for h in handles}) == 1
    assert [h.created for h in handles] == [True, False, False, False]
    kit.clock.advance(20)
    kit.run_worker()
    assert ran == [3]
    assert debounced.enqueue(4).created  # the next burst is a new job


def test_a_replaced_job_takes_the_new_follow_ups(kit: Kit, app: Holdfast) -> None:
    ran: list[int] = []

    @app.task
    async def step(n: int) -> None:
        ran.append(n)

    step.using(replace_key="k", then=step.job(10)).enqueue(1)
    step.using(replace_key="k", then=step.job(20)).enqueue(2)
    kit.run_worker()
    assert ran == [2, 20]


def test_a_conflict_says_what_to_do(kit: Kit, app: Holdfast) -> None:
    @app.task
    async def one() -> None: ...

    @app.task
    async def two() -> None: ...

    first = one.using(replace_key="k").enqueue()
    with pytest.raises(ReplaceConflict) as caught:
        app.enqueue_many([two.job(), two.using(replace_key="k").job()])
    assert str(caught.value) == (
        f"replace key 'k' of queue 'inbox' belongs to job {first.id}, which is of another task or partition key. "
        "Use another key. Nothing of this call of 2 jobs was written"
    )
    assert (caught.value.job_id, caught.value.key, caught.value.queue) == (first.id, "k", "inbox")
    with pytest.raises(ReplaceConflict, match="belongs to another job of this call"):
        app.enqueue_many([one.using(replace_key="new").job(), two.using(replace_key="new").job()])
    assert len(kit.jobs()) == 1


async def test_a_storm_of_replacements_beside_workers_never_loses_the_last_word(
    akit: Kit, app: Holdfast
) -> None:
    """Whatever a worker takes meanwhile: every value that a new job was made for runs, and the last one always does."""
    ran: list[tuple[str, int]] = []

    @app.task
    async def save(key: str, n: int) -> None:
        ran.append((key, n))

    worker = asyncio.create_task(akit.arun_worker(until_idle=False))

    async def produce(key: str) -> int:
        made = 0
        for n in range(40):
            made += (await save.using(replace_key=key).aenqueue(key, n)).created
        return made

    try:
        made = await asyncio.gather(*(produce(key) for key in "abc"))
        await await_until(lambda: all((key, 39) in ran for key in "abc"), "the last of each key ran")
        await await_until(lambda: len(ran) == sum(made), "every job that was made ran")
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert len(ran) == len(set(ran)) == sum(made)
    for key in "abc":
        numbers = [n for k, n in ran if k == key]
        assert numbers[-1] == 39
