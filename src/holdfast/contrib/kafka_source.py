"""Messages of Kafka topics, for `@app.consume(...)`. Needs the extra `kafka`.

Every worker is a member of the group. Offsets are committed by `ack` alone, up to the first message that is not done. A
partition that goes to another member takes its open messages with it: they come again there, and are dropped by their ids.
"""

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigurationError
from ..transport import InMessage
from .kafka import Config, checked, library

_ENDS_WITHIN = 5.0  # seconds
_CLOSING = 1.5
_OURS = {"enable.auto.commit": False, "enable.auto.offset.store": False}
_DEFAULTS: dict[str, Any] = {
    "auto.offset.reset": "earliest",
    "client.id": "holdfast-consumer",
    "log_level": 2,
}
Partition = tuple[str, int]


class KafkaSource:
    def __init__(self, config: Config, topics: Sequence[str]) -> None:
        if not config.get("group.id"):
            raise ConfigurationError('a Kafka source needs a group: {"group.id": "shop", ...}')
        if not topics or isinstance(topics, str):
            raise ConfigurationError(f"topics must be a list of names, not {topics!r}")
        self._config = {**_DEFAULTS, **checked(config, _OURS), **_OURS}
        self._topics = list(topics)
        self._member: _Member | None = None

    async def open(self) -> None:
        await self.close()
        member = _Member(self._config, self._topics)
        try:
            await asyncio.to_thread(member.connect)
        except BaseException:
            await _end(member)
            raise
        self._member = member

    async def close(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            await _end(member)

    async def receive(self, limit: int, *, wait: float) -> Sequence[InMessage]:
        found = await asyncio.to_thread(self._opened().receive, limit, wait)
        return [_message(one) for one in found]

    async def ack(self, receipts: Sequence[Any]) -> None:
        await asyncio.to_thread(self._opened().ack, receipts)

    async def release(self, receipts: Sequence[Any], *, delay: float) -> None:
        """At once: the partition is read again from there."""
        await asyncio.to_thread(self._opened().release, receipts)

    def _opened(self) -> "_Member":
        if self._member is None:
            raise ConnectionError("it is not open")
        return self._member


class _Member:
    """A member of the group. Its methods block, and come one after the other."""

    def __init__(self, config: Mapping[str, Any], topics: Sequence[str]) -> None:
        self._calling = threading.Lock()
        self._is_closed = False
        self._heard = ""
        self._given: dict[Partition, dict[int, bool]] = {}  # offsets in order, and whether they are done
        try:
            self._consumer = library().Consumer({**config, "error_cb": self._error})
        except library().KafkaException as error:
            raise ConfigurationError(f"Kafka refuses its config: {error.args[0].str()}") from None
        self._consumer.subscribe(list(topics), on_revoke=self._revoked, on_lost=self._revoked)

    def _error(self, error: Any) -> None:
        if error.code() != library().KafkaError._ALL_BROKERS_DOWN:  # that follows the reason
            self._heard = error.str()

    def _revoked(self, _: Any, partitions: Sequence[Any]) -> None:
        for one in partitions:
            self._given.pop((one.topic, one.partition), None)

    def connect(self) -> None:
        with self._calling:
            try:
                self._consumer.list_topics(timeout=_ENDS_WITHIN)
            except library().KafkaException as error:
                self._consumer.poll(0.1)  # a callback reports the reason
                raise ConnectionError(self._heard or error.args[0].str()) from None

    def receive(self, limit: int, wait: float) -> list[Any]:
        with self._calling:
            if self._is_closed:
                return []
            first = self._consumer.poll(wait)
            rest = [] if first is None or limit < 2 else self._consumer.consume(limit - 1, timeout=0)
            found = [] if first is None else [first, *rest]
            for one in found:
                if one.error() is not None:
                    raise ConnectionError(one.error().str())
                self._given.setdefault((one.topic(), one.partition()), {})[one.offset()] = False
            return found

    def ack(self, receipts: Sequence[tuple[str, int, int]]) -> None:
        """Commits, of each partition that is ours, what is done without a gap."""
        with self._calling:
            for topic, partition, offset in receipts:
                given = self._given.get((topic, partition), {})
                if offset in given:
                    given[offset] = True
            ends = []
            for (topic, partition), given in self._given.items():
                done = 0
                while given and given[first := next(iter(given))]:
                    done = first + 1
                    del given[first]
                if done:
                    ends.append(library().TopicPartition(topic, partition, done))
            if ends and not self._is_closed:
                self._commit(ends)

    def _commit(self, ends: Sequence[Any]) -> None:
        codes = library().KafkaError
        moved = (codes.REBALANCE_IN_PROGRESS, codes.ILLEGAL_GENERATION, codes.UNKNOWN_MEMBER_ID)
        try:
            self._consumer.commit(offsets=ends, asynchronous=False)
        except library().KafkaException as error:
            if error.args[0].code() not in moved:  # otherwise they come again, to the partition's new owner
                raise

    def release(self, receipts: Sequence[tuple[str, int, int]]) -> None:
        with self._calling:
            for topic, partition in {(topic, partition) for topic, partition, _ in receipts}:
                given = self._given.get((topic, partition))
                if given is None or self._is_closed:
                    continue
                first = min(o for t, p, o in receipts if (t, p) == (topic, partition))
                for offset in [offset for offset in given if offset >= first]:
                    del given[offset]
                self._consumer.seek(library().TopicPartition(topic, partition, first))

    def close(self) -> None:
        with self._calling:
            if not self._is_closed:
                self._is_closed = True
                self._consumer.close()


async def _end(member: _Member) -> None:
    """A group whose coordinator is unreachable can delay this: it is not waited for, not even at the end of the process."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()

    def close() -> None:
        with contextlib.suppress(Exception):
            member.close()
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=close, name="holdfast kafka closes", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSING):
            await closed.wait()


def _message(one: Any) -> InMessage:
    headers = {
        name.lower(): (value or b"").decode("utf-8", "backslashreplace")
        for name, value in (one.headers() or [])
    }
    place = (one.topic(), one.partition(), one.offset())
    at = one.timestamp()[1]  # a topic that is deleted and made again deals the same offsets
    key = one.key()
    return InMessage(
        id=headers.get("ce-id") or "{}:{}:{}:{}".format(*place, at),
        body=one.value() or b"",
        receipt=place,
        headers=headers,
        key=key.decode("utf-8", "backslashreplace") if key else None,
        source=one.topic(),
    )


def kafka_source(config: Config, *, topics: Sequence[str]) -> KafkaSource:
    """Read topics of Kafka: `kafka_source({"bootstrap.servers": "127.0.0.1:9092", "group.id": "shop"}, topics=["orders"])`.

    `config` is that of librdkafka. The id is the header `ce-id`, else topic, partition, offset and time; the key is its
    own."""
    return KafkaSource(config, topics)
