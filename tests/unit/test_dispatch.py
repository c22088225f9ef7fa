"""How jobs are started: each in a task of its own, at once where Python can."""

import asyncio
import contextvars
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from holdfast.model.job import ClaimedJob
from holdfast.runtime import dispatch
from holdfast.runtime.batch.gather import Batches, Group
from holdfast.runtime.dispatch import Dispatcher
from holdfast.runtime.inflight import Running
from holdfast.runtime.lanes import Lanes
from holdfast.runtime.pace import Pace
from holdfast.runtime.slots import Slots
from holdfast.tasks.taskset import TaskSet

EAGER = sys.version_info >= (3, 12)
Handler = Callable[[Running], Awaitable[None]]


def a_job(n: int) -> Running:
    claimed = ClaimedJob(
        str(uuid4()), 1, n, "t", 1, "{}", None, 0, 0, 5, 0.0, False, 0, None, "inbox", str(uuid4()), 0.0, 1, 1
    )  # fmt: skip
    now = time.monotonic()
    return Running(claimed, now, now)


class Ended:
    """A task that is over."""

    def done(self) -> bool:
        return True


def at_once(job: Coroutine[Any, Any, None], name: str) -> Any:
    """What Python 3.12 does with a job that waits for nothing, on any Python."""
    with pytest.raises(StopIteration):
        job.send(None)
    return Ended()


acted = pytest.mark.parametrize("acted", [False, True], ids=["tasks", "acted"])


class Here:
    """A dispatcher, its slots, and what a worker does around a handler."""

    def __init__(self, handler: Handler, concurrency: int = 10, *, acted: bool = False) -> None:
        self.slots = Slots(concurrency, 0)
        self.handler = handler
        self.closed = False
        self.doubtful: set[int] = set()
        self.began: list[int] = []
        self.ended: list[int] = []
        self.stopped: list[int] = []
        self.most = 0  # that ran at one time
        self.wanted = 0  # so often it was asked for more
        self.dispatcher = Dispatcher(
            self.slots,
            self,
            lambda: self.closed,
            batches=Batches(TaskSet([]), lambda _: None, 1),
            lanes=Lanes({}),
            pace=Pace({}),
            dead_after=60.0,
        )
        self.dispatcher._in_doubt = lambda running: running.claimed.seq in self.doubtful
        if acted:
            self.dispatcher._begin = at_once

    def end_unstarted(self, running: Running) -> None:
        self.stopped.append(running.claimed.seq)

    def start_batch(self, group: Group, began: float, context: contextvars.Context) -> None:
        raise AssertionError("no batches here")

    def want_more(self) -> None:
        self.wanted += 1

    async def run(self, running: Running) -> None:
        self.began.append(running.claimed.seq)
        self.most = max(self.most, self.slots.running)
        await self.handler(running)
        self.slots.finished(running.started_at)
        self.ended.append(running.claimed.seq)
        self.dispatcher.go_on()

    def add(self, count: int) -> list[Running]:
        made = [a_job(n) for n in range(count)]
        self.dispatcher.ready.extend(made)
        return made

    async def until_ended(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.ended) < count:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def nothing(_: Running) -> None:
    """A job that waits for nothing."""


async def test_a_job_that_waits_for_nothing_ends_where_it_is_started() -> None:
    here = Here(nothing)
    jobs = here.add(3)
    here.dispatcher.start()
    assert here.ended == ([0, 1, 2] if EAGER else [])
    await here.until_ended(3)
    assert here.ended == [0, 1, 2]
    assert all(job.task is not None and job.task.done() for job in jobs)
    assert here.slots.running == 0


@pytest.mark.parametrize("settling", [True, False])
async def test_of_a_job_that_ended_at_once_its_task_is_kept_only_if_it_left_no_outcome(
    settling: bool,
) -> None:
    """Thousands may wait to be settled. But by the task of one without an outcome the renewal finds it."""

    async def ends(running: Running) -> None:
        running.settling = settling

    here = Here(ends, acted=True)
    (job,) = here.add(1)
    here.dispatcher.start()
    assert (job.task is None) is settling
    assert job.abandoned is not settling


@acted
async def test_thousands_of_ready_jobs_do_not_stand_on_each_others_shoulders(acted: bool) -> None:
    depths: list[int] = []

    async def look(_: Running) -> None:
        frame, depth = sys._getframe(), 0
        while (outer := frame.f_back) is not None:
            frame, depth = outer, depth + 1
        depths.append(depth)
        here.dispatcher.start()  # as the end of a job does that others of its key wait for

    here = Here(look, concurrency=10, acted=acted)
    here.add(5000)
    here.dispatcher.start()
    await here.until_ended(5000)
    assert here.began == list(range(5000))
    assert max(depths) - min(depths) < 20


@acted
@pytest.mark.parametrize("concurrency", [1, 10, 50])
async def test_the_event_loop_has_its_turn_between_jobs_that_wait_for_nothing(
    concurrency: int, acted: bool
) -> None:
    here = Here(nothing, concurrency, acted=acted)
    here.add(400)
    turns: list[int] = []

    def turn() -> None:
        turns.append(len(here.began))
        if len(here.ended) < 400:
            asyncio.get_running_loop().call_soon(turn)

    asyncio.get_running_loop().call_soon(turn)
    here.dispatcher.start()
    await here.until_ended(400)
    steps = [b - a for a, b in zip([0, *turns], [*turns, 400], strict=True)]
    assert max(steps) <= dispatch._AT_ONCE


async def test_no_more_run_at_once_than_there_are_slots() -> None:
    gate = asyncio.Event()

    async def wait(running: Running) -> None:
        if running.claimed.seq % 3:  # among those that wait for nothing
            await gate.wait()

    here = Here(wait, concurrency=4)
    here.add(40)
    here.dispatcher.start()
    for _ in range(20):
        await asyncio.sleep(0)
    assert here.slots.running == 4
    assert len(here.began) - len(here.ended) == 4
    assert len(here.dispatcher.ready) == 40 - len(here.began)
    gate.set()
    await here.until_ended(40)
    assert here.most <= 4
    assert here.began == list(range(40))


async def test_the_current_task_is_the_jobs_own() -> None:
    seen: dict[int, asyncio.Task[None] | None] = {}

    async def look(running: Running) -> None:
        seen[running.claimed.seq] = asyncio.current_task()
        if running.claimed.seq % 2:
            await asyncio.sleep(0)
            assert asyncio.current_task() is seen[running.claimed.seq]

    here = Here(look)
    jobs = here.add(6)
    mine = asyncio.current_task()
    here.dispatcher.start()
    assert asyncio.current_task() is mine
    await here.until_ended(6)
    for job in jobs:
        task = seen[job.claimed.seq]
        assert task is job.task
        assert task is not None
        assert task.get_name() == f"job {job.claimed.id_text}"
    assert len(set(seen.values()) | {mine}) == 7


async def test_a_timeout_in_a_handler_ends_only_that_handler() -> None:
    late: list[int] = []
    gate = asyncio.Event()

    async def limited(running: Running) -> None:
        if running.claimed.seq != 1:
            await gate.wait()
            return
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            late.append(running.claimed.seq)

    here = Here(limited)
    jobs = here.add(3)
    here.dispatcher.start()
    await here.until_ended(1)
    assert (late, here.ended) == ([1], [1])
    assert not any(job.task is None or job.task.cancelling() for job in jobs)
    gate.set()
    await here.until_ended(3)
    assert sorted(here.ended) == [0, 1, 2]


async def test_a_loop_with_a_task_factory_makes_the_tasks() -> None:
    made: list[asyncio.Task[Any]] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        made.append(asyncio.Task(coro, loop=loop, **options))
        return made[-1]

    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        here = Here(nothing)
        jobs = here.add(2)
        here.dispatcher.start()
        assert here.ended == []  # this factory begins nothing at once
        await here.until_ended(2)
    finally:
        loop.set_task_factory(None)
    assert [job.task for job in jobs] == made
    assert [task.get_name() for task in made] == [f"job {job.claimed.id_text}" for job in jobs]


VALUE: contextvars.ContextVar[int] = contextvars.ContextVar("value", default=-1)


@pytest.mark.parametrize("waits", [False, True], ids=["at-once", "waits"])
async def test_what_a_handler_sets_in_its_context_the_next_does_not_see(waits: bool) -> None:
    seen: list[int] = []

    async def set_it(running: Running) -> None:
        seen.append(VALUE.get())
        VALUE.set(running.claimed.seq)
        if waits:
            await asyncio.sleep(0)
            assert VALUE.get() == running.claimed.seq

    outside = VALUE.set(-2)
    try:
        here = Here(set_it, concurrency=2)
        here.add(120)
        here.dispatcher.start()
        await here.until_ended(120)
        assert VALUE.get() == -2
    finally:
        VALUE.reset(outside)
    assert seen == [-2] * 120


@acted
async def test_a_stop_in_the_middle_leaves_the_rest_ready(acted: bool) -> None:
    async def stop(_: Running) -> None:
        here.closed = True

    here = Here(stop, concurrency=3, acted=acted)
    here.add(10)
    here.dispatcher.start()
    begun = 1 if EAGER or acted else 3  # those that a slot was taken for
    await here.until_ended(begun)
    await asyncio.sleep(0.01)
    here.dispatcher.start()
    assert here.began == list(range(begun))
    assert [running.claimed.seq for running in here.dispatcher.ready] == list(range(begun, 10))


async def test_what_is_in_doubt_keeps_its_place_and_the_others_run() -> None:
    here = Here(nothing, concurrency=2)
    here.doubtful = {0, 3, 4}
    jobs = here.add(7)
    jobs[5].stop = "lost"
    here.dispatcher.start()
    await here.until_ended(3)
    assert here.ended == [1, 2, 6]
    assert here.stopped == [5]
    assert [running.claimed.seq for running in here.dispatcher.ready] == [0, 3, 4]
    here.doubtful = set()
    here.dispatcher.start()
    await here.until_ended(6)
    assert here.ended == [1, 2, 6, 0, 3, 4]


async def test_jobs_that_came_long_ago_are_handed_back() -> None:
    here = Here(nothing)
    jobs = here.add(4)
    for job in jobs[:2]:
        job.claimed_at -= 60
    here.slots.running = 10  # and none of them has ended of late
    assert here.dispatcher.stale(lambda: False) == jobs[:2]
    assert list(here.dispatcher.ready) == jobs[2:]
    assert here.dispatcher.stale(lambda: False) == []


async def test_all_calls_of_one_turn_share_what_may_end_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an ordered queue, where each job that is settled starts the next of its key."""
    monkeypatch.setattr(dispatch, "_LONG", 600.0)  # a slow machine is no reason to stop before
    here = Here(nothing, acted=True)
    here.add(400)
    for _ in range(20):
        here.dispatcher.start()
    assert len(here.ended) == dispatch._AT_ONCE
    await here.until_ended(400)
    assert here.began == list(range(400))


async def test_jobs_that_compute_give_the_event_loop_its_turn_sooner() -> None:
    async def compute(_: Running) -> None:
        time.sleep(0.004)

    here = Here(compute, acted=True)
    here.add(20)
    here.dispatcher.start()
    assert 1 < len(here.ended) <= dispatch._LONG / 0.004 + 2
    await here.until_ended(20)


async def test_a_slot_that_is_taken_while_a_job_ends_at_once_is_taken() -> None:
    """The end of a job may start something else, such as a batch."""
    here = Here(nothing, concurrency=2, acted=True)

    async def takes_a_slot(running: Running) -> None:
        if running.claimed.seq == 0:
            here.slots.started()
            here.slots.started()

    here.handler = takes_a_slot
    here.add(3)
    here.dispatcher.start()
    assert here.began == [0]
    assert here.slots.free == 0


async def test_jobs_that_end_in_one_turn_leave_their_slots_to_one_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a task does not begin at once, as before Python 3.12."""
    monkeypatch.setattr(dispatch, "_EAGER", False)
    here = Here(nothing, concurrency=10)
    loop = asyncio.get_running_loop()
    here.dispatcher._begin = lambda job, name: asyncio.Task(job, loop=loop, name=name)
    starts = 0
    right = here.dispatcher.start_ready

    def counted() -> None:
        nonlocal starts
        starts += 1
        right()

    monkeypatch.setattr(here.dispatcher, "start_ready", counted)
    here.add(50)
    here.dispatcher.start()
    await here.until_ended(50)
    assert starts == 5  # not one for each job
    assert here.most == 10


@acted
async def test_more_is_wanted_when_jobs_have_ended(acted: bool) -> None:
    """Once for all of a turn, whether they ended where they were started or later."""
    here = Here(nothing, acted=acted)
    here.add(5)
    here.dispatcher.start()
    await here.until_ended(5)
    async with asyncio.timeout(20):
        while not here.wanted:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert here.wanted == 1
