"""A worker that reads a broker ends when it is told to, whatever the broker and its client do just then."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence

import nats
import pytest
from tests.conftest import await_until, within
from tests.receiver.nats_server import Nats, nats_server
from tests.receiver.test_consume import Listed, Order, source

from holdfast import Holdfast, InMessage, ReceivedMessage
from holdfast.shapes.receiver import consume
from holdfast.shapes.receiver.consume import Reader, services
from holdfast.telemetry import Event
from holdfast.testing import Kit


@contextlib.asynccontextmanager
async def ending(kit: Kit) -> AsyncIterator[None]:
    """A worker that must end, and well before the limits of what it awaits."""
    worker = asyncio.create_task(kit.arun_worker(until_idle=False))
    try:
        yield
    finally:
        worker.cancel()
        done, _ = await asyncio.wait({worker}, timeout=within(10))
        assert done, "the worker does not end"


class DeafClient(Listed):
    """As clients are that make an error of a cancellation."""

    def __init__(self, deaf: str, *messages: InMessage) -> None:
        super().__init__(*messages)
        self.deaf = deaf
        self.reached = False
        self.over = asyncio.Event()

    async def _hang(self, where: str) -> None:
        if self.deaf != where:
            return
        self.reached = True
        while not self.over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.over.wait()
        raise ConnectionError("it is closed")

    async def open(self) -> None:
        await super().open()
        await self._hang("open")

    async def close(self) -> None:
        await super().close()
        await self._hang("close")

    async def receive(self, limit: int, *, wait: float) -> Sequence[InMessage]:
        await self._hang("receive")
        return await super().receive(limit, wait=wait)

    async def ack(self, receipts: Sequence[object]) -> None:
        await super().ack(receipts)
        await self._hang("ack")

    async def waiting(self) -> int:
        await self._hang("waiting")
        return 0


@pytest.mark.parametrize("where", ["open", "receive", "ack", "waiting", "close"])
async def test_a_client_that_swallows_the_cancellation_does_not_keep_the_worker(
    app: Holdfast, akit: Kit, where: str, events: list[Event]
) -> None:
    broker = DeafClient(where, InMessage("m1", b'{"order_id": 1}', 1))

    @app.consume("own", broker, Order)
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    try:
        async with ending(akit):
            if where == "close":
                await await_until(lambda: "ack [1]" in broker.log, "it reads")
            else:
                await await_until(lambda: broker.reached, "it waits for the broker")
    finally:
        broker.over.set()
    assert broker.reached
    assert not [e for e in events if e.name == "service.stuck"]


async def test_a_broker_that_does_not_reply_is_opened_anew(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "_REPLIES", 0.05)
    broker = DeafClient("open")

    @app.consume("own", broker, Order)
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    reader, _ = services(akit.database, app.tasks)
    with pytest.raises(TimeoutError, match=r"open\(\) did not end within 0.05 s"):
        await reader.catch_up()
    broker.deaf = ""
    broker.over.set()
    await reader.catch_up()
    await reader.finish()
    assert broker.log == ["open", "close", "open", "close"]


async def prepared(server: Nats) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream(timeout=within(5))
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    await js.publish("orders.paid", b'{"order_id": 1}')
    await client.close()


async def test_a_frozen_broker_does_not_keep_the_worker(app: Holdfast, akit: Kit) -> None:
    with nats_server() as server:
        await prepared(server)

        @app.consume("orders", source(server), Order)
        async def ordered(message: ReceivedMessage[Order]) -> None: ...

        async with ending(akit):
            await await_until(akit.jobs, "the first is read")
            assert server.process is not None
            os.kill(server.process.pid, signal.SIGSTOP)


async def test_a_broker_that_is_frozen_from_the_start_does_not_keep_the_worker(
    app: Holdfast, akit: Kit, events: list[Event]
) -> None:
    with nats_server() as server:
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGSTOP)

        @app.consume("orders", source(server), Order)
        async def ordered(message: ReceivedMessage[Order]) -> None: ...

        async with ending(akit):
            await await_until(lambda: any(e.name == "service.failed" for e in events), "nobody replies", 30)
    assert "no reply within 5 s" in next(e for e in events if e.name == "service.failed").fields["error"]


async def test_a_stop_at_any_instant_around_the_death_of_a_broker_is_heard(app: Holdfast, akit: Kit) -> None:
    """Its client takes a cancellation for its own just then, now and then."""
    chance = random.Random(7)
    with nats_server() as server:
        await prepared(server)

        @app.consume("orders", source(server, ack_wait=1), Order)
        async def ordered(message: ReceivedMessage[Order]) -> None: ...

        for _ in range(30):
            reader, _ = services(akit.database, app.tasks)
            assert isinstance(reader, Reader)
            reader.start()
            await asyncio.sleep(chance.choice([0.0, 0.01, 0.05]) * chance.random())
            if chance.random() < 0.7:
                await await_until(lambda: reader.has_read, "it reads")  # noqa: B023
            server.kill()
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.002]) * chance.random())
            stopping = asyncio.ensure_future(reader.stop())
            done, _ = await asyncio.wait({stopping}, timeout=within(4))
            assert done, "the stop is not heard"
            server.start()
