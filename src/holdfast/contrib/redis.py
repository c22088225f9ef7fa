"""Redis Streams: `redis_streams("redis://127.0.0.1:6379")`. Needs the extra `redis`.

The position of an event in the log is its id in the stream, so the stream itself knows what it has: one script per batch
drops what was sent before and appends the rest. Nothing is stored twice, however late a try is. A stream is for one relay:
where somebody else has written higher ids, or the relay was reset to events that it never sent, those follow the last entry.
"""

import asyncio
import contextlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
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
)

MOST_BYTES = 8 * 2**20
LATE = timedelta(days=7)
ERA_BITS = 44  # an id is the era, then the position: the ids of a new era are higher than all before

# Appends missing messages to one stream. A message with a higher id than the last entry is new. Any other is searched
# by its id: a message that the stream never had is appended under the last id, and a separate key remembers it. One
# that is not there any more, because it was trimmed or deleted, was there.
#
# KEYS: the stream. ARGV: 1 or 0 for making the stream, most entries (0: all),
# seconds that late ids are known; then numbers and texts of all messages, in one argument each, because the client takes
# half a microsecond for an argument. The numbers of a message: 1 or 0 for late, how many names and values it has, the length
# of its id in the stream and of each of them, 4 bytes each. Returns 1 (stored) or 0 (was there) for each; false: no stream.
SCRIPT = """
local stream, make, most, known = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local numbers, texts = ARGV[4], ARGV[5]
local about = {['last-generated-id'] = '0-0', length = 0}
if redis.call('EXISTS', stream) == 1 then
    local info = redis.call('XINFO', 'STREAM', stream)
    for n = 1, #info, 2 do about[info[n]] = info[n + 1] end
elseif make == '0' then
    return false
end
local function first_part(name) return tonumber(string.match(about[name], '^(%d+)')) end
local high = first_part('last-generated-id')
local gone, length, added = math.huge, about['length'], about['entries-added']  -- the last one from Redis 7 on
if added == length or high % 2^44 > 10^12 then  -- nothing was deleted, or ids of a clock: another has made them
    gone = -1
elseif added and length > 0 then
    gone = math.max(first_part('max-deleted-entry-id'), first_part('recorded-first-entry-id'))
end
local function event_at(place)
    local found = redis.call('XRANGE', stream, place .. '-0', place .. '-0')[1]
    return found and found[2][2]
end
local done, n, start = {}, 1, 1
while n <= #numbers do
    local late, count, length = struct.unpack('>I4I4I4', numbers, n)
    local place = string.sub(texts, start, start + length - 1)
    n, start = n + 12, start + length
    local at, id = tonumber(place), nil
    if late == 0 and at > high then
        id, high = place .. '-0', at
    else
        local name, value = struct.unpack('>I4I4', numbers, n)  -- the first is its id
        local event = string.sub(texts, start + name, start + name + value - 1)
        local there = at <= high and event_at(place)
        local was_there = there == event or (late == 0 and not there and at <= gone)
        if not was_there and redis.call('SET', stream .. ':late:' .. event, '1', 'NX', 'EX', known) then
            id = string.format('%.0f', high) .. '-*'
        end
    end
    local entry
    if most > 0 then
        entry = {'XADD', stream, 'MAXLEN', '~', ARGV[2], id}
    else
        entry = {'XADD', stream, id}
    end
    for k = 1, count do
        length = struct.unpack('>I4', numbers, n)
        if id then entry[#entry + 1] = string.sub(texts, start, start + length - 1) end
        n, start = n + 4, start + length
    end
    if id then redis.call(unpack(entry)) end
    done[#done + 1] = id and 1 or 0
end
return done
"""


def redis_streams(
    url: str,
    *,
    maxlen: int | None = None,
    dedup: timedelta = LATE,
    create: bool = True,
    max_bytes: int = MOST_BYTES,
    ca_file: str | None = None,
) -> Transport:
    """A transport to Redis Streams; the route names the stream. `maxlen`: entries that a stream keeps, about. `dedup`: how
    long the ids of events that waited aside are known. `create=False`: a stream that is not there is refused.
    `ca_file`: whom a rediss:// address trusts, instead of the authorities that the machine knows."""
    return _Redis(url, maxlen, dedup, create, max_bytes, ca_file)


def make(url: str, options: Mapping[str, str]) -> Transport:
    """For addresses: `redis://127.0.0.1:6379/0?maxlen=100000`."""
    no_more(options, "redis", ("maxlen", "create", "ca_file"))
    maxlen, create = options.get("maxlen"), options.get("create", "true")
    if (maxlen is not None and not maxlen.isdigit()) or create not in ("true", "false"):
        raise ConfigurationError("a redis address takes maxlen=NUMBER and create=true or create=false")
    return redis_streams(
        url,
        maxlen=None if maxlen is None else int(maxlen),
        create=create == "true",
        ca_file=options.get("ca_file"),
    )


class _Redis:
    def __init__(
        self,
        url: str,
        maxlen: int | None,
        dedup: timedelta,
        create: bool,
        max_bytes: int,
        ca_file: str | None,
    ) -> None:
        check_address(url, ca_file)
        if maxlen is not None and maxlen < 1:
            raise ConfigurationError(f"maxlen must be 1 or more, not {maxlen}")
        self._url = url
        self._ca_file = ca_file
        self._options = ("1" if create else "0", str(maxlen or 0), str(int(dedup.total_seconds())))
        self._maxlen = maxlen
        self._client: Any = None
        self._script: Any = None
        self.capabilities = Capabilities(
            order="destination", in_flight="prefix", dedup="unbounded", max_bytes=max_bytes, max_batch=500
        )

    async def open(self) -> None:
        redis = library()
        await self.close()
        self._client = redis.asyncio.Redis.from_url(
            self._url,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            socket_connect_timeout=5,
            single_connection_client=True,
            **tls_options(self._url, self._ca_file),
        )
        await self._client.ping()
        self._script = await self._client.script_load(SCRIPT)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.aclose()

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        outcomes: list[Outcome | None] = [self._too_large(message) for message in batch]
        streams: dict[str, list[int]] = {}
        for n, message in enumerate(batch):
            streams.setdefault(message.destination, []).append(n)
        async with asyncio.timeout(timeout):
            for stream, members in streams.items():
                found = await self._append(stream, self._until_refused(members, outcomes), batch)
                for n, outcome in found.items():
                    outcomes[n] = outcome
        behind = RetryLater("it waits behind one that was refused", after=0.0, scope="key")
        return [behind if outcome is None else outcome for outcome in outcomes]

    def _too_large(self, message: OutMessage) -> Outcome | None:
        most = self.capabilities.max_bytes
        if len(message.body) > most:
            return Refused("too_large", f"{len(message.body)} bytes, and {most} may be sent")
        return None

    def _until_refused(self, members: list[int], outcomes: Sequence[Outcome | None]) -> list[int]:
        """Of one stream, those before the first that is refused: what comes after it may be of its key."""
        found: list[int] = []
        for n in members:
            if outcomes[n] is not None:
                break
            found.append(n)
        return found

    async def _append(
        self, stream: str, members: list[int], batch: Sequence[OutMessage]
    ) -> dict[int, Outcome]:
        redis = library()
        if not members:
            return {}
        try:
            packed = _packed([batch[n] for n in members])
            if not may_send():
                return dict.fromkeys(members, PAUSED)
            done = await self._client.evalsha(self._script, 1, stream, *self._options, *packed)
        except redis.exceptions.OutOfMemoryError as error:
            return dict.fromkeys(members, RetryLater(str(error)))
        except redis.exceptions.NoPermissionError as error:
            return dict.fromkeys(members, Refused("forbidden", str(error)))
        except redis.exceptions.ResponseError as error:
            if "WRONGTYPE" in str(error):
                return dict.fromkeys(members, Refused("unroutable", f"{stream} is no stream"))
            return dict.fromkeys(members, RetryLater(str(error), unknown=True))
        if done is None:
            return dict.fromkeys(members, Refused("unroutable", f"there is no stream {stream}"))
        return {n: Confirmed(duplicate=not stored) for n, stored in zip(members, done, strict=True)}

    async def check(self, destinations: Iterable[str]) -> Health:
        """Every stream is there or can be made, and nothing is trimmed before it is read."""
        if self._client is None:
            return Health(False, "it is not open")
        for stream in destinations:
            kind = await self._client.type(stream)
            if kind not in (b"stream", b"none") or (kind == b"none" and self._options[0] == "0"):
                return Health(False, f"{stream} is {'not there' if kind == b'none' else 'no stream'}")
        policy = (await self._client.config_get("maxmemory-policy")).get("maxmemory-policy", "noeviction")
        if policy.startswith("allkeys"):
            return Health(False, f"maxmemory-policy {policy} may drop whole streams: set noeviction")
        note = "" if self._maxlen is None else f"entries beyond {self._maxlen} are dropped, read or not"
        return Health(True, note)


def _packed(messages: Sequence[OutMessage]) -> tuple[bytes, bytes]:
    """Numbers and texts, as the script reads them."""
    numbers: list[int] = []
    texts: list[bytes] = []
    for message in messages:
        fields = _fields(message)
        place = str(((message.era - 1) << ERA_BITS) + message.position).encode()
        numbers += (message.late, len(fields), len(place), *map(len, fields))
        texts.append(place)
        texts += fields
    return struct.pack(f">{len(numbers)}I", *numbers), b"".join(texts)


def _fields(message: OutMessage) -> list[bytes]:
    """Names and values of an entry."""
    position = str(message.position).encode()
    found = [b"id", message.id.encode(), b"type", message.type.encode(), b"position", position]
    if message.key is not None:
        found += (b"key", message.key.encode())
    for name, value in message.headers.items():
        found += (_header(name), value.encode())
    found += (b"content-type", message.content_type.encode(), b"body", message.body)
    return found


@lru_cache(256)
def _header(name: str) -> bytes:
    return f"header-{name}".encode()


def check_address(url: str, ca_file: str | None) -> None:
    scheme = urlsplit(url).scheme
    if scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError(
            f"a Redis address begins with redis://, rediss:// or unix://, not {shown_url(url)!r}"
        )
    if ca_file is not None and scheme != "rediss":
        raise ConfigurationError(
            f"{shown_url(url)} would not be encrypted, although ca_file= is given. Write rediss://"
        )


def tls_options(url: str, ca_file: str | None) -> dict[str, Any]:
    """Of a rediss:// address: the certificate must be that of the host."""
    if not url.startswith("rediss:"):
        return {}
    return {"ssl_check_hostname": True, **({} if ca_file is None else {"ssl_ca_certs": ca_file})}


def library() -> Any:
    try:
        import redis
        import redis.asyncio
        import redis.backoff
        import redis.retry
    except ImportError:
        raise MissingExtra("redis", "redis") from None
    return redis
