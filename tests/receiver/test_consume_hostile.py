"""Brokers hold whatever somebody sent: odd headers, attributes that are not there, many large messages at once."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import nats
import pytest
from pydantic import BaseModel, field_validator
from tests.conftest import await_until, within
from tests.receiver.nats_server import nats_server
from tests.receiver.test_consume import Listed, Order, working

from holdfast import Holdfast, InMessage, ReceivedMessage
from holdfast.contrib.nats import nats as to_nats
from holdfast.contrib.nats_source import nats_source
from holdfast.shapes.receiver import consume, store
from holdfast.shapes.receiver.consume import services
from holdfast.telemetry import Event
from holdfast.testing import Kit
from holdfast.transport import OutMessage

CLOUDEVENT = {"content-type": "application/cloudevents+json"}


def event(n: int, **attributes: Any) -> bytes:
    whole = {
        "specversion": "1.0",
        "id": f"e{n}",
        "type": "t",
        "source": "s",
        **attributes,
        "data": {"order_id": n},
    }
    return json.dumps(whole).encode()


async def test_an_attribute_that_is_null_is_not_there(app: Holdfast, akit: Kit) -> None:
    listed = Listed(
        InMessage("e1", event(1, subject=None), 1, CLOUDEVENT),
        InMessage("e2", event(2, subject="kü"), 2, {**CLOUDEVENT, "ce-subject": "k%C3%BC"}, key="k%C3%BC"),
        InMessage("e3", event(3), 3, CLOUDEVENT, key="of the broker"),
    )

    @app.consume("own", listed, Order)
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    await akit.arun_worker()
    found = {row["payload"]["message"]["id"]: row for row in akit.jobs()}
    assert {name: row["partition_key"] for name, row in found.items()} == {
        "e1": None, "e2": "kü", "e3": "of the broker"
    }  # fmt: skip
    assert "ce-subject" not in found["e1"]["payload"]["message"]["headers"]


async def test_a_message_that_cannot_be_read_is_set_aside_whatever_its_headers_are(
    app: Holdfast, akit: Kit
) -> None:
    """Headers are cut by what they take in the database."""
    wide = {
        "emoji": "\U0001f600" * 16_000,
        "quotes": '"' * 16_000,
        "control": "\x01" * 16_000,
        "nul": "a\x00b",
    }
    listed = Listed(*(
        InMessage(name, b"\xff" * 500_000, n, {name: text}) for n, (name, text) in enumerate(wide.items())
    ))  # fmt: skip

    @app.consume("own", listed, Order)
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    await akit.arun_worker()
    assert Counter(row["status"] for row in akit.jobs()) == {"dead_letter": 4}


async def test_a_message_that_was_given_out_again_and_again_becomes_a_job_unseen(
    app: Holdfast, akit: Kit
) -> None:
    """Perhaps its type is what ended the process each time. As a job it ends one of its own, and is given up."""
    seen: list[int] = []

    class Deadly(BaseModel):
        order_id: int

        @field_validator("order_id")
        @classmethod
        def dies(cls, value: int) -> int:
            seen.append(value)
            return value

    listed = Listed(
        InMessage("usual", b'{"order_id": 1}', 1),
        InMessage("fifth", b'{"order_id": 5}', 5, redelivered=True, deliveries=5),
        InMessage("sixth", b'{"order_id": 6}', 6, redelivered=True, deliveries=6),
        InMessage("worse", b"no json", 7, redelivered=True, deliveries=7),
    )

    @app.consume("own", listed, Deadly)
    async def ordered(message: ReceivedMessage[Deadly]) -> None: ...

    reader, _ = services(akit.database, app.tasks)
    await reader.catch_up()
    assert seen == [1, 5]
    found = {row["payload"]["message"]["id"]: row["status"] for row in akit.jobs()}
    assert found == {"usual": "pending", "fifth": "pending", "sixth": "pending", "worse": "dead_letter"}
    assert listed.log == ["open", "ack [1, 5, 6, 7]"]


async def test_a_source_that_stops_at_poison_stops_there_however_often_it_was_given_out(
    app: Holdfast, akit: Kit, events: list[Event]
) -> None:
    """Each restart, and each worker that reads, gets it once more."""
    listed = Listed(InMessage("bad", b'{"order_id": "x"}', 1, redelivered=True, deliveries=6))

    @app.consume("own", listed, Order, poison="stop")
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    reader, _ = services(akit.database, app.tasks)
    await reader.catch_up()
    assert [e.fields["message"] for e in events if e.name == "consume.stopped"] == ["bad"]
    assert listed.log == ["open", "release [1]"]
    assert akit.jobs() == []


async def test_an_event_in_structured_json_has_its_own_id_wherever_it_was(app: Holdfast, akit: Kit) -> None:
    """Its sender need not repeat the id in a header: sent twice, it has two places in the broker."""

    structured = {"content-type": "application/cloudevents+json; charset=utf-8"}
    listed = Listed(
        InMessage("orders:1:17", event(1), 1, structured),
        InMessage("orders:1:18", event(1), 2, structured),
        InMessage("orders:1:19", event(2, id=""), 3, structured),
        InMessage("orders:1:20", event(3, id="two words"), 4, structured),
    )

    @app.consume("own", listed, Order)
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    reader, _ = services(akit.database, app.tasks)
    await reader.catch_up()
    found = sorted(row["payload"]["message"]["id"] for row in akit.jobs())
    digest = "sha256:" + hashlib.sha256(b"two words").hexdigest()
    assert found == ["e1", "orders:1:19", digest]
    assert listed.log == ["open", "ack [1, 2, 3, 4]"]


async def test_a_source_that_stops_says_so_also_when_nothing_can_be_given_back(
    app: Holdfast, akit: Kit, events: list[Event]
) -> None:
    class Gone(Listed):
        async def release(self, receipts: Sequence[object], *, delay: float) -> None:
            raise ConnectionError("it is gone")

    @app.consume("own", Gone(InMessage("bad", b"junk", 1)), Order, poison="stop")
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    from holdfast.shapes.receiver.consume import services

    reader, _ = services(akit.database, app.tasks)
    with pytest.raises(ConnectionError):
        await reader.catch_up()
    assert [e.fields["message"] for e in events if e.name == "consume.stopped"] == ["bad"]


async def test_many_large_messages_are_several_transactions(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    write = store.receive_many

    def measured(target: Any, made: Sequence[Any]) -> Any:
        sizes.append(sum(len(one.payload) for one in made))
        return write(target, made)

    monkeypatch.setattr(store, "receive_many", measured)
    body = json.dumps({"order_id": 1, "text": "x" * 200_000}).encode()
    listed = Listed(*(InMessage(f"m{n}", body, n) for n in range(60)))

    @app.consume("own", listed, dict[str, Any])
    async def ordered(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    await akit.arun_worker()
    assert len(akit.jobs()) == 60
    assert max(sizes) < 5 * 2**20
    assert sum(line.startswith("ack") for line in listed.log) == 3


async def test_a_broker_that_hears_no_acknowledgement_costs_no_message_its_place(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a batch is written: what comes again from there would come after messages that were sent later."""

    class Deaf(Listed):
        async def ack(self, receipts: Sequence[object]) -> None:
            await super().ack(receipts)
            raise ConnectionError("it is gone")

    monkeypatch.setattr(consume, "BATCH_BYTES", 1)  # each is a transaction of its own
    listed = Deaf(*(InMessage(f"m{n}", json.dumps({"order_id": n}).encode(), n) for n in range(3)))

    @app.consume("own", listed, Order)
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    reader, _ = services(akit.database, app.tasks)
    with pytest.raises(ConnectionError, match="it is gone"):
        await reader.catch_up()
    assert sorted(row["payload"]["message"]["id"] for row in akit.jobs()) == ["m0", "m1", "m2"]
    assert listed.log == ["open", "ack [0]", "close"]
    assert await reader.catch_up() is False, "and it reads on"


async def test_what_a_relay_sends_over_nats_comes_back_with_its_key(app: Holdfast, akit: Kit) -> None:
    """Keys that are no ASCII, and headers that mean something to the server."""
    with nats_server() as server:
        client = await nats.connect(server.url)
        js = client.jetstream(timeout=within(5))
        await js.add_stream(name="ORDERS", subjects=["orders.>"], allow_rollup_hdrs=True)
        hostile = {"Nats-Rollup": "all", "nats-ttl": "1s", "Nats-Expected-Last-Sequence": "77", "Trace": "t"}
        transport = to_nats(server.url)
        await transport.open()

        def sent(n: int, key: str, quoted: str) -> OutMessage:
            headers = {**hostile, "ce-id": f"e{n}", "ce-subject": quoted}
            return OutMessage(f"e{n}", n, "t", key, "orders.paid", headers, event(n, subject=key))

        messages = [sent(1, "straße:1", "stra%C3%9Fe:1"), sent(2, "100%", "100%25")]
        outcomes = [(await transport.publish([one], timeout=within(5)))[0] for one in messages]
        await transport.close()
        assert [getattr(one, "receipt", one) for one in outcomes] == ["ORDERS:1", "ORDERS:2"]
        assert (await js.stream_info("ORDERS")).state.messages == 2, "nothing was rolled up"
        plain = {"ce-id": "plain", "ce-subject": "stra%C3%9Fe:2"}
        await js.publish("orders.paid", b'{"order_id": 3}', headers=plain)
        kept = await js.get_msg("ORDERS", 1)
        assert set(kept.headers or {}) == {"Nats-Msg-Id", "Content-Type", "ce-id", "ce-subject", "Trace"}
        await client.close()

        @app.consume("orders", nats_source(server.url, stream="ORDERS", durable="shop"), Order)
        async def ordered(message: ReceivedMessage[Order]) -> None: ...

        async with working(akit):
            await await_until(lambda: len(akit.jobs()) == 3, "all are jobs")
    assert {row["partition_key"] for row in akit.jobs()} == {"straße:1", "100%", "straße:2"}
