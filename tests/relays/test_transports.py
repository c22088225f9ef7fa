"""What is special about single transports: addresses, TLS, rights, ids in Redis, the other database end to end."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats as nats_client
import pytest
import redis.asyncio
import redis.exceptions
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, StreamConfig
from tests.brokers import Server, folder, free_port, nats_server, program, redis_server
from tests.conftest import QUICK, await_until
from tests.flow.test_run import working
from tests.relays.support import reaches
from tests.tls_proxy import certificate

from holdfast import ConfigurationError, Holdfast
from holdfast.contrib.holdfast import holdfast_database
from holdfast.contrib.nats import _Batch, nats, outcome_of
from holdfast.contrib.nats_source import nats_source
from holdfast.contrib.rabbitmq import rabbitmq
from holdfast.contrib.rabbitmq_source import rabbitmq_source
from holdfast.contrib.redis import redis_streams
from holdfast.contrib.redis_source import redis_source
from holdfast.testing import Kit, TestServer
from holdfast.transport import (
    Confirmed,
    Outcome,
    OutMessage,
    Refused,
    RetryLater,
    Transport,
    from_url,
    shown_url,
)


def message(to: str, position: int, key: str = "k", *, late: bool = False, era: int = 1) -> OutMessage:
    body = b'{"data":{"n":%d}}' % position
    return OutMessage(str(uuid4()), position, "t", key, to, {"ce-id": "x"}, body, era=era, late=late)


async def send(transport: Transport, *batch: OutMessage) -> list[Outcome]:
    await transport.open()
    try:
        return list(await transport.publish(batch, timeout=10.0))
    finally:
        await transport.close()


# Addresses ------------------------------------------------------------------------------------------------------------


def test_an_address_finds_its_transport_by_its_scheme() -> None:
    kinds = {
        "nats://127.0.0.1:4222?stream=SHOP": "_Nats",
        "redis://127.0.0.1:6379/0?maxlen=10": "_Redis",
        "amqp://127.0.0.1/?exchange=shop": "_Rabbit",
        "kafka://127.0.0.1:9092": "_Kafka",
        "sqs://eu-central-1": "_Sqs",
        "holdfast+postgresql://127.0.0.1/other?sslmode=disable": "_Database",
    }
    assert {url: type(from_url(url)).__name__ for url in kinds} == kinds


def test_a_package_of_somebody_else_adds_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tmp_path / "carrier-1.0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    (known / "entry_points.txt").write_text(
        "[holdfast.transports]\npigeon = carrier:make\nstone = carrier:stone\n"
    )
    (tmp_path / "carrier.py").write_text(
        "from holdfast.contrib.redis import redis_streams\n"
        "def make(url, options):\n"
        "    made = redis_streams('redis://x')\n"
        "    made.asked_for = (url, options)\n"
        "    return made\n"
        "def stone(url, options):\n"
        "    return url\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made: Any = from_url("pigeon://roof:7?speed=high")
    assert made.asked_for == ("pigeon://roof:7", {"speed": "high"})
    with pytest.raises(ConfigurationError, match="carrier:stone did not make a transport of stone://hand"):
        from_url("stone://user:secret@hand")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://x", "there is no transport for 'ftp' (known: amqp, amqps, "),
        ("nothing", "there is no transport for 'an address without a scheme' "),
        ("nats://x?strem=S", "a nats address has no option 'strem' (known: credentials, stream)"),
        ("redis://x?maxlen=many", "a redis address takes maxlen=NUMBER and create=true or create=false"),
        ("amqp://x?queue=q", "a amqp address has no option 'queue' (known: exchange)"),
    ],
)
def test_a_bad_address_is_refused_in_words(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_url(url)
    assert str(caught.value).startswith(why)


def test_secrets_of_an_address_are_not_told() -> None:
    assert shown_url("nats://user:secret@host:4222/x?token=1") == "nats://host:4222/x"
    for make in (nats, redis_streams, rabbitmq):
        with pytest.raises(ConfigurationError) as caught:
            make("http://user:secret@host")
        assert "secret" not in str(caught.value)


# NATS -----------------------------------------------------------------------------------------------------------------

RIGHTS = """
authorization {
  users = [{ user: relay, password: right, permissions: { publish: ["ok.>", "$JS.API.>", "_INBOX.>"], subscribe: ">" } }]
}
"""


def test_nats_over_tls_and_not_to_a_stranger(tmp_path: Path) -> None:
    trusted = certificate(tmp_path)
    server = nats_server(f'tls {{ cert_file: "{tmp_path}/cert.pem", key_file: "{tmp_path}/key.pem" }}')
    url = f"tls://127.0.0.1:{server.port}"

    async def main() -> None:
        client = await nats_client.connect(url, tls=trusted)
        await client.jetstream().add_stream(StreamConfig(name="S", subjects=["s"]))
        await client.close()
        assert await send(nats(url, tls=trusted), message("s", 1)) == [Confirmed(receipt="S:1")]
        source = nats_source(f"tls://127.0.0.1:{free_port()}, {url}", stream="S", durable="d", tls=trusted)
        await source.open()
        assert len(await source.receive(1, wait=5.0)) == 1
        await source.close()
        strange = ssl.create_default_context()
        for stranger in (nats(url, tls=strange), nats_source(url, stream="S", durable="d", tls=strange)):
            with pytest.raises((ssl.SSLError, ConnectionError), match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.open()
            await stranger.close()

    try:
        asyncio.run(main())
    finally:
        server.end()


async def test_nats_sends_nothing_to_one_who_takes_tls_away() -> None:
    """Nothing protects the first line of a server: whoever is in between may leave out that TLS is required."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "version": "2.15.1", "max_payload": 1048576}\r\n')
        heard.put_nowait(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    where = f"relay:right@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for one in (
        nats(f"tls://{where}"),
        nats(f"nats://{where}", tls=ssl.create_default_context()),
        nats_source(f"tls://{where}", stream="S", durable="d"),
    ):
        with pytest.raises(Exception, match="TLS was asked for, and the server does not offer it"):
            await one.open()
        await one.close()
        assert await heard.get() == b""
    server.close()


def test_an_address_that_would_not_be_encrypted_takes_no_certificate() -> None:
    trusted = ssl.create_default_context()
    for of_rabbit in (
        lambda: rabbitmq("amqp://guest:s3cret@127.0.0.1/", tls=trusted),
        lambda: rabbitmq_source("amqp://guest:s3cret@127.0.0.1/", queue="q", tls=trusted),
    ):
        with pytest.raises(ConfigurationError) as found:
            of_rabbit()
        text = "amqp://127.0.0.1/ would not be encrypted, although tls= is given. Write amqps://"
        assert str(found.value) == text
    for of_redis in (
        lambda: redis_streams("redis://127.0.0.1:6379", ca_file="ca.pem"),
        lambda: redis_source("redis://127.0.0.1:6379", stream="s", group="g", ca_file="ca.pem"),
    ):
        with pytest.raises(ConfigurationError) as found:
            of_redis()
        text = "redis://127.0.0.1:6379 would not be encrypted, although ca_file= is given. Write rediss://"
        assert str(found.value) == text


def test_a_subject_without_rights_is_refused_and_others_are_not() -> None:
    server = nats_server(RIGHTS)
    url = f"nats://relay:right@127.0.0.1:{server.port}"
    order = "$JS.API.STREAM.DELETE.S"  # the server would obey a route of the user's

    async def main() -> None:
        client = await nats_client.connect(url)
        await client.jetstream().add_stream(StreamConfig(name="S", subjects=["ok.>", "no.>"]))
        await client.close()
        outcomes = await send(
            nats(url),
            *[message(to, n, f"k{n}") for n, to in enumerate(("ok.1", "no.1", "a b", "x..y", order), 1)],
        )
        assert outcomes[0] == Confirmed(receipt="S:1")
        assert outcomes[1] == Refused("forbidden", "publishing to no.1 is not allowed")
        assert outcomes[2:] == [
            Refused("malformed", "'a b' is no subject"),
            Refused("malformed", "'x..y' is no subject"),
            Refused("malformed", f"{order!r} is no subject"),
        ]
        (other,) = await send(nats(url, stream="OTHER"), message("ok.1", 5))
        assert isinstance(other, Refused)
        assert other.reason == "unroutable"

    try:
        asyncio.run(main())
    finally:
        server.end()


async def test_a_subject_that_is_full_holds_up_its_key_alone(nats_broker: Server) -> None:
    url, name = f"nats://127.0.0.1:{nats_broker.port}", f"s{uuid4().hex}"
    client = await nats_client.connect(url)
    limits: dict[str, Any] = {
        "max_msgs_per_subject": 1,
        "discard": DiscardPolicy.NEW,
        "discard_new_per_subject": True,
    }
    await client.jetstream().add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **limits))
    await client.close()
    outcomes = await send(nats(url), *[message(f"{name}.{n % 2}", n, f"k{n % 2}") for n in range(2)])
    assert [type(outcome) for outcome in outcomes] == [Confirmed, Confirmed]
    full, other = await send(nats(url), message(f"{name}.0", 3, "k0"), message(f"{name}.3", 4, "k3"))
    assert full == RetryLater("maximum messages per subject exceeded", scope="key")
    assert isinstance(other, Confirmed)


async def test_a_server_of_nats_that_is_not_there_is_named() -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    for one in (nats(url), nats_source(url, stream="S", durable="shop")):
        with pytest.raises(ConnectionError, match="Connect call failed"):
            await one.open()
        await one.close()


def test_headers_count_where_the_server_takes_little() -> None:
    """A message that is too large with its headers would end the connection, and come again for ever."""
    server = nats_server("max_payload: 4096")
    url = f"nats://127.0.0.1:{server.port}"

    async def main() -> None:
        client = await nats_client.connect(url)
        await client.jetstream().add_stream(StreamConfig(name="S", subjects=["s.>"]))
        await client.close()
        transport = nats(url)
        await transport.open()
        large = replace(message("s.2", 2, "b"), headers={"Trace": "x" * 4000}, body=b"{}")
        outcomes = await transport.publish([message("s.1", 1), large, message("s.3", 3, "c")], timeout=10)
        assert [type(outcome) for outcome in outcomes] == [Confirmed, Refused, Confirmed]
        assert isinstance(outcomes[1], Refused)
        assert outcomes[1].reason == "too_large"
        least, most = 3000, 4096  # up to the last byte that the server takes
        while most - least > 1:
            size = (least + most) // 2
            (found,) = await transport.publish(
                [replace(message("s.4", 4, "d"), body=b"x" * size)], timeout=10
            )
            least, most = (size, most) if isinstance(found, Confirmed) else (least, size)
            assert isinstance(found, Confirmed | Refused), "the connection stays"
        await transport.close()
        assert 3800 < least < 4096

    try:
        asyncio.run(main())
    finally:
        server.end()


def test_an_inbox_without_rights_is_named_when_it_is_opened() -> None:
    server = nats_server(
        'authorization { users = [{user: relay, password: right, permissions: {publish: ">", subscribe: "other.>"}}] }'
    )

    async def line_by_line(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """What the server says comes a line at a time: each is acted on before the next one is there."""
        served.add(asyncio.current_task())
        from_server, to_server = await asyncio.open_connection("127.0.0.1", server.port)

        async def forward() -> None:
            while sent := await client.read(65_536):
                to_server.write(sent)
            to_server.close()

        forwarding = asyncio.ensure_future(forward())
        while line := await from_server.readline():
            to_client.write(line)
            await asyncio.sleep(0.05)
        to_client.close()
        await forwarding
        for end in (to_client, to_server):
            with contextlib.suppress(OSError):
                await end.wait_closed()

    served: set[Any] = set()

    async def main() -> None:
        listener = await asyncio.start_server(line_by_line, "127.0.0.1", 0)
        transport = nats(f"nats://relay:right@127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        try:
            with pytest.raises(ConnectionError, match=r"(?i)permissions violation for subscription"):
                await transport.open()
        finally:
            await transport.close()
            listener.close()
            await asyncio.gather(*served)

    try:
        asyncio.run(main())
    finally:
        server.end()


async def test_many_subjects_without_a_stream_are_refused_in_one_batch(
    nats_broker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked about, all at once: one after the other they would outlast the batch."""
    transport: Any = nats(f"nats://127.0.0.1:{nats_broker.port}")
    ask, asked, most = transport._has_no_stream, [], []

    async def slowly(subject: str, timeout: float) -> bool:
        asked.append(subject)
        most.append(len(asked))
        found: bool = await ask(subject, timeout)
        await await_until(lambda: len(most) == 20, "all are asked about")
        return found

    monkeypatch.setattr(transport, "_has_no_stream", slowly)
    nowhere = f"nowhere{uuid4().hex}"
    outcomes = await send(transport, *[message(f"{nowhere}.{n}", n, f"k{n}") for n in range(20)])
    assert outcomes[0] == Refused("unroutable", f"no stream has the subject {nowhere}.0")
    assert {type(outcome) for outcome in outcomes} == {Refused}


def test_what_a_stream_says_is_read_as_it_is_meant() -> None:
    assert outcome_of(b'{"stream":"S","seq":7,"duplicate":true}') == Confirmed(duplicate=True, receipt="S:7")
    too_large = (
        b'{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}}'
    )
    assert outcome_of(too_large) == Refused("too_large", "message size exceeds maximum allowed")
    full = b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}'
    assert outcome_of(full) == RetryLater("maximum messages exceeded")
    for text in (b"{", b"{}", b"[]", b"7", b"", b'{"ok":true}', b'{"stream":"S"}', b'{"error":"no"}'):
        assert outcome_of(text) is None, "that was not a stream"


async def test_only_the_acknowledgement_of_a_stream_confirms_a_message_to_nats(nats_broker: Server) -> None:
    """Other subscribers of its subject reply too: they store nothing. The reply of the stream counts, if there is one."""
    url, name = f"nats://127.0.0.1:{nats_broker.port}", f"s{uuid4().hex}"
    client = await nats_client.connect(url)
    await client.jetstream().add_stream(StreamConfig(name=name, subjects=[f"{name}.kept"]))

    async def reply(received: Msg) -> None:
        await received.respond(b'{"ok": true}')

    await client.subscribe(f"{name}.>", cb=reply)
    await client.flush()
    transport = nats(url)
    await transport.open()
    try:
        (kept,) = await transport.publish([message(f"{name}.kept", 1)], timeout=10)
        (lost,) = await transport.publish([message(f"{name}.lost", 2)], timeout=1)
    finally:
        await transport.close()
        await client.close()
    assert kept == Confirmed(receipt=f"{name}:1")
    assert lost == Refused("unroutable", f"no stream has the subject {name}.lost")


async def test_one_stream_of_nats_takes_an_event_under_the_subjects_of_two_relays(
    nats_broker: Server,
) -> None:
    """A stream drops an id that it knows, whatever the subject. Each subject has the event once, however often it comes."""
    url, name = f"nats://127.0.0.1:{nats_broker.port}", f"s{uuid4().hex}"
    client = await nats_client.connect(url)
    context = client.jetstream()
    await context.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
    first = [message(f"{name}.a.{n}", n, f"k{n}") for n in range(60)]
    second = [replace(one, destination=one.destination.replace(".a.", ".b.")) for one in first]
    for batch, known in ((first, False), (second, False), (first, True), (second, True)):
        outcomes = await send(nats(url), *batch)
        assert {(type(o), getattr(o, "duplicate", None)) for o in outcomes} == {(Confirmed, known)}
    found = await context.stream_info(name, subjects_filter=">")
    assert found.state.subjects == dict.fromkeys([one.destination for one in first + second], 1)
    seen = await context.get_msg(name, 61)
    assert (seen.headers or {})["ce-id"] == "x"
    # Read and removed by a reader of the first: whether the second has it, nobody can tell.
    await context.purge_stream(name)
    (again,) = await send(nats(url), replace(first[0], destination=f"{name}.c"))
    assert again == Confirmed(receipt=f"{name}:121")
    await client.close()


def test_nats_takes_a_repeat_for_stored_where_it_may_not_look() -> None:
    server = nats_server(
        'authorization { users = [{user: relay, password: right, permissions: {publish: {deny: "$JS.API.STREAM.MSG.>"}}}] }'
    )
    url = f"nats://relay:right@127.0.0.1:{server.port}"

    async def main() -> None:
        client = await nats_client.connect(url)
        await client.jetstream().add_stream(StreamConfig(name="S", subjects=["s.>"]))
        await client.close()
        batch = [message(f"s.{n}", n, f"k{n}") for n in range(60)]
        await send(nats(url), *batch)
        assert await send(nats(url), *batch) == [
            Confirmed(duplicate=True, receipt=f"S:{n + 1}") for n in range(60)
        ]

    try:
        asyncio.run(main())
    finally:
        server.end()


async def test_of_messages_that_were_lost_with_a_channel_of_rabbitmq_the_one_that_ended_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport: Any = rabbitmq("amqp://127.0.0.1/")
    transport._exchange = object()
    said = "message size 101 is larger than configured max size 100"

    async def lost(exchange: Any, message: OutMessage) -> Outcome:
        return RetryLater(f"ChannelPreconditionFailed: PRECONDITION_FAILED - {said}", unknown=True)

    monkeypatch.setattr(transport, "_send", lost)
    sizes = (100, 101, 102)
    batch = [replace(message("q", n, f"k{n}"), body=b"x" * size) for n, size in enumerate(sizes)]
    outcomes = await transport.publish(batch, timeout=1)
    assert [type(outcome) for outcome in outcomes] == [RetryLater, Refused, Refused]
    said = "access to topic 'no.1' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"
    batch = [message("no.1", 1), message("no.10", 2, "b")]
    outcomes = await transport.publish(batch, timeout=1)
    assert outcomes[0] == Refused("forbidden", "publishing to no.1 is not allowed")
    assert isinstance(outcomes[1], RetryLater)


# Redis ----------------------------------------------------------------------------------------------------------------


async def test_redis_over_tls_and_not_to_a_stranger(tmp_path: Path) -> None:
    certificate(tmp_path)
    port = free_port()
    files = ["--tls-cert-file", f"{tmp_path}/cert.pem", "--tls-key-file", f"{tmp_path}/key.pem"]
    options = ["--port", "0", "--bind", "127.0.0.1", "--tls-port", str(port), "--tls-auth-clients", "no"]
    where = folder("redis-tls")
    server = Server([program("redis-server"), *options, *files, "--dir", str(where)], port, where)
    server.start()
    url, ca = f"rediss://127.0.0.1:{port}", f"{tmp_path}/cert.pem"
    try:
        assert await send(redis_streams(url, ca_file=ca), message("s", 1)) == [Confirmed()]
        assert await send(from_url(f"{url}?ca_file={ca}"), message("s", 2)) == [Confirmed()]
        source = redis_source(url, stream="s", group="g", ca_file=ca)
        await source.open()
        assert len(await source.receive(10, wait=5.0)) == 2
        await source.close()
        for stranger in (redis_streams(url), redis_source(url, stream="s", group="g")):
            with pytest.raises(redis.exceptions.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.open()
            await stranger.close()
    finally:
        server.end()


@pytest.fixture(scope="module")
def redis_broker() -> Iterator[Server]:
    server = redis_server()
    yield server
    server.end()


async def test_positions_are_ids_in_redis_and_nothing_is_stored_twice(redis_broker: Server) -> None:
    url, stream = f"redis://127.0.0.1:{redis_broker.port}", f"s{uuid4().hex}"
    transport = redis_streams(url)
    first = [message(stream, n) for n in (1, 2, 5)]
    assert await send(transport, *first) == [Confirmed(), Confirmed(), Confirmed()]
    again = [*first[1:], message(stream, 6)]
    assert await send(transport, *again) == [
        Confirmed(duplicate=True),
        Confirmed(duplicate=True),
        Confirmed(),
    ]
    late = message(stream, 3, late=True)  # it waited aside while 5 and 6 were sent
    assert await send(transport, late) == [Confirmed()]
    assert await send(transport, late) == [Confirmed(duplicate=True)]
    anew = message(stream, 2, era=2)  # after a restore positions are dealt again
    assert await send(transport, anew) == [Confirmed()]
    async with redis.asyncio.Redis.from_url(url) as client:
        entries: Any = await client.xrange(stream)
        assert await client.set(f"{stream}:text", "x")
    assert [(i, fields[b"position"]) for i, fields in entries] == [
        (b"1-0", b"1"),
        (b"2-0", b"2"),
        (b"5-0", b"5"),
        (b"6-0", b"6"),
        (b"6-1", b"3"),
        (b"%d-0" % ((1 << 44) + 2), b"2"),
    ]
    (wrong,) = await send(transport, message(f"{stream}:text", 1))
    assert wrong == Refused("unroutable", f"{stream}:text is no stream")


async def stored_in(url: str, stream: str) -> list[tuple[str, str]]:
    async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
        entries: Any = await client.xrange(stream)
    return [(place, fields["id"]) for place, fields in entries if "id" in fields]


async def test_events_that_a_stream_of_redis_never_had_are_stored_behind_its_last_entry(
    redis_broker: Server,
) -> None:
    """Of a relay that was reset to before its beginning, of a second relay, of another database."""
    url, stream = f"redis://127.0.0.1:{redis_broker.port}", f"s{uuid4().hex}"
    transport = redis_streams(url)
    first = [message(stream, n) for n in (5, 8)]
    await send(transport, *first)
    again = [message(stream, n) for n in (3, 6)]  # never sent before
    other = message(stream, 5)  # of another log
    assert await send(transport, *again, other) == [Confirmed()] * 3
    assert await send(transport, *again, other, *first) == [Confirmed(duplicate=True)] * 5
    await send(transport, message(stream, 9))
    found = await stored_in(url, stream)
    assert [place for place, _ in found] == ["5-0", "8-0", "8-1", "8-2", "8-3", "9-0"]
    assert [event for _, event in found][:5] == [m.id for m in (*first, *again, other)]


async def test_a_stream_of_redis_that_others_write_to_gets_every_event_once(redis_broker: Server) -> None:
    """Ids that Redis makes by its clock are higher than all positions."""
    url, stream = f"redis://127.0.0.1:{redis_broker.port}", f"s{uuid4().hex}"
    async with redis.asyncio.Redis.from_url(url) as client:
        for n in range(3):
            await client.xadd(stream, {"other": n})
        await client.xtrim(stream, maxlen=1, approximate=False)
    transport = redis_streams(url)
    messages = [message(stream, n) for n in (1, 2, 3)]
    assert await send(transport, *messages) == [Confirmed()] * 3
    assert await send(transport, *messages) == [Confirmed(duplicate=True)] * 3
    assert [event for _, event in await stored_in(url, stream)] == [m.id for m in messages]


async def test_what_was_read_and_deleted_in_redis_is_not_stored_again(redis_broker: Server) -> None:
    url, stream = f"redis://127.0.0.1:{redis_broker.port}", f"s{uuid4().hex}"
    transport = redis_streams(url)
    messages = [message(stream, n) for n in range(1, 7)]
    await send(transport, *messages)
    async with redis.asyncio.Redis.from_url(url) as client:
        await client.xdel(stream, "1-0", "2-0", "4-0")
        assert await send(transport, *messages) == [Confirmed(duplicate=True)] * 6
        await client.xtrim(stream, minid="6-0")
        assert await send(transport, *messages) == [Confirmed(duplicate=True)] * 6
        await client.xtrim(stream, maxlen=0)
        assert await send(transport, *messages) == [Confirmed(duplicate=True)] * 6
        assert await client.xlen(stream) == 0


async def test_nothing_of_a_stream_is_stored_behind_one_that_redis_cannot_take(redis_broker: Server) -> None:
    url, stream = f"redis://127.0.0.1:{redis_broker.port}", f"s{uuid4().hex}"
    transport = redis_streams(url, max_bytes=100)
    large = replace(message(stream, 1), body=b"x" * 101)
    outcomes = await send(transport, large, message(stream, 2), message(stream, 3, "other"))
    assert isinstance(outcomes[0], Refused)
    assert [type(outcome) for outcome in outcomes[1:]] == [RetryLater, RetryLater]
    assert await stored_in(url, stream) == []


async def test_entries_of_a_batch_are_cut_where_each_ends_in_redis(redis_broker: Server) -> None:
    """A batch is one text and the lengths of its parts, in bytes: also of what has more bytes than characters."""
    url, stream = f"redis://127.0.0.1:{redis_broker.port}", f"s{uuid4().hex}"
    sent = [
        replace(message(stream, 1, "köln ☃"), body='{"data":"ünï\\u0000 😀"}'.encode()),
        replace(message(stream, 2), key=None, headers={}, body=b""),
        replace(message(stream, 3, ""), headers={"traceparent": "00-1", "x": ""}, body=bytes(range(256))),
        replace(message(stream, 4), body=b"x" * 300_000),
    ]
    assert await send(redis_streams(url, maxlen=100), sent[0], *sent) == [
        Confirmed(), Confirmed(duplicate=True), Confirmed(), Confirmed(), Confirmed()
    ]  # fmt: skip
    async with redis.asyncio.Redis.from_url(url) as client:
        entries: Any = await client.xrange(stream)
    for (place, fields), one in zip(entries, sent, strict=True):
        whole = {"id": one.id, "type": "t", "position": str(one.position), "content-type": one.content_type}
        whole |= {} if one.key is None else {"key": one.key}
        whole |= {f"header-{name}": value for name, value in one.headers.items()}
        wanted = {name.encode(): value.encode() for name, value in whole.items()}
        assert (place, fields) == (b"%d-0" % one.position, wanted | {b"body": one.body})


# Another Holdfast database --------------------------------------------------------------------------------------------


@pytest.fixture
def far(holdfast_server: TestServer) -> Iterator[Kit]:
    """Another database."""
    name = holdfast_server.clone()
    kit = Kit(Holdfast("postgresql://unused.invalid/none"), holdfast_server.url(name))
    yield kit
    kit.close()
    holdfast_server.drop(name)


async def test_another_database_has_each_event_once_as_it_was(app: Holdfast, akit: Kit, far: Kit) -> None:
    akit.database.settings = replace(QUICK, dead_after=5.0, lease=10.0)
    relay = app.relay(
        "copy", holdfast_database(far.url), on=["order.*"], route="copied.{type}", start="start"
    )
    app.publish(
        "order.paid",
        {"n": 1, "big": 12345678901234567890, "text": "ü\u2028"},
        key="a",
        headers={"tenant": "x"},
    )
    app.publish("order.paid", {"n": 2}, key="b", version=3)
    async with working(akit):
        await reaches(akit, 2, "copy")
        relay.reset("start")  # it sends all again
        await reaches(akit, 2, "copy")
    rows = far.sql("SELECT id, type, key, version, data, headers FROM holdfast.events ORDER BY seq")
    wanted = akit.sql(
        "SELECT id, 'copied.' || type AS type, key, version, data, headers FROM holdfast.events ORDER BY seq"
    )
    assert rows == wanted


async def test_what_the_other_database_refuses_is_refused_alone(far: Kit) -> None:
    batch = [message("ok", 1, "a"), message("not ok!", 2, "b"), message("ok", 3, "b"), message("ok", 4, "c")]
    outcomes = await send(holdfast_database(far.url), *batch)
    assert [type(outcome) for outcome in outcomes] == [Confirmed, Refused, RetryLater, Confirmed]
    assert "event type" in str(outcomes[1])
    assert len(far.sql("SELECT 1 FROM holdfast.events")) == 2


async def test_a_batch_to_nats_ends_with_its_last_outcome() -> None:
    batch = _Batch(2)
    batch.put(1, Confirmed())
    batch.put(1, RetryLater("the connection was lost", unknown=True))  # what came first counts
    assert (batch.left, batch.done.done()) == (1, False)
    batch.put(0, Confirmed(duplicate=True))
    await batch.wait(60)
    assert batch.outcomes == [Confirmed(duplicate=True), Confirmed()]

    late = _Batch(1)
    await late.wait(0.001)
    assert late.outcomes == [None]
    late.put(0, Confirmed())  # it comes when nobody waits any more
