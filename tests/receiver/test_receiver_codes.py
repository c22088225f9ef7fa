"""Each step of a request, and the reply that ends it."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.receiver.support import JSON, SECRET, Headers, body_of, hexdigest, post, standard

from holdfast import (
    Holdfast,
    ReceivedMessage,
    Receiver,
    Slack,
    StandardWebhooks,
    TaskDefinitionError,
    UnknownQueue,
)
from holdfast.model import asgi as module
from holdfast.operate.dead import redrive_verb
from holdfast.operate.edit import Changes
from holdfast.operate.operator import Operator
from holdfast.telemetry import Event
from holdfast.testing import Kit

VERIFY = StandardWebhooks(SECRET)
REFUSED = "the signature, its secret or its timestamp does not fit"


@dataclass
class Paid:
    order_id: int


@pytest.fixture
def paid(app: Holdfast, kit: Kit) -> Receiver[Paid]:
    @app.receive("shop", Paid, verify=VERIFY, max_bytes=1000, patience=60)
    def paid(message: ReceivedMessage[Paid]) -> None: ...

    return paid


@pytest.fixture
def anything(app: Holdfast, kit: Kit) -> Receiver[Any]:
    @app.receive("any", dict[str, Any], verify=VERIFY, patience=60)
    def anything(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    return anything


async def test_only_a_post_of_json_is_read(paid: Receiver[Paid], akit: Kit) -> None:
    body = body_of(order_id=1)
    reply = await post(paid.asgi, standard(body), body, method="GET")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/xml", "", "json"):
        headers = [(n, v) for n, v in standard(body) if n != "content-type"]
        reply = await post(paid.asgi, [*headers, ("content-type", kind)], body)
        assert (reply.status, reply.headers["accept"]) == (415, "application/json")
    assert akit.jobs() == []
    headers = [(n, v) for n, v in standard(body) if n != "content-type"]
    reply = await post(paid.asgi, [*headers, ("Content-Type", "Application/JSON; charset=utf-8")], body)
    assert reply.status == 202


async def test_a_view_passes_the_bytes_as_they_came(paid: Receiver[Paid], akit: Kit) -> None:
    body = body_of(order_id=1)
    others: list[Any] = [bytearray(body), memoryview(body)]
    for same in others:
        assert (await paid.aaccept(standard(body), same)).status in (202, 200)
    with pytest.raises(TypeError, match="body must be the bytes of the request as they came, not str"):
        await paid.aaccept(standard(body), body.decode())  # type: ignore[arg-type]


async def test_a_body_beyond_the_limit_is_not_read(paid: Receiver[Paid], akit: Kit) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(4):  # the client is one part ahead
            yield b"x" * 400
        raise AssertionError("it was read on")

    for length in ("1001", "9" * 30):
        reply = await post(paid.asgi, [*standard(b""), ("content-length", length)], endless())
        assert (reply.status, reply.text) == (413, "the message is larger than 1,000 bytes")
    assert (await post(paid.asgi, standard(b""), endless())).status == 413
    for length in ("-1", "x", "1_0", "٣"[:0] + "+1"):
        reply = await post(paid.asgi, [*standard(b""), ("content-length", length)], b"")
        assert (reply.status, reply.text) == (400, "Content-Length is no number")
    whole = body_of(order_id=1).ljust(1000)
    assert (await post(paid.asgi, standard(whole), iter([whole[:500], whole[500:]]))).status == 202


async def test_a_length_beyond_the_limit_is_refused_before_reading(paid: Receiver[Paid]) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("it was read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", b"1001")]
    await paid.asgi({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]


async def test_a_body_that_does_not_come_is_given_up(
    paid: Receiver[Paid], akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_WITHIN", 0.05)
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [(b"content-type", b"application/json")],
    }
    await paid.asgi(scope, receive, send)
    assert sent[0]["status"] == 408


async def test_a_client_that_goes_away_gets_no_reply_and_leaves_nothing(
    paid: Receiver[Paid], akit: Kit
) -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [(b"content-type", b"application/json")],
    }
    await paid.asgi(scope, receive, send)
    assert akit.jobs() == []


async def test_every_failed_verification_gets_one_text(paid: Receiver[Paid], akit: Kit) -> None:
    body = body_of(order_id=1)
    good = standard(body)
    other = standard(body, secrets=["whsec_AAAA"])
    old = standard(body, at=1_000_000)
    causes: list[Headers] = [[JSON], other, old, good[:3], [*good[:3], ("webhook-signature", "junk")]]
    for headers in causes:
        reply = await post(paid.asgi, headers, body)
        assert (reply.status, reply.text) == (401, REFUSED)
    reply = await post(paid.asgi, [*good, good[3]], body)
    assert (reply.status, reply.text) == (400, "the header webhook-signature is there 2 times")
    assert akit.sql("SELECT * FROM holdfast.received") == []
    assert akit.jobs() == []


BAD = {
    "no json": (b"{", "the body is not JSON in UTF-8"),
    "no utf-8": (b'{"a": "\xff"}', "the body is not JSON in UTF-8"),
    "nan": (b'{"a": NaN}', "the body has NaN in it"),
    "infinity": (b'{"a": -Infinity}', "the body has -Infinity in it"),
    "twice": (b'{"a": 1, "a": 2}', "the key str 'a' is there twice"),
    "nul": (b'{"a": "\\u0000"}', "the message cannot be stored: message value"),
    "nul key": (b'{"\\u0000": 1}', "the message cannot be stored"),
    "half a character": (b'{"a": "\\ud800"}', "the message cannot be stored: message value"),
    "deep": (b"[" * 100_000, "the body is nested too deep"),
    "deep enough": (b'{"a":' * 600 + b"1" + b"}" * 600, "the message cannot be stored"),
    "empty": (b"", "the body is not JSON in UTF-8"),
    "overflow": (b'{"a": 1e999}', "the message cannot be stored"),
    "digits": (b'{"a": ' + b"9" * 5000 + b"}", "the body is not JSON in UTF-8"),
}


async def test_what_cannot_be_stored_is_refused_after_it_is_verified(
    anything: Receiver[Any], akit: Kit
) -> None:
    for name, (body, text) in BAD.items():
        reply = await post(anything.asgi, standard(body), body)
        assert (reply.status, reply.text[: len(text)]) == (400, text), name
        unsigned = [(n, "v1,AA==") if n == "webhook-signature" else (n, v) for n, v in standard(body)]
        assert (await post(anything.asgi, unsigned, body)).status == 401, name
    assert akit.jobs() == []


async def test_odd_values_are_kept_as_they_are(anything: Receiver[Any], akit: Kit) -> None:
    body = b'{"zero": -0.0, "large": 12345678901234567890, "float": 1e16, "text": "\xc3\xa9\\u2028", "none": null}'
    assert (await post(anything.asgi, standard(body), body)).status == 202
    (job,) = akit.jobs()
    assert job["payload"]["message"]["data"] == {
        "zero": 0, "large": 12345678901234567890, "float": 1e16, "text": "é\u2028", "none": None,
    }  # fmt: skip


async def test_a_message_that_is_larger_than_a_job_is_refused(anything: Receiver[Any], akit: Kit) -> None:
    body = body_of(text="x" * 262_144)
    reply = await post(anything.asgi, standard(body), body)
    assert (reply.status, reply.text) == (
        413,
        "the message is larger than a job can be, which is 262,144 bytes with its headers",
    )
    body = body_of(text="x" * 250_000)
    assert (await post(anything.asgi, standard(body), body)).status == 202


async def test_a_message_that_does_not_fit_is_parked_and_can_be_edited_and_retried(
    paid: Receiver[Paid], app: Holdfast, akit: Kit, events: list[Event]
) -> None:
    body = body_of(order_id="seven")
    reply = await post(paid.asgi, standard(body), body)
    assert (reply.status, reply.text) == (202, "accepted, and set aside")
    assert (await post(paid.asgi, standard(body), body)).status == 200
    (job,) = akit.jobs("paid")
    assert job["status"] == "dead_letter"
    assert job["last_error"].startswith("InvalidMessage: the message does not fit its type: order_id")
    assert "received.parked" in [event.name for event in events]
    operator = Operator(akit.database, "test")
    message = job["payload"]["message"]
    message["data"]["order_id"] = 7
    known = app.tasks.definition
    edited = await operator.edit_job.arun(job["id"], Changes({"message": message}), known)
    assert edited.checked
    await operator.act_on.arun(redrive_verb(), [job["id"]])
    await akit.arun_worker()
    assert akit.job(job["id"])["status"] == "completed"


async def test_a_message_that_does_not_fit_is_refused_where_that_is_wanted(app: Holdfast, akit: Kit) -> None:
    @app.receive("shop", Paid, verify=VERIFY, misfit="refuse", key="order:{order_id}")
    def strict(message: ReceivedMessage[Paid]) -> None: ...

    body = body_of(order_id="seven")
    reply = await post(strict.asgi, standard(body), body)
    assert reply.status == 422
    assert reply.text.startswith("InvalidMessage: the message does not fit its type: order_id")
    assert akit.jobs() == []


async def test_the_same_id_with_another_body_makes_no_second_job(
    paid: Receiver[Paid], akit: Kit, events: list[Event]
) -> None:
    for n, (status, text) in enumerate([(202, ""), (200, "known by this id, with another body")]):
        body = body_of(order_id=n)
        reply = await post(paid.asgi, standard(body), body)
        assert (reply.status, reply.text) == (status, text)
    assert len(akit.jobs()) == 1
    assert [event.name for event in events if event.name == "received.differs"] == ["received.differs"]


async def test_slack_is_replied_to_and_its_forms_are_read(app: Holdfast, akit: Kit) -> None:
    @app.receive("slack", dict[str, Any], verify=Slack("s1"), patience=60)
    def said(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    import time

    def signed(body: bytes, kind: str = "application/json") -> Headers:
        at = str(int(time.time()))
        text = hexdigest("s1", f"v0:{at}:".encode() + body)
        return [
            ("content-type", kind),
            ("x-slack-signature", f"v0={text}"),
            ("x-slack-request-timestamp", at),
        ]

    body = body_of(type="url_verification", challenge="3eZbrw1aB")
    reply = await post(said.asgi, signed(body), body)
    assert (reply.status, reply.text) == (200, "3eZbrw1aB")
    assert akit.jobs() == []
    body = body_of(type="event_callback", event_id="Ev1", event={"type": "message"})
    assert (await post(said.asgi, signed(body), body)).status == 202
    body = b"command=%2Fpay&text=two+words&trigger_id=13.1"
    assert (await post(said.asgi, signed(body, "application/x-www-form-urlencoded"), body)).status == 202
    ids = [row["payload"]["message"]["id"] for row in akit.jobs("said")]
    assert ids == ["Ev1", "13.1"]
    assert akit.jobs("said")[1]["payload"]["message"]["data"]["text"] == "two words"


async def test_a_cloudevent_is_opened(app: Holdfast, akit: Kit) -> None:
    @app.receive("bus", Paid, verify=VERIFY, key="order:{order_id}", patience=60)
    def opened(message: ReceivedMessage[Paid]) -> None: ...

    event = {
        "specversion": "1.0",
        "id": "e1",
        "type": "order.paid",
        "source": "/shop",
        "data": {"order_id": 3},
    }
    body = json.dumps(event).encode()
    headers = [("content-type", "application/cloudevents+json"), *standard(body)[1:]]
    assert (await post(opened.asgi, headers, body)).status == 202
    (job,) = akit.jobs()
    assert job["partition_key"] == "order:3"
    message = job["payload"]["message"]
    assert message["data"] == {"order_id": 3}
    assert message["headers"]["ce-type"] == "order.paid"
    body = body_of(id="e2")
    headers = [("content-type", "application/cloudevents+json"), *standard(body, "msg_2")[1:]]
    reply = await post(opened.asgi, headers, body)
    assert (reply.status, reply.text) == (400, "the body is no CloudEvent: it has no specversion")


async def test_a_queue_that_does_not_exist_is_said(app: Holdfast, akit: Kit, events: list[Event]) -> None:
    @app.receive("shop", Paid, verify=VERIFY, queue="nowhere", patience=60)
    def lost(message: ReceivedMessage[Paid]) -> None: ...

    body = body_of(order_id=1)
    reply = await post(lost.asgi, standard(body), body)
    assert (reply.status, reply.headers["retry-after"]) == (503, "5")
    (said,) = [event for event in events if event.name == "received.unavailable"]
    assert "queue 'nowhere' does not exist" in said.fields["error"]
    with pytest.raises(UnknownQueue, match="holdfast queue create nowhere"):
        lost.accept(standard(body), body)
    assert akit.sql("SELECT * FROM holdfast.received") == []


async def test_without_an_app_around_it_the_protocol_is_complete(paid: Receiver[Paid]) -> None:
    said: list[Any] = []
    incoming = iter(
        [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}, {"type": "websocket.connect"}]
    )

    async def receive() -> Any:
        return next(incoming)

    async def send(message: Any) -> None:
        said.append(message["type"])

    await paid.asgi({"type": "lifespan"}, receive, send)
    await paid.asgi({"type": "websocket"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


def test_declarations_that_cannot_work_are_refused(app: Holdfast) -> None:
    def none(message: ReceivedMessage[Paid]) -> None: ...

    def other(message: ReceivedMessage[int]) -> None: ...

    def plain(order_id: int) -> None: ...

    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        ("a b", none, {}, "the name of a source"),
        ("a", other, {}, "other: the message is annotated"),
        ("a", plain, {}, "Write: def plain(message: ReceivedMessage[Paid])"),
        ("a", none, {"verify": "secret"}, "verify must be a verifier such as Stripe(SECRETS)"),
        ("a", none, {"key": "{order_id!r}"}, "may only have plain fields"),
        ("a", none, {"key": "{"}, "cannot be read"),
        ("a", none, {"key": ""}, "key must be a template"),
        ("a", none, {"keep_ids": 60}, "keep_ids must be from 1 hour to 100 years"),
        ("a", none, {"max_bytes": 0}, "max_bytes"),
        ("a", none, {"misfit": "drop"}, "misfit must be one of park, refuse"),
    ]
    for source, fn, options, text in cases:
        with pytest.raises(TaskDefinitionError) as found:
            app.receive(source, Paid, **{"verify": VERIFY, **options})(fn)
        assert text in str(found.value)

    app.receive("a", Paid, verify=VERIFY)(none)

    def second(message: ReceivedMessage[Paid]) -> None: ...

    with pytest.raises(TaskDefinitionError, match="there are two receivers 'a'"):
        app.receive("a", Paid, verify=VERIFY)(second)
