"""Relays of `boundaries`: to NATS, Redis, RabbitMQ and Kafka, each beside the same client that sends the same messages."""

import asyncio
import contextlib
import functools
import importlib.util
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ...app import Holdfast
from ...shapes.events.event import EventRow, cloudevent_text
from ...shapes.relays.message import Template, headers_of
from ...transport import CONTENT_TYPE, OutMessage
from .. import brokers
from ..context import Bench
from ..worker_app import rss_bytes
from .events import working

STREAM = "BENCH"
NOTE = "x" * 150
DATA = f'{{"note": "{NOTE}", "cents": 995, "order_id": %s}}'
WINDOW = 1000  # messages on their way
PIPELINE = 500  # of one pipeline to Redis, as the relay has it
PARTS = 20  # in which events are published while the destination is unreachable

Raw = Callable[[str, list[OutMessage]], Coroutine[Any, Any, float]]
Prepare = Callable[[str], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A broker: how it is started and prepared, where a message goes, and the client by itself."""

    name: str
    keys: int
    start: Callable[[], AbstractContextManager[str]]
    prepare: Prepare
    raw: Raw
    route: str
    options: str = ""


def run(bench: Bench) -> None:
    for kind in kinds(bench):
        one(bench, kind)
    if not bench.round:
        away(bench)


def kinds(bench: Bench) -> list[Kind]:
    """Those that can be measured here."""
    found: list[Kind] = []
    command = brokers.program("nats-server")
    if command is None or importlib.util.find_spec("nats") is None:
        bench.say("boundaries: nats-server or nats-py is not installed, relays to NATS are not measured")
    else:
        for keys in (1000, 10):
            start = functools.partial(brokers.nats, command)
            route, options = "bench.{type}.{key}", f"?stream={STREAM}"
            found.append(Kind(f"nats-{keys}", keys, start, make_stream, raw_nats, route, options))
    command = brokers.program("redis-server")
    if command is None or importlib.util.find_spec("redis") is None:
        bench.say("boundaries: redis-server or redis is not installed, relays to Redis are not measured")
    else:
        start = functools.partial(brokers.redis, command)
        found.append(Kind("redis", 1000, start, nothing, raw_redis, "bench"))
    if bench.quick:
        bench.say("boundaries: RabbitMQ takes seconds to start and is not measured with --quick")
    elif not brokers.RABBIT.exists() or importlib.util.find_spec("aio_pika") is None:
        bench.say("boundaries: RabbitMQ or aio-pika is not installed, relays to RabbitMQ are not measured")
    else:
        found.append(Kind("rabbitmq", 1000, brokers.rabbit, make_queue, raw_rabbit, "bench"))
    if importlib.util.find_spec("confluent_kafka") is None:
        bench.say("boundaries: confluent-kafka is not installed, relays to Kafka are not measured")
    else:
        found.append(Kind("kafka", 1000, brokers.kafka, make_topic, raw_kafka, "bench"))
    return found


def one(bench: Bench, kind: Kind) -> None:
    count = max(bench.sizes.jobs // 5, 200)
    with kind.start() as url:
        asyncio.run(kind.prepare(url))
        raw = asyncio.run(kind.raw(url, messages(count, kind)))
    with kind.start() as url, bench.database() as dsn:
        asyncio.run(kind.prepare(url))
        relayed, idle = asyncio.run(relay(dsn, url, count, kind, bench.quick))
    bench.add("boundaries", kind.name, "messages/s", relayed)
    bench.add("boundaries", f"{kind.name}-raw", "messages/s", raw)
    bench.say(f"boundaries {kind.name}: {relayed:,.0f} messages/s, raw {raw:,.0f}")
    if idle is not None:
        bench.add("boundaries", "publish to broker p50", "ms", idle)
        bench.say(f"boundaries publish to broker: p50 {idle:.1f} ms")


def messages(count: int, kind: Kind) -> list[OutMessage]:
    """The relay's messages, made beforehand."""
    route, at, found = Template(kind.route), datetime.now(UTC), []
    for n in range(count):
        key = f"{n % kind.keys}"
        row = EventRow(n + 1, n + 1, uuid.uuid4(), "order.paid", 1, key, at, None, DATA % n)
        text, headers = cloudevent_text(row).encode(), headers_of(row, str(row.id))
        found.append(OutMessage(str(row.id), n + 1, row.type, key, route.of(row), headers, text))
    return found


async def relay(dsn: str, url: str, count: int, kind: Kind, quick: bool) -> tuple[float, float | None]:
    """From the first move of the position to the last: by then the relay is running, as the raw client is."""
    async with Holdfast(dsn) as app:
        sent = app.relay("bench", url + kind.options, on=["order.*"], route=kind.route, start="start")
        await publish(app, count, kind.keys)
        async with working(app):
            done = await sent.aread_your_writes(1, timeout=60)
            began = time.perf_counter()
            await sent.aread_your_writes(count, timeout=600)
            rate = max(count - done, 1) / (time.perf_counter() - began)
            if kind.name != "nats-1000":
                return rate, None
            return rate, statistics.median(await arrivals(app, url, 10 if quick else 50))


async def publish(app: Holdfast, count: int, keys: int) -> None:
    size = min(count, 2000)
    for start in range(0, count, size):
        part = range(start, min(start + size, count))
        await app.apublish_many(
            ("order.paid", {"order_id": n, "cents": 995, "note": NOTE}, f"{n % keys}") for n in part
        )


async def arrivals(app: Holdfast, url: str, count: int) -> list[float]:
    """Milliseconds from the publish call until a listener at the broker has the message, one at a time."""
    import nats

    client = await nats.connect(url)
    there = await client.subscribe("bench.>")
    await client.flush()
    await asyncio.sleep(2)  # the worker is idle by then
    took = []
    for n in range(count):
        await asyncio.sleep(0.1)
        began = time.perf_counter()
        await app.apublish("order.paid", {"order_id": n, "cents": 1}, key="idle")
        await there.next_msg(timeout=60)
        took.append((time.perf_counter() - began) * 1000)
    await client.close()
    return took


# The clients by themselves ---------------------------------------------------------------------------------------------


async def nothing(url: str) -> None:
    """There is nothing to prepare."""


async def make_stream(url: str) -> None:
    import nats

    client = await nats.connect(url)
    await client.jetstream().add_stream(name=STREAM, subjects=["bench.>"])
    await client.close()


async def raw_nats(url: str, made: list[OutMessage]) -> float:
    """Every message confirmed, WINDOW of them on their way, in no order."""
    import nats

    whole = [
        (m.destination, m.body, {**m.headers, "Nats-Msg-Id": m.id, "Content-Type": CONTENT_TYPE})
        for m in made
    ]
    client = await nats.connect(url)
    js = client.jetstream(publish_async_max_pending=WINDOW)
    began = time.perf_counter()
    for subject, body, headers in whole:
        await js.publish_async(subject, body, headers=headers, stream=STREAM)
    await js.publish_async_completed()
    took = time.perf_counter() - began
    await client.close()
    return len(made) / took


async def raw_redis(url: str, made: list[OutMessage]) -> float:
    """XADD in pipelines, each confirmed before the next one."""
    import redis.asyncio

    def pairs(m: OutMessage) -> dict[Any, Any]:
        """The fields that the transport writes."""
        found: dict[Any, Any] = {"id": m.id, "type": m.type, "position": str(m.position), "key": m.key}
        found |= {f"header-{name}": value for name, value in m.headers.items()}
        return found | {"content-type": m.content_type, "body": m.body}

    whole = [(m.destination, pairs(m), f"{m.position}-0") for m in made]
    client: Any = redis.asyncio.Redis.from_url(url)
    began = time.perf_counter()
    for start in range(0, len(whole), PIPELINE):
        pipe = client.pipeline(transaction=False)
        for stream, fields, place in whole[start : start + PIPELINE]:
            pipe.xadd(stream, fields, id=place)
        await pipe.execute()
    took = time.perf_counter() - began
    await client.aclose()
    return len(made) / took


@contextlib.asynccontextmanager
async def channel(url: str) -> AsyncIterator[Any]:
    import aio_pika

    async with await aio_pika.connect(url) as connection:
        yield await connection.channel(publisher_confirms=True, on_return_raises=True)


async def make_queue(url: str) -> None:
    async with channel(url) as found:
        await found.declare_queue("bench", durable=True)


async def raw_rabbit(url: str, made: list[OutMessage]) -> float:
    """Every message persistent, mandatory and confirmed, WINDOW of them on their way, in no order."""
    import aio_pika

    left = iter(made)

    async def some(exchange: Any) -> None:
        for m in left:
            whole = aio_pika.Message(
                m.body,
                headers=dict(m.headers),
                content_type=m.content_type,
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                message_id=m.id,
                type=m.type,
            )
            await exchange.publish(whole, m.destination, mandatory=True)

    async with channel(url) as found:
        began = time.perf_counter()
        await asyncio.gather(*(some(found.default_exchange) for _ in range(WINDOW)))
        return len(made) / (time.perf_counter() - began)


async def make_topic(url: str) -> None:
    """The mock makes a topic on request."""
    from confluent_kafka import Producer

    config = {"bootstrap.servers": url.removeprefix("kafka://"), "allow.auto.create.topics": True}
    await asyncio.to_thread(Producer(config).list_topics, "bench", 30)


async def raw_kafka(url: str, made: list[OutMessage]) -> float:
    """Every message confirmed by all brokers, WINDOW of them on their way, in no order."""
    from confluent_kafka import Producer

    config = {"bootstrap.servers": url.removeprefix("kafka://"), "acks": "all", "retries": 0, "linger.ms": 1}
    return await asyncio.to_thread(_produced, Producer(config), made)


def _produced(producer: Any, made: list[OutMessage]) -> float:
    confirmed = []

    def report(error: object, message: object) -> None:
        assert error is None, error
        confirmed.append(1)

    began = time.perf_counter()
    for n, m in enumerate(made):
        producer.produce(m.destination, m.body, m.key, headers=[*m.headers.items()], on_delivery=report)
        while n - len(confirmed) >= WINDOW:
            producer.poll(0.01)
    producer.flush()
    took = time.perf_counter() - began
    assert len(confirmed) == len(made)
    return len(made) / took


# An unreachable destination -------------------------------------------------------------------------------------------


def away(bench: Bench) -> None:
    """The memory of a process whose relay cannot send, while events are published. One round: growth shows within one."""
    count = 2 * bench.sizes.jobs
    with bench.database() as dsn:
        seen = asyncio.run(while_away(dsn, max(count // PARTS, 1)))
    early, late = seen[PARTS // 5 - 1], seen[-1]
    bench.add("boundaries", "away, after a fifth", "MB", early)
    bench.add("boundaries", "away, at the end", "MB", late)
    bench.add("boundaries", "away, end / fifth", "x", late / early)
    bench.say(
        f"boundaries, destination away: {early:.0f} MB after a fifth, {late:.0f} MB after {count:,} events"
    )


async def while_away(dsn: str, size: int) -> list[float]:
    port, seen = brokers.free_port(), []
    async with Holdfast(dsn) as app:
        app.relay("bench", f"nats://127.0.0.1:{port}", on=["order.*"], route="bench.{key}", start="start")
        async with working(app):
            for _ in range(PARTS):
                await publish(app, size, 1000)
                await asyncio.sleep(0.2)  # it has read everything by then
                seen.append(rss_bytes() / 2**20)
    return seen
