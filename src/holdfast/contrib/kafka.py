"""Kafka: `kafka({"bootstrap.servers": "127.0.0.1:9092"})`. Needs the extra `kafka`.

The route is the topic, the key of an event is the key of its message, and the partition is the one that Java's clients take.
librdkafka reconnects by itself and cannot be kept from it. Its retries are off: it sends again only what never left, or
what a broker says it has not stored. What has no report when its time is over is purged with the session. Kafka drops no
repeated ids: readers do, by `ce-id`.
"""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

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
)

MOST_BYTES = 1_000_000 - 4096  # of a message: what brokers take by default, less key and headers
CONNECT = 5.0  # seconds
CLOSING = 1.5
STEP = 0.5  # seconds that one request for metadata may take
NEW_TOPIC = 1.0  # seconds until every broker should know a topic that was made just now
_TOPIC = re.compile("[a-zA-Z0-9._-]{1,249}")
_OURS = {  # what a relay depends on
    "acks": "all",
    "allow.auto.create.topics": False,
    "enable.idempotence": False,  # it needs retries
    "retries": 0,
}
_SAME = {
    "message.send.max.retries": "retries",
    "request.required.acks": "acks",
    "transactional.id": "enable.idempotence",
    "enable.gapless.guarantee": "enable.idempotence",
}
_DEFAULTS: dict[str, Any] = {
    "client.id": "holdfast-relay",
    "partitioner": "murmur2_random",  # that of Java; librdkafka's own puts most keys elsewhere
    "linger.ms": 1,
    "message.timeout.ms": 10_000,  # no relay waits longer; what waited in the client during a pause is dropped
    "log_level": 2,  # errors are reported by outcomes
}
Config: TypeAlias = Mapping[str, str | int | float | bool]
Report: TypeAlias = Callable[[int, Outcome], None]


def kafka(config: Config, *, max_bytes: int = MOST_BYTES) -> Transport:
    """A transport to Kafka. `config` is that of librdkafka: servers, TLS, SASL. Topics are not made: one that is
    not there is refused. `max_bytes` is to be less than the `max.message.bytes` of every topic."""
    return _Kafka(config, max_bytes)


def make(url: str, options: Mapping[str, str]) -> Transport:
    """For addresses: `kafka://127.0.0.1:9092,127.0.0.2:9092?security.protocol=ssl`. The options are those of librdkafka."""
    servers = url.removeprefix("kafka://").strip("/")
    if "@" in servers or "/" in servers:
        raise ConfigurationError(
            "a kafka address has servers alone, kafka://host:9092,host:9092: "
            "user and password are the options sasl.username and sasl.password"
        )
    return kafka({"bootstrap.servers": servers, **options})


def checked(config: Config, ours: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what must be as it is here."""
    if not isinstance(config, Mapping):
        raise ConfigurationError(
            'Kafka takes the settings of librdkafka, {"bootstrap.servers": "127.0.0.1:9092"}, '
            f"not {type(config).__name__}"
        )
    if not config.get("bootstrap.servers"):
        raise ConfigurationError('a Kafka config names its servers: {"bootstrap.servers": "127.0.0.1:9092"}')
    for name, value in config.items():
        kept = _SAME.get(name, name)
        if kept in ours and str(value).lower() != str(ours[kept]).lower():
            raise ConfigurationError(f"the Kafka setting {name} is ours: {kept} is {ours[kept]!r}")
    return dict(config)


class _Kafka:
    def __init__(self, config: Config, max_bytes: int) -> None:
        self._config = {**_DEFAULTS, "message.max.bytes": max_bytes + 8192, **checked(config, _OURS), **_OURS}
        self._session: Session | None = None
        self._topics: set[str] = set()
        self.capabilities = Capabilities(order="key", max_bytes=max_bytes, max_batch=1000)

    async def open(self) -> None:
        library()
        await self.close()
        session = Session(self._config)
        try:
            self._topics = await asyncio.to_thread(session.connect, CONNECT)
        except BaseException:
            await asyncio.to_thread(session.close)
            raise
        self._session = session

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await asyncio.to_thread(session.close)

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        session = self._session
        if session is None:
            return [RetryLater("the connection was lost", unknown=True)] * len(batch)
        deadline = time.monotonic() + timeout
        absent = await self._absent(session, {message.destination for message in batch}, deadline)
        outcomes: list[Outcome | None] = [self._unfit(message, absent) for message in batch]
        await self._send(session, batch, outcomes, deadline)
        large = [n for n, outcome in enumerate(outcomes) if outcome == _BATCH_TOO_LARGE]
        for n in large:  # a broker refuses a record batch as a whole: which of them was it?
            outcomes[n] = None
            await self._send(session, batch, outcomes, deadline)
            if outcomes[n] == _BATCH_TOO_LARGE:
                outcomes[n] = Refused("too_large", f"{len(batch[n].body)} bytes, and the topic takes less")
        for message, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Refused):  # it is asked about again: the client would remember the refusal
                self._topics.discard(message.destination)
        late = RetryLater(f"no report within {timeout:g} s", unknown=True)
        return [late if outcome is None else outcome for outcome in outcomes]

    def _unfit(self, message: OutMessage, absent: Mapping[str, Outcome]) -> Outcome | None:
        most = self.capabilities.max_bytes
        if len(message.body) > most:
            return Refused("too_large", f"{len(message.body)} bytes, and {most} may be sent")
        return absent.get(message.destination)

    async def _absent(self, session: "Session", topics: set[str], deadline: float) -> dict[str, Outcome]:
        """Topics that cannot be sent to. The brokers are asked about those that nothing was sent to yet."""
        found: dict[str, Outcome] = {}
        asked: list[str] = []
        for topic in topics - self._topics:
            if _TOPIC.fullmatch(topic):
                asked.append(topic)
            else:
                found[topic] = Refused("malformed", f"{topic[:200]!r} is no name of a topic")
        until = min(deadline, time.monotonic() + NEW_TOPIC)  # for all: the messages need time too
        for topic, outcome in (await asyncio.to_thread(session.ask, asked, until)).items() if asked else ():
            if outcome is None:
                self._topics.add(topic)
            else:
                found[topic] = outcome
        return found

    async def _send(
        self,
        session: "Session",
        batch: Sequence[OutMessage],
        outcomes: list[Outcome | None],
        deadline: float,
    ) -> None:
        """Those that have no outcome yet, until all have one or the time is over."""
        loop = asyncio.get_running_loop()
        todo = [n for n, outcome in enumerate(outcomes) if outcome is None]
        left = len(todo)
        done = asyncio.Event()

        def report(n: int, outcome: Outcome) -> None:  # in the thread that polls, or here: never at once
            nonlocal left
            outcomes[n] = outcome
            left -= 1
            if not left:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(done.set)

        if todo:
            session.produce([(n, batch[n]) for n in todo], report)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(loop.time() + max(0.0, deadline - time.monotonic())):
                    await done.wait()

    async def check(self, destinations: Iterable[str]) -> Health:
        """Every topic is there."""
        session = self._session
        if session is None:
            return Health(False, "it is not open")
        for topic in destinations:
            asked = await asyncio.to_thread(session.ask, [topic], time.monotonic() + NEW_TOPIC)
            if (found := asked[topic]) is not None:
                why = found.detail if isinstance(found, Refused) else getattr(found, "reason", "")
                return Health(False, f"{topic}: {why}")
        return Health(True)


class Session:
    """A producer and the thread that polls it. Its methods block; only produce() may be called on an event loop."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._heard = ""
        self._hopeless = False
        self._ended = threading.Event()
        self._reporting = threading.Lock()
        self._producing = threading.Lock()  # held for moments, also by the event loop
        self._asking = threading.Lock()  # held for STEP seconds at most, never by the event loop
        try:
            self._producer = library().Producer({**config, "error_cb": self._error})
        except library().KafkaException as error:
            raise ConfigurationError(f"Kafka refuses its config: {error.args[0].str()}") from None
        self._polling = threading.Thread(target=self._poll, name="holdfast kafka", daemon=True)
        self._polling.start()

    def _error(self, error: Any) -> None:
        codes = library().KafkaError
        if error.code() != codes._ALL_BROKERS_DOWN:  # that follows the reason
            self._heard = error.str()
        self._hopeless |= error.code() in (codes._AUTHENTICATION, codes._SSL)
        if error.code() == codes._ALL_BROKERS_DOWN:  # the relay waits for them, not the queue of the client
            self._producer.purge(blocking=False)

    def _poll(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(0.1)

    def connect(self, seconds: float) -> set[str]:
        """The topics that are there, once a broker has replied."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self._metadata()
                return {name for name, topic in found.topics.items() if topic.error is None}
            except library().KafkaException as error:
                if self._hopeless or time.monotonic() > deadline:
                    raise ConnectionError(self._heard or error.args[0].str()) from None

    def _metadata(self, topic: str | None = None) -> Any:
        with self._asking:
            if self._ended.is_set():
                raise ConnectionError("it was closed")
            more = {} if topic is None else {"topic": topic}
            return self._producer.list_topics(timeout=STEP, **more)

    def ask(self, topics: Sequence[str], deadline: float) -> dict[str, Outcome | None]:
        """Why each of these cannot be sent to; None: it is there. The others are asked about until the deadline."""
        found: dict[str, Outcome | None] = {}
        left = list(topics)
        while left:
            late = time.monotonic() >= deadline
            for topic in left:
                found[topic] = outcome = self._ask(topic)
                if isinstance(outcome, RetryLater) and time.monotonic() >= deadline:  # for all of them
                    return {**dict.fromkeys(topics, outcome), **found}
            left = [topic for topic in left if _may_come(found[topic]) and not late]
            time.sleep(0.1 if left else 0)
        return found

    def _ask(self, topic: str) -> Outcome | None:
        try:
            error = self._metadata(topic).topics[topic].error
        except library().KafkaException as failure:
            return RetryLater(f"no metadata: {failure.args[0].str()}")
        outcome = None if error is None else outcome_of(error)
        is_absent = isinstance(outcome, Refused) and outcome.reason == "unroutable"
        return Refused("unroutable", f"there is no topic {topic}") if is_absent else outcome

    def produce(self, messages: Sequence[tuple[int, OutMessage]], report: Report) -> None:
        """`report` is called once for each, from the thread that polls or from here."""

        def tell(n: int, outcome: Outcome) -> None:
            with self._reporting:
                report(n, outcome)

        with self._producing:
            for n, message in messages:
                if self._ended.is_set():
                    tell(n, RetryLater("it was closed"))
                    continue
                if not may_send():
                    tell(n, PAUSED)
                    continue
                headers = {**message.headers, "content-type": message.content_type}
                try:
                    self._producer.produce(
                        message.destination,
                        message.body,
                        key=None if message.key is None else message.key.encode(),
                        headers=[(name, value.encode()) for name, value in headers.items()],
                        on_delivery=lambda error, stored, n=n: tell(n, outcome_of(error, stored)),
                    )
                except BufferError:
                    tell(n, RetryLater("the queue of the client is full"))
                except library().KafkaException as error:
                    tell(n, outcome_of(error.args[0]))

    def close(self) -> None:
        """Whatever has no report yet is dropped: nothing is sent after this."""
        with self._producing:
            if self._ended.is_set():
                return
            self._producer.purge()
            self._ended.set()
        self._polling.join()
        with self._asking:
            self._producer.close()


def _may_come(outcome: Outcome | None) -> bool:
    """It is there soon: it was made just now, or no broker has replied."""
    return isinstance(outcome, RetryLater) or (
        isinstance(outcome, Refused) and outcome.reason == "unroutable"
    )


_BATCH_TOO_LARGE = RetryLater("the broker says that it is too large", scope="key")


def outcome_of(error: Any, stored: Any = None) -> Outcome:
    """The outcome of a delivery report. A timeout leaves it unknown, whatever librdkafka calls it."""
    if error is None:
        return Confirmed(receipt=None if stored is None else f"{stored.partition()}:{stored.offset()}")
    codes, code, text = library().KafkaError, error.code(), error.str()
    if code in (codes.MSG_SIZE_TOO_LARGE, codes.RECORD_LIST_TOO_LARGE):
        return _BATCH_TOO_LARGE
    if code in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes.TOPIC_EXCEPTION):
        return Refused("unroutable", text)
    if code in (codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED):
        return Refused("forbidden", text)
    if code in (codes.INVALID_RECORD, codes.POLICY_VIOLATION):
        return Refused("malformed", text)
    # A broker that names its reason has not stored it, but for two that speak of its replicas.
    by_broker = code > 0 and code not in (codes.REQUEST_TIMED_OUT, codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    return RetryLater(text, unknown=not by_broker and code != codes._PURGE_QUEUE)


def library() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise MissingExtra("confluent-kafka", "kafka") from None
    return confluent_kafka
