"""RabbitMQ: `rabbitmq("amqp://guest:guest@127.0.0.1/", exchange="shop")`. Needs the extra `rabbitmq`.

Every message is persistent and mandatory, and waits for the broker's confirm. The route is the routing key; without an
exchange it names a queue. RabbitMQ drops no repeated ids: readers do, by `message_id`. One active consumer per queue keeps
the order.
"""

import asyncio
import contextlib
import functools
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from ..transport import (
    PAUSED,
    Capabilities,
    Confirmed,
    Health,
    MissingExtra,
    Outcome,
    OutMessage,
    Refused,
    RetryLater,
    Transport,
    may_send,
    no_more,
    shown_url,
    write_under_lease,
)

MOST_BYTES = 16 * 2**20
ROUTING_KEY = 255  # bytes
_ROUTES = (
    "CC",
    "BCC",
)  # headers that the broker takes for more routing keys; a text in them ends the channel
CLOSING = 1.0
# What the broker reports about one message when it ends the channel, and all those in flight with it.
_LARGER = re.compile(r"message size \d+ is larger than \D*(\d+)")
_NOT_ALLOWED = re.compile(r"access to topic '(.*?)' in exchange")


def rabbitmq(
    url: str, *, exchange: str = "", tls: ssl.SSLContext | None = None, max_bytes: int = MOST_BYTES
) -> Transport:
    """A transport to RabbitMQ. `exchange`: one that is there; the default one sends to the queue that the route names."""
    return _Rabbit(url, exchange, tls, max_bytes)


def make(url: str, options: Mapping[str, str]) -> Transport:
    """For addresses: `amqp://guest:guest@127.0.0.1/?exchange=shop`."""
    no_more(options, "amqp", ("exchange",))
    return rabbitmq(url, exchange=options.get("exchange", ""))


def check_address(url: str, tls: ssl.SSLContext | None) -> None:
    scheme = urlsplit(url).scheme
    if scheme not in ("amqp", "amqps"):
        raise ConfigurationError(
            f"a RabbitMQ address begins with amqp:// or amqps://, not {shown_url(url)!r}"
        )
    if tls is not None and scheme != "amqps":
        raise ConfigurationError(
            f"{shown_url(url)} would not be encrypted, although tls= is given. Write amqps://"
        )


class _Rabbit:
    def __init__(self, url: str, exchange: str, tls: ssl.SSLContext | None, max_bytes: int) -> None:
        check_address(url, tls)
        self._url = url
        self._name = exchange
        self._tls = tls
        self._connection: Any = None
        self._channel: Any = None
        self._exchange: Any = None
        self.capabilities = Capabilities(order="key", max_bytes=max_bytes, max_batch=500)

    async def open(self) -> None:
        library = _library()
        await self.close()
        more: dict[str, Any] = {} if self._tls is None else {"ssl_context": self._tls}
        self._connection = await library.connect(
            self._url, timeout=5, connection_class=connection_class(), **more
        )
        self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        self._exchange = (
            await self._channel.get_exchange(self._name, ensure=True)
            if self._name
            else self._channel.default_exchange
        )

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._channel = self._exchange = None
        if connection is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSING):
                    await connection.close()

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        if self._exchange is None:
            return [RetryLater("the connection was lost", unknown=True)] * len(batch)
        loop = asyncio.get_running_loop()
        sending = [loop.create_task(self._send(self._exchange, message)) for message in batch]
        try:
            await asyncio.wait(sending, timeout=timeout)
            late = RetryLater(f"no confirm within {timeout:g} s", unknown=True)
            outcomes = [task.result() if task.done() else late for task in sending]
            return list(map(_blamed, batch, outcomes))
        finally:
            left = [task for task in sending if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=CLOSING)

    async def _send(self, exchange: Any, message: OutMessage) -> Outcome:
        library = _library()
        most = self.capabilities.max_bytes
        if len(message.body) > most:
            return Refused("too_large", f"{len(message.body)} bytes, and {most} may be sent")
        if len(message.destination.encode()) > ROUTING_KEY:
            return Refused("malformed", f"a routing key has at most {ROUTING_KEY} bytes")
        made = library.Message(
            message.body,
            headers={name: value for name, value in message.headers.items() if name not in _ROUTES},
            content_type=message.content_type,
            delivery_mode=library.DeliveryMode.PERSISTENT,
            message_id=message.id,
            type=message.type,
        )
        if not may_send():
            return PAUSED
        try:
            await exchange.publish(made, message.destination, mandatory=True)
        except library.exceptions.PublishError:
            return Refused("unroutable", f"no queue is bound for {message.destination}")
        except library.exceptions.DeliveryError:
            return RetryLater("the broker did not take it: the queue may be full")
        except Exception as error:  # noqa: BLE001 a lost channel or connection
            return RetryLater(f"{type(error).__name__}: {error}", unknown=True)
        return Confirmed()

    async def check(self, destinations: Iterable[str]) -> Health:
        """The exchange is there; without one, every queue."""
        if self._connection is None:
            return Health(False, "it is not open")
        if self._name:
            return Health(True)
        for name in destinations:
            channel = await self._connection.channel()
            try:
                await channel.declare_queue(name, passive=True)
            except Exception as error:  # noqa: BLE001 it closes the channel
                return Health(False, f"{name}: {type(error).__name__}: {error}")
            finally:
                with contextlib.suppress(Exception):
                    await channel.close()
        return Health(True)


def _blamed(message: OutMessage, outcome: Outcome) -> Outcome:
    """The channel was closed for one message: that one is refused, however many were lost with it."""
    if not isinstance(outcome, RetryLater):
        return outcome
    if (found := _LARGER.search(outcome.reason)) is not None and len(message.body) > int(found[1]):
        return Refused("too_large", f"{len(message.body)} bytes, and the broker takes {found[1]}")
    if (found := _NOT_ALLOWED.search(outcome.reason)) is not None and message.destination == found[1]:
        return Refused("forbidden", f"publishing to {message.destination} is not allowed")
    return outcome


@functools.cache
def connection_class() -> Any:
    """aio-pika's connection, whose writes need the lease: it queues what is published, and writes it later."""
    connection: Any = _library().Connection
    try:
        import aiormq.connection as client
    except ImportError:
        raise MissingExtra("aio-pika", "rabbitmq") from None

    class Guarded(connection):  # type: ignore[misc]
        def __init__(self, url: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(url, *arguments, **options)
            kind = "TLSTransportFactory" if self.url.scheme == "amqps" else "TCPTransportFactory"
            base = getattr(client, kind, None)  # older releases of aiormq have none
            if base is not None:
                self.kwargs["transport_factory"] = _factory(base)

    return Guarded


def _factory(base: Any) -> Any:
    class Guarding(base):  # type: ignore[misc]
        async def create(self, *arguments: Any, **options: Any) -> Any:
            reader, writer = await super().create(*arguments, **options)
            write_under_lease(writer)
            return reader, writer

    return Guarding()


def _library() -> Any:
    try:
        import aio_pika
        import aio_pika.exceptions
    except ImportError:
        raise MissingExtra("aio-pika", "rabbitmq") from None
    return aio_pika
