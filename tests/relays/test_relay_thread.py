"""A relay end to end: events that are published in a transaction arrive at NATS, in the order of their keys."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import nats as nats_client
import pytest
from nats.js.api import StreamConfig
from tests.brokers import Server
from tests.conftest import await_until
from tests.flow.test_run import working
from tests.relays.support import STEADY

from holdfast import Holdfast
from holdfast.contrib.nats import nats
from holdfast.testing import Kit


class Stream:
    """A stream of its own in the shared server."""

    def __init__(self, server: Server) -> None:
        self.name = f"S{uuid4().hex[:8]}"
        self.url = f"nats://127.0.0.1:{server.port}"

    async def make(self, **options: Any) -> None:
        client = await nats_client.connect(self.url)
        await client.jetstream().add_stream(
            StreamConfig(name=self.name, subjects=[f"{self.name}.>"], **options)
        )
        await client.close()

    async def read(self) -> list[tuple[str, dict[str, Any], dict[str, str]]]:
        """Subject, body and headers of all that is stored, in order."""
        client = await nats_client.connect(self.url)
        context = client.jetstream()
        state = (await context.stream_info(self.name)).state
        found = []
        for seq in range(state.first_seq, state.last_seq + 1):
            message = await context.get_msg(self.name, seq)
            found.append(
                (message.subject or "", json.loads(message.data or b""), dict(message.headers or {}))
            )
        await client.close()
        return found


@pytest.fixture
async def stream(nats_broker: Server) -> Stream:
    made = Stream(nats_broker)
    await made.make()
    return made


def test_a_relay_is_a_subscription(app: Holdfast, kit: Kit, nats_broker: Server) -> None:
    stream = Stream(nats_broker)
    asyncio.run(stream.make())
    kit.database.settings = STEADY
    relay = app.relay("orders", nats(stream.url), on=["order.*"], route=stream.name + ".{type}.{key}")
    kit.run_worker()
    with kit.connect() as conn:
        app.publish("order.paid", {"n": 1}, key="order:1", headers={"tenant": "acme"}, conn=conn)
        app.publish("other", {"n": 2}, conn=conn)
        app.publish("order.sent", {"n": 3}, key="order.1 >*", conn=conn)
    kit.run_worker()
    found = asyncio.run(stream.read())
    assert [(subject, body["data"]) for subject, body, _ in found] == [
        (f"{stream.name}.order.paid.order:1", {"n": 1}),
        (f"{stream.name}.order.sent.order%2E1%20%3E%2A", {"n": 3}),
    ]
    paid = app.events.read(0, 1)[0]
    assert found[0][1] == paid.cloudevent()
    assert found[0][2]["Nats-Msg-Id"] == found[0][2]["ce-id"] == str(paid.id)
    assert found[0][2]["tenant"] == "acme"
    assert relay.lag() == (0, 0.0)
    (row,) = kit.sql("SELECT name, kind, position FROM holdfast.subscriptions")
    assert row == {"name": "orders", "kind": "relay", "position": 3}


async def test_order_per_key_and_nothing_lost_over_many_keys(
    app: Holdfast, akit: Kit, stream: Stream
) -> None:
    akit.database.settings = STEADY
    app.relay(
        "orders", nats(stream.url, stream=stream.name), on=["*"], route=stream.name + ".{key}", start="start"
    )
    async with working(akit):
        for n in range(10):
            await app.apublish_many([("counted", {"n": n * 100 + i}, f"k{i % 37}") for i in range(100)])
        await await_until(
            lambda: akit.sql("SELECT 1 FROM holdfast.subscriptions WHERE position = 1000"), "all sent"
        )
    found = await stream.read()
    assert len(found) == 1000
    for key in range(37):
        mine = [body["data"]["n"] for subject, body, _ in found if subject == f"{stream.name}.k{key}"]
        assert mine == sorted(mine)
