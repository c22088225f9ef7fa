"""Relays and webhooks send an event as the version that receivers know."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.conftest import await_until
from tests.flow.test_run import working
from tests.relays.support import STEADY, Memory, reaches
from tests.webhooks.support import Site, hooks_of

from holdfast import Holdfast, TaskDefinitionError, event, upcast
from holdfast.testing import Kit

ACME = {"tenant": "acme"}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.end()


@event("order.sent", version=1, key="order:{order_id}")
@dataclass
class V1:
    order_id: int
    amount: float


@event("order.sent", version=2, key="order:{order_id}", compatibility="backward")
@dataclass
class V2:
    order_id: int
    cents: int


@event("order.sent", version=3, key="order:{order_id}", compatibility="backward")
@dataclass
class V3:
    order_id: int
    price: str


@upcast(V1, V2)
def in_cents(old: V1) -> V2:
    if old.amount < 0:
        raise ValueError("nobody pays less than nothing")
    return V2(old.order_id, round(old.amount * 100))


@upcast(V2, V3)
def as_text(old: V2) -> V3:
    return V3(old.order_id, f"{old.cents} EUR")


def bodies(memory: Memory) -> list[tuple[str, Any]]:
    found = [json.loads(message.body) for message in memory.stored]
    return [(one["dataschema"].rpartition(":")[2], one["data"]) for one in found]


async def test_a_relay_sends_older_versions_as_the_one_that_is_asked_for(app: Holdfast, akit: Kit) -> None:
    akit.database.settings = STEADY
    plain, second = Memory(order="destination"), Memory(order="destination")
    app.relay("plain", plain, on=["*"], route="to", start="start")
    app.relay("second", second, on=["*"], route="to.{version}", start="start", as_version=[V2])
    app.publish_many([V1(1, 9.95), V2(2, 5)])
    app.publish("other.said", {"n": 1})
    async with working(akit):
        await reaches(akit, 3, "plain")
        await reaches(akit, 3, "second")
    assert bodies(plain) == [
        ("1", {"order_id": 1, "amount": 9.95}),
        ("2", {"order_id": 2, "cents": 5}),
        ("1", {"n": 1}),
    ]
    assert sorted(bodies(second), key=lambda one: one[1].get("order_id", 3)) == [
        ("2", {"order_id": 1, "cents": 995}),
        ("2", {"order_id": 2, "cents": 5}),
        ("1", {"n": 1}),
    ]
    assert sorted(message.destination for message in second.stored) == ["to.1", "to.2", "to.2"]
    ids = [row["id"] for row in akit.sql("SELECT id::text FROM holdfast.events ORDER BY seq")]
    assert sorted(message.id for message in second.stored) == sorted(ids), "the ids are those of the events"


async def test_a_newer_version_is_refused_and_a_newer_relay_sends_it(app: Holdfast, akit: Kit) -> None:
    akit.database.settings = STEADY
    memory = Memory()
    relay = app.relay("out", memory, on=["*"], route="to", start="start", as_version=[V2], refused="skip")
    app.publish_many([V3(1, "5 EUR"), V1(2, -1.0), V1(3, 1.0)])
    async with working(akit):
        await reaches(akit, 3)
        await await_until(lambda: len(relay.failures()) == 2, "two were refused")
    assert bodies(memory) == [("2", {"order_id": 3, "cents": 100})]
    newer, failed = (str(one.error) for one in relay.failures())
    assert newer == (
        "malformed: version 3 of order.sent is to be sent as version 2, and nothing makes an older version of a newer one"
    )
    assert failed.startswith(
        "malformed: version 1 of order.sent is to be sent as version 2: upcasting order.sent from"
    )
    assert "nobody pays less than nothing" in failed


@pytest.mark.parametrize(
    "payload", ["standard", "cloudevents", lambda e: {"v": e.version, "data": dict(e.data)}]
)
def test_webhooks_send_older_versions_as_the_one_that_is_asked_for(
    app: Holdfast, kit: Kit, site: Site, payload: Any
) -> None:
    site.reset()
    kit.database.settings = STEADY
    hooks = hooks_of(app, site, payload=payload, as_version=[V2])
    kit.create_queues()
    kit.run_worker()
    hooks.endpoints.create(tenant="acme", url=site.url())
    app.publish(V1(1, 9.95), headers=ACME)
    app.publish(V3(2, "5 EUR"), headers=ACME)
    kit.run_worker()
    (request,) = site.requests
    assert request.data == {"order_id": 1, "cents": 995}
    whole = json.loads(request.body)
    assert whole.get("v", 2) == 2
    assert whole.get("dataschema", "urn:holdfast:order.sent:2") == "urn:holdfast:order.sent:2"
    newer, sent = hooks.deliveries(tenant="acme")
    assert (sent.status, newer.status) == ("delivered", "failed")
    assert newer.reason == (
        "version 3 of order.sent is to be sent as version 2, and nothing makes an older version of a newer one"
    )


def test_what_as_version_refuses(app: Holdfast) -> None:
    given: list[tuple[Any, str]] = [
        (V2, "relay 'out': as_version must be a list of event classes, not"),
        ("order.sent", "as_version must be a list of event classes, not str 'order.sent'"),
        ([dict], "as_version takes event classes, and"),
        ([V1, V2], "as_version has two versions of order.sent. Keep one"),
    ]
    for value, text in given:
        with pytest.raises(TaskDefinitionError) as refused:
            app.relay("out", Memory(), on=["*"], route="to", as_version=value)
        assert text in str(refused.value)
    with pytest.raises(TaskDefinitionError, match="webhooks: as_version takes event classes"):
        app.webhooks(on=["*"], as_version=[int])
