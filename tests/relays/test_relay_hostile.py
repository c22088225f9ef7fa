"""What may go wrong in a relay without anybody meaning it: odd headers, gaps before a refused event, keys without end."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.brokers import rabbit_server
from tests.conftest import await_until, within
from tests.flow.test_run import working
from tests.relays.conformance_brokers import RabbitBroker
from tests.relays.support import STEADY, Memory, n_of, reaches

from holdfast import DatabaseUnavailable, Holdfast
from holdfast.contrib.rabbitmq import rabbitmq
from holdfast.model.backoff import Backoff
from holdfast.shapes.events.follow import FollowedLog
from holdfast.shapes.relays import aside as aside_module
from holdfast.shapes.relays.breaker import Breaker
from holdfast.shapes.relays.relay import Relay
from holdfast.testing import Kit
from holdfast.transport import Confirmed, Outcome, OutMessage, Refused, RetryLater

QUICKLY = Backoff(first=0.01, cap=0.05)


@pytest.fixture
def relays(akit: Kit, monkeypatch: pytest.MonkeyPatch) -> list[Relay]:
    """Relays as workers make them: they try again soon, and do not wait long for a key that fails."""
    akit.database.settings = STEADY
    made: list[Relay] = []
    begin = Relay.__init__

    def quick(self: Any, spec: Any, cursor: Any) -> None:
        object.__setattr__(spec, "retry", QUICKLY)
        object.__setattr__(spec, "spill_after", 0.3)
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


def stopped(akit: Kit) -> Any:
    return akit.sql("SELECT position FROM holdfast.subscriptions WHERE status = 'paused'")


async def test_it_stops_before_a_refused_event_however_many_keys_could_be_sent(
    app: Holdfast, akit: Kit, relays: list[Relay]
) -> None:
    """Lanes behind the event are ready long before the one that stands before it."""
    memory = Memory(lambda m: Refused("malformed", "no") if m.key == "bad" else None)
    relay = out(app, memory, refused="stop", window=8)  # batches of two
    publish(app, ("k", 1), ("k", 2), ("bad", 3), *[(f"x{n}", n) for n in range(4, 40)])
    publish(app, ("k", 40))
    async with working(akit):
        await await_until(lambda: stopped(akit), "it stopped")
        assert stopped(akit) == [{"position": 2}]
        relay._verbs.skip("out")
        memory.verdict = lambda m: Refused("malformed", "no") if n_of(m) == 40 else None
        relay.resume()
        await await_until(lambda: stopped(akit) == [{"position": 39}], "and before the next one")
    assert list(dict.fromkeys(memory.of("k"))) == [1, 2]


async def test_an_outage_of_the_database_does_not_make_it_stop_before_events_that_it_has_not_sent(
    app: Holdfast, akit: Kit, relays: list[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins anew at its position: what it knew of events behind it, it finds out again. Whoever skips the event at which
    it stands would skip another one."""
    memory = Memory(lambda m: Refused("malformed", "no") if m.key == "bad" else None)
    out(app, memory, refused="stop")
    publish(app, ("k", 1), ("k", 2), ("bad", 3))
    advance = FollowedLog.advance
    lost: list[Any] = []

    async def once(cursor: Any, *arguments: Any) -> None:
        if relays[-1]._bad is not None and not lost:
            lost.append(relays[-1]._bad)
            raise DatabaseUnavailable("it went away")
        await advance(cursor, *arguments)

    monkeypatch.setattr(FollowedLog, "advance", once)
    async with working(akit):
        await await_until(lambda: stopped(akit), "it stopped")
        assert stopped(akit) == [{"position": 2}]
    assert lost
    assert list(dict.fromkeys(memory.of("k"))) == [1, 2]


async def test_it_does_not_spin_while_the_trial_of_a_dead_destination_is_on_its_way(
    app: Holdfast, akit: Kit, relays: list[Relay]
) -> None:
    memory = Memory(lambda _: RetryLater("nobody there"))
    out(app, memory)
    publish(app, ("a", 1), ("b", 2))  # one is the trial, and the other could be sent
    async with working(akit):
        await await_until(lambda: bool(relays) and relays[-1]._breaker.is_open, "its breaker is open")
        memory.gate.clear()

        def tried() -> bool:
            return bool(memory.in_flight) and relays[-1]._breaker.until < time.monotonic()

        await await_until(tried, "the trial hangs")
        pause = relays[-1]._pause()
        assert pause is None or pause > 0.01
        memory.verdict = lambda _: None
        memory.gate.set()
        await reaches(akit, 2)


async def test_what_stands_before_a_refused_event_is_tried_again_whatever_stands_behind_it(
    app: Holdfast, akit: Kit, relays: list[Relay]
) -> None:
    """The destination is unreachable twice for the first, and the third, which was never tried, must not be."""
    left = [RetryLater("nobody there")] * 2
    bad = Refused("forbidden", "no")
    memory = Memory(lambda m: bad if m.key == "bad" else left.pop() if m.key == "a" and left else None)
    out(app, memory, refused="stop", window=1)
    publish(app, ("a", 1), ("bad", 2), ("c", 3))
    async with working(akit):
        await await_until(lambda: stopped(akit), "it stopped", 20)
        assert stopped(akit) == [{"position": 1}]
    assert (memory.of("a"), memory.of("c")) == ([1], [])


def opened(retry: Backoff) -> Breaker:
    class Cursor:
        name = "out"

        async def say_trouble(self, what: str) -> None: ...

    cursor: Any = Cursor()
    return Breaker(cursor, retry)


async def test_an_outage_that_three_keys_have_seen_is_not_tried_with_each_new_one() -> None:
    breaker = opened(Backoff(steps=[1.0, 290.0]))
    away = RetryLater("nobody there")
    await breaker.failed(away, 10.0, 9.0, ["a"])
    await breaker.failed(away, 20.0, 19.0, ["b"])
    assert breaker.due(other=True) < 30 < 200 < breaker.due()
    await breaker.failed(away, 40.0, 39.0, ["c"])
    assert breaker.due(other=True) == breaker.due() > 200
    await breaker.worked()
    await breaker.failed(RetryLater("slow down", after=60.0), 50.0, 49.0, ["a"])
    assert breaker.due(other=True) == 110, "the destination has asked for that time"


async def test_batches_that_fail_together_are_one_attempt(akit: Kit) -> None:
    breaker = opened(Backoff(first=1.0, cap=1000.0))
    away = RetryLater("nobody there")
    await breaker.failed(away, 10.0, 9.0)
    first = breaker.until
    for n in range(3):
        await breaker.failed(away, 11.0 + n, 9.5)
    assert breaker.until == first
    await breaker.failed(away, 20.0, 19.0)
    assert breaker.until > first, "a trial is another one"


async def test_a_key_that_fails_alone_holds_up_no_event_that_comes_later(
    app: Holdfast, akit: Kit, relays: list[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is confirmed meanwhile that would tell it from an outage. The next try of the key is minutes away."""
    monkeypatch.setitem(globals(), "QUICKLY", Backoff(steps=[0.01, 290.0]))
    memory = Memory(lambda m: RetryLater("HTTP 502") if m.key == "bad" else None)
    out(app, memory)
    publish(app, ("bad", 1))
    async with working(akit):

        def waits() -> bool:
            return bool(relays) and relays[-1]._breaker.until > time.monotonic() + 100

        await await_until(waits, "the key has failed twice")
        publish(app, ("good", 2))
        await await_until(lambda: memory.of("good") == [2], "another key is sent", 20)
    assert memory.of("bad") == []


async def test_nothing_is_sent_on_a_lease_that_ends_before_the_reply(
    app: Holdfast, akit: Kit, relays: list[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal took most of the lease that it got: another may have the relay before the message has arrived."""
    memory = Memory()
    out(app, memory)
    publish(app, ("a", 1))
    slow = True
    monkeypatch.setattr(FollowedLog, "certain_for", lambda cursor: 0.1 if slow else cursor.lease)
    async with working(akit):
        await await_until(lambda: len(relays) > 1, "it begins anew")
        assert memory.tried == []
        slow = False
        await reaches(akit, 1)
    assert memory.of("a") == [1]


async def test_an_event_without_a_key_that_waits_aside_holds_up_none_of_the_others(
    app: Holdfast, akit: Kit, relays: list[Relay]
) -> None:
    busy = {1, 2, 3, 4}
    memory = Memory(lambda m: RetryLater("throttled", scope="key") if n_of(m) in busy else None)
    relay = out(app, memory, window=2)
    publish(app, *[(None, n) for n in range(1, 10)])
    async with working(akit):
        await reaches(akit, 9)
        assert {f.position for f in relay.failures()} == {1, 2, 3, 4}
        busy.remove(3)
        await await_until(lambda: {f.position for f in relay.failures()} == {1, 2, 4}, "the third is sent")
        busy.clear()
        await await_until(lambda: not relay.failures(), "all are sent")
        await await_until(lambda: not relays[-1]._aside._due, "nothing waits")
        aside = relays[-1]._aside
        assert [len(one) for one in (aside._again, aside._tries, aside._since)] == [0, 0, 0]
    assert sorted(memory.of(None)) == list(range(1, 10))


async def test_keys_that_fail_slowly_keep_no_other_key_waiting_aside(
    app: Holdfast, akit: Kit, relays: list[Relay]
) -> None:
    """They are due again before all of them were tried: the one that has waited for longest is next."""
    busy = {f"k{n}" for n in range(6)}

    class Slow(Memory):
        async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
            if any(message.late for message in batch):
                await asyncio.sleep(0.06)  # longer than the longest pause of a key
            return await super().publish(batch, timeout=timeout)

    memory = Slow(lambda m: RetryLater("busy", scope="key") if m.key in busy else None)
    relay = out(app, memory, window=2)
    publish(app, *[(f"k{n}", n) for n in range(6)], *[("a", n) for n in range(6, 12)])
    async with working(akit):
        await reaches(akit, 12)
        await await_until(lambda: len(relay.failures()) == 6, "all of them wait aside")
        last = list(relays[-1]._aside._due)[-1]
        assert last is not None
        busy.remove(last)
        await await_until(lambda: memory.of(last), "the last of them is sent")
        assert len(relay.failures()) == 5


async def test_a_key_that_fails_as_if_nobody_were_there_holds_up_no_other(
    app: Holdfast, akit: Kit, relays: list[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that always times out: until the first time has passed, the relay has sent all others that it may read. Then
    there is nobody left by whom it could find out that the destination is there."""
    begin = Relay.__init__

    def near(self: Any, spec: Any, cursor: Any) -> None:
        object.__setattr__(spec, "most_ahead", 20)
        begin(self, spec, cursor)

    monkeypatch.setattr(Relay, "__init__", near)
    busy = {"bad"}

    class Path(Memory):
        async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
            if busy & {m.key for m in batch}:
                await await_until(lambda: len(self.stored) >= 24, "the others are sent")
            return await super().publish(batch, timeout=timeout)

    memory = Path(lambda m: RetryLater("no reply", unknown=True) if m.key in busy else None)
    relay = out(app, memory, window=8)
    publish(app, ("bad", 0), ("bad", 1), *[(f"k{n % 5}", n) for n in range(2, 202)])
    async with working(akit):
        await reaches(akit, 202)
        assert {f.key for f in relay.failures()} == {"bad"}
        assert {n_of(m) for m in memory.stored} == set(range(2, 202))
        busy.clear()
        await await_until(lambda: not relay.failures(), "it is sent after all")
        assert relays[-1]._breaker._lone == {}
    assert list(dict.fromkeys(memory.of("bad"))) == [0, 1]


async def test_an_unreachable_destination_is_tried_with_what_waits_aside_where_nothing_else_is_left(
    app: Holdfast, akit: Kit, relays: list[Relay]
) -> None:
    busy = {"bad"}
    memory = Memory(lambda m: RetryLater("busy", scope="key") if m.key in busy else None)
    relay = out(app, memory, window=2)
    publish(app, *[("bad", n) for n in range(5)])
    async with working(akit):
        await reaches(akit, 5)
        breaker = relays[-1]._breaker
        memory.verdict = lambda _: RetryLater("nobody there")
        await breaker.failed(RetryLater("nobody there"), time.monotonic(), time.monotonic())
        tried = len(memory.tried)
        await await_until(lambda: len(memory.tried) > tried + 3, "it is tried")
        assert breaker._attempts > 3, "less and less often"
        memory.verdict = lambda _: None
        await await_until(lambda: not relay.failures(), "it is sent")
        assert not breaker.is_open
    assert memory.of("bad") == list(range(5))


async def test_while_nobody_is_there_no_key_is_to_blame(akit: Kit) -> None:
    class Cursor:
        name = "out"

    cursor: Any = Cursor()
    breaker = Breaker(cursor, QUICKLY)
    away, busy = RetryLater("nobody there"), RetryLater("busy", scope="key")
    assert {breaker.judged("a", away).scope for _ in range(20)} == {"destination"}
    for n in range(2):
        breaker.confirmed(f"other{n}")
        assert [breaker.judged("a", away).scope for _ in range(5)] == ["destination"] * 5, "an outage each"
    breaker.confirmed("other")
    assert breaker.judged("a", away) == replace(away, scope="key")
    assert breaker.judged("a", away) == away, "and now the destination is away"
    assert breaker.judged("a", busy) == busy
    breaker.confirmed("a")
    breaker.judged("a", away)
    breaker.confirmed("other")
    assert breaker.judged("a", away) == away, "it was sent: it begins anew"


async def test_a_key_with_many_events_aside_lets_others_send_between_its_pages(
    app: Holdfast, akit: Kit, relays: list[Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aside_module, "PAGE", 2)
    busy = {"long", "short"}

    class Halfway(Memory):
        async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
            if batch[0].late and n_of(batch[0]) == 20:
                busy.discard("short")
                due = relays[-1]._aside._due
                await await_until(lambda: due["short"] <= time.monotonic(), "the other is due")
            return await super().publish(batch, timeout=timeout)

    memory = Halfway(lambda m: RetryLater("busy", scope="key") if m.key in busy else None)
    out(app, memory, window=2)
    publish(app, *[("long", n) for n in range(40)], ("short", 40), *[("a", n) for n in range(41, 50)])
    async with working(akit):
        await reaches(akit, 50)
        await await_until(lambda: relays[-1]._aside.holds("short"), "both wait aside")
        busy.discard("long")
        await await_until(lambda: len(memory.of("long")) == 40 and memory.of("short"), "all are sent")
    sent = [m.key for m in memory.stored if m.key != "a"]
    assert sent.index("short") < len(sent) - 1, "it was sent in between"
    assert memory.of("long") == list(range(40))


async def test_what_waits_behind_a_key_is_not_kept_in_memory(
    app: Holdfast, akit: Kit, relays: list[Relay]
) -> None:
    """One event holds up the position, and a parked key goes on growing."""
    memory = Memory(lambda m: Refused("forbidden", "no") if m.key == "b" else None)
    out(app, memory)
    publish(app, ("b", 1))
    async with working(akit):
        await reaches(akit, 1)
        memory.gate.clear()
        publish(app, ("a", 2), *[("b", n) for n in range(3, 13)])
        await await_until(lambda: len(relays[-1]._lanes) >= 11, "all are read")
        notes = [item for item in relays[-1]._lanes._all if item.note is not None]
        assert len(notes) == 10
        assert not any(item.row or (item.note and item.note.row.data) for item in notes)
        memory.gate.set()
        await reaches(akit, 12)


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
        "Trace": "t", "a b": "no token", "nul": "a\r\nb", "Content-Type": "text/html",
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
            aside._unstored,
            aside._since,
            lanes._lanes,
        ]
        assert [len(one) for one in kept] == [0] * 5


async def test_a_parked_key_takes_little_memory(app: Holdfast, akit: Kit, relays: list[Relay]) -> None:
    """There may be a million of them: of each its name is kept, and nothing else."""
    memory = Memory(lambda _: Refused("forbidden", "not to be"))
    out(app, memory)
    publish(app, *[(f"k{n}", n) for n in range(200)])
    async with working(akit):
        await reaches(akit, 200)
        aside = relays[-1]._aside
        assert len(aside._held) == 200
        kept = [value for value in vars(aside).values() if isinstance(value, dict | set | list)]
        await await_until(lambda: sum(map(len, kept)) == 200, "only their names are kept")


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

        async def waiting(cursor: Any, key: str | None, most: int, after: int) -> Any:
            found = await look(cursor, key, most, after)
            if not found and not late:
                late.append(await app.apublish("counted", {"n": 99}, key="b"))
                await await_until(lambda: aside._came, "it was read while the key was held")
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


@pytest.mark.long
async def test_a_message_for_which_rabbitmq_ends_the_channel_is_refused_and_its_neighbours_are_not() -> None:
    """All that are on their way are lost with the channel. The one that did it would do it again, for ever."""
    server = rabbit_server("-rabbit max_message_size 20000")
    broker = RabbitBroker(server)
    try:
        await asyncio.to_thread(server.control, "set_topic_permissions", "guest", "amq.topic", "^ok", ".*")
        queue = await broker.destination("q")
        direct, topic = broker.transport(), rabbitmq(broker.url, exchange="amq.topic")

        async def sent(transport: Any, *messages: OutMessage) -> list[Outcome]:
            await transport.open()
            found = await transport.publish(messages, timeout=within(5))
            await transport.close()
            return list(found)

        def made(n: int, to: str, size: int = 2) -> OutMessage:
            return OutMessage(f"e{n}", n, "t", f"k{n}", to, {}, b"x" * size)

        outcomes = await sent(direct, made(1, queue), made(2, queue, 20_001), made(3, queue, 20_000))
        assert outcomes[1] == Refused("too_large", "20001 bytes, and the broker takes 20000")
        assert not any(isinstance(outcomes[n], Refused) for n in (0, 2))
        assert await sent(direct, made(3, queue, 20_000)) == [Confirmed()]
        forbidden, other = await sent(topic, made(4, "no.1"), made(5, "ok.1"))
        assert forbidden == Refused("forbidden", "publishing to no.1 is not allowed")
        assert not isinstance(other, Refused) or other.reason == "unroutable"
    finally:
        server.end()


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
