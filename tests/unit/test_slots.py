"""How many jobs a worker wants: what its slots need, and ahead of them what quick handlers do in a moment."""

import asyncio
import time
from uuid import uuid4

import pytest

from holdfast.model.job import ClaimedJob
from holdfast.runtime.inflight import Running
from holdfast.runtime.resting_jobs import Resting
from holdfast.runtime.slots import Slots


def running() -> Running:
    uid = str(uuid4())
    job = ClaimedJob(uid, 1, 1, "t", 1, "{}", None, 0, 0, 5, 0.0, False, 0, None, "inbox", uid, 0.0, 1, 1)
    return Running(job, 0.0, 0.0)


def ran(slots: Slots, jobs: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many jobs, each in a slot for so long."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for _ in range(jobs):
        slots.started()
        slots.finished(now - seconds)


def test_at_first_it_holds_the_prefetch_ahead() -> None:
    slots = Slots(10, 2)
    assert slots.want(0) == 12


@pytest.mark.parametrize(
    ("seconds", "ahead"),
    [(0.00001, 2000), (0.001, 500), (0.01, 50), (0.1, 5), (0.4, 2), (0.6, 0), (60.0, 0)],
)
def test_ahead_is_what_handlers_do_in_a_twentieth_of_a_second(
    seconds: float, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(10, 2)
    ran(slots, 100, seconds, monkeypatch)
    assert slots.want(0) == pytest.approx(10 + ahead, abs=1)


@pytest.mark.parametrize(
    ("seconds", "soon"), [(0.001, 10), (0.02, 10), (0.05, 6), (0.1, 3), (0.4, 0), (0.6, 0)]
)
def test_soon_is_what_finds_a_slot_within_a_moment(
    seconds: float, soon: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(10, 2)
    assert slots.soon == 0, "nothing is known of its handlers"
    ran(slots, 100, seconds, monkeypatch)
    assert slots.soon == min(soon, 10)


def test_ahead_counts_the_jobs_of_a_batch_not_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(10, 2)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    for _ in range(100):
        slots.started()
        slots.finished(1000.0 - 0.05, jobs=100)
    assert slots.want(0) == pytest.approx(10 + 1000, abs=10), (
        "ten calls of a hundred in a twentieth of a second"
    )
    ran(slots, 100, 0.05, monkeypatch)
    assert slots.want(0) == pytest.approx(10 + 10, abs=1), "single jobs again"


def test_a_few_quick_jobs_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(10, 2)
    ran(slots, 9, 0.00001, monkeypatch)
    assert slots.want(0) == 12


def test_nothing_is_held_ahead_without_a_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(10, 0)
    ran(slots, 100, 0.00001, monkeypatch)
    assert slots.want(0) == 10


def test_one_long_job_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(10, 2)
    ran(slots, 100, 0.00001, monkeypatch)
    ran(slots, 1, 60.0, monkeypatch)
    assert slots.want(0) == 10


def test_a_claim_is_made_when_a_quarter_of_it_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(10, 2)
    ran(slots, 100, 0.00001, monkeypatch)
    for _ in range(10):
        slots.started()
    assert [slots.want(ready) for ready in (2000, 1500, 1499, 0)] == [0, 0, 501, 2000]


def test_few_ready_jobs_are_not_topped_up_one_by_one() -> None:
    slots = Slots(10, 2)
    for _ in range(10):
        slots.started()
    assert [slots.want(ready) for ready in (2, 1, 0)] == [0, 0, 2]


def test_while_enough_wait_here_no_end_of_a_job_is_a_reason_to_look_for_more() -> None:
    slots = Slots(10, 2)
    for _ in range(10):
        slots.started()
    slots.want(0)
    assert [slots.lacks(ready) for ready in (2, 1, 0)] == [False, False, True]
    assert [slots.content(ready) for ready in (2, 1, 0)] == [True, True, False]
    slots.finished(0.0)  # and who waits takes its slot
    assert slots.content(1)
    assert slots.lacks(1)  # nobody took it
    slots.finished(0.0)
    assert not slots.content(1)  # one of two slots would stay empty


def test_what_waits_is_blocked_only_while_no_quick_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine with quick jobs is not blocked: handing back what waits would make it slower still."""
    slots = Slots(1, 2)
    ran(slots, 100, 0.001, monkeypatch)
    assert not slots.blocked, "a slot is free"
    slots.started()
    assert not slots.blocked, "one has just ended, and they are quick"
    monkeypatch.setattr(time, "monotonic", lambda: 1000.6)
    assert slots.blocked, "this one takes long"
    ran(slots, 1, 60.0, monkeypatch)
    assert slots.blocked, "the last one was long"


async def test_a_job_that_rests_gives_its_slot_to_another_and_waits_for_one_again() -> None:
    slots = Slots(1, 0)
    resting = Resting()
    resting.slots = slots
    freed: list[int] = []
    resting.on_free = lambda: freed.append(slots.free)
    over = asyncio.Event()

    async def rest() -> None:
        async with resting.rest(running()):
            await over.wait()

    slots.started()
    task = asyncio.ensure_future(rest())
    await asyncio.sleep(0)
    assert freed == [1]
    began = slots.started()  # another job has it
    over.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    slots.finished(began)
    await task
    assert slots.running == 1


async def test_who_comes_back_waits_for_a_slot_unless_it_is_cancelled() -> None:
    slots = Slots(1, 0)
    began = slots.started()
    waiting = [asyncio.ensure_future(slots.unrest()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert slots.running == 2  # it ends its attempt, and is counted until then
    slots.finished(began)
    assert not waiting[1].done()
    slots.finished(began)
    await waiting[1]
    assert (slots.running, waiting[2].done()) == (1, False)
    slots.finished(began)
    await waiting[2]
    assert slots.running == 1


async def test_a_worker_that_drains_asks_those_that_rest_to_leave() -> None:
    resting, job = Resting(), running()
    with pytest.raises(RuntimeError, match="as it was"):
        async with resting.rest(job) as leave:
            assert not leave.is_set()
            resting.close()
            assert leave.is_set()
            raise RuntimeError("as it was")
    assert len(resting) == 0
    async with resting.rest(job) as leave:
        assert leave.is_set()
