"""Messages of a NATS JetStream stream, for `@app.consume(...)`."""

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..errors import ConfigurationError
from ..model.duration import Duration, seconds
from ..transport import InMessage
from .nats_client import client_class, servers_of

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

_ENDS_WITHIN = 5.0  # seconds, for what is no wait for messages
_CLOSES_WITHIN = 1.0
_PAUSE = 0.1  # between the two tries of a server
_IDS = ("ce-id", "nats-msg-id")


class NatsSource:
    """A durable pull consumer. It is made with explicit acknowledgement when the stream has none of its name."""

    def __init__(
        self,
        url: str,
        stream: str,
        durable: str,
        subject: str | None,
        credentials: str | None,
        tls: ssl.SSLContext | None,
        ack_wait: float,
    ) -> None:
        self._servers = servers_of(url)
        self._stream = stream
        self._durable = durable
        self._subject = subject
        self._credentials = credentials
        self._tls = tls
        self._ack_wait = ack_wait
        self._client: Client | None = None
        self._pull: Any = None
        self._streams: Any = None

    async def open(self) -> None:
        made = client_class()
        from nats.js.api import AckPolicy, ConsumerConfig
        from nats.js.errors import NotFoundError

        said: list[str] = []

        async def heard(error: Exception) -> None:
            said.append(f"{type(error).__name__}: {error}")

        options: dict[str, Any] = {"reconnect_time_wait": _PAUSE}
        if self._credentials:
            options["user_credentials"] = self._credentials
        if self._tls is not None:
            options["tls"] = self._tls
        client: Client = made()
        self._client = client  # before it connects, so that close() ends it in any case
        try:
            async with asyncio.timeout(_ENDS_WITHIN):
                await client.connect(
                    self._servers,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    connect_timeout=int(_ENDS_WITHIN),
                    error_cb=heard,
                    **options,
                )
        except Exception as error:  # noqa: BLE001 the client would keep trying for minutes
            why = said[-1] if said else str(error) or f"no reply within {_ENDS_WITHIN:g} s"
            raise ConnectionError(f"NATS cannot be reached: {why}") from None
        stream = client.jetstream(timeout=_ENDS_WITHIN)
        try:
            about = await stream.consumer_info(self._stream, self._durable)
            policy = getattr(about.config.ack_policy, "value", about.config.ack_policy)
            if policy != AckPolicy.EXPLICIT.value:
                raise ConfigurationError(
                    f"the consumer {self._durable} of stream {self._stream} acknowledges {policy!r}: messages would be "
                    "lost. Delete it, and it is made again, or name another one: durable="
                )
        except NotFoundError:
            config = ConsumerConfig(
                durable_name=self._durable,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=self._ack_wait,
                filter_subject=self._subject,
            )
            await stream.add_consumer(self._stream, config)
        self._streams = stream
        self._pull = await stream.pull_subscribe_bind(self._durable, self._stream)

    async def close(self) -> None:
        client, self._client, self._pull = self._client, None, None
        if client is not None and not client.is_closed:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSES_WITHIN):  # a peer that is frozen takes nothing
                    await client.close()

    async def receive(self, limit: int, *, wait: float) -> Sequence[InMessage]:
        try:
            found = await self._pull.fetch(limit, timeout=wait)
        except TimeoutError:  # nothing came: of the client's own kind, which is one of these, or of asyncio
            found = []
        if not found and (self._client is None or self._client.is_closed):
            raise ConnectionError(f"the connection to NATS for stream {self._stream} is closed")
        return [self._message(one) for one in found]

    async def ack(self, receipts: Sequence[Any]) -> None:
        for one in receipts:
            await one.ack()
        if self._client is not None:
            await self._client.flush(timeout=int(_ENDS_WITHIN))

    async def release(self, receipts: Sequence[Any], *, delay: float) -> None:
        for one in receipts:
            await one.nak(delay=delay or None)
        if self._client is not None:
            await self._client.flush(timeout=int(_ENDS_WITHIN))

    async def waiting(self) -> int:
        """Messages that nobody was given yet."""
        found = await self._streams.consumer_info(self._stream, self._durable)
        return int(found.num_pending or 0)

    def _message(self, one: "Msg") -> InMessage:
        headers = {name.lower(): value for name, value in (one.headers or {}).items()}
        at = one.metadata
        # With its time: a stream that is deleted and made again deals the same numbers.
        place = f"{at.stream}:{at.sequence.stream}:{at.timestamp.timestamp():.6f}"
        return InMessage(
            id=next((headers[name] for name in _IDS if headers.get(name)), place),
            body=one.data,
            receipt=one,
            headers=headers,
            key=unquote(headers.get("ce-subject", "")) or None,  # attributes are percent-encoded in headers
            source=one.subject,
            redelivered=(at.num_delivered or 1) > 1,
            deliveries=at.num_delivered or 1,
        )


def nats_source(
    url: str,
    *,
    stream: str,
    durable: str,
    subject: str | None = None,
    credentials: str | None = None,
    tls: ssl.SSLContext | None = None,
    ack_wait: Duration = 30.0,
) -> NatsSource:
    """Read a JetStream stream: `@app.consume("orders", nats_source(URL, stream="ORDERS", durable="shop"), Order)`.

    `url` may name several servers, with commas. A message has the id of its header `ce-id` or `Nats-Msg-Id`, else its place
    and time in the stream. `subject` is the filter of a consumer that is made here. One that is not acknowledged within
    `ack_wait` comes again. `credentials`: a file of the account."""
    return NatsSource(
        url, stream, durable, subject, credentials, tls, seconds(ack_wait, "ack_wait", least=1.0)
    )
