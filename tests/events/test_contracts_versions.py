"""Versions of events where they are read: upcast, set aside for newer code, or refused with the path."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import pytest
from pydantic import BaseModel
from tests.conftest import QUICK, await_until, wait_until
from tests.events.test_projections_calls import QUICKLY, run_until, standing
from tests.flow.test_run import working
from typing_extensions import TypedDict

from holdfast import Event, Holdfast, InvalidEvent, TaskDefinitionError, Transaction, event, telemetry, upcast
from holdfast.model.actor import Actor
from holdfast.operate.operator import Operator
from holdfast.testing import Kit

Make = Callable[..., Kit]
IMPATIENT = replace(QUICK, misfit_wait=0.2)


@event("order.billed", version=1, key="order:{order_id}")
@dataclass
class V1:
    order_id: int
    amount: float


@event("order.billed", version=2, key="order:{order_id}", compatibility="backward")
class V2(BaseModel):
    order_id: int
    cents: int


@event("order.billed", version=3, key="order:{order_id}")
class V3(msgspec.Struct):
    order_id: int
    cents: int
    currency: str


@event("order.billed", version=4, key="order:{order_id}")
class V4(TypedDict):
    order_id: int
    price: dict[str, Any]


@event("order.billed", version=5, key="order:{order_id}", compatibility="backward")
class V5(BaseModel):
    order_id: int
    price: str


@upcast(V1, V2)
def in_cents(old: V1) -> V2:
    return V2(order_id=old.order_id, cents=round(old.amount * 100))


@upcast(V2, V3)
def in_euros(old: V2) -> V3:
    return V3(old.order_id, old.cents, "EUR")


@upcast(V3, V4)
def as_price(old: V3) -> V4:
    return {"order_id": old.order_id, "price": {"cents": old.cents, "in": old.currency}}


@upcast(V4, V5)
def as_text(old: V4) -> V5:
    return V5(order_id=old["order_id"], price=f"{old['price']['cents']} {old['price']['in']}")


EACH: list[tuple[Any, dict[str, Any]]] = [
    (V1(1, 9.95), {"order_id": 1, "amount": 9.95}),
    (V2(order_id=1, cents=995), {"order_id": 1, "cents": 995}),
    (V3(1, 995, "EUR"), {"order_id": 1, "cents": 995, "currency": "EUR"}),
    (None, {"order_id": 1, "price": {"cents": 995, "in": "EUR"}}),
    (V5(order_id=1, price="995 EUR"), {"order_id": 1, "price": "995 EUR"}),
]
LAST = V5(order_id=1, price="995 EUR")


def publish_each(app: Holdfast) -> None:
    for instance, data in EACH:
        if instance is not None:
            app.publish(instance)
        else:
            app.publish(V4, data)


def stored(kit: Kit) -> list[tuple[int, dict[str, Any]]]:
    return [
        (r["version"], r["data"]) for r in kit.sql("SELECT version, data FROM holdfast.events ORDER BY seq")
    ]


def test_every_version_reaches_a_consumer_as_the_class_that_it_takes(app: Holdfast, kit: Kit) -> None:
    seen: list[Event[Any]] = []
    middle: list[Any] = []

    @app.on(V5, start="start")
    async def newest(event: Event[V5]) -> None:
        seen.append(event)

    @app.on("order.billed", start="start")
    async def both(event: Event[V3 | V5]) -> None:
        middle.append(event.data)

    publish_each(app)
    kit.run_worker()
    seen.sort(key=lambda e: e.position)
    assert [(e.version, e.data) for e in seen] == [(n, LAST) for n in (1, 2, 3, 4, 5)]
    assert {e.cloudevent()["dataschema"] for e in seen} == {"urn:holdfast:order.billed:5"}
    assert sorted(map(repr, middle)) == sorted([repr(V3(1, 995, "EUR")), *[repr(LAST)] * 4])
    assert stored(kit) == [
        (n, data) for n, (_, data) in enumerate(EACH, 1)
    ]  # the log stays as it was written


@pytest.mark.parametrize("many", [False, True])
def test_every_version_reaches_a_projection_as_the_class_that_it_takes(
    app: Holdfast, kit: Kit, many: bool
) -> None:
    kit.sql("CREATE TABLE totals (version int, price text)")

    def keep(tx: Transaction, event: Event[V5]) -> None:
        tx.execute("INSERT INTO totals VALUES (%s, %s)", [event.version, event.data.price])

    def keep_all(tx: Transaction, events: list[Event[V5]]) -> None:
        for one in events:
            keep(tx, one)

    app.projection("totals", on=V5)(keep_all if many else keep)
    publish_each(app)
    run_until(kit, 5)
    rows = kit.sql("SELECT * FROM totals ORDER BY version")
    assert [(r["version"], r["price"]) for r in rows] == [(n, "995 EUR") for n in (1, 2, 3, 4, 5)]
    assert stored(kit) == [(n, data) for n, (_, data) in enumerate(EACH, 1)]


def test_a_version_without_an_upcaster_is_read_as_the_next_one_that_has_one() -> None:
    from holdfast.shapes.events.contract import EventType, Step

    @dataclass
    class A:
        n: int

    @dataclass
    class B:
        n: int
        m: int = 2

    @dataclass
    class C:
        both: int

    second, third = EventType("x", 2, B, None), EventType("x", 3, C, None)
    third.step = Step(second, lambda old: C(old.n + old.m))
    assert third.load(1, {"n": 1}) == C(3)
    assert third.load(2, {"n": 1, "m": 1}) == C(2)
    with pytest.raises(
        ValueError, match=r"published as version 1 of x, and read as version 2. Declare version 1"
    ):
        third.load(1, {"m": 1})


# Newer versions ---------------------------------------------------------------------------------------------------------


@event("mail.due", version=1)
@dataclass
class Due:
    to: str


@event("mail.due", version=2, compatibility="none")
@dataclass
class DueLater:
    to: str
    at: int


@upcast(Due, DueLater)
def at_once(old: Due) -> DueLater:
    return DueLater(old.to, 0)


def consumer(kind: Any, seen: list[Any]) -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.on(kind, name="send", start="start")
    async def send(event: Event[kind]) -> None:
        seen.append(event.data)

    return app


NEEDS = "the event is version 2 of mail.due, and the code here knows it up to version 1"


def test_an_event_of_a_newer_version_waits_for_a_newer_worker_and_is_never_a_dead_letter(
    holdfast_kit: Make,
) -> None:
    """Beside it, one that does not fit its own version becomes one, and says where."""
    old_seen: list[Any] = []
    new_seen: list[Any] = []
    kit = holdfast_kit(consumer(Due, old_seen), IMPATIENT)
    kit.app.publish(DueLater("ann", 5))
    kit.app.publish(Due("bob"))
    kit.sql("SELECT holdfast.publish('mail.due', '{\"to\": 7}')")

    def buried() -> list[Any]:
        kit.run_worker()
        return kit.sql("SELECT last_error FROM holdfast.dead_letters")

    (dead,) = wait_until(buried, "what does not fit is a dead letter", 60)
    assert dead["last_error"].endswith("Due]: to: Input should be a valid string, not int 7")
    (held,) = kit.sql("SELECT id, status, hold_reason, attempts FROM holdfast.work")
    assert (held["status"], held["attempts"]) == ("held", 0)
    assert held["hold_reason"] == f"needs a newer worker: {NEEDS}"
    found = Operator(kit.database, "ann").explain(held["id"]).reasons
    why = next(reason for reason in found if reason.code == "newer")
    assert (why.code, why.sentence) == (
        "newer",
        f"It is set aside: it needs a newer worker: {NEEDS}. It waits until one is started.",
    )
    assert old_seen == [Due("bob")]
    newer = holdfast_kit(consumer(DueLater, new_seen), IMPATIENT)
    newer.run_worker()
    assert new_seen == [DueLater("ann", 5)]
    assert kit.sql("SELECT 1 FROM holdfast.work") == []


def test_an_event_without_a_class_waits_for_a_worker_that_has_one(app: Holdfast, kit: Kit) -> None:
    @app.on("mail.*", start="start")
    async def send(event: Event[Due]) -> None: ...

    app.publish("mail.bounced", {"to": "ann"})
    kit.run_worker()
    (held,) = kit.sql("SELECT hold_reason, status FROM holdfast.work")
    assert held["hold_reason"] == (
        "needs a newer worker: the code here has no class for mail.bounced: it is none of mail.due"
    )


def test_a_consumer_without_a_class_takes_every_version(app: Holdfast, kit: Kit) -> None:
    seen: list[tuple[int, Any]] = []

    @app.on("mail.due", start="start")
    async def audit(event: Event[Any]) -> None:
        seen.append((event.version, event.data))

    app.publish("mail.due", {"anything": 1}, version=99)
    kit.run_worker()
    assert seen == [(99, {"anything": 1})]


def project(kind: Any, poison: Literal["stop", "skip", "park_key"]) -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.projection("totals", on=kind, poison=poison, retry=QUICKLY)
    def totals(tx: Transaction, event: Event[kind]) -> None:
        tx.execute("INSERT INTO totals VALUES (%s)", [event.data.to])

    return app


def names(kit: Kit) -> list[str]:
    return [row["name"] for row in kit.sql("SELECT name FROM totals ORDER BY n")]


@pytest.mark.parametrize("poison", ["stop", "skip"])
def test_a_projection_stops_before_a_newer_version_and_newer_code_goes_on(
    holdfast_kit: Make, poison: Literal["stop", "skip"], events: list[telemetry.Event]
) -> None:
    """Also one that skips what fails: it would be lost."""
    kit = holdfast_kit(project(Due, poison), QUICK)
    kit.sql("CREATE TABLE totals (name text, n serial)")
    kit.app.publish_many([Due("ann"), DueLater("bob", 1), Due("cat")])
    run_until(kit, 3)
    now = standing(kit)
    assert (now["position"], now["status"], names(kit)) == (1, "paused", ["ann"])
    assert now["problem"] == (
        f"event 2 (mail.due, key None) failed: NewerVersion: {NEEDS}. Start workers that know it, then resume"
    )
    assert [e.name for e in events if e.name == "projection.stopped"] == ["projection.stopped"]
    newer = holdfast_kit(project(DueLater, poison), QUICK)
    kit.sql(
        "UPDATE holdfast.subscriptions SET status = 'active', paused_by = NULL, paused_at = NULL, problem = NULL"
    )
    run_until(newer, 3)
    assert names(kit) == ["ann", "bob", "cat"]


def test_a_newer_version_parks_its_key_where_the_projection_says_so(holdfast_kit: Make) -> None:
    kit = holdfast_kit(project(Due, "park_key"), QUICK)
    kit.sql("CREATE TABLE totals (name text, n serial)")
    made = kit.app.events.new
    kit.app.publish_many(
        [
            made(Due("ann"), key="a"),
            made(DueLater("bob", 1), key="b"),
            made(Due("ben"), key="b"),
            made(Due("cat"), key="c"),
        ]
    )
    run_until(kit, 4)
    assert names(kit) == ["ann", "cat"]
    newer = holdfast_kit(project(DueLater, "park_key"), QUICK)

    async def apply_later() -> None:
        from holdfast.shapes.events.declare import declared
        from holdfast.shapes.events.retry import Retrying

        (found,) = declared(newer.app.tasks)
        assert found.apply is not None
        done = await Retrying(newer.database, found.apply, "totals", None, Actor("ann")).run()
        assert (done.applied, done.left) == (2, 0)
        await newer.database.aclose()

    asyncio.run(apply_later())
    assert names(kit) == ["ann", "cat", "bob", "ben"]


def test_a_repaired_upcaster_is_tried(holdfast_kit: Make) -> None:
    from holdfast.shapes.events.contract import Step, type_of

    def broken(old: Due) -> DueLater:
        raise KeyError(old.to)

    kind = type_of(DueLater)
    assert kind is not None
    assert kind.step is not None
    good = kind.step
    seen: list[Any] = []
    try:
        kind.step = Step(good.old, broken)
        kit = holdfast_kit(consumer(DueLater, seen), QUICK)
        kit.app.publish(Due("ann"))
        kit.run_worker()
        (held,) = kit.sql("SELECT hold_reason FROM holdfast.work")
        assert held["hold_reason"].endswith("upcasting mail.due from version 1 to 2 failed: KeyError: 'ann'")
        kind.step = Step(good.old, lambda old: old)
        kit = holdfast_kit(consumer(DueLater, seen), QUICK)
        kit.run_worker()
        (held,) = kit.sql("SELECT hold_reason FROM holdfast.work")
        assert "upcasting mail.due from version 1 to 2 returned " in held["hold_reason"]
        assert held["hold_reason"].endswith("not DueLater")
    finally:
        kind.step = good
    holdfast_kit(consumer(DueLater, seen), QUICK).run_worker()
    assert seen == [DueLater("ann", 0)]


async def test_it_is_taken_up_while_old_workers_still_run(
    holdfast_kit: Make,
) -> None:
    old_seen: list[Any] = []
    new_seen: list[Any] = []
    kit = holdfast_kit(consumer(Due, old_seen), QUICK)
    async with working(kit):
        await kit.app.apublish(DueLater("ann", 5))
        await await_until(lambda: kit.sql("SELECT 1 FROM holdfast.misfits WHERE newer"), "it is set aside")
        newer = holdfast_kit(consumer(DueLater, new_seen), QUICK)
        async with working(newer):
            await await_until(lambda: new_seen, "the newer worker takes it")
        await newer.database.aclose()
    await kit.database.aclose()
    assert (old_seen, new_seen) == ([], [DueLater("ann", 5)])


# Declaring and publishing -----------------------------------------------------------------------------------------------


def test_an_upcaster_is_of_one_version_and_the_next() -> None:
    def other(old: V1) -> V2:
        return V2(order_id=old.order_id, cents=1)

    other.__qualname__ = "other"
    cases: dict[str, Callable[[], Any]] = {
        "@upcast takes a version and the next one of the same event type, not order.billed version 1 and order.billed "
        "version 3": lambda: upcast(V1, V3),
        "@upcast takes a version and the next one of the same event type, not mail.due version 1 and order.billed "
        "version 2": lambda: upcast(Due, V2),
        "order.billed: version 1 is upcast twice, by in_cents and by other. Keep one": lambda: upcast(V1, V2)(
            other
        ),
        "event 'x': compatibility must be one of backward, forward, full, none, not str 'both'": lambda: (
            event(
                "x",
                compatibility="both",  # type: ignore[arg-type]
            )
        ),
    }
    for text, act in cases.items():
        with pytest.raises(TaskDefinitionError) as failed:
            act()
        assert str(failed.value) == text
    with pytest.raises(TaskDefinitionError, match=r"takes two event classes, and .* is none"):
        upcast(int, V1)


def test_data_by_name_is_checked_and_written_as_the_class_says(app: Holdfast, kit: Kit) -> None:
    @event("stock.moved", version=3)
    class Moved(BaseModel):
        item: int
        by: int = 1
        lines: list[Due] = []

    app.publish("stock.moved", {"item": 1}, version=3)
    app.publish("stock.moved", {"item": "unchecked"}, version=2)  # of which there is no class here
    assert stored(kit) == [(3, {"item": 1, "by": 1, "lines": []}), (2, {"item": "unchecked"})]
    Moved.__qualname__ = "Moved"
    refused: dict[str, dict[str, Any]] = {
        "item: Input should be a valid integer, not str 'x'": {"item": "x"},
        "item: Field required, not dict {}": {},
        "Moved has no field 'lines.0.cc'. Leave it out, or declare another version that has it": {
            "item": 1,
            "lines": [{"to": "a", "cc": "b"}],
        },
    }
    for text, data in refused.items():
        with pytest.raises(InvalidEvent) as failed:
            app.publish("stock.moved", data, version=3)
        assert str(failed.value) == f"event 'stock.moved' version 3: {text}"
    assert len(stored(kit)) == 2
