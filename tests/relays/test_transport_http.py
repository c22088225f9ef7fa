"""The HTTP transport: what a server gets, and what its reply means. The suite of all transports runs beside it."""

import asyncio
import json
import time
from email.utils import formatdate
from uuid import uuid4

import pytest
from tests.egress.support import INSIDE, PUBLIC, plain, serving

from holdfast import ConfigurationError, Egress
from holdfast.contrib.http import http, make, outcome_of
from holdfast.egress import Reply, SendFailed
from holdfast.egress.reply import Kind
from holdfast.model.signing import fits, new_secret
from holdfast.transport import Confirmed, Outcome, OutMessage, Refused, RetryLater, Transport, from_url

CREATED = b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n"


def message(to: str = "orders", **headers: str) -> OutMessage:
    event_id = str(uuid4())
    body = json.dumps({"id": event_id}).encode()
    return OutMessage(event_id, 1, "t", "k", to, {"ce-id": event_id, **headers}, body)


async def send(transport: Transport, *batch: OutMessage) -> list[Outcome]:
    await transport.open()
    try:
        return list(await transport.publish(batch, timeout=10.0))
    finally:
        await transport.close()


def head_of(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode().split("\r\n")
    return first, {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in lines if line}


async def test_each_message_is_one_signed_post_below_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = new_secret()
    monkeypatch.setenv("EVENTS_TOKEN", "t0k3n")
    monkeypatch.setenv("EVENTS_SECRET", secret)
    async with serving(CREATED) as site:
        transport = http(
            f"http://{PUBLIC}:{site.port}/events?tenant=a",
            headers={"X-Shop": "1"},
            bearer_env="EVENTS_TOKEN",
            secret_env="EVENTS_SECRET",
            egress=plain(site.port),
        )
        sent = message(
            "orders/order.paid/k%2F1", traceparent="00-1", host="evil", cookie="a=b", **{"ce-type": "t"}
        )
        assert await send(transport, sent) == [Confirmed()]
        first, headers = head_of(site.heads[0])
        assert first == "POST /events/orders/order.paid/k%2F1?tenant=a HTTP/1.1"
        assert headers["host"] == f"{PUBLIC}:{site.port}"
        assert headers["content-type"] == "application/cloudevents+json"
        assert (headers["ce-id"], headers["ce-type"], headers["traceparent"]) == (sent.id, "t", "00-1")
        assert (headers["authorization"], headers["x-shop"]) == ("Bearer t0k3n", "1")
        assert "cookie" not in headers
        assert site.bodies == [sent.body]
        assert headers["webhook-id"] == sent.id
        assert fits([secret], sent.id, headers["webhook-timestamp"], headers["webhook-signature"], sent.body)


async def test_a_route_leads_below_the_url_and_nowhere_else() -> None:
    async with serving(CREATED) as site:
        transport = http(f"http://{PUBLIC}:{site.port}/events", egress=plain(site.port))
        bad = [
            "../x",
            "a/../../x",
            "./x",
            "a//b",
            "?x",
            "#x",
            "a b",
            "\r\nx: y",
            "a\\b",
            "ä",
            "@evil.example/",
            "//",
        ]
        outcomes = await send(transport, *(message(to) for to in bad), message("/"), message("/a/b"))
        refused = [o for to, o in zip(bad, outcomes, strict=False) if not isinstance(o, Refused)]
        assert refused == [Confirmed()]  # `@evil.example/` is a path, and stays one
        assert outcomes[-2:] == [Confirmed(), Confirmed()]
        assert sorted(head_of(head)[0].split(" ")[1] for head in site.heads) == [
            "/events",
            "/events/@evil.example/",
            "/events/a/b",
        ]


async def test_the_guard_applies() -> None:
    async with serving(CREATED, host=INSIDE) as victim:
        with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1 may not be called"):
            http(f"http://{INSIDE}:{victim.port}/")
        with pytest.raises(ConfigurationError, match="the URL must not have a user or password"):
            http("https://user:s3cr3t@a.example/")
        transport = http("https://localtest.invalid/", egress=Egress(timeout=5))
        [outcome] = await send(transport, message())
        assert isinstance(outcome, RetryLater)
        assert victim.connections == 0


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Confirmed()),
        (204, Confirmed()),
        (400, Refused("malformed", "HTTP 400")),
        (401, Refused("forbidden", "HTTP 401")),
        (403, Refused("forbidden", "HTTP 403")),
        (404, Refused("unroutable", "HTTP 404")),
        (410, Refused("unroutable", "HTTP 410")),
        (413, Refused("too_large", "HTTP 413")),
        (422, Refused("malformed", "HTTP 422")),
        (302, RetryLater("HTTP 302")),
        (408, RetryLater("HTTP 408")),
        (409, RetryLater("HTTP 409", scope="key")),
        (429, RetryLater("HTTP 429")),
        (500, RetryLater("HTTP 500", scope="key")),
        (502, RetryLater("HTTP 502")),
        (503, RetryLater("HTTP 503")),
        (507, RetryLater("HTTP 507")),
    ],
)
def test_a_status_is_an_outcome(status: int, outcome: Outcome) -> None:
    assert outcome_of(Reply(status, {}, b"", None, 0.1)) == outcome


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [
        ("dns", False),
        ("refused_address", False),
        ("connect", False),
        ("tls", False),
        ("timeout", True),
        ("protocol", True),
    ],
)
def test_no_reply_is_tried_again_and_never_a_refusal(kind: Kind, unknown: bool) -> None:
    assert outcome_of(SendFailed(kind, "why", None, 1.0)) == RetryLater(f"{kind}: why", unknown=unknown)


def test_a_server_may_say_how_long_to_wait() -> None:
    def after(text: str) -> float | None:
        outcome = outcome_of(Reply(503, {"retry-after": text}, b"", None, 0.1))
        assert isinstance(outcome, RetryLater)
        return outcome.after

    assert [after(text) for text in ("0", "120", "999999999999999", "-5", "soon", "", "1e9")] == [
        None,  # the relay waits as it would without
        120,
        86400,
        *[None] * 4,
    ]
    assert after(formatdate(0, usegmt=True)) is None
    later = after(formatdate(time.time() + 1000, usegmt=True))
    assert later is not None
    assert 0 < later <= 1000


async def test_secrets_come_from_the_environment_and_are_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match="the environment variable NO_TOKEN is not set"):
        await http("https://a.example/", bearer_env="NO_TOKEN").open()
    with pytest.raises(ConfigurationError, match="pass one of them"):
        http("https://a.example/", secret="whsec_MQ==", secret_env="X")
    monkeypatch.setenv("BAD_TOKEN", "s3cr3t\r\nx: y")
    transport = http("https://a.example/", bearer_env="BAD_TOKEN")
    with pytest.raises(ConfigurationError) as raised:
        await transport.open()
    assert "s3cr3t" not in str(raised.value)
    monkeypatch.setenv("GOOD_TOKEN", "s3cr3t")
    async with serving(b"HTTP/1.1 401 s3cr3t\r\ncontent-length: 6\r\n\r\ns3cr3t") as site:
        transport = http(f"http://{PUBLIC}:{site.port}/", bearer_env="GOOD_TOKEN", egress=plain(site.port))
        [outcome] = await send(transport, message())
        assert outcome == Refused("forbidden", "HTTP 401")


def test_an_address_is_a_transport_with_the_guard_of_its_own_url() -> None:
    transport = from_url("https://a.example:8443/events?bearer_env=T&secret_env=S")
    assert transport._egress == Egress(ports=[8443])  # type: ignore[attr-defined]
    inside = make("http://10.0.0.1/", {"allow_networks": "10.0.0.0/8,fd00::/8"})
    assert inside._egress == Egress(  # type: ignore[attr-defined]
        ports=[80], allow_http=True, allow_networks=["10.0.0.0/8", "fd00::/8"]
    )
    for url, why in (
        ("https://a.example/?token=x", "a http address has no option 'token'"),
        ("https://a.example:x/", "the address of an HTTP server cannot be read"),
        ("https://10.0.0.1/", "10.0.0.1 may not be called"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            from_url(url)
        assert str(raised.value).startswith(why)


async def test_messages_of_a_batch_are_sent_at_once() -> None:
    """Each of them waits for all the others."""
    asked = 0
    all_there = asyncio.Event()

    async def together(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: object) -> None:
        nonlocal asked
        await reader.readuntil(b"}")
        asked += 1
        if asked == 20:
            all_there.set()
        await all_there.wait()
        writer.write(CREATED)
        await writer.drain()
        await reader.read()

    async with serving(together) as site:
        transport = http(f"http://{PUBLIC}:{site.port}/", egress=plain(site.port))
        assert await send(transport, *(message() for _ in range(20))) == [Confirmed()] * 20
