"""What is special about Kafka: partitions, what brokers say, no retries, and one relay end to end."""

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import QUICK
from tests.flow.test_run import working
from tests.kafka_mock import PRODUCE, Kafka, kafka_server
from tests.relays.conformance_brokers import read_topic
from tests.relays.support import reaches
from tests.relays.test_transports import message, send

from holdfast import ConfigurationError, Holdfast
from holdfast.contrib.kafka import kafka
from holdfast.testing import Kit
from holdfast.transport import Confirmed, Refused, RetryLater, from_url

TIMED_OUT, TOO_LARGE, FORBIDDEN, TOO_FEW, AFTER_APPEND = 7, 10, 29, 19, 20  # as brokers number them


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kafka]:
    server = kafka_server()
    yield server
    server.end()


@pytest.fixture
def topic(cluster: Kafka) -> str:
    made = f"t{uuid4().hex}"
    cluster.ask("topic", made, 4)
    return made


def to(cluster: Kafka, **more: Any) -> Any:
    settings = {name.replace("_", "."): value for name, value in more.items()}
    return kafka({"bootstrap.servers": cluster.servers, **settings})


# From the tests of Java's client: the hash of a key.
HASHES = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
}


async def test_a_key_goes_to_the_partition_that_java_would_choose(cluster: Kafka, topic: str) -> None:
    wanted = {key: (number & 0x7FFFFFFF) % 4 for key, number in HASHES.items()}
    outcomes = await send(to(cluster), *(message(topic, n, key) for n, key in enumerate(wanted)))
    found = {}
    for key, outcome in zip(wanted, outcomes, strict=True):
        assert isinstance(outcome, Confirmed)
        assert outcome.receipt is not None
        found[key] = int(outcome.receipt.partition(":")[0])
    assert found == wanted
    (stored,) = [one for one in read_topic(cluster.servers, topic) if one.key == "21"]
    assert stored.headers["content-type"] == "application/cloudevents+json"


@pytest.mark.parametrize(
    ("error", "kind", "unknown"),
    [
        (TIMED_OUT, RetryLater, True),
        (AFTER_APPEND, RetryLater, True),
        (TOO_FEW, RetryLater, False),
        (FORBIDDEN, Refused, None),
    ],
)
async def test_what_a_broker_says_is_passed_on_and_nothing_is_tried_again(
    cluster: Kafka, topic: str, error: int, kind: type[Any], unknown: bool | None
) -> None:
    transport = to(cluster)
    await transport.open()
    try:
        cluster.ask("fail", PRODUCE, error)
        (outcome,) = await transport.publish([message(topic, 1)], timeout=30.0)
        assert isinstance(outcome, kind), outcome
        assert getattr(outcome, "unknown", None) == unknown
        (again,) = await transport.publish([message(topic, 2)], timeout=30.0)
        assert isinstance(again, Confirmed), again
    finally:
        await transport.close()
    assert [json.loads(one.body)["data"]["n"] for one in read_topic(cluster.servers, topic)] == [2]


async def test_a_message_that_the_client_gave_up_may_be_stored_and_is_tried_again(
    cluster: Kafka, topic: str
) -> None:
    transport = to(cluster, message_timeout_ms=300)
    await transport.open()
    try:
        assert isinstance((await transport.publish([message(topic, 1)], timeout=30.0))[0], Confirmed)
        cluster.ask("slow", 1500)
        (outcome,) = await transport.publish([message(topic, 2)], timeout=30.0)
        assert isinstance(outcome, RetryLater)
        assert outcome.unknown
        assert "timed out" in outcome.reason
    finally:
        await transport.close()
        cluster.ask("slow", 0)


async def test_the_message_that_a_broker_finds_too_large_is_refused_alone(cluster: Kafka) -> None:
    topic = f"one{uuid4().hex}"
    cluster.ask("topic", topic, 1)
    transport = to(cluster, linger_ms=300)  # one record batch of all
    await transport.open()
    try:
        cluster.ask("fail", PRODUCE, TOO_LARGE, TOO_LARGE)  # of the batch, and of the first by itself
        outcomes = await transport.publish([message(topic, n, f"k{n}") for n in (1, 2, 3)], timeout=30.0)
    finally:
        await transport.close()
    assert outcomes[0] == Refused("too_large", "16 bytes, and the topic takes less")
    assert [type(outcome) for outcome in outcomes[1:]] == [Confirmed, Confirmed]
    assert [json.loads(one.body)["data"]["n"] for one in read_topic(cluster.servers, topic)] == [2, 3]


async def test_many_topics_that_do_not_exist_leave_time_for_the_others(cluster: Kafka, topic: str) -> None:
    """All are asked about together: one after the other they would use up the time of the batch."""
    transport = to(cluster)
    await transport.open()
    try:
        nowhere = [f"nowhere{n}{uuid4().hex}" for n in range(5)]
        batch = [message(name, n, f"k{n}") for n, name in enumerate(nowhere)]
        outcomes = await transport.publish([*batch, message(topic, 9, "k9")], timeout=4.5)
    finally:
        await transport.close()
    assert outcomes[:5] == [Refused("unroutable", f"there is no topic {name}") for name in nowhere]
    assert isinstance(outcomes[5], Confirmed)


async def test_a_name_that_no_topic_can_have_is_refused(cluster: Kafka, topic: str) -> None:
    outcomes = await send(
        to(cluster), message("a b", 1, "a"), message("x" * 250, 2, "b"), message(topic, 3, "c")
    )
    assert outcomes[0] == Refused("malformed", "'a b' is no name of a topic")
    assert isinstance(outcomes[1], Refused)
    assert isinstance(outcomes[2], Confirmed)


def test_settings_that_a_relay_depends_on_are_refused() -> None:
    at = {"bootstrap.servers": "127.0.0.1:9092"}
    for setting, why in {
        "acks": "the Kafka setting acks is ours: acks is 'all'",
        "message.send.max.retries": "the Kafka setting message.send.max.retries is ours: retries is 0",
        "transactional.id": "the Kafka setting transactional.id is ours: enable.idempotence is False",
    }.items():
        with pytest.raises(ConfigurationError, match=f"^{why}$"):
            kafka({**at, setting: "1"})
    with pytest.raises(ConfigurationError, match="a Kafka config names its servers"):
        kafka({})
    with pytest.raises(ConfigurationError, match=r"takes the settings of librdkafka, .*, not str$"):
        kafka("kafka://u:s3cret@127.0.0.1:9092")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="user and password are the options"):
        from_url("kafka://u:s3cret@127.0.0.1:9092")
    assert type(from_url("kafka://127.0.0.1:9092,127.0.0.2:9092?client.id=x")).__name__ == "_Kafka"


async def test_a_setting_that_nobody_knows_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match='Kafka refuses its config: No such configuration property: "colour"'
    ):
        await kafka({"bootstrap.servers": "127.0.0.1:9", "colour": "red"}).open()


async def test_a_cluster_that_is_not_there_is_an_error_and_leaves_no_thread() -> None:
    before = len(os.listdir("/proc/self/task"))
    transport = kafka({"bootstrap.servers": "127.0.0.1:9"})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await transport.open()
    await transport.close()
    pool = asyncio.get_running_loop()._default_executor  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/task")) <= before + len(pool._threads)


async def test_a_message_that_a_broker_refuses_for_now_is_not_overtaken_by_the_next_of_its_key(
    app: Holdfast, akit: Kit, cluster: Kafka, topic: str
) -> None:
    """Each message is a request of its own here. An idempotent producer would store the next ones in its place."""
    akit.database.settings = replace(QUICK, dead_after=5.0, lease=10.0)
    app.relay("out", to(cluster, batch_num_messages=1), on=["order.*"], route=topic, start="start")
    for n in range(10):
        app.publish("order.paid", {"n": n}, key="k")
    cluster.ask("fail", PRODUCE, TOO_FEW)
    async with working(akit):
        await reaches(akit, 10)
    stored = [json.loads(one.body)["data"]["n"] for one in read_topic(cluster.servers, topic)]
    assert stored == list(range(10))


async def test_a_relay_to_kafka_keeps_the_order_of_its_keys_while_brokers_come_and_go(
    app: Holdfast, akit: Kit, cluster: Kafka, topic: str
) -> None:
    akit.database.settings = replace(QUICK, dead_after=5.0, lease=10.0)
    app.relay("out", to(cluster), on=["order.*"], route=topic, start="start")
    for n in range(300):
        app.publish("order.paid", {"n": n}, key=f"k{n % 7}")
    async with working(akit):
        await reaches(akit, 50)
        cluster.down()
        for n in range(300, 400):
            app.publish("order.paid", {"n": n}, key=f"k{n % 7}")
        cluster.up()
        await reaches(akit, 400)
    found: dict[str | None, list[int]] = defaultdict(list)
    for one in {one.id: one for one in reversed(read_topic(cluster.servers, topic))}.values():
        found[one.key].append(json.loads(one.body)["data"]["n"])
    assert {key: numbers[::-1] for key, numbers in found.items()} == {
        f"k{k}": list(range(k, 400, 7)) for k in range(7)
    }
