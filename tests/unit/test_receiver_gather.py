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
