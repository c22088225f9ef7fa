"""Transports carry messages out of the database: one small protocol for every broker.

A transport opens, publishes and closes. It does not reconnect, retry or buffer: its relay does all three, so that nothing
is sent behind its back. A transport of your own is a class with these five members; docs/transports.md has the rules.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from .distribution import install
from .errors import ConfigurationError

if TYPE_CHECKING:
    from asyncio import StreamWriter

GROUP = "holdfast.transports"  # entry points: name = URL scheme, value = make(url, options) -> Transport
CONTENT_TYPE = "application/cloudevents+json"

Reason: TypeAlias = Literal["too_large", "unroutable", "forbidden", "malformed"]


@dataclass(frozen=True, slots=True)
class OutMessage:
    """What a transport publishes. The relay makes the bytes, from the stored event, so every try sends the same."""

    id: str  # of the event: the same on every try
    position: int  # in the log; rises within a destination, but for messages that are `late`
    type: str
    key: str | None
    destination: str  # subject, topic, routing key, stream: from the relay's route
    headers: Mapping[str, str]
    body: bytes
    content_type: str = CONTENT_TYPE
    era: int = 1  # of the log: it rises when positions are assigned again, after a restore
    late: bool = False  # it waited aside: messages with higher positions may have been sent before it


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The message is stored. `duplicate`: it was stored before."""

    duplicate: bool = False
    receipt: str | None = None


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Not known to be stored. `scope` says which messages wait; `unknown`: it may be stored, as after a timeout."""

    reason: str
    after: float | None = None
    scope: Literal["key", "destination"] = "destination"
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The message will never be accepted as it is."""

    reason: Reason
    detail: str


Outcome: TypeAlias = Confirmed | RetryLater | Refused
PAUSED = RetryLater("this process was paused, and another may have this relay now", unknown=True)
LEASE: ContextVar[Callable[[], bool]] = ContextVar("holdfast_relay_lease", default=lambda: True)


def may_send() -> bool:
    """Whether the relay that called the transport still has its lease; true outside of a relay. A transport asks directly
    before each write: while its process was paused, another worker may have begun to send in its place."""
    return LEASE.get()()


def write_under_lease(writer: "StreamWriter") -> None:
    """Ask may_send() before each write of a connection that the caller has just opened. Without the lease the connection is
    dropped, with all that it has not sent yet."""
    held = LEASE.get()

    def checked(write: Callable[[Any], None]) -> Callable[[Any], None]:
        def write_or_drop(data: Any) -> None:
            if held():
                write(data)
            else:
                writer.transport.abort()

        return write_or_drop

    for name in ("write", "writelines"):
        setattr(writer, name, checked(getattr(writer, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a broker promises.

    `order`: of messages of a key, of all messages to a destination, or none. `in_flight`: whether a batch may hold several
    messages of a key; "prefix" means that when one fails, nothing later of its key in the batch is stored. `dedup`: for how
    long a message id that comes again is dropped."""

    order: Literal["none", "key", "destination"]
    in_flight: Literal["one_per_key", "prefix"] = "one_per_key"
    dedup: timedelta | Literal["none", "connection", "unbounded"] = "none"
    max_bytes: int
    max_batch: int = 1000
    key_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the destination of a transport is reachable, and what is wrong if not."""

    ok: bool
    detail: str = ""


@runtime_checkable
class Transport(Protocol):
    """No reconnect, no retry, no buffer inside. After any doubt the relay closes it, and opens a new one."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        """As many outcomes as messages, in their order, within `timeout` and one more second. Raising means
        RetryLater(unknown=True) for all. One that is not "prefix" may be called again before it has returned, with messages
        of other keys."""
        ...

    async def check(self, destinations: Iterable[str]) -> Health: ...


@dataclass(frozen=True, slots=True)
class InMessage:
    """One message of a broker."""

    id: str  # the sender's: CloudEvents id, Nats-Msg-Id, message_id; else "<partition>:<offset>", never a digest
    body: bytes
    receipt: object  # the argument of ack() and release()
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    source: str = ""  # where exactly it was: a subject, a topic
    redelivered: bool = False
    deliveries: int = 1  # how often it was delivered, this time included; 1 where the broker does not count


@runtime_checkable
class Source(Protocol):
    """Reads messages of a broker. No retry and no reconnect inside: after any error it is closed and opened again."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Also after an error, and twice."""
        ...

    async def receive(self, limit: int, *, wait: float) -> Sequence[InMessage]:
        """Up to `limit` messages; none after `wait` seconds without one."""
        ...

    async def ack(self, receipts: Sequence[object]) -> None:
        """The messages are done. Called after the commit; if it is lost they come again, and are dropped."""
        ...

    async def release(self, receipts: Sequence[object], *, delay: float) -> None:
        """Make the messages come again, to any reader."""
        ...


def split_options(url: str) -> tuple[str, dict[str, str]]:
    """A URL without its query, and the query's options."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query="", fragment="")), dict(parse_qsl(parts.query))


def shown_url(url: str) -> str:
    """A URL for messages and logs: without user, password and query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def from_url(url: str) -> Transport:
    """The transport of a URL such as `nats://127.0.0.1:4222?stream=SHOP`, by its scheme."""
    scheme = urlsplit(url).scheme
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    if scheme not in known:
        raise ConfigurationError(
            f"there is no transport for {scheme or 'an address without a scheme'!r} "
            f"(known: {', '.join(sorted(known)) or 'none'}). A package adds one by the entry point {GROUP}"
        )
    bare, options = split_options(url)
    made = known[scheme].load()(bare, options)
    if not isinstance(made, Transport):
        raise ConfigurationError(f"{known[scheme].value} did not make a transport of {shown_url(url)}")
    return made


def no_more(options: Mapping[str, str], scheme: str, known: Iterable[str]) -> None:
    """Refuse options of a URL that a transport does not know."""
    if unknown := sorted(set(options) - set(known)):
        raise ConfigurationError(
            f"a {scheme} address has no option {unknown[0]!r} (known: {', '.join(sorted(known))})"
        )


class MissingExtra(ConfigurationError):
    """A transport whose client is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed. Run: {install(extra)}")
