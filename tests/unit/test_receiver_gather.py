"""Messages that share a transaction: how long each may wait for it."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.conftest import within

from holdfast import DatabaseUnavailable
from holdfast.shapes.receiver.gather import Gatherer
from holdfast.shapes.receiver.store import NewMessage, Written


class Slow:
    """A database that writes when the test lets it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.began = asyncio.Event()
        self.batches: list[list[str]] = []

    async def write(self, messages: Sequence[NewMessage]) -> list[Written]:
        self.batches.append([message.id for message in messages])
        self.began.set()
        await self.gate.wait()
        return [Written("new", None) for _ in messages]


def message(name: str) -> NewMessage:
    return NewMessage(name, "0" * 64, "{}")


async def test_whoever_waits_longer_than_its_patience_is_told_and_what_waits_is_left_out() -> None:
    slow = Slow()
    gatherer = Gatherer(slow.write)
    first = asyncio.create_task(gatherer.put(message("being written"), 0.05))
    await slow.began.wait()
    others = [asyncio.create_task(gatherer.put(message(f"waits {n}"), 0.5)) for n in range(3)]
    for task in (first, *others):  # the time of the others is not over when that of the first is
        with pytest.raises(DatabaseUnavailable, match=r"not written within 0\.05 s"):
            await asyncio.wait_for(task, within(10))
    patient = asyncio.create_task(gatherer.put(message("later"), 600))
    slow.gate.set()
    assert await patient == Written("new", None)
    assert slow.batches == [["being written"], ["later"]]


async def test_one_that_comes_later_has_its_own_time() -> None:
    """The timer of the first is not that of the second."""
    slow = Slow()
    gatherer = Gatherer(slow.write)
    first = asyncio.create_task(gatherer.put(message("1"), 0.05))
    await slow.began.wait()
    second = asyncio.create_task(gatherer.put(message("2"), 600))
    with pytest.raises(DatabaseUnavailable):
        await first
    assert not second.done()
    slow.gate.set()
    assert await second == Written("new", None)


async def test_a_sender_that_went_away_is_no_fault_of_the_others() -> None:
    slow = Slow()
    gatherer = Gatherer(slow.write)
    gone = asyncio.create_task(gatherer.put(message("gone"), 600))
    await slow.began.wait()
    stays = asyncio.create_task(gatherer.put(message("stays"), 600))
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    slow.gate.set()
    assert await stays == Written("new", None)


async def test_a_second_transaction_begins_when_a_few_wait_and_no_third() -> None:
    slow = Slow()
    gatherer = Gatherer(slow.write)

    async def put(*names: str) -> list[asyncio.Task[Written]]:
        tasks = [asyncio.create_task(gatherer.put(message(name), 600)) for name in names]
        for _ in range(5):
            await asyncio.sleep(0)
        return tasks

    tasks = await put("1")
    tasks += await put(*"2345678")
    assert slow.batches == [["1"]], "seven are not enough"
    tasks += await put("9")
    assert slow.batches == [["1"], list("23456789")]
    tasks += await put(*"abcdefghij")
    assert len(slow.batches) == 2, "two are the most"
    slow.gate.set()
    assert await asyncio.gather(*tasks) == [Written("new", None)] * 19
    assert slow.batches[2:] == [list("abcdefghij")]
    slow.gate.clear()
    again = await put("x")
    again += await put(*"klmnopqr")
    assert slow.batches[3:] == [["x"], list("klmnopqr")], "and again when both have ended"
    slow.gate.set()
    await asyncio.gather(*again)


async def test_those_of_either_transaction_give_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two ends, and its writer takes newer messages than those that the second still has."""
    loop = asyncio.get_running_loop()
    now, later = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: now() + later)
    gates = [asyncio.Event() for _ in range(3)]
    batches: list[list[str]] = []

    async def write(messages: Sequence[NewMessage]) -> list[Written]:
        batches.append([one.id for one in messages])
        await gates[len(batches) - 1].wait()
        return [Written("new", None) for _ in messages]

    gatherer = Gatherer(write)

    async def put(names: str) -> list[asyncio.Task[Written]]:
        tasks = [asyncio.create_task(gatherer.put(message(name), 3600)) for name in names]
        for _ in range(5):
            await asyncio.sleep(0)
        return tasks

    first = await put("1")
    second = await put("abcdefgh")
    later = 2000
    third = await put("n")
    gates[0].set()
    assert await asyncio.wait_for(first[0], within(10)) == Written("new", None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert batches == [["1"], list("abcdefgh"), ["n"]]
    later = 3601
    for task in second:
        with pytest.raises(DatabaseUnavailable):
            await asyncio.wait_for(task, within(10))
    assert not third[0].done(), "its time is not over"
    gates[2].set()
    assert await third[0] == Written("new", None)
