"""The loop of a relay: order, window, refusals, what waits aside, a destination that is away."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.conftest import await_until
from tests.flow.test_run import working
from tests.relays.support import STEADY, Memory, n_of, position, reaches

from holdfast import Event, Holdfast, TaskDefinitionError, telemetry
from holdfast.db.database import Database
from holdfast.follow import LogPage
from holdfast.model.backoff import Backoff
from holdfast.shapes.events.follow import FollowedLog
from holdfast.shapes.relays import aside as aside_module
from holdfast.shapes.relays import breaker as breaker_module
from holdfast.shapes.relays import relay as relay_module
from holdfast.shapes.relays.relay import Relay
from holdfast.store.statement import Statement
from holdfast.testing import Kit
from holdfast.transport import Outcome, OutMessage, Refused, RetryLater

BUSY = RetryLater("throttled", scope="key")
AWAY = RetryLater("nobody there")
QUICKLY = Backoff(first=0.01, cap=0.05)


class Clock:
    """Stands for the module `time`: a clock that a test moves."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def akit(akit: Kit, monkeypatch: pytest.MonkeyPatch) -> Kit:
    akit.database.settings = STEADY
    begin = Relay.__init__

    def quick(self: Any, spec: Any, cursor: Any) -> None:
        object.__setattr__(spec, "retry", QUICKLY)
        begin(self, spec, cursor)

    monkeypatch.setattr(Relay, "__init__", quick)
    return akit


def publish(app: Holdfast, *pairs: tuple[str | None, int]) -> None:
    app.publish_many([("counted", {"n": n}, key) for key, n in pairs])


def out(app: Holdfast, memory: Memory, **options: Any) -> Any:
    return app.relay("out", memory, on=["*"], **{"route": "to.{key}", "start": "start", **options})


def kinds(relay: Any) -> list[tuple[int, str]]:
    return [(f.position, f.kind) for f in relay.failures()]


def relay_text(event: Event[Any]) -> str:
    """The message of an event: its data is as the database prints it."""
    envelope = {**event.cloudevent(), "data": "@"}
    return json.dumps(envelope, separators=(",", ":")).replace('"@"', json.dumps(event.data))


async def test_one_message_of_a_key_at_a_time_and_many_keys_at_once(app: Holdfast, akit: Kit) -> None:
    memory = Memory()  # it asserts that no key has two in flight
    out(app, memory, window=8)
    publish(app, *[(f"k{n % 5}", n) for n in range(200)], *[(None, n) for n in range(200, 230)])
    memory.gate.clear()
    async with working(akit):
        await await_until(lambda: len(memory.in_flight) >= 5, "every key has one in flight")
        memory.gate.set()
        await reaches(akit, 230)
    for k in range(5):
        assert memory.of(f"k{k}") == list(range(k, 200, 5))
    assert sorted(memory.of(None)) == list(range(200, 230))
    assert memory.most_in_flight <= 8


async def test_few_keys_are_read_in_pages_of_half_a_window(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    read = FollowedLog.read

    async def noted(self: FollowedLog, position: int, seq: int, most: int, most_bytes: int) -> LogPage | None:
        asked.append(most)
        return await read(self, position, seq, most, most_bytes)

    monkeypatch.setattr(FollowedLog, "read", noted)
    memory = Memory()
    out(app, memory, window=40)
    publish(app, *[(f"k{n % 3}", n) for n in range(400)])
    async with working(akit):
        await reaches(akit, 400)
    for k in range(3):
        assert memory.of(f"k{k}") == list(range(k, 400, 3))
    assert min(asked) >= 20
    assert max(asked) <= 80


async def test_a_prefix_transport_gets_whole_lanes_one_batch_at_a_time(app: Holdfast, akit: Kit) -> None:
    memory = Memory(order="destination", in_flight="prefix", max_batch=50)
    out(app, memory, route="one")
    publish(app, *[(f"k{n % 3}", n) for n in range(120)])
    async with working(akit):
        await reaches(akit, 120)
    assert [n_of(m) for m in memory.stored] == list(range(120))
    assert max(len(batch) for batch in memory.batches) == 50


async def test_the_position_moves_only_behind_confirmed_messages(app: Holdfast, akit: Kit) -> None:
    held: set[int] = {3}
    memory = Memory(lambda m: RetryLater("busy", scope="key") if n_of(m) in held else None)
    out(app, memory)
    publish(app, ("a", 1), ("b", 2), ("a", 3), ("b", 4), ("c", 5))
    async with working(akit):
        await await_until(lambda: memory.of("c") == [5] and memory.of("b") == [2, 4], "the others went on")
        await await_until(lambda: [n_of(m) for m in memory.tried].count(3) > 3, "it is tried again")
        assert position(akit) == 2
        held.clear()
        await reaches(akit, 5)
    assert memory.of("a") == [1, 3]
    assert len({m.id for m in memory.tried if n_of(m) == 3}) == 1
    assert len({m.body for m in memory.tried if n_of(m) == 3}) == 1


async def test_a_move_of_the_position_is_one_statement(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is stopped inside of a transaction keeps the row, and no other worker could take the relay over."""
    alone: set[str] = set()
    arun = Database.arun

    async def seen(database: Database, make: Any) -> Any:
        if isinstance(what := make(), Statement):
            alone.add(what.name)
        return await arun(database, make)

    monkeypatch.setattr(Database, "arun", seen)
    out(app, Memory())
    publish(app, ("a", 1), ("b", 2), ("a", 3))
    async with working(akit):
        await reaches(akit, 3)
    assert "advance" in alone


async def test_a_refused_message_parks_its_key_and_the_rest_goes_on(app: Holdfast, akit: Kit) -> None:
    bad = {2}
    memory = Memory(lambda m: Refused("unroutable", "no such stream") if n_of(m) in bad else None)
    relay = out(app, memory)
    publish(app, ("a", 1), ("b", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6))
    async with working(akit):
        await reaches(akit, 6)
        assert kinds(relay) == [(2, "parked"), (4, "behind"), (6, "behind")]
        assert relay.failures()[0].error == "unroutable: no such stream"
        assert (memory.of("a"), memory.of("b"), memory.of("c")) == ([1, 3], [], [5])
        publish(app, ("b", 7))
        await reaches(akit, 7)
        assert kinds(relay)[-1] == (7, "behind")
        bad.clear()
        assert relay.retry_failures("b") == 1
        await await_until(lambda: not relay.failures(), "all of the key were sent")
        publish(app, ("b", 8))
        await reaches(akit, 8)
        # It may have come while the relay still knew the key as parked: then it is sent a moment later.
        await await_until(lambda: memory.of("b") == [2, 4, 6, 7, 8], "the last one is sent too")
    assert [m.late for m in memory.stored if m.key == "b"] == [True, True, True, True, False]
    assert akit.sql("SELECT action, count FROM holdfast.audit") == [{"action": "retry_failures", "count": 1}]


async def test_another_owner_finds_the_key_parked(app: Holdfast, akit: Kit) -> None:
    memory = Memory(lambda m: Refused("forbidden", "no") if n_of(m) == 1 else None)
    relay = out(app, memory)
    publish(app, ("a", 1))
    async with working(akit):
        await reaches(akit, 1)
    publish(app, ("a", 2), ("b", 3))
    async with working(akit):
        await reaches(akit, 3)
    assert kinds(relay) == [(1, "parked"), (2, "behind")]
    assert memory.of("b") == [3]


async def test_what_waits_can_be_given_up_and_those_behind_it_go_on(app: Holdfast, akit: Kit) -> None:
    memory = Memory(lambda m: Refused("forbidden", "no") if n_of(m) == 1 else None)
    relay = out(app, memory)
    publish(app, ("a", 1), ("a", 2), ("a", 3))
    async with working(akit):
        await reaches(akit, 3)
        assert relay.forget_failures(position=1) == 1
        await await_until(lambda: kinds(relay) == [], "the others were sent")
    assert memory.of("a") == [2, 3]


async def test_refused_messages_may_be_skipped(app: Holdfast, akit: Kit) -> None:
    memory = Memory(lambda m: Refused("too_large", "no") if n_of(m) % 2 else None)
    relay = out(app, memory, refused="skip")
    publish(app, ("a", 1), ("a", 2), ("a", 3), ("a", 4))
    async with working(akit):
        await reaches(akit, 4)
    assert memory.of("a") == [2, 4]
    assert kinds(relay) == [(1, "skipped"), (3, "skipped")]


async def test_a_relay_may_stop_at_a_refused_message_and_goes_on_when_it_is_skipped(
    app: Holdfast, akit: Kit
) -> None:
    memory = Memory(lambda m: Refused("malformed", "bad subject") if n_of(m) == 3 else None)
    relay = out(app, memory, refused="stop")
    publish(app, ("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5))
    async with working(akit):

        def stands() -> Any:
            return akit.sql("SELECT position, problem FROM holdfast.subscriptions WHERE status = 'paused'")

        await await_until(stands, "it stopped")
        assert stands() == [
            {
                "position": 2,
                "problem": "event 3 (counted, key 'a') was refused: malformed: bad subject",
            }
        ]
        relay._verbs.skip("out")
        relay.resume()
        await reaches(akit, 5)
    assert memory.of("a") == [1, 5]
    assert list(dict.fromkeys(memory.of("b"))) == [2, 4]


async def test_too_large_erased_and_unroutable_events_never_reach_the_transport(
    app: Holdfast, akit: Kit
) -> None:
    memory = Memory(max_bytes=1000, key_bytes=20)

    def route(event: Event[Any]) -> str:
        if event.data["n"] == 4:
            raise KeyError("where")
        return "" if event.data["n"] == 5 else "there"

    relay = out(app, memory, route=route, refused="skip")
    app.publish("counted", {"n": 1, "fill": "x" * 1000}, key="a")
    publish(app, ("a", 2), ("k" * 21, 3), ("a", 4), ("a", 5), ("a", 6), ("a", 7))
    akit.sql("UPDATE holdfast.events SET data = NULL WHERE data->>'n' = '6'")
    async with working(akit):
        await reaches(akit, 7)
    assert [n_of(m) for m in memory.tried] == [2, 7]
    size = len(relay_text(app.events.read(0, 1)[0]))
    assert [f.error for f in relay.failures()] == [
        f"too_large: {size} bytes, and 1000 may be sent",
        "malformed: its key has more than 20 bytes",
        "malformed: its route failed: KeyError: 'where'",
        "unroutable: its route returned str '', not a destination",
        "malformed: its data was erased",
    ]


async def test_a_dead_destination_is_tried_one_message_at_a_time_and_delays_nobody(
    app: Holdfast, akit: Kit, events: list[telemetry.Event]
) -> None:
    dead = [True]
    memory = Memory(lambda m: RetryLater("it is away") if dead else None)
    other = Memory()
    relay = out(app, memory)
    app.relay("other", other, on=["*"], route="x", start="start")
    publish(app, *[(f"k{n}", n) for n in range(50)])
    async with working(akit):
        await reaches(akit, 50, "other")
        await await_until(lambda: len(memory.batches) > 5, "it is tried again")
        assert {len(batch) for batch in memory.batches[2:]} == {1}
        await await_until(
            lambda: akit.sql("SELECT 1 FROM holdfast.subscriptions WHERE problem LIKE '%%it is away'"),
            "said so",
        )
        assert relay.lag()[0] == 50
        dead.clear()
        await reaches(akit, 50)
        assert akit.sql("SELECT problem FROM holdfast.subscriptions WHERE name = 'out'") == [
            {"problem": None}
        ]
    assert sorted(n_of(m) for m in memory.stored) == list(range(50))
    assert [e.name for e in events if e.name in ("relay.back",)] == ["relay.back"]


async def test_memory_has_a_bound_while_the_destination_is_away(app: Holdfast, akit: Kit) -> None:
    dead = [True]
    memory = Memory(lambda m: RetryLater("away") if dead else None)
    relays: list[Relay] = []
    begin = Relay._begin

    def remember(self: Relay) -> None:
        begin(self)
        relays.append(self)

    Relay._begin = remember  # type: ignore[method-assign]
    try:
        out(app, memory, window=10)
        publish(app, *[(f"k{n}", n) for n in range(500)])
        async with working(akit):
            await await_until(lambda: len(memory.batches) > 10, "it is tried again")
            assert relays[-1]._lanes.unsent <= 20
            dead.clear()
            await reaches(akit, 500)
    finally:
        Relay._begin = begin  # type: ignore[method-assign]
    assert len(memory.stored) == 500


async def test_a_key_that_keeps_failing_waits_aside_and_is_tried_again_in_order(
    app: Holdfast, akit: Kit, events: list[telemetry.Event]
) -> None:
    busy = {"b"}
    memory = Memory(lambda m: RetryLater("throttled", scope="key") if m.key in busy else None)
    relay = out(app, memory, window=2)
    publish(app, *[("b", n) for n in range(10)], *[("a", n) for n in range(10, 20)])
    async with working(akit):
        await reaches(akit, 20)  # it holds nobody up
        assert memory.of("a") == list(range(10, 20))
        assert [f.kind for f in relay.failures()] == ["spilled", *["behind"] * 9]
        assert relay.failures()[0].error == "throttled"
        publish(app, ("b", 20))
        await reaches(akit, 21)
        busy.clear()
        await await_until(lambda: not relay.failures(), "all were sent")
        publish(app, ("b", 21))
        await reaches(akit, 22)
        # The relay may still think that the key waits: then it goes behind the others once more.
        await await_until(lambda: 21 in memory.of("b"), "the last one was sent")
    assert memory.of("b") == [*range(10), 20, 21]
    assert any(e.name == "relay.spilled" for e in events)


async def test_what_has_failed_for_long_enough_is_parked_or_skipped_or_stops_the_relay(
    app: Holdfast, akit: Kit, events: list[telemetry.Event]
) -> None:
    """Of a key that keeps failing; by default it is tried for ever. `kept` ends aside, the others before that."""
    busy = {"b"}
    park, skip, stop, kept = [Memory(lambda m: BUSY if m.key in busy else None) for _ in range(4)]
    options: dict[str, Any] = {"on": ["*"], "route": "to.{key}", "start": "start", "retry_for": 0.05}
    parks = app.relay("parks", park, **options)
    skips = app.relay("skips", skip, **options, refused="skip")
    app.relay("stops", stop, **options, refused="stop")
    spills = app.relay("spills", kept, **{**options, "retry_for": 0.5}, window=2)
    publish(app, ("b", 1), ("a", 2), *[("b", n) for n in range(3, 8)], *[("a", n) for n in range(8, 12)])
    behind = [(n, "behind") for n in range(3, 8)]
    error = "given up after 0.05 s of failures: throttled"
    async with working(akit):
        known = "SELECT FROM holdfast.subscriptions"
        await await_until(lambda: len(akit.sql(known)) == 4, "a worker knows them")
        await await_until(lambda: kinds(parks) == [(1, "parked"), *behind], "its key waits")
        await await_until(lambda: [kind for _, kind in kinds(skips)] == ["skipped"] * 6, "they were passed")
        await await_until(lambda: kinds(spills) == [(1, "parked"), *behind], "given up from aside")
        assert [e.fields["subscription"] for e in events if e.name == "relay.spilled"] == ["spills"]
        stands = (
            "SELECT position, problem FROM holdfast.subscriptions WHERE name = 'stops' AND status = 'paused'"
        )
        await await_until(lambda: akit.sql(stands), "it stopped")
        assert akit.sql(stands)[0] == {
            "position": 0,
            "problem": f"event 1 (counted, key 'b') was refused: {error}",
        }
        assert parks.failures()[0].error == skips.failures()[0].error == error
        assert park.of("a") == skip.of("a") == [2, *range(8, 12)], "others went on"
        busy.clear()
        assert parks.retry_failures() == spills.retry_failures() == 1
        assert skips.retry_failures() == 6
        await await_until(lambda: not any(map(kinds, (parks, skips, spills))), "all are sent after all")
    assert park.of("b") == skip.of("b") == kept.of("b") == [1, *range(3, 8)]


async def test_a_key_is_not_given_up_for_the_time_in_which_its_destination_was_away(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch, events: list[telemetry.Event]
) -> None:
    """In its lane and aside. Hours pass by a clock of the test."""
    clock = Clock()
    for module in (relay_module, aside_module, breaker_module):
        monkeypatch.setattr(module, "time", clock)
    away = False
    lane = Memory(lambda m: AWAY if away else BUSY if m.key == "b" else None)
    aside = Memory(lambda m: AWAY if away and m.key == "c" else BUSY if m.key == "b" else None)
    options: dict[str, Any] = {"on": ["*"], "route": "to.{key}", "start": "start", "retry_for": "30m"}
    lanes = app.relay("lanes", lane, **options)
    spills = app.relay("spills", aside, **options, window=2)
    publish(app, *[("b", n) for n in range(1, 8)])

    def tries(memory: Memory) -> int:
        return sum(m.key == "b" for m in memory.tried)

    def opened() -> set[Any]:
        return {e.fields["subscription"] for e in events if e.name == "relay.away"}

    async with working(akit):
        await await_until(lambda: len(akit.sql("SELECT FROM holdfast.subscriptions")) == 2, "both are known")
        await await_until(lambda: tries(lane) and kinds(spills), "a key fails in both")
        away = True
        publish(app, ("c", 20))
        await await_until(lambda: opened() == {"lanes", "spills"}, "both destinations are away")
        clock.ahead += 3600
        away = False
        await await_until(lambda: lane.of("c") == aside.of("c") == [20], "and are back")
        before = tries(lane), tries(aside)
        await await_until(lambda: tries(lane) > before[0] + 2 and tries(aside) > before[1] + 2, "tried again")
        assert "parked" not in {kind for _, kind in kinds(lanes) + kinds(spills)}

        def parked() -> bool:
            clock.ahead += 3600
            return kinds(lanes)[:1] == kinds(spills)[:1] == [(1, "parked")]

        await await_until(parked, "and an hour of failures of its own is too long")


async def test_a_destination_that_refuses_a_key_for_now_is_not_away(
    app: Holdfast, akit: Kit, events: list[telemetry.Event]
) -> None:
    away = True
    memory = Memory(lambda m: AWAY if away else BUSY)
    out(app, memory)
    publish(app, ("b", 1))
    async with working(akit):
        await await_until(lambda: any(e.name == "relay.away" for e in events), "its breaker is open")
        away = False
        await await_until(lambda: any(e.name == "relay.back" for e in events), "and closed by a reply")


async def test_wrong_outcomes_count_as_unknown_and_close_the_connection(
    app: Holdfast, akit: Kit, events: list[telemetry.Event]
) -> None:
    class Short(Memory):
        wrong = 2

        async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
            outcomes = await super().publish(batch, timeout=timeout)
            if self.wrong:
                self.wrong -= 1
                return [*outcomes, *outcomes]
            return outcomes

    memory = Short()
    out(app, memory)
    publish(app, ("a", 1), ("a", 2))
    async with working(akit):
        await reaches(akit, 2)
    assert memory.of("a") == [1, 1, 1, 2]
    assert memory.opened == 3
    assert not [e for e in events if e.name == "subscription.failed"], "the relay itself goes on"


async def test_a_transport_that_raises_or_hangs_is_closed_and_opened_again(app: Holdfast, akit: Kit) -> None:
    class Broken(Memory):
        failures = ["open", "raise", "hang"]

        async def open(self) -> None:
            await super().open()
            if self.failures[:1] == ["open"]:
                self.failures.pop(0)
                raise ConnectionRefusedError("nobody there")

        async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
            if self.failures:
                if self.failures.pop(0) == "raise":
                    raise RuntimeError("broken")
                await asyncio.sleep(3600)
            return await super().publish(batch, timeout=timeout)

    memory = Broken()
    out(app, memory)
    publish(app, ("a", 1))
    async with working(akit):
        await reaches(akit, 1)
    assert memory.of("a") == [1]
    assert memory.opened == 4


async def routed(_: Any) -> str:
    return "x"


class Routes:
    async def __call__(self, _: Any) -> str:
        return "x"


NOT_AWAITED = "relay 'out': route is called for each event, and nothing awaits it: write def, not async def"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"route": routed}, NOT_AWAITED),
        ({"route": Routes()}, NOT_AWAITED),
        ({"route": ""}, "relay 'out': route must not be empty: it says where messages go"),
        (
            {"route": "x.{tenant}"},
            "relay 'out': route 'x.{tenant}' has {tenant}; it may have {type}, {key}, {version}",
        ),
        ({"route": "x.{"}, "relay 'out': route 'x.{' is no template: a brace has no partner"),
        ({"route": 5}, "relay 'out': route must be a template or a function, not int 5"),
        ({"window": 0}, "relay 'out': window must be between 1 and 10000, not int 0"),
        ({"refused": "drop"}, "relay 'out': refused must be one of park_key, skip, stop, not str 'drop'"),
        ({"retry_for": 0}, "relay 'out': retry_for must be more than 0 seconds, not int 0"),
        ({"on": "order.*"}, "relay 'out': on must be a list, such as ['order.*']"),
        ({"on": []}, 'relay needs an event class, a name or a pattern: on(OrderPaid), or on("order.*")'),
        (
            {"start": "soon"},
            'start must be "now", "start", a position or a time with its zone, not str \'soon\'',
        ),
    ],
)
def test_bad_declarations_are_refused_in_words(app: Holdfast, options: dict[str, Any], why: str) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        app.relay("out", Memory(), **{"on": ["*"], "route": "x", **options})
    assert str(caught.value) == why


def test_two_relays_of_a_name_are_refused_and_a_thing_that_is_no_transport(app: Holdfast) -> None:
    app.relay("out", Memory(), on=["*"], route="x")
    with pytest.raises(TaskDefinitionError, match="'out'"):
        app.relay("out", Memory(), on=["*"], route="x")
    with pytest.raises(TaskDefinitionError, match="is no transport"):
        app.relay("in", object(), on=["*"], route="x")  # type: ignore[arg-type]
