"""Brokers as the suite of sources sees them: something to publish to, a source, and how many messages are not done."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import aio_pika
import confluent_kafka
import nats as nats_client
import redis.asyncio
from nats.js.errors import NotFoundError
from tests.kafka_mock import Kafka
from tests.relays.conformance_brokers import aws

from holdfast.transport import Source


class Sent(NamedTuple):
    id: str | None
    body: bytes
    key: str | None = None


class SourceBroker:
    """A destination of its own on a server. `made` is the source as text, for another process. What a reader that is
    gone was given comes again within a second or two."""

    made = ""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.name = f"s{uuid4().hex[:12]}"

    @property
    def source(self) -> Source:
        found: Source = eval(self.made, SCOPE)
        return found

    async def create(self) -> None: ...

    async def publish(self, messages: Sequence[Sent]) -> None:
        raise NotImplementedError

    async def left(self) -> int:
        """Messages that are not acknowledged."""
        raise NotImplementedError


def _scope() -> dict[str, Any]:
    from holdfast.contrib import kafka_source, nats_source, rabbitmq_source, redis_source, sqs_source

    found: dict[str, Any] = {"aws": aws}
    for module in (kafka_source, nats_source, rabbitmq_source, redis_source, sqs_source):
        found[module.__name__.rpartition(".")[2]] = getattr(module, module.__name__.rpartition(".")[2])
    return found


SCOPE = _scope()


def _headers(one: Sent) -> dict[str, str]:
    return {} if one.id is None else {"ce-id": one.id}


class NatsQueue(SourceBroker):
    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.server.port}"

    async def create(self) -> None:
        self.made = f"nats_source({self.url!r}, stream={self.name!r}, durable='shop', ack_wait=1)"
        await self._do(lambda js: js.add_stream(name=self.name, subjects=[self.name]))

    async def _do(self, work: Callable[[Any], Any]) -> Any:
        client = await nats_client.connect(self.url)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    async def publish(self, messages: Sequence[Sent]) -> None:
        async def work(js: Any) -> None:
            for one in messages:
                subject = {} if one.key is None else {"ce-subject": one.key}
                await js.publish(self.name, one.body, headers={**_headers(one), **subject} or None)

        await self._do(work)

    async def left(self) -> int:
        async def work(js: Any) -> int:
            try:
                info = await js.consumer_info(self.name, "shop")
            except NotFoundError:  # nobody has read yet
                return -1
            return int((info.num_pending or 0) + (info.num_ack_pending or 0))

        found: int = await self._do(work)
        return found


class RedisQueue(SourceBroker):
    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server.port}"

    async def create(self) -> None:
        self.made = f"redis_source({self.url!r}, stream={self.name!r}, group='shop', min_idle=1)"
        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.xgroup_create(self.name, "shop", id="0", mkstream=True)

    async def publish(self, messages: Sequence[Sent]) -> None:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            for one in messages:
                fields: dict[Any, Any] = {f"header-{name}": value for name, value in _headers(one).items()}
                if one.key is not None:
                    fields["key"] = one.key
                await client.xadd(self.name, {**fields, "body": one.body})

    async def left(self) -> int:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            (group,) = [g for g in await client.xinfo_groups(self.name) if g["name"] == b"shop"]
            return int(group["pending"]) + int(group["lag"] or 0)


class RabbitQueue(SourceBroker):
    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.server.port}/"

    async def create(self) -> None:
        self.made = f"rabbitmq_source({self.url!r}, queue={self.name!r})"
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(self.name, durable=True)

    async def create_quorum(self) -> None:
        """Another one, which counts."""
        self.name += "quorum"
        self.made = f"rabbitmq_source({self.url!r}, queue={self.name!r})"
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(self.name, durable=True, arguments={"x-queue-type": "quorum"})

    async def publish(self, messages: Sequence[Sent]) -> None:
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            for one in messages:
                headers: Any = {} if one.key is None else {"ce-subject": one.key}
                made = aio_pika.Message(
                    one.body,
                    message_id=one.id,
                    headers=headers,
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                )
                await channel.default_exchange.publish(made, self.name)

    async def left(self) -> int:
        """Those that a reader holds count only when it is gone."""
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(self.name, passive=True)
            return int(queue.declaration_result.message_count or 0)


class KafkaQueue(SourceBroker):
    server: Kafka

    async def create(self) -> None:
        settings = {
            "bootstrap.servers": self.server.servers,
            "group.id": self.name,
            "session.timeout.ms": 1500,
            "heartbeat.interval.ms": 300,
        }
        self.made = f"kafka_source({settings!r}, topics=[{self.name!r}])"
        self.server.ask("topic", self.name, 2)

    async def publish(self, messages: Sequence[Sent]) -> None:
        def work() -> None:
            producer = confluent_kafka.Producer({"bootstrap.servers": self.server.servers})
            for one in messages:
                producer.produce(self.name, one.body, key=one.key, headers=list(_headers(one).items()))
            assert producer.flush(30) == 0

        await asyncio.to_thread(work)

    async def left(self) -> int:
        return await asyncio.to_thread(self._left)

    def _left(self) -> int:
        reader = confluent_kafka.Consumer(
            {"bootstrap.servers": self.server.servers, "group.id": self.name, "log_level": 2}
        )
        try:
            places = [confluent_kafka.TopicPartition(self.name, n) for n in (0, 1)]
            found = 0
            for place in reader.committed(places, timeout=30):
                _, end = reader.get_watermark_offsets(place, timeout=30)
                found += end - max(place.offset, 0)
            return found
        finally:
            reader.close()


class SqsQueue(SourceBroker):
    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def create(self) -> None:
        self.made = f"sqs_source({self.name + '.fifo'!r}, endpoint_url={self.url!r}, session=aws())"
        self.client = aws().client("sqs", endpoint_url=self.url)
        about = {"FifoQueue": "true", "VisibilityTimeout": "2"}
        self.queue = self.client.create_queue(QueueName=f"{self.name}.fifo", Attributes=about)["QueueUrl"]

    async def publish(self, messages: Sequence[Sent]) -> None:
        for n, one in enumerate(messages):
            self.client.send_message(
                QueueUrl=self.queue,
                MessageBody=one.body.decode("latin-1") or " ",
                MessageGroupId=one.key or f"group{n}",
                MessageDeduplicationId=uuid4().hex,
                MessageAttributes={
                    name: {"DataType": "String", "StringValue": value}
                    for name, value in _headers(one).items()
                },
            )

    async def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)
