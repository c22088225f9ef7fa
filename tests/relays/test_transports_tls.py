"""TLS of brokers whose server here speaks none, or is slow to start: in front of it, TLS is real and ends at a proxy."""

import ssl
from pathlib import Path
from typing import Any
from uuid import uuid4

import aio_pika
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.brokers import rabbit_server
from tests.kafka_mock import BROKERS, kafka_server
from tests.relays.test_transports import message, send
from tests.tls_proxy import TlsProxy, certificate

from holdfast.contrib.holdfast import holdfast_database
from holdfast.contrib.kafka import kafka
from holdfast.contrib.kafka_source import kafka_source
from holdfast.contrib.rabbitmq import rabbitmq
from holdfast.contrib.rabbitmq_source import rabbitmq_source
from holdfast.testing import Kit
from holdfast.transport import Confirmed


async def test_kafka_over_tls_and_not_to_a_stranger(tmp_path: Path) -> None:
    certificate(tmp_path)
    server = kafka_server()
    proxies = [TlsProxy(int(where.rpartition(":")[2]), tmp_path) for where in server.servers.split(",")]
    topic = f"t{uuid4().hex[:8]}"
    server.ask("topic", topic, 3)
    for n, proxy in zip(BROKERS, proxies, strict=True):
        server.ask("advertise", n, proxy.port)
    at = {"bootstrap.servers": f"127.0.0.1:{proxies[0].port}", "security.protocol": "ssl"}
    trusting = {**at, "ssl.ca.location": f"{tmp_path}/cert.pem"}
    try:
        outcomes = await send(kafka(trusting), *(message(topic, n, f"k{n}") for n in range(6)))
        assert [type(outcome) for outcome in outcomes] == [Confirmed] * 6
        source = kafka_source({**trusting, "group.id": topic}, topics=[topic])
        await source.open()
        found = 0
        while not found:
            found = len(await source.receive(10, wait=5.0))
        await source.close()
        for stranger in (kafka(at), kafka_source({**at, "group.id": topic}, topics=[topic])):
            with pytest.raises(ConnectionError, match="certificate verify failed"):
                await stranger.open()
            await stranger.close()
    finally:
        for proxy in proxies:
            proxy.close()
        server.end()


async def test_another_database_over_tls_and_not_to_a_stranger(akit: Kit, tmp_path: Path) -> None:
    certificate(tmp_path)
    proxy = TlsProxy(akit.url, tmp_path)
    options: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": proxy.port,
        "sslmode": "verify-full",
        "gssencmode": "disable",
    }
    trusting = make_conninfo(akit.url, **options, sslrootcert=f"{tmp_path}/cert.pem")
    strange = tmp_path / "strange"
    strange.mkdir()
    certificate(strange)
    try:
        assert await send(holdfast_database(trusting), message("copied", 1)) == [Confirmed()]
        stranger = holdfast_database(make_conninfo(trusting, sslrootcert=f"{strange}/cert.pem"))
        with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
            await stranger.open()
        await stranger.close()
    finally:
        proxy.close()


@pytest.mark.long
async def test_rabbitmq_over_tls_and_not_to_a_stranger(tmp_path: Path) -> None:
    trusted = certificate(tmp_path)
    server = rabbit_server()
    proxy = TlsProxy(server.port, tmp_path)
    url = f"amqps://guest:guest@127.0.0.1:{proxy.port}/"
    try:
        async with await aio_pika.connect(url, ssl_context=trusted) as connection:
            await (await connection.channel()).declare_queue("q", durable=True)
        assert await send(rabbitmq(url, tls=trusted), message("q", 1)) == [Confirmed()]
        source = rabbitmq_source(url, queue="q", tls=trusted)
        await source.open()
        assert len(await source.receive(10, wait=30.0)) == 1
        await source.close()
        strange = ssl.create_default_context()
        for stranger in (rabbitmq(url, tls=strange), rabbitmq_source(url, queue="q", tls=strange)):
            with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.open()
            await stranger.close()
    finally:
        proxy.close()
        server.end()
