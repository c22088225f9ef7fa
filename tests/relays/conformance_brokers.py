"""The real servers, as the conformance suite breaks them."""

import asyncio
import functools
import json
import ssl
import tempfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import aio_pika
import aiohttp
import boto3
import confluent_kafka
import nats as nats_client
import psycopg
import redis.asyncio
from nats.js.api import DiscardPolicy, StreamConfig
from tests.brokers import Server
from tests.conftest import await_until
from tests.crash.proxy import Proxy
from tests.kafka_mock import BROKERS, Kafka
from tests.tls_proxy import TlsProxy, certificate

from holdfast import Egress
from holdfast.contrib.holdfast import holdfast_database
from holdfast.contrib.http import http
from holdfast.contrib.kafka import kafka
from holdfast.contrib.nats import nats
from holdfast.contrib.rabbitmq import rabbitmq
from holdfast.contrib.redis import redis_streams
from holdfast.contrib.sqs import sqs
from holdfast.transport import InMessage, Transport

SECRET = "s3cr3t-w0rd"
HERE = "127.0.0.1"

LeadTo = Callable[[str, int], int]


@functools.cache
def certified() -> tuple[Path, ssl.SSLContext]:
    """The folder of a certificate for 127.0.0.1, and the context that trusts it."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-tls-"))
    return made, certificate(made)


def over_tls(target: int | str) -> int:
    """A port that speaks TLS in front of a server that speaks none, as long as this process lives."""
    return TlsProxy(target, certified()[0]).port


class _OnServer:
    def __init__(self, server: Server) -> None:
        self.server = server
        self._stuttering: asyncio.Task[None] | None = None

    async def kill(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)

    async def freeze(self) -> None:
        self.server.freeze()

    async def thaw(self) -> None:
        if self._stuttering is not None:
            self._stuttering.cancel()
            await asyncio.wait([self._stuttering])
            self._stuttering = None
        self.server.thaw()

    async def slow(self) -> None:
        async def stutter() -> None:
            while True:
                await asyncio.sleep(0.2)
                self.server.thaw()
                await asyncio.sleep(0.003)
                self.server.freeze(wait=False)

        self.server.freeze()
        self._stuttering = asyncio.create_task(stutter())


class NatsBroker(_OnServer):
    """The server takes the user `relay` with the password `right`, and speaks TLS with those who ask for it."""

    @property
    def url(self) -> str:
        return f"nats://relay:right@127.0.0.1:{self.server.port}"

    def transport(self) -> Transport:
        return nats(self.url, max_bytes=100_000)

    def behind(self, lead_to: LeadTo) -> Transport:
        return nats(f"nats://relay:right@127.0.0.1:{lead_to(HERE, self.server.port)}")

    def tls(self) -> tuple[Transport, Transport]:
        url = self.url.replace("nats://", "tls://")
        return nats(url, tls=certified()[1]), nats(url, tls=ssl.create_default_context())

    def wrong_credentials(self) -> tuple[Transport, str] | None:
        return nats(f"nats://relay:{SECRET}@127.0.0.1:{self.server.port}"), SECRET

    async def destination(self, name: str) -> str:
        made = f"{name}{uuid4().hex[:8]}"
        client = await nats_client.connect(self.url)
        await client.jetstream().add_stream(StreamConfig(name=made, subjects=[made]))
        await client.close()
        return made

    def missing(self) -> str | None:
        return "nobody.has.this"

    async def read(self, destination: str) -> Sequence[InMessage]:
        client = await nats_client.connect(self.url)
        context = client.jetstream()
        state = (await context.stream_info(destination)).state
        found = []
        for seq in range(max(state.first_seq, 1), state.last_seq + 1):
            message = await context.get_msg(destination, seq)
            headers = dict(message.headers or {})
            body = message.data or b""
            found.append(InMessage(headers["Nats-Msg-Id"], body, None, headers, source=destination))
        await client.close()
        return found

    async def fill(self, destination: str) -> str:
        made = f"{destination}{uuid4().hex[:8]}"
        client = await nats_client.connect(self.url)
        context = client.jetstream()
        await context.add_stream(
            StreamConfig(name=made, subjects=[made], max_msgs=1, discard=DiscardPolicy.NEW)
        )
        await context.publish(made, b"first")
        await client.close()
        return made


class RedisBroker(_OnServer):
    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server.port}"

    def transport(self) -> Transport:
        return redis_streams(self.url, create=False, max_bytes=100_000)

    def behind(self, lead_to: LeadTo) -> Transport:
        return redis_streams(f"redis://127.0.0.1:{lead_to(HERE, self.server.port)}")

    def tls(self) -> tuple[Transport, Transport]:
        url = f"rediss://127.0.0.1:{over_tls(self.server.port)}"
        return redis_streams(url, ca_file=str(certified()[0] / "cert.pem")), redis_streams(url)

    def wrong_credentials(self) -> tuple[Transport, str] | None:
        return redis_streams(f"redis://relay:{SECRET}@127.0.0.1:{self.server.port}"), SECRET

    async def destination(self, name: str) -> str:
        made = f"{name}{uuid4().hex[:8]}"
        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.xgroup_create(made, "readers", mkstream=True)
        return made

    def missing(self) -> str | None:
        return "nobody:has:this"

    async def read(self, destination: str) -> Sequence[InMessage]:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            entries: Any = await client.xrange(destination)
        return [
            InMessage(
                fields[b"id"].decode(),
                fields[b"body"],
                None,
                key=fields[b"key"].decode() if b"key" in fields else None,
                source=destination,
            )
            for _, fields in entries
        ]

    async def fill(self, destination: str) -> bool:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.config_set("maxmemory", "1")
        return True

    async def thaw(self) -> None:
        await super().thaw()
        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.config_set("maxmemory", "0")


class RabbitBroker(_OnServer):
    """Destinations are durable queues, reached by the default exchange."""

    _kind: Mapping[str, str] = {"x-queue-type": "classic"}

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.server.port}/"

    def transport(self) -> Transport:
        return rabbitmq(self.url, max_bytes=100_000)

    def behind(self, lead_to: LeadTo) -> Transport:
        return rabbitmq(f"amqp://guest:guest@127.0.0.1:{lead_to(HERE, self.server.port)}/")

    def tls(self) -> tuple[Transport, Transport]:
        url = f"amqps://guest:guest@127.0.0.1:{over_tls(self.server.port)}/"
        return rabbitmq(url, tls=certified()[1]), rabbitmq(url, tls=ssl.create_default_context())

    def wrong_credentials(self) -> tuple[Transport, str] | None:
        return rabbitmq(f"amqp://guest:{SECRET}@127.0.0.1:{self.server.port}/"), SECRET

    async def _declare(self, name: str, **arguments: Any) -> str:
        made = f"{name}{uuid4().hex[:8]}"
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(made, durable=True, arguments=arguments)
        return made

    async def destination(self, name: str) -> str:
        return await self._declare(name, **self._kind)

    def missing(self) -> str | None:
        return "nobody.has.this"

    async def read(self, destination: str) -> Sequence[InMessage]:
        """They are taken out: the suite reads a destination once."""
        found = []
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            queue = await channel.get_queue(destination)
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                found.append(InMessage(str(message.message_id), message.body, None, source=destination))
        return found

    async def fill(self, destination: str) -> str:
        made = await self._declare(destination, **{"x-max-length": 1, "x-overflow": "reject-publish"})
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            await channel.default_exchange.publish(aio_pika.Message(b"first"), made)
        return made


class QuorumBroker(RabbitBroker):
    """Destinations are quorum queues, of one member."""

    _kind: Mapping[str, str] = {"x-queue-type": "quorum"}

    async def destination(self, name: str) -> str:
        """Returns when the server has written down whose log it is, a second after it was declared: a server that is killed
        before has a queue without a log, which takes nothing ever after."""
        made = await super().destination(name)
        found = list((self.server.folder / "data").glob("*/quorum/*/names.dets"))
        await await_until(
            lambda: any(made.encode() in file.read_bytes() for file in found), f"{made} is known"
        )
        return made


class KafkaBroker:
    """The mock of librdkafka. It has no disk and asks for no password: its brokers go down and come up again."""

    def __init__(self, server: Kafka) -> None:
        self.server = server
        self._ports = [int(where.rpartition(":")[2]) for where in server.servers.split(",")]

    def transport(self) -> Transport:
        return kafka({"bootstrap.servers": self.server.servers}, max_bytes=100_000)

    def _at(self, ports: Sequence[int]) -> str:
        """Its brokers say from now on that they are there; returns where the first is."""
        for number, port in zip(BROKERS, ports, strict=True):
            self.server.ask("advertise", number, port)
        return f"127.0.0.1:{ports[0]}"

    def behind(self, lead_to: LeadTo) -> Transport:
        return kafka({"bootstrap.servers": self._at([lead_to(HERE, port) for port in self._ports])})

    def tls(self) -> tuple[Transport, Transport]:
        at = self._at([over_tls(port) for port in self._ports])
        stranger = {"bootstrap.servers": at, "security.protocol": "ssl"}
        return kafka({**stranger, "ssl.ca.location": f"{certified()[0]}/cert.pem"}), kafka(stranger)

    def wrong_credentials(self) -> tuple[Transport, str] | None:
        return None

    async def destination(self, name: str) -> str:
        made = f"{name}{uuid4().hex[:8]}"
        self.server.ask("topic", made, 4)
        return made

    def missing(self) -> str | None:
        return "nobody.has.this"

    async def read(self, destination: str) -> Sequence[InMessage]:
        self._at(self._ports)
        return await asyncio.to_thread(read_topic, self.server.servers, destination)

    async def kill(self) -> None:
        self.server.down()

    async def start(self) -> None:
        self.server.up()

    async def freeze(self) -> None:
        self.server.freeze()

    async def thaw(self) -> None:
        self.server.thaw()
        self.server.ask("slow", 0)
        self._at(self._ports)

    async def slow(self) -> None:
        self.server.ask("slow", 100)

    async def fill(self, destination: str) -> bool:
        return False


def read_topic(servers: str, topic: str) -> list[InMessage]:
    """All of a topic, partition by partition."""
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reads",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "log_level": 2,
        }
    )
    found = []
    try:
        places = reader.list_topics(topic, timeout=30).topics[topic].partitions
        for n in places:
            place = confluent_kafka.TopicPartition(topic, n, 0)
            _, end = reader.get_watermark_offsets(place, timeout=30)
            reader.assign([place])
            while place.offset < end:
                message: Any = reader.consume(1, timeout=30)[0]
                headers = {name: value.decode() for name, value in message.headers()}
                key = None if message.key() is None else message.key().decode()
                found.append(InMessage(headers["ce-id"], message.value(), None, headers, key, topic))
                place.offset = message.offset() + 1
    finally:
        reader.close()
    return found


@functools.cache
def aws(secret: str = "right", ca_file: str | None = None) -> Any:
    made = boto3.Session(
        aws_access_key_id="AKIAHOLDFAST", aws_secret_access_key=secret, region_name="eu-central-1"
    )
    made._session.set_config_variable("ca_bundle", ca_file)
    return made


class SqsBroker(_OnServer):
    """FIFO queues of moto behind a proxy. It has no disk and is not killed: the proxy lets nobody in."""

    small = True

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._proxy = Proxy(f"host=127.0.0.1 port={server.port}")
        self.url = f"http://127.0.0.1:{psycopg.conninfo.conninfo_to_dict(self._proxy.url)['port']}"

    async def kill(self) -> None:
        self._proxy.refuse()

    async def start(self) -> None:
        self._proxy.heal()

    async def slow(self) -> None:
        self._proxy.throttle(5000)

    @functools.cache  # noqa: B019 it lives as long as the server
    def client(self, service: str = "sqs") -> Any:
        return aws().client(service, endpoint_url=self.url)

    def transport(self) -> Transport:
        return sqs(endpoint_url=self.url, session=aws(), max_bytes=100_000)

    def behind(self, lead_to: LeadTo) -> Transport:
        return sqs(endpoint_url=f"http://127.0.0.1:{lead_to(HERE, self.server.port)}", session=aws())

    def tls(self) -> tuple[Transport, Transport]:
        url = f"https://127.0.0.1:{over_tls(self.server.port)}"
        trusting = aws(ca_file=f"{certified()[0]}/cert.pem")
        return sqs(endpoint_url=url, session=trusting), sqs(endpoint_url=url, session=aws())

    def wrong_credentials(self) -> tuple[Transport, str] | None:
        self._ask_for_rights("0")
        return sqs(endpoint_url=self.url, session=aws(SECRET)), SECRET

    def _ask_for_rights(self, after: str) -> None:
        ask = urllib.request.Request(
            f"http://127.0.0.1:{self.server.port}/moto-api/reset-auth",
            after.encode(),
            {"Content-Type": "text/plain"},
            method="POST",
        )
        with urllib.request.urlopen(ask):
            pass

    async def destination(self, name: str) -> str:
        made = f"{name}{uuid4().hex[:8]}.fifo"
        self.client().create_queue(QueueName=made, Attributes={"FifoQueue": "true"})
        return made

    def missing(self) -> str | None:
        return "nobody-has-this.fifo"

    async def read(self, destination: str) -> Sequence[InMessage]:
        client = self.client()
        url = client.get_queue_url(QueueName=destination)["QueueUrl"]
        return [
            InMessage(
                one["Attributes"]["MessageDeduplicationId"],
                one["Body"].encode(),
                None,
                key=one["Attributes"]["MessageGroupId"],
            )
            for one in drained(client, url)
        ]

    async def thaw(self) -> None:
        await super().thaw()
        self._proxy.heal()
        self._proxy.throttle(None)
        self._ask_for_rights("inf")

    async def fill(self, destination: str) -> bool:
        return False

    def end(self) -> None:
        self._proxy.close()


def drained(client: Any, url: str) -> list[Any]:
    """All messages of a queue, which is empty then."""
    found = []
    while came := client.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=10,
        MessageSystemAttributeNames=["All"],
        MessageAttributeNames=["All"],
    ).get("Messages"):
        found += came
        entries = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(came)]
        client.delete_message_batch(QueueUrl=url, Entries=entries)
    return found


class HttpBroker(_OnServer):
    """Destinations are paths; /admin makes and reads them."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def transport(self) -> Transport:
        return self._at(self.server.port, max_bytes=100_000)

    def _at(self, port: int, scheme: str = "http", ca_file: str | None = None, **options: Any) -> Transport:
        allowed = Egress(ports=[port], allow_http=True, allow_networks=["127.0.0.1/32"], ca_file=ca_file)
        return http(f"{scheme}://127.0.0.1:{port}/in", egress=allowed, **options)

    def behind(self, lead_to: LeadTo) -> Transport:
        return self._at(lead_to(HERE, self.server.port))

    def tls(self) -> tuple[Transport, Transport]:
        port = over_tls(self.server.port)
        return self._at(port, "https", f"{certified()[0]}/cert.pem"), self._at(port, "https")

    def wrong_credentials(self) -> tuple[Transport, str] | None:
        return None  # nobody logs in: a bad token is a 401 to each message

    async def _make(self, name: str) -> str:
        async with aiohttp.ClientSession() as session, session.put(f"{self.url}/admin/{name}") as reply:
            assert reply.status == 201
        return name

    async def destination(self, name: str) -> str:
        return await self._make(f"{name}{uuid4().hex[:8]}")

    def missing(self) -> str | None:
        return "nobody/has/this"

    async def read(self, destination: str) -> Sequence[InMessage]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/admin/{destination}") as reply,
        ):
            found = await reply.json(content_type=None)
        return [
            InMessage(one["headers"]["ce-id"], one["body"].encode(), None, one["headers"], source=destination)
            for one in found
        ]

    async def fill(self, destination: str) -> str:
        return await self._make(f"full-{destination}{uuid4().hex[:8]}")


class HoldfastBroker:
    """Another Holdfast database behind a proxy that can fall silent."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._proxy = Proxy(url)

    def transport(self) -> Transport:
        return holdfast_database(self._proxy.url)

    def behind(self, lead_to: LeadTo) -> Transport:
        port = int(str(psycopg.conninfo.conninfo_to_dict(self._proxy.url)["port"]))
        return holdfast_database(psycopg.conninfo.make_conninfo(self._proxy.url, port=lead_to(HERE, port)))

    def tls(self) -> tuple[Transport, Transport]:
        there: dict[str, Any] = {"host": HERE, "port": over_tls(self._url), "gssencmode": "disable"}
        where = psycopg.conninfo.make_conninfo(self._url, **there, sslmode="verify-full")
        trusting = psycopg.conninfo.make_conninfo(where, sslrootcert=f"{certified()[0]}/cert.pem")
        return holdfast_database(trusting), holdfast_database(where)

    def wrong_credentials(self) -> tuple[Transport, str] | None:
        info: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(self._url)
        wrong = psycopg.conninfo.make_conninfo(**{**info, "user": "nobody_of_that_name", "password": SECRET})
        return holdfast_database(wrong), SECRET

    def destination(self, name: str) -> str:
        return f"{name}{uuid4().hex[:8]}"

    def missing(self) -> str | None:
        return None

    async def read(self, destination: str) -> Sequence[InMessage]:
        with psycopg.connect(self._url) as conn:
            rows = conn.execute(
                "SELECT id, key, data FROM holdfast.events WHERE type = %s ORDER BY seq", [destination]
            ).fetchall()
        return [
            InMessage(
                str(row[0]), json.dumps({"data": row[2]}).encode(), None, key=row[1], source=destination
            )
            for row in rows
        ]

    async def kill(self) -> None:
        self._proxy.refuse()

    async def start(self) -> None:
        self._proxy.heal()

    async def freeze(self) -> None:
        self._proxy.go_silent()

    async def thaw(self) -> None:
        self._proxy.heal()
        self._proxy.throttle(None)

    async def slow(self) -> None:
        self._proxy.throttle(500)

    async def fill(self, destination: str) -> bool:
        return False

    def end(self) -> None:
        self._proxy.close()
