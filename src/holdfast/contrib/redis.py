"""Redis Streams: `redis_streams("redis://127.0.0.1:6379")`. Needs the extra `redis`.

The position of an event in the log is its id in the stream, so the stream itself knows what it has: one script per batch
drops what was sent before and appends the rest. Nothing is stored twice, however late a try is. A stream is for one relay.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from ..transport import (
    Capabilities,
    Confirmed,
    Health,
    MissingExtra,
    Outcome,
    OutMessage,
    Refused,
    RetryLater,
    Transport,
    no_more,
    shown_url,
)

MOST_BYTES = 8 * 2**20
LATE = timedelta(days=7)
ERA_BITS = 44  # an id is the era, then the position: the ids of a new era are higher than all before

# Appends to one stream what it does not have. KEYS: the stream. ARGV: 1 or 0 for making the stream, most entries (0: all),
# seconds that late ids are known; then per message id in the stream, 1 or 0 for late, and a count of fields with their
# names and values. Returns 1 (stored) or 0 (was there) for each; false: there is no stream.
SCRIPT = """
local stream, make, most, known = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local last = '0-0'
if redis.call('EXISTS', stream) == 1 then
    local info = redis.call('XINFO', 'STREAM', stream)
    for n = 1, #info, 2 do
        if info[n] == 'last-generated-id' then last = info[n + 1] end
    end
elseif make == '0' then
    return false
end
local high = tonumber(string.match(last, '^(%d+)'))
local done, n = {}, 4
while n <= #ARGV do
    local at, late, count = tonumber(ARGV[n]), ARGV[n + 1], tonumber(ARGV[n + 2])
    local id
    if late == '1' then
        local mark = stream .. ':late:' .. ARGV[n]
        if redis.call('SET', mark, '1', 'NX', 'EX', known) then
            id = string.format('%.0f', high) .. '-*'
        end
    elseif at > high then
        id, high = ARGV[n] .. '-0', at
    end
    if id then
        local entry = {'XADD', stream}
        if most > 0 then
            table.insert(entry, 'MAXLEN')
            table.insert(entry, '~')
            table.insert(entry, tostring(most))
        end
        table.insert(entry, id)
        for k = n + 3, n + 2 + count do table.insert(entry, ARGV[k]) end
        redis.call(unpack(entry))
        table.insert(done, 1)
    else
        table.insert(done, 0)
    end
    n = n + 3 + count
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
        if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
            raise ConfigurationError(
                f"a Redis address begins with redis://, rediss:// or unix://, not {shown_url(url)!r}"
            )
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
            if outcomes[n] is None:
                streams.setdefault(message.destination, []).append(n)
            elif message.destination in streams:
                streams[message.destination].append(n)
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
        arguments: list[Any] = [*self._options]
        for n in members:
            fields = _fields(batch[n])
            at = ((batch[n].era - 1) << ERA_BITS) + batch[n].position
            arguments += [at, int(batch[n].late), len(fields), *fields]
        try:
            done = await self._client.evalsha(self._script, 1, stream, *arguments)
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


def _fields(message: OutMessage) -> list[str | bytes]:
    """Names and values of an entry."""
    found: list[str | bytes] = ["id", message.id, "type", message.type, "position", str(message.position)]
    if message.key is not None:
        found += ["key", message.key]
    for name, value in message.headers.items():
        found += [f"header-{name}", value]
    return [*found, "content-type", message.content_type, "body", message.body]


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
