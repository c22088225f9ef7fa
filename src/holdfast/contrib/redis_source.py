"""Messages of a Redis stream, for `@app.consume(...)`. Needs the extra `redis`.

All workers read as one consumer of a group. An entry that was not acknowledged for a while, because its reader died, is
claimed by the next one that reads, whichever consumer held it.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..model.duration import Duration, seconds
from ..transport import InMessage
from .redis import check_address, library, tls_options

_ENDS_WITHIN = 5.0  # seconds, for what is no wait for messages


class RedisSource:
    def __init__(
        self, url: str, stream: str, group: str, consumer: str, idle: float, ca_file: str | None
    ) -> None:
        check_address(url, ca_file)
        self._url = url
        self._stream = stream
        self._group = group
        self._consumer = consumer
        self._idle = idle
        self._ca_file = ca_file
        self._client: Any = None
        self._look_at = 0.0  # when to look for what others have left
        self._from = b"0-0"

    async def open(self) -> None:
        redis = library()
        await self.close()
        self._client = redis.asyncio.Redis.from_url(
            self._url,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            socket_connect_timeout=_ENDS_WITHIN,
            single_connection_client=True,
            protocol=2,
            **tls_options(self._url, self._ca_file),
        )
        self._look_at, self._from = 0.0, b"0-0"
        try:
            async with asyncio.timeout(_ENDS_WITHIN):
                await self._client.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except redis.exceptions.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1.0):
                    await client.aclose()

    async def receive(self, limit: int, *, wait: float) -> Sequence[InMessage]:
        async with asyncio.timeout(wait + _ENDS_WITHIN):
            if left := await self._claimed(limit):
                return left
            block = max(1, int(min(wait, max(0.0, self._look_at - time.monotonic())) * 1000))
            found = await self._client.xreadgroup(
                self._group, self._consumer, {self._stream: ">"}, count=limit, block=block
            )
        entries: list[Any] = found[0][1] if found else []
        return [self._message(place, fields, 1) for place, fields in entries]

    async def _claimed(self, limit: int) -> list[InMessage]:
        """Entries that were delivered, and not acknowledged for too long."""
        if time.monotonic() < self._look_at:
            return []
        found = await self._client.xautoclaim(
            self._stream,
            self._group,
            self._consumer,
            min_idle_time=int(self._idle * 1000),
            start_id=self._from,
            count=limit,
        )
        self._from, entries = found[0], found[1]
        if self._from == b"0-0" and not entries:
            self._look_at = time.monotonic() + self._idle / 2
        counts = await self._deliveries([place for place, _ in entries])
        return [self._message(place, fields, counts.get(place, 2)) for place, fields in entries if fields]

    async def _deliveries(self, places: Sequence[bytes]) -> dict[bytes, int]:
        """How often each was given out. There may be others between them: of some it stays unknown."""
        if not places:
            return {}
        found = await self._client.xpending_range(
            self._stream, self._group, min=places[0], max=places[-1], count=2 * len(places)
        )
        return {one["message_id"]: one["times_delivered"] for one in found}

    async def ack(self, receipts: Sequence[Any]) -> None:
        async with asyncio.timeout(_ENDS_WITHIN):
            await self._client.xack(self._stream, self._group, *receipts)

    async def release(self, receipts: Sequence[Any], *, delay: float) -> None:
        idle = max(0.0, self._idle - delay)
        async with asyncio.timeout(_ENDS_WITHIN):
            await self._client.xclaim(
                self._stream,
                self._group,
                self._consumer,
                0,
                list(receipts),
                idle=int(idle * 1000),
                justid=True,
            )
        self._look_at = min(self._look_at, time.monotonic() + delay)

    def _message(self, place: bytes, fields: Mapping[bytes, bytes], deliveries: int) -> InMessage:
        text = {_text(name).lower(): value for name, value in fields.items()}
        headers = {
            name.removeprefix("header-"): _text(value)
            for name, value in text.items()
            if name.startswith("header-") or name == "content-type"
        }
        given = headers.get("ce-id") or _text(text.get("id", b""))
        return InMessage(
            id=given or f"{self._stream}:{place.decode()}",
            body=text["body"] if "body" in text else _as_json(fields),
            receipt=place,
            headers=headers,
            key=_text(text["key"]) if text.get("key") else None,
            source=self._stream,
            redelivered=deliveries > 1,
            deliveries=deliveries,
        )


def redis_source(
    url: str,
    *,
    stream: str,
    group: str,
    consumer: str = "holdfast",
    min_idle: Duration = 30.0,
    ca_file: str | None = None,
) -> RedisSource:
    """Read a Redis stream: `@app.consume("orders", redis_source(URL, stream="orders", group="shop"), Order)`.

    The group is made, at the beginning of the stream, when it is not there. The field `body` is the message; an entry
    without one is an object of all its fields. The id is the field `header-ce-id` or `id`, else the entry's own. What is not
    acknowledged within `min_idle` comes again. `ca_file`: whom a rediss:// address trusts."""
    return RedisSource(url, stream, group, consumer, seconds(min_idle, "min_idle", least=0.1), ca_file)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _as_json(fields: Mapping[bytes, bytes]) -> bytes:
    """The fields as an object; not JSON where they are no text, so that they are set aside as they are."""
    try:
        found = {name.decode(): value.decode() for name, value in fields.items()}
    except UnicodeDecodeError:
        return b"\x00".join(part for pair in fields.items() for part in pair)
    return json.dumps(found).encode()
