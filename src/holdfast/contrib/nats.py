"""NATS JetStream: `nats("nats://127.0.0.1:4222", stream="SHOP")`. Needs the extra `nats`.

Each message is published with its id as Nats-Msg-Id, and its acknowledgement is read from an inbox of our own. The client is
told not to reconnect: it would send again, later, what was given up here.
"""

import asyncio
import contextlib
import json
import re
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from ..transport import (
    Capabilities,
    Confirmed,
    Health,
    Outcome,
    OutMessage,
    Refused,
    RetryLater,
    Transport,
    no_more,
)
from .nats_client import client_class, guard_writes, servers_of

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

WINDOW = timedelta(minutes=2)  # a stream's duplicate_window, where nobody has set another
MOST_BYTES = 2**20 - 4096  # of a message: what a server takes by default, less the headers
_SERVER_OWN = ("$JS.", "$SYS.")  # subjects that are questions and orders to the server
_SUBJECT = re.compile(r"[!-)+-=?-~\x80-\U0010ffff]+")  # no space, control, * and >
_TOO_LARGE = frozenset((10054,))  # err_code: beyond the stream's own limit
_WRONG = frozenset((10060, 10070, 10071, 10164))  # expected another stream, or another message before it
_FORBIDDEN = re.compile('[Pp]ermissions [Vv]iolation for [Pp]ublish to "([^"]+)"')
NO_STREAM = RetryLater("no stream has this subject just now")
STRANGER = RetryLater(
    "a subscriber of this subject replied, and no stream has acknowledged the message", unknown=True
)
_SERVERS = (
    "nats-"  # what a header begins with that the server takes for an order: to empty a stream, to expire
)
CONNECT = 5.0  # seconds
_PAUSE = 0.1  # seconds between the two tries of a server
_BRIEF = 0.5  # seconds that a question has, however late it is
_MOST_HEADERS = 16 * 1024  # bytes: those of an event are half of it at most
_HEAD = len("NATS/1.0\r\n\r\n")  # of all headers, beside their lines
_LINE = len(": \r\n")
_LOOKS = 50  # messages of a stream that are read at once
_LOOKING = 1.0  # seconds that one of them may take
_MOMENT = 0.2  # the same when the time of the batch is over
_NOT_THERE = 10037  # err_code: no message found


class _Batch:
    """The outcomes of one publish as they come, in the order of its messages. One future for all of them: a future for each
    would cost as much as the rest of a message."""

    __slots__ = ("done", "left", "outcomes", "strangers")

    def __init__(self, size: int) -> None:
        self.outcomes: list[Outcome | None] = [None] * size
        self.left = size
        self.strangers: set[int] = set()  # messages that somebody who is no stream has replied to
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, place: int, outcome: Outcome) -> None:
        if self.outcomes[place] is None:
            self.outcomes[place] = outcome
            self.left -= 1
            if self.left == 0:
                self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    async def wait(self, timeout: float) -> None:
        """Until all are there, or the time is over."""
        timer = self.done.get_loop().call_later(timeout, self._end)
        try:
            await self.done
        finally:
            timer.cancel()


_Waiting: TypeAlias = tuple[_Batch, int, str]  # whose message waits, which one of it, and its subject


def nats(
    url: str,
    *,
    stream: str | None = None,
    credentials: str | None = None,
    tls: ssl.SSLContext | None = None,
    dedup: timedelta = WINDOW,
    max_bytes: int = MOST_BYTES,
) -> Transport:
    """A transport to NATS JetStream. `url` may name several servers, with commas. `stream`: what another one would
    store is refused. `credentials`: a file of the account. `dedup`: the duplicate_window of the stream."""
    return _Nats(url, stream, credentials, tls, dedup, max_bytes)


def make(url: str, options: Mapping[str, str]) -> Transport:
    """For addresses: `nats://127.0.0.1:4222?stream=SHOP`."""
    no_more(options, "nats", ("stream", "credentials"))
    return nats(url, stream=options.get("stream"), credentials=options.get("credentials"))


class _Nats:
    def __init__(
        self,
        url: str,
        stream: str | None,
        credentials: str | None,
        tls: ssl.SSLContext | None,
        dedup: timedelta,
        max_bytes: int,
    ) -> None:
        self._servers = servers_of(url)
        self._stream = stream
        self._credentials = credentials
        self._tls = tls
        self._client: Client | None = None
        self._inbox = ""
        self._waiting: dict[str, _Waiting] = {}  # by token
        self._asked = 0
        self._last_error = ""
        self._can_look = True  # whether the account may read a message of the stream
        self.capabilities = Capabilities(order="key", dedup=dedup, max_bytes=max_bytes, max_batch=1000)

    async def open(self) -> None:
        made = client_class()
        await self.close()
        client: Client = made()
        options: dict[str, Any] = {"reconnect_time_wait": _PAUSE}
        if self._credentials is not None:
            options["user_credentials"] = self._credentials
        if self._tls is not None:
            options["tls"] = self._tls
        self._last_error = ""
        try:
            async with asyncio.timeout(CONNECT):
                await client.connect(
                    servers=self._servers,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    connect_timeout=5,
                    ping_interval=10,
                    name="holdfast relay",
                    error_cb=self._heard,
                    closed_cb=self._lost,
                    **options,
                )
        except TimeoutError:  # the client keeps trying, and reports the reason separately
            await _end(client)
            raise ConnectionError(self._last_error or f"no answer within {CONNECT:g} s") from None
        except BaseException as error:
            await _end(client)
            if isinstance(error, Exception) and self._last_error:  # the client says that there is no server
                raise ConnectionError(self._last_error) from None
            raise
        self._client = client
        guard_writes(client)
        self._can_look = True
        self._inbox = client.new_inbox()
        self._last_error = ""  # of servers that were tried before this one
        await client.subscribe(f"{self._inbox}.*", cb=self._answered)
        # The first ping may overtake the subscription, which waits for the client's own task.
        await client.flush(int(CONNECT))
        await client.flush(int(CONNECT))  # the reply to this one comes after what the server has to say of it
        if self._last_error:  # a missing right: without the inbox nothing is ever acknowledged
            raise ConnectionError(self._last_error)

    async def _heard(self, error: Exception) -> None:
        """A forbidden subject is reported here, and gets no answer."""
        self._last_error = f"{type(error).__name__}: {error}"
        if (found := _FORBIDDEN.search(str(error))) is not None:
            for token, (_, _, subject) in list(self._waiting.items()):
                if subject == found[1]:
                    self._resolve(token, Refused("forbidden", f"publishing to {subject} is not allowed"))

    async def _lost(self) -> None:
        for token in list(self._waiting):
            self._resolve(token, RetryLater("the connection was lost", unknown=True))

    async def _answered(self, message: "Msg") -> None:
        token = message.subject[len(self._inbox) + 1 :]
        nobody = message.headers and message.headers.get("Status") == "503"
        outcome = NO_STREAM if nobody else outcome_of(message.data)
        if outcome is not None:
            self._resolve(token, outcome)
        elif (waiting := self._waiting.get(token)) is not None:  # the reply of the stream may follow
            waiting[0].strangers.add(waiting[1])

    def _resolve(self, token: str, outcome: Outcome) -> None:
        waiting = self._waiting.pop(token, None)
        if waiting is not None:
            waiting[0].put(waiting[1], outcome)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _end(client)
        await self._lost()

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        client = self._client
        if client is None or not client.is_connected:
            return [RetryLater("the connection was lost", unknown=True)] * len(batch)
        deadline = time.monotonic() + timeout
        outcomes = await self._send_all(client, [(message, message.id) for message in batch], timeout)
        await self._find_unroutable(batch, outcomes, max(deadline - time.monotonic(), _BRIEF))
        if any(isinstance(outcome, Confirmed) and outcome.duplicate for outcome in outcomes):
            await self._store_dropped(client, batch, outcomes, deadline)
        return outcomes

    async def _send_all(
        self, client: "Client", messages: Sequence[tuple[OutMessage, str]], timeout: float
    ) -> list[Outcome]:
        """Messages, each with the id by which the stream knows it."""
        found = _Batch(len(messages))
        for place, (message, known_by) in enumerate(messages):
            await self._send(client, found, place, message, known_by)
        if found.left:
            await found.wait(timeout)
        late = RetryLater(f"no acknowledgement within {timeout:g} s", unknown=True)
        outcomes = [
            (STRANGER if place in found.strangers else late) if outcome is None else outcome
            for place, outcome in enumerate(found.outcomes)
        ]
        if found.left:
            await self._lost()
        return outcomes

    async def _store_dropped(
        self, client: "Client", batch: Sequence[OutMessage], outcomes: list[Outcome], deadline: float
    ) -> None:
        """A stream drops an id that it knows, also where it has the message under another subject alone: of another relay,
        or of another route. Such a message is sent once more, by an id with its subject."""
        repeats = [
            n for n, outcome in enumerate(outcomes) if isinstance(outcome, Confirmed) and outcome.duplicate
        ]
        dropped: list[int] = []
        for begin in range(0, len(repeats), _LOOKS):
            part = repeats[begin : begin + _LOOKS]
            left = max(min(_LOOKING, deadline - time.monotonic()), _MOMENT)
            there = await asyncio.gather(
                *(self._has(client, batch[n].destination, outcomes[n], left) for n in part)
            )
            dropped += [n for n, is_there in zip(part, there, strict=True) if is_there is False]
        if dropped:
            again = [(batch[n], f"{batch[n].id}:{batch[n].destination}") for n in dropped]
            found = await self._send_all(client, again, max(deadline - time.monotonic(), _MOMENT))
            for n, outcome in zip(dropped, found, strict=True):
                outcomes[n] = outcome

    async def _has(self, client: "Client", subject: str, outcome: Outcome, timeout: float) -> bool | None:
        """Whether the message that a stream knows is one of this subject; None: it cannot be found out."""
        assert isinstance(outcome, Confirmed)
        stream, _, seq = (outcome.receipt or "").rpartition(":")
        if not self._can_look:
            return None
        try:
            question = json.dumps({"seq": int(seq)}).encode()
            answer = await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", question, timeout=timeout)
            found = json.loads(answer.data)
        except Exception:  # noqa: BLE001 no right to ask, or no reply
            self._can_look = False
            return None
        if "error" in found:  # read and removed: of which subject it was, nobody knows
            return False if found["error"].get("err_code") == _NOT_THERE else None
        return bool(found["message"]["subject"] == subject)

    async def _send(
        self, client: "Client", batch: _Batch, place: int, message: OutMessage, known_by: str
    ) -> None:
        """The outcome is put into the batch: now, where the message is not sent, or by its acknowledgement."""
        subject = message.destination
        if not _SUBJECT.fullmatch(subject) or ".." in f".{subject}." or subject.startswith(_SERVER_OWN):
            return batch.put(place, Refused("malformed", f"{subject[:200]!r} is no subject"))
        most = self.capabilities.max_bytes
        if len(message.body) > most:
            return batch.put(
                place, Refused("too_large", f"{len(message.body)} bytes, and {most} may be sent")
            )
        headers = {n: v for n, v in message.headers.items() if n[:5].lower() != _SERVERS}
        headers["Nats-Msg-Id"] = known_by
        headers["Content-Type"] = message.content_type
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        taken = client.max_payload  # more, with the headers, and the server ends the connection
        if len(message.body) > taken - _MOST_HEADERS and (size := _size(message.body, headers)) > taken:
            return batch.put(
                place, Refused("too_large", f"{size} bytes with its headers, and {taken} may be sent")
            )
        self._asked += 1
        token = str(self._asked)
        self._waiting[token] = (batch, place, subject)
        try:
            await client.publish(subject, message.body, reply=f"{self._inbox}.{token}", headers=headers)
        except Exception as error:  # noqa: BLE001 a closed connection, or a client that refuses it
            self._resolve(token, RetryLater(f"{type(error).__name__}: {error}", unknown=True))

    async def _find_unroutable(
        self, batch: Sequence[OutMessage], outcomes: list[Outcome], timeout: float
    ) -> None:
        """Nobody answered for a subject. It is refused only where the server says that no stream has it: while a leader is
        elected nobody answers either."""
        nobody = [n for n, outcome in enumerate(outcomes) if outcome in (NO_STREAM, STRANGER)]
        subjects = list(dict.fromkeys(batch[n].destination for n in nobody))
        known = await asyncio.gather(*(self._has_no_stream(subject, timeout) for subject in subjects))
        absent = {subject for subject, is_absent in zip(subjects, known, strict=True) if is_absent}
        for n in nobody:
            if (subject := batch[n].destination) in absent:
                outcomes[n] = Refused("unroutable", f"no stream has the subject {subject}")

    async def _has_no_stream(self, subject: str, timeout: float) -> bool:
        client = self._client
        if client is None:
            return False
        try:
            question = json.dumps({"subject": subject}).encode()
            answer = await client.request("$JS.API.STREAM.NAMES", question, timeout=timeout)
            found = json.loads(answer.data)
        except Exception:  # noqa: BLE001 nobody knows, so it is tried again
            return False
        return "error" not in found and not found.get("streams")

    async def check(self, destinations: Iterable[str]) -> Health:
        """Every destination has a stream, and the stream refuses what it has no room for rather than dropping the oldest."""
        client = self._client
        if client is None:
            return Health(False, "it is not open")
        context = client.jetstream()
        for subject in destinations:
            try:
                name = await context.find_stream_name_by_subject(subject)
                config = (await context.stream_info(name)).config
            except Exception as error:  # noqa: BLE001
                return Health(False, f"{subject}: {type(error).__name__}: {error}")
            if self._stream is not None and name != self._stream:
                return Health(False, f"{subject} is stored by the stream {name}, not by {self._stream}")
            limited = any(
                (value or 0) > 0 for value in (config.max_msgs, config.max_bytes, config.max_msgs_per_subject)
            )
            if limited and str(getattr(config.discard, "value", config.discard)) == "old":
                return Health(
                    False, f"the stream {name} drops its oldest messages when it is full: set discard=new"
                )
            if (config.duplicate_window or 0) < self._window:
                return Health(
                    False,
                    f"the stream {name} knows ids for {config.duplicate_window or 0:g} s, not for {self._window:g} s",
                )
        return Health(True)

    @property
    def _window(self) -> float:
        dedup = self.capabilities.dedup
        return dedup.total_seconds() if isinstance(dedup, timedelta) else 0.0


def _size(body: bytes, headers: Mapping[str, str]) -> int:
    """As the server counts."""
    return len(body) + _HEAD + sum(len(name) + len(value) + _LINE for name, value in headers.items())


def outcome_of(answer: bytes) -> Outcome | None:
    """The outcome of a stream's reply; None: the reply is not by a stream."""
    try:
        found = json.loads(answer)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    error, stream, seq = found.get("error"), found.get("stream"), found.get("seq")
    if not isinstance(error, dict):
        named = isinstance(stream, str) and isinstance(seq, int)
        return Confirmed(duplicate=bool(found.get("duplicate")), receipt=f"{stream}:{seq}") if named else None
    code, text = error.get("err_code"), str(error.get("description", "refused"))
    if code in _TOO_LARGE:
        return Refused("too_large", text)
    if code in _WRONG:
        return Refused("unroutable", text)
    return RetryLater(text, scope="key" if "per subject" in text else "destination")


async def _end(client: "Client") -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(1.0):
            await client.close()
