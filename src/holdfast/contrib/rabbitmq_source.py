"""Messages of a RabbitMQ queue, for `@app.consume(...)`. Needs the extra `rabbitmq`."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from ..errors import ConfigurationError
from ..transport import InMessage, MissingExtra
from .rabbitmq import check_address

_ENDS_WITHIN = 5.0  # seconds, for what is no wait for messages
_CLOSING = 1.0
_LOOK = 10.0  # seconds of silence after which the queue is asked for: a deleted one is silent too


class RabbitSource:
    def __init__(self, url: str, queue: str, prefetch: int, tls: ssl.SSLContext | None) -> None:
        check_address(url, tls)
        if not 1 <= prefetch <= 65535:
            raise ConfigurationError(f"prefetch must be 1 to 65535, not {prefetch}")
        self._url = url
        self._name = queue
        self._prefetch = prefetch
        self._tls = tls
        self._connection: Any = None
        self._channel: Any = None
        self._came: asyncio.Queue[Any] = asyncio.Queue()
        self._heard_at = 0.0

    async def open(self) -> None:
        library = _library()
        await self.close()
        more: dict[str, Any] = {} if self._tls is None else {"ssl_context": self._tls}
        self._connection = await library.connect(self._url, timeout=_ENDS_WITHIN, **more)
        came: asyncio.Queue[Any] = asyncio.Queue()
        self._came = came
        async with asyncio.timeout(_ENDS_WITHIN):
            self._channel = await self._connection.channel()
            await self._channel.set_qos(prefetch_count=self._prefetch)
            self._channel.close_callbacks.add(lambda *_: came.put_nowait(None))
            queue = await self._channel.get_queue(self._name, ensure=True)
            await queue.consume(came.put)
        self._heard_at = time.monotonic()

    async def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSING):
                    await connection.close()

    async def receive(self, limit: int, *, wait: float) -> Sequence[InMessage]:
        try:
            async with asyncio.timeout(wait):
                found = [await self._came.get()]
        except TimeoutError:
            await self._look()
            return []
        while len(found) < limit and not self._came.empty():
            found.append(self._came.get_nowait())
        self._heard_at = time.monotonic()
        if None in found:
            raise ConnectionError(f"the connection to RabbitMQ for queue {self._name} is closed")
        return [_message(one, self._name) for one in found]

    async def _look(self) -> None:
        if time.monotonic() - self._heard_at >= _LOOK:
            self._heard_at = time.monotonic()
            async with asyncio.timeout(_ENDS_WITHIN):
                await self._channel.declare_queue(self._name, passive=True)

    async def ack(self, receipts: Sequence[Any]) -> None:
        async with asyncio.timeout(_ENDS_WITHIN):
            for one in receipts:
                await one.ack()

    async def release(self, receipts: Sequence[Any], *, delay: float) -> None:
        """At once: RabbitMQ knows no delay."""
        async with asyncio.timeout(_ENDS_WITHIN):
            for one in receipts:
                await one.nack(requeue=True)


def _message(one: Any, queue: str) -> InMessage:
    headers = {
        str(name).lower(): value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for name, value in (one.headers or {}).items()
    }
    if one.content_type:
        headers["content-type"] = one.content_type
    return InMessage(
        id=headers.get("ce-id") or one.message_id or f"unnamed:{uuid4()}",
        body=one.body,
        receipt=one,
        headers=headers,
        source=f"{queue}:{one.routing_key}",
        redelivered=bool(one.redelivered),
        deliveries=1 + _count((one.headers or {}).get("x-delivery-count")),
    )


def _count(found: object) -> int:
    """How often it was given out before, which quorum queues count."""
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


def rabbitmq_source(
    url: str, *, queue: str, prefetch: int = 500, tls: ssl.SSLContext | None = None
) -> RabbitSource:
    """Read a RabbitMQ queue: `@app.consume("orders", rabbitmq_source(URL, queue="orders"), Order)`. The queue must be there.

    The id is the header `ce-id` or the property `message_id`. A message without either has none that lasts: where its
    acknowledgement is lost, it becomes a second job. `prefetch`: messages that a worker may hold."""
    return RabbitSource(url, queue, prefetch, tls)


def _library() -> Any:
    try:
        import aio_pika
    except ImportError:
        raise MissingExtra("aio-pika", "rabbitmq") from None
    return aio_pika
