"""Every transport against its real server, by the one suite."""

import unittest
from collections.abc import Callable, Iterator

import pytest
from tests.brokers import Server, http_server, moto_server, nats_server, rabbit_server, redis_server
from tests.kafka_mock import Kafka, kafka_server
from tests.relays.conformance_brokers import (
    HoldfastBroker,
    HttpBroker,
    KafkaBroker,
    NatsBroker,
    QuorumBroker,
    RabbitBroker,
    RedisBroker,
    SqsBroker,
    certified,
)

from holdfast import Holdfast
from holdfast.testing import Broker, Kit, transport_conformance

_servers: dict[str, Server] = {}
_brokers: dict[str, Broker] = {}

USERS = """authorization {{ users = [{{ user: relay, password: right }}] }}
tls {{ cert_file: "{0}/cert.pem", key_file: "{0}/key.pem" }}
allow_non_tls: true"""


@pytest.fixture(scope="module", autouse=True)
def _ended() -> Iterator[None]:
    yield
    if isinstance(broker := _brokers.pop("sqs", None), SqsBroker):
        broker.end()
    for server in _servers.values():
        server.end()
    _servers.clear()


def _nats() -> Broker:
    if "nats" not in _servers:
        _servers["nats"] = nats_server(USERS.format(certified()[0]))
    return NatsBroker(_servers["nats"])


def _redis() -> Broker:
    if "redis" not in _servers:
        _servers["redis"] = redis_server()
    return RedisBroker(_servers["redis"])


class TestNats(transport_conformance(_nats)):  # type: ignore[misc]
    """NATS JetStream."""


class TestRedis(transport_conformance(_redis)):  # type: ignore[misc]
    """Redis Streams."""


def _kafka() -> Broker:
    if "kafka" not in _servers:
        _servers["kafka"] = kafka_server()
    server = _servers["kafka"]
    assert isinstance(server, Kafka)
    return KafkaBroker(server)


class TestKafka(transport_conformance(_kafka)):  # type: ignore[misc]
    """Kafka, as librdkafka's own mock cluster plays it."""


def _sqs() -> Broker:
    if "sqs" not in _servers:
        _servers["sqs"] = moto_server()
        _brokers["sqs"] = SqsBroker(_servers["sqs"])
    return _brokers["sqs"]


class TestSqs(transport_conformance(_sqs)):  # type: ignore[misc]
    """SQS FIFO, as moto plays it."""


def _http() -> Broker:
    if "http" not in _servers:
        _servers["http"] = http_server()
    return HttpBroker(_servers["http"])


class TestHttp(transport_conformance(_http)):  # type: ignore[misc]
    """An HTTP server."""


def _rabbit() -> Broker:
    if "rabbit" not in _servers:
        _servers["rabbit"] = rabbit_server()
    return RabbitBroker(_servers["rabbit"])


@pytest.mark.long
class TestRabbit(transport_conformance(_rabbit)):  # type: ignore[misc]
    """RabbitMQ. It takes many seconds to start."""


def _quorum() -> Broker:
    if "rabbit" not in _servers:
        _servers["rabbit"] = rabbit_server()
    return QuorumBroker(_servers["rabbit"])


@pytest.mark.long
class TestRabbitQuorum(transport_conformance(_quorum)):  # type: ignore[misc]
    """RabbitMQ with quorum queues."""


def test_a_broker_need_not_be_slow_nor_ask_who_it_is() -> None:
    """Only the agreed members: the tests of the others are skipped."""
    whole = _http()
    few = type("Few", (), {"transport": whole.transport, "thaw": whole.thaw})
    suite = transport_conformance(few)()
    for name, member in (
        ("slow_server_is_waited_for", "slow"),
        ("half_open_is_given_up", "behind"),
        ("confirm_that_is_lost_is_no_confirm", "behind"),
        ("wrong_credentials_are_an_error_that_tells_no_secret", "wrong_credentials"),
        ("one_that_is_not_trusted_is_not", "tls"),
    ):
        (test,) = (getattr(suite, n) for n in dir(suite) if n.endswith(name))
        with pytest.raises(unittest.SkipTest, match=f"Few has no {member}"):
            test()


class TestHoldfast(transport_conformance(lambda: _brokers["holdfast"])):  # type: ignore[misc]
    """Another Holdfast database."""

    @pytest.fixture(autouse=True)
    def _database(self, app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Iterator[None]:
        kit = holdfast_kit(app)
        broker = HoldfastBroker(kit.url)
        _brokers["holdfast"] = broker
        yield
        broker.end()
