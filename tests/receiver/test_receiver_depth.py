"""A queue that is full leaves messages in the broker; a message belongs to the trace of whoever sent it."""

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from tests.receiver.support import SECRET, body_of, post, standard
from tests.receiver.test_consume import Listed

from holdfast import Holdfast, InMessage, ReceivedMessage, StandardWebhooks, TaskDefinitionError
from holdfast.shapes.receiver import consume
from holdfast.shapes.receiver.consume import Reader, services
from holdfast.testing import Kit

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def reader_of(app: Holdfast, akit: Kit) -> Reader:
    reader, _ = services(akit.database, app.tasks)
    assert isinstance(reader, Reader)
    return reader


async def test_messages_stay_in_the_broker_while_the_queue_is_full(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "_FULL", 0.0)
    listed = Listed(*(InMessage(f"m{n}", b"{}", n) for n in range(25)))

    @app.consume("bus", listed, dict[str, Any], max_depth=10)
    async def consumed(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    akit.sql("SELECT holdfast.enqueue('another', '{}', 'inbox') FROM generate_series(1, 4)")
    reader = reader_of(app, akit)
    assert await reader.catch_up()
    assert (len(listed.messages), len(akit.jobs())) == (19, 10)
    assert not await reader.catch_up()
    assert not await reader.catch_up()
    assert len(listed.messages) == 19
    assert reader.problem == "it waits: its queue has 10 jobs or more"
    akit.sql("DELETE FROM holdfast.work WHERE id IN (SELECT id FROM holdfast.work LIMIT 7)")
    assert await reader.catch_up()
    assert len(listed.messages) == 12
    await reader.finish()


def test_a_depth_that_makes_no_sense_is_refused(app: Holdfast) -> None:
    with pytest.raises(TaskDefinitionError, match="max_depth"):
        app.consume("a", Listed(), dict, max_depth=0)


def metadata(kit: Kit) -> dict[str, Any]:
    return {row["payload"]["message"]["id"]: row["metadata"] for row in kit.jobs()}


async def test_a_message_carries_the_trace_of_its_sender(app: Holdfast, akit: Kit) -> None:
    @app.receive("bank", dict[str, Any], verify=StandardWebhooks(SECRET))
    async def paid(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    body = body_of(n=1)
    for name, headers in {
        "plain": [],
        "traced": [("traceparent", PARENT), ("tracestate", "a=1")],
        "junk": [("traceparent", "00-xyz"), ("tracestate", "a=1")],
        "long": [("traceparent", PARENT), ("tracestate", "a" * 600)],
    }.items():
        reply = await post(paid.asgi, [*standard(body, name), *headers], body)
        assert reply.status == 202
    assert metadata(akit) == {
        "plain": None,
        "traced": {"traceparent": PARENT, "tracestate": "a=1"},
        "junk": None,
        "long": {"traceparent": PARENT},
    }


async def test_a_request_that_is_traced_here_wins_and_brokers_carry_it_too(app: Holdfast, akit: Kit) -> None:
    headers = {"traceparent": PARENT}

    @app.receive("bank", dict[str, Any], verify=StandardWebhooks(SECRET))
    async def paid(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    @app.consume(
        "bus", Listed(InMessage("bus", b"{}", 1, headers), InMessage("bad", b"junk", 2, headers)), dict
    )
    async def consumed(message: ReceivedMessage[dict]) -> None: ...  # type: ignore[type-arg]

    body = body_of(n=1)
    with TracerProvider().get_tracer("asgi").start_as_current_span("POST") as span:
        await post(paid.asgi, [*standard(body, "web"), ("traceparent", PARENT)], body)
        mine = format(span.get_span_context().trace_id, "032x")
    assert trace.get_current_span() is trace.INVALID_SPAN
    reader = reader_of(app, akit)
    await reader.catch_up()
    await reader.finish()
    found = metadata(akit)
    assert found["web"]["traceparent"].split("-")[1] == mine
    assert (found["bus"], found["bad"]) == ({"traceparent": PARENT}, None)
