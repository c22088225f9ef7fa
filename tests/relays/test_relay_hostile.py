"""What may go wrong in a relay without anybody meaning it: odd headers, gaps before a refused event, keys without end."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.brokers import rabbit_server
from tests.conftest import await_until, within
from tests.flow.test_run import working
from tests.relays.conformance_brokers import RabbitBroker
from tests.relays.support import STEADY, Memory, n_of, reaches

from holdfast import Holdfast
from holdfast.model.backoff import Backoff
from holdfast.shapes.relays.relay import Relay
from holdfast.testing import Kit
from holdfast.transport import Confirmed, Outcome, OutMessage, Refused, RetryLater

QUICKLY = Backoff(first=0.01, cap=0.05)


@pytest.fixture
def relays(akit: Kit, monkeypatch: pytest.MonkeyPatch) -> list[Relay]:
    """Relays as workers make them: they try again soon."""
    akit.database.settings = STEADY
    made: list[Relay] = []
    begin = Relay.__init__

    def quick(self: Any, spec: Any, cursor: Any) -> None:
        object.__setattr__(spec, "retry", QUICKLY)
        begin(self, spec, cursor)
        made.append(self)

    monkeypatch.setattr(Relay, "__init__", quick)
    return made


def out(app: Holdfast, memory: Memory, **options: Any) -> Any:
    return app.relay("out", memory, **{"on": ["counted"], "route": "to.{key}", "start": "start", **options})


def publish(app: Holdfast, *pairs: tuple[str | None, int]) -> None:
    app.publish_many([("counted", {"n": n}, key) for key, n in pairs])


async def test_it_stops_before_a_refused_event_also_where_others_lie_between(
    app: Holdfast, akit: Kit, relays: list[Relay]
) -> None:
    bad = {2}
    memory = Memory(lambda m: Refused("forbidden", "no") if n_of(m) in bad else None)
    relay = out(app, memory, refused="stop")
    publish(app, ("a", 1))
    app.publish_many([("other", {}, "x")] * 5)
    publish(app, ("b", 2), ("c", 3))
    async with working(akit):

        def stands() -> Any:
            return akit.sql("SELECT position, problem FROM holdfast.subscriptions WHERE status = 'paused'")

        await await_until(stands, "it stops", 5)
        assert stands()[0]["problem"] == "event 7 (counted, key 'b') was refused: forbidden: no"
        bad.clear()
        relay.resume()
        await reaches(akit, 8)
    assert sorted({n_of(m) for m in memory.stored}) == [1, 2, 3]


async def test_it_waits_and_does_not_spin_while_nothing_can_be_sent(
    app: Holdfast, akit: Kit, relays: list[Relay]
) -> None:
    """A key is due again, and all batches that may be on their way are."""

    class Slow(Memory):
        async def publish(self, batch: Any, *, timeout: float) -> Any:
            if batch[0].key == "bad":
                return [RetryLater("busy", scope="key") for _ in batch]
            return await super().publish(batch, timeout=timeout)

    memory = Slow(max_batch=1)
    memory.gate.clear()
    out(app, memory)
    publish(app, ("bad", 1))
    async with working(akit):
        await await_until(lambda: bool(relays) and relays[-1]._lanes.next_retry() is not None, "a key waits")
        publish(app, *[(f"k{n}", n) for n in range(2, 20)])
        await await_until(lambda: len(memory.in_flight) == 4, "all are on their way")

        def due() -> bool:
            later = relays[-1]._lanes.next_retry()
            return later is None or later < time.monotonic()  # None: it waits for a place already

        await await_until(due, "the key is due again", 5)
        pause = relays[-1]._pause()
        assert pause is None or pause > 0.01
        memory.gate.set()
        await await_until(lambda: len(memory.stored) == 18, "all others are sent")


async def test_headers_of_an_event_cannot_speak_for_the_relay(
    app: Holdfast, akit: Kit, relays: list[Relay]
) -> None:
    memory = Memory()
    out(app, memory)
    hostile = {
        "ce-subject": "mallory", "CE-ID": "mine", "ce-time": "x", "source": "/shop",
        "Trace": "t", "a b": "no token", "nul": "a\r\nb",
    }  # fmt: skip
    app.publish("counted", {"n": 1}, headers=hostile)
    async with working(akit):
        await reaches(akit, 1)
    (sent,) = memory.stored
    assert sent.headers == {
        "ce-id": sent.id, "ce-type": "counted", "ce-source": "/shop", "source": "/shop", "Trace": "t"
    }  # fmt: skip


async def test_keys_that_are_free_again_are_forgotten(app: Holdfast, akit: Kit, relays: list[Relay]) -> None:
    """A relay that runs for months meets keys without end."""
    busy = True
    memory = Memory(lambda _: RetryLater("busy", scope="key") if busy else None)
    relay = out(app, memory, window=2)
    publish(app, *[(f"k{n}", n) for n in range(30)])
    async with working(akit):
        await reaches(akit, 30)  # all are set aside: each keeps others from being read
        busy = False
        await await_until(lambda: not relay.failures() and not relays[-1]._aside._held, "every key is free")
        aside, lanes = relays[-1]._aside, relays[-1]._lanes
        kept: list[Any] = [
            aside._due,
            aside._tries,
            aside._noted,
            aside._unstored,
            aside._since,
            lanes._lanes,
        ]
        assert [len(one) for one in kept] == [0] * 6


async def test_an_event_that_comes_while_its_key_becomes_free_goes_behind_and_is_sent(
    app: Holdfast, akit: Kit, relays: list[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of a key has been sent, and the relay looks whether more waits. What is read in that moment is set aside once
    more, though nothing stands before it: it is sent soon, in its order, and the key is free after it."""
    busy = {"b"}
    memory = Memory(lambda m: RetryLater("throttled", scope="key") if m.key in busy else None)
    relay = out(app, memory, window=2)
    publish(app, *[("b", n) for n in range(4)], *[("a", n) for n in range(4, 14)])
    async with working(akit):
        await reaches(akit, 14)
        aside = relays[-1]._aside
        assert aside.holds("b")
        look = type(aside._cursor).waiting
        late: list[Any] = []

        async def waiting(cursor: Any, key: str | None, most: int) -> Any:
            found = await look(cursor, key, most)
            if not found and not late:
                late.append(await app.apublish("counted", {"n": 99}, key="b"))
                before = aside._noted["b"]
                await await_until(lambda: aside._noted["b"] > before, "it was read while the key was held")
            return found

        monkeypatch.setattr(type(aside._cursor), "waiting", waiting)
        busy.clear()
        await await_until(lambda: 99 in memory.of("b"), "it was sent")
        await await_until(lambda: not aside.holds("b") and not relay.failures(), "the key is free")
        publish(app, ("b", 100))
        await await_until(lambda: 100 in memory.of("b"), "the next one goes straight on")
    assert memory.of("b") == [0, 1, 2, 3, 99, 100]
    assert [m.late for m in memory.stored if m.key == "b"][-2:] == [True, False]


@pytest.mark.long
async def test_headers_that_rabbitmq_routes_by_are_left_out() -> None:
    """A text in CC would end the channel, and one event everybody's way out with it."""
    broker = RabbitBroker(rabbit_server())
    try:
        queue = await broker.destination("q")
        transport = broker.transport()
        await transport.open()
        headers = {"CC": "others", "BCC": "others", "Trace": "t"}
        message = OutMessage("e1", 1, "t", "k", queue, headers, b"{}")
        outcomes = await transport.publish([message], timeout=within(5))
        await transport.close()
        assert outcomes == [Confirmed()]
    finally:
        broker.server.end()


class DeafTransport(Memory):
    """Of a client that takes a cancellation for its own."""

    def __init__(self, deaf: str) -> None:
        super().__init__()
        self.deaf = deaf
        self.reached = False
        self.over = asyncio.Event()

    async def _hang(self, where: str) -> None:
        if self.deaf == where:
            self.reached = True
            while not self.over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await self.over.wait()

    async def open(self) -> None:
        await super().open()
        await self._hang("open")

    async def close(self) -> None:
        await super().close()
        await self._hang("close")

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        await self._hang("publish")
        return await super().publish(batch, timeout=timeout)


@pytest.mark.parametrize("where", ["open", "publish", "close"])
async def test_a_client_that_swallows_the_cancellation_does_not_keep_the_worker(
    app: Holdfast, akit: Kit, where: str
) -> None:
    transport = DeafTransport(where)
    out(app, transport)
    publish(app, ("a", 1))
    worker = asyncio.create_task(akit.arun_worker(until_idle=False))
    if where == "close":
        await reaches(akit, 1)
    else:
        await await_until(lambda: transport.reached, "it waits for the destination")
    worker.cancel()
    done, _ = await asyncio.wait({worker}, timeout=within(20))
    transport.over.set()
    await asyncio.wait({worker}, timeout=within(20))
    assert done, "the worker does not end"
    assert transport.reached
