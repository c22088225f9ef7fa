"""One suite for every source: each message once, acknowledged after the commit, and what is bad stops nothing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig
from tests.brokers import moto_server, nats_server, rabbit_server, redis_server
from tests.conftest import await_until, within
from tests.kafka_mock import kafka_server
from tests.receiver.source_brokers import (
    KafkaQueue,
    NatsQueue,
    RabbitQueue,
    RedisQueue,
    Sent,
    SourceBroker,
    SqsQueue,
)
from tests.receiver.test_consume import ids, working

from holdfast import ConfigurationError, DatabaseUnavailable, Holdfast, ReceivedMessage
from holdfast.contrib.kafka_source import kafka_source
from holdfast.contrib.rabbitmq_source import rabbitmq_source
from holdfast.contrib.redis_source import redis_source
from holdfast.contrib.sqs_source import sqs_source
from holdfast.shapes.receiver import store
from holdfast.shapes.receiver.consume import services
from holdfast.testing import Kit
from holdfast.transport import InMessage, Source

ROOT = Path(__file__).parents[2]
Condition = Callable[[], bool | Awaitable[bool]]
KINDS: dict[str, tuple[Callable[[], Any], type[SourceBroker]]] = {
    "nats": (nats_server, NatsQueue),
    "redis": (redis_server, RedisQueue),
    "kafka": (kafka_server, KafkaQueue),
    "sqs": (moto_server, SqsQueue),
    "rabbit": (rabbit_server, RabbitQueue),
}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {}
    yield found
    for server in found.values():
        server.end()


@pytest.fixture(
    params=[pytest.param(kind, marks=[pytest.mark.long] if kind == "rabbit" else []) for kind in KINDS]
)
async def broker(request: pytest.FixtureRequest, servers: dict[str, Any]) -> SourceBroker:
    start, kind = KINDS[request.param]
    if request.param not in servers:
        servers[request.param] = await asyncio.to_thread(start)
    made = kind(servers[request.param])
    await made.create()
    return made


def order(n: int, key: str | None = None) -> Sent:
    return Sent(f"e{n}", json.dumps({"n": n}).encode(), key)


async def nothing_left(broker: SourceBroker) -> None:
    await until_left(broker, 0)


async def until_left(broker: SourceBroker, wanted: int) -> None:
    async def there() -> bool:
        return await broker.left() == wanted

    condition: Condition = there
    await await_until(condition, f"{wanted} are not acknowledged", 60)


async def test_each_message_is_a_job_once_with_its_key_and_is_acknowledged(
    app: Holdfast, akit: Kit, broker: SourceBroker
) -> None:
    @app.consume("orders", broker.source, dict[str, Any])
    async def ordered(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    again = [order(n, f"k{n % 3}") for n in range(5)]
    sent = [order(n, f"k{n % 3}") for n in range(20)]
    await broker.publish([*sent, *again, Sent(None, b'{"n": 99}', "k0")])
    async with working(akit):
        await await_until(lambda: len(akit.jobs()) == 21, "all are jobs", 60)
        await nothing_left(broker)
    found = ids(akit)
    assert {f"e{n}": 1 for n in range(20)}.items() <= found.items()
    assert len(found) == 21
    keys = {row["payload"]["message"]["data"]["n"]: row["partition_key"] for row in akit.jobs()}
    assert {n: keys[n] for n in range(20)} == {n: f"k{n % 3}" for n in range(20)}


async def test_poison_is_set_aside_and_acknowledged_and_stops_nothing(
    app: Holdfast, akit: Kit, broker: SourceBroker
) -> None:
    @app.consume("orders", broker.source, dict[str, Any])
    async def ordered(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    bad = [Sent("bad1", b"not json", "k"), Sent("bad2", b'"\\u0000"', "k"), Sent("bad3", b"{", "k")]
    await broker.publish([order(1, "k"), bad[0], order(2, "k"), bad[1], order(3, "k"), bad[2], order(4, "k")])
    async with working(akit):
        await await_until(lambda: len(akit.jobs()) == 7, "all are jobs", 60)
        await nothing_left(broker)
    dead = {row["payload"]["message"]["id"] for row in akit.jobs() if row["status"] == "dead_letter"}
    assert dead == {"bad1", "bad2", "bad3"}
    assert ids(akit) == dict.fromkeys(("e1", "e2", "e3", "e4", "bad1", "bad2", "bad3"), 1)


async def test_a_worker_killed_between_commit_and_acknowledgement_makes_no_second_job(
    kit: Kit, broker: SourceBroker
) -> None:
    script = f"""
import asyncio
from tests.receiver.source_brokers import SCOPE
from holdfast import Holdfast, ReceivedMessage
app = Holdfast()
@app.consume("orders", eval({broker.made!r}, SCOPE), dict)
async def ordered(message: ReceivedMessage[dict]) -> None: ...
asyncio.run(app.run_worker())
"""
    await broker.publish([order(n, f"k{n}") for n in range(12)])
    environment = {
        **os.environ,
        "HOLDFAST_DATABASE_URL": kit.url,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }

    def start(failpoint: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", script], env={**environment, "HOLDFAST_FAILPOINTS": failpoint}, cwd=ROOT
        )

    first = start("consume.committed=kill")
    assert await asyncio.to_thread(first.wait, within(60)) == -signal.SIGKILL
    committed = ids(kit)
    assert committed, "the commit came before"

    await until_left(broker, 12)
    second = start("")
    try:
        await nothing_left(broker)
        await await_until(lambda: len(ids(kit)) == 12, "all are jobs", 60)
    finally:
        second.kill()
        second.wait()
    assert ids(kit) == {f"e{n}": 1 for n in range(12)}


async def read(source: Source, wanted: int) -> list[InMessage]:
    """Until so many were read; what comes twice counts."""
    found: list[InMessage] = []
    async with asyncio.timeout(within(60)):
        while len(found) < wanted:
            found += await source.receive(100, wait=0.5)
    return found


async def test_what_is_released_or_left_open_comes_again_and_what_is_done_does_not(
    broker: SourceBroker,
) -> None:
    await broker.publish([order(n, "k" if n < 3 else f"k{n}") for n in range(6)])
    source = broker.source
    await source.open()
    try:
        found: dict[str, InMessage] = {}
        while len(found) < 6:  # a FIFO queue gives the next of a group when the one before it is done
            came = await read(source, 1)
            found |= {one.id: one for one in came}
            await source.ack([one.receipt for one in came if one.id in ("e0", "e1")])
            later = [one for one in came if one.id not in ("e0", "e1")]
            if len(found) < 6 and later:
                await source.release([one.receipt for one in later], delay=0.0)
            elif later:
                await source.release([later[0].receipt], delay=0.0)
    finally:
        await source.close()
        await source.close()
    again = broker.source
    await again.open()
    try:
        seen: Counter[str] = Counter()
        while set(seen) < {"e2", "e3", "e4", "e5"}:
            came = await read(again, 1)
            seen.update(one.id for one in came)
            await again.ack([one.receipt for one in came])
    finally:
        await again.close()
    assert set(seen) == {"e2", "e3", "e4", "e5"}
    await nothing_left(broker)


async def test_how_often_a_message_was_given_out_is_counted_where_the_broker_does(
    broker: SourceBroker,
) -> None:
    counts = not isinstance(broker, KafkaQueue)
    if isinstance(broker, RabbitQueue):
        await broker.create_quorum()
    await broker.publish([order(1, "k")])
    source = broker.source
    await source.open()
    try:
        for n in range(1, 4):
            (one,) = await read(source, 1)
            assert one.deliveries == (n if counts else 1)
            assert one.redelivered == (counts and n > 1)
            await source.release([one.receipt], delay=0.0)
    finally:
        await source.close()


@pytest.mark.parametrize("kind", ["nats"])
async def test_a_stream_that_is_made_again_deals_no_ids_twice(servers: dict[str, Any], kind: str) -> None:
    """Its numbers begin anew: what comes at a place that was known is another message."""
    if kind not in servers:
        servers[kind] = await asyncio.to_thread(nats_server)
    broker = NatsQueue(servers[kind])
    seen = []
    for _ in range(2):
        await broker.create()
        await broker.publish([Sent(None, b'{"n": 1}'), Sent(None, b'{"n": 1}')])
        source = broker.source
        await source.open()
        first = await read(source, 2)
        await source.release([one.receipt for one in first], delay=0.0)
        again = await read(source, 2)
        await source.close()
        assert sorted(one.id for one in first) == sorted(one.id for one in again)
        seen += [one.id for one in first]
        await broker._do(lambda js: js.delete_stream(broker.name))
    assert len(set(seen)) == 4


async def test_a_message_of_kafka_without_an_id_is_known_by_its_place_and_time(
    servers: dict[str, Any],
) -> None:
    if "kafka" not in servers:
        servers["kafka"] = await asyncio.to_thread(kafka_server)
    broker = KafkaQueue(servers["kafka"])
    await broker.create()
    await broker.publish([Sent(None, b"{}", "k")])
    seen = []
    for _ in range(2):
        source = broker.source
        await source.open()
        (one,) = await read(source, 1)
        await source.close()
        seen.append(one.id)
    topic, _, offset, at = seen[0].split(":")
    assert (topic, offset) == (broker.name, "0")
    assert int(at) > 1_700_000_000_000
    assert seen[0] == seen[1]


@pytest.mark.parametrize("policy", ["none", "all"])
async def test_a_consumer_of_nats_that_acknowledges_otherwise_is_refused(
    servers: dict[str, Any], policy: str
) -> None:
    """With none, what a worker was given is lost with it; with all, one worker acknowledges for another."""
    if "nats" not in servers:
        servers["nats"] = await asyncio.to_thread(nats_server)
    broker = NatsQueue(servers["nats"])
    await broker.create()
    config = ConsumerConfig(durable_name="shop", ack_policy=AckPolicy(policy))
    await broker._do(lambda js: js.add_consumer(broker.name, config))
    source = broker.source
    with pytest.raises(ConfigurationError, match=f"acknowledges '{policy}': messages would be lost"):
        await source.open()
    await source.close()


async def test_what_could_not_be_written_comes_again_before_what_came_later(
    app: Holdfast, akit: Kit, broker: SourceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the database is away for a while: then nothing is read."""

    @app.consume("orders", broker.source, dict[str, Any])
    async def ordered(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    reader, _ = services(akit.database, app.tasks)
    await broker.publish([order(n, "k") for n in range(1, 4)])
    with monkeypatch.context() as away:

        def gone(*_: object) -> None:
            raise DatabaseUnavailable("it went away")

        away.setattr(store, "receive_many", gone)

        async def fails() -> bool:
            try:
                return await reader.catch_up() and False
            except DatabaseUnavailable:
                return True

        failed: Condition = fails
        await await_until(failed, "the batch is read, and cannot be written", 60)
        away.setattr(store, "queue_depth", gone)
        away.setattr(type(broker.source), "receive", lambda *_, **__: pytest.fail("it was read"))
        with pytest.raises(DatabaseUnavailable):
            await reader.catch_up()
    await broker.publish([order(n, "k") for n in range(4, 6)])

    async def all_there() -> bool:
        await reader.catch_up()
        return len(akit.jobs()) == 5

    whole: Condition = all_there
    await await_until(whole, "all are jobs", 60)
    await reader.finish()
    found = akit.sql("SELECT payload->'message'->>'id' AS id FROM holdfast.work ORDER BY seq")
    assert [row["id"] for row in found] == [f"e{n}" for n in range(1, 6)]
    await nothing_left(broker)


async def test_a_source_without_messages_waits_and_returns_none(broker: SourceBroker) -> None:
    source = broker.source
    await source.open()
    try:
        assert list(await source.receive(10, wait=0.2)) == []
    finally:
        await source.close()


async def test_a_group_of_kafka_that_changes_loses_nothing(
    app: Holdfast, akit: Kit, servers: dict[str, Any]
) -> None:
    if "kafka" not in servers:
        servers["kafka"] = await asyncio.to_thread(kafka_server)
    broker = KafkaQueue(servers["kafka"])
    await broker.create()

    @app.consume("orders", broker.source, dict[str, Any])
    async def ordered(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    async with working(akit):
        for turn in range(3):
            await broker.publish([order(turn * 50 + n, f"k{n % 7}") for n in range(50)])
            other = broker.source  # another member comes, reads a little, and goes without a word
            await other.open()
            came = await other.receive(10, wait=0.5)
            await other.close()
            assert len(came) <= 10
        await await_until(lambda: len(akit.jobs()) == 150, "all are jobs", 120)
        await nothing_left(broker)
    assert ids(akit) == {f"e{n}": 1 for n in range(150)}


def test_a_source_that_cannot_be_is_refused_in_words() -> None:
    with pytest.raises(ConfigurationError, match="a Kafka source needs a group"):
        kafka_source({"bootstrap.servers": "x"}, topics=["t"])
    with pytest.raises(ConfigurationError, match="topics must be a list of names, not 't'"):
        kafka_source({"bootstrap.servers": "x", "group.id": "g"}, topics="t")
    with pytest.raises(ConfigurationError, match=r"the Kafka setting enable\.auto\.commit is ours"):
        kafka_source({"bootstrap.servers": "x", "group.id": "g", "enable.auto.commit": True}, topics=["t"])
    with pytest.raises(ConfigurationError, match="prefetch must be 1 to 65535, not 0"):
        rabbitmq_source("amqp://x", queue="q", prefetch=0)
    with pytest.raises(ConfigurationError, match="a source of SQS needs the name or the URL of its queue"):
        sqs_source("")
    for make in (lambda u: redis_source(u, stream="s", group="g"), lambda u: rabbitmq_source(u, queue="q")):
        with pytest.raises(ConfigurationError) as caught:
            make("http://user:secret@host")
        assert "secret" not in str(caught.value)
