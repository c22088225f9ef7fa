"""SQS FIFO queues and SNS FIFO topics: `sqs(region="eu-central-1")`. Needs the extra `sqs`.

The route is the URL or the name of a queue, or the ARN of a topic; each ends with `.fifo`. The key of an event is its
message group, its id the deduplication id. boto3 runs in threads of its own, and its retries are off.
"""

import asyncio
import contextvars
import functools
import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

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
)

WINDOW = timedelta(minutes=5)
MOST_BYTES = 262_144 - 4096  # of a message, less its attributes: what SNS and SQS both take
CALL_BYTES = 262_144  # of all messages of one call
CALL = 10  # messages
CALLS = 8  # at a time
ATTRIBUTES = 10  # of a message; SNS drops messages that have more
TIMEOUT = 10.0  # seconds of one request
_making = threading.Lock()  # a session makes one client at a time
_GROUP = re.compile(r"[a-zA-Z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_CREDENTIALS = frozenset(
    (
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
        "ExpiredToken",
        "AuthFailure",
    )
)
_MISSING = frozenset(
    (
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
        "NotFound",
        "NotFoundException",
        "InvalidAddress",
    )
)
_FORBIDDEN = frozenset(
    ("AccessDenied", "AccessDeniedException", "AuthorizationError", "AuthorizationErrorException")
)
_LARGE = frozenset(
    ("AWS.SimpleQueueService.BatchRequestTooLong", "BatchRequestTooLong", "BatchRequestTooLongException")
)


def sqs(
    *,
    region: str | None = None,
    endpoint_url: str | None = None,
    session: Any = None,
    max_bytes: int = MOST_BYTES,
) -> Transport:
    """A transport to SQS and SNS, FIFO both. `session`: a boto3.Session, if not the default one."""
    return _Sqs(region, endpoint_url, session, max_bytes)


def make(url: str, options: Mapping[str, str]) -> Transport:
    """For addresses: `sqs://eu-central-1`, or `sqs://` for the region that boto3 finds."""
    no_more(options, "sqs", ("endpoint_url",))
    return sqs(region=url.partition("://")[2].strip("/") or None, endpoint_url=options.get("endpoint_url"))


class _Sqs:
    def __init__(self, region: str | None, endpoint_url: str | None, session: Any, max_bytes: int) -> None:
        if not 0 < max_bytes <= CALL_BYTES:
            raise ConfigurationError(f"max_bytes must be 1 to {CALL_BYTES}, not {max_bytes}")
        self._where = (region, endpoint_url, session)
        self._clients: Clients | None = None
        self.capabilities = Capabilities(order="key", dedup=WINDOW, max_bytes=max_bytes, max_batch=200)

    async def open(self) -> None:
        await self.close()
        clients = Clients(*self._where)
        try:
            await clients.call(clients.enter)
        except BaseException:
            clients.close()
            raise
        self._clients = clients

    async def close(self) -> None:
        clients, self._clients = self._clients, None
        if clients is not None:
            clients.close()

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        clients = self._clients
        if clients is None:
            return [RetryLater("the connection was lost", unknown=True)] * len(batch)
        deadline = time.monotonic() + timeout
        outcomes: list[Outcome | None] = [self._unfit(message) for message in batch]
        for turn in _turns(batch, outcomes):
            ready = [n for n in turn if not _behind(batch, outcomes, n)]
            calls = [clients.call(_send, clients, batch, part, deadline) for part in cut(batch, ready)]
            left = deadline - time.monotonic()
            done, late = await asyncio.wait(calls, timeout=max(0.0, left)) if calls else ((), ())
            for call in done:
                for n, outcome in call.result().items():
                    outcomes[n] = outcome
            if late:
                break
        unknown = RetryLater(f"no reply within {timeout:g} s", unknown=True)
        return [unknown if outcome is None else outcome for outcome in outcomes]

    def _unfit(self, message: OutMessage) -> Outcome | None:
        if not message.destination.endswith(".fifo"):
            return Refused(
                "malformed",
                f"{message.destination[:200]!r} is no FIFO queue or topic: it must end with .fifo",
            )
        most = self.capabilities.max_bytes
        if len(message.body) > most:
            return Refused("too_large", f"{len(message.body)} bytes, and {most} may be sent")
        return None

    async def check(self, destinations: Iterable[str]) -> Health:
        """Every queue and topic is there."""
        clients = self._clients
        if clients is None:
            return Health(False, "it is not open")
        for name in destinations:
            try:
                await clients.call(_look, clients, name)
            except Exception as error:  # noqa: BLE001 whatever it says
                return Health(False, f"{name}: {said(error)}")
        return Health(True)


class Clients:
    """Clients of SQS and SNS, and the threads that use them."""

    def __init__(self, region: str | None, endpoint_url: str | None, session: Any) -> None:
        boto3, config = library()
        options: dict[str, Any] = {
            "region_name": region,
            "endpoint_url": endpoint_url,
            "config": config(
                connect_timeout=5,
                read_timeout=TIMEOUT,
                retries={"total_max_attempts": 1},
                max_pool_connections=CALLS,
            ),
        }
        found = session or _default_session(boto3)
        if found.get_credentials() is None:
            raise ConnectionError("boto3 finds no credentials of AWS")
        self.sqs = found.client("sqs", **options)
        self._sns = functools.cache(lambda: found.client("sns", **options))
        self._urls: dict[str, str] = {}
        self._threads = ThreadPoolExecutor(CALLS, "holdfast sqs")

    def call(self, work: Callable[..., Any], *arguments: Any) -> "asyncio.Future[Any]":
        call = functools.partial(contextvars.copy_context().run, work, *arguments)  # with the relay's lease
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    def enter(self) -> None:
        """One call that needs no right, to see that somebody answers and knows us."""
        try:
            self.sqs.list_queues(QueueNamePrefix="holdfast", MaxResults=1)
        except Exception as error:  # noqa: BLE001 the errors of boto3 are made at run time
            if code_of(error) not in _FORBIDDEN:
                raise ConnectionError(said(error)) from None

    def url_of(self, queue: str) -> str:
        if "/" in queue:
            return queue
        if queue not in self._urls:
            self._urls[queue] = self.sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        return self._urls[queue]

    @property
    def sns(self) -> Any:
        with _making:
            return self._sns()

    def close(self) -> None:
        """Calls in progress end by themselves; none begins."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.sqs.close()
        if self._sns.cache_info().currsize:
            self.sns.close()


@functools.cache
def _default_session(boto3: Any) -> Any:
    """One for the process: to make one reads many files."""
    return boto3.session.Session()


def group_of(message: OutMessage) -> str:
    """Without a key a message is a group of its own. A key that cannot be the name of one is hashed."""
    key = message.id if message.key is None else message.key
    return key if _GROUP.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()


def _turns(batch: Sequence[OutMessage], outcomes: Sequence[Outcome | None]) -> list[list[int]]:
    """The first message of every group, then the second: one of a group per call, for a call does not stop at a failure."""
    turns: list[list[int]] = []
    seen: dict[tuple[str, str], int] = {}
    for n, message in enumerate(batch):
        if outcomes[n] is None:
            place = (message.destination, group_of(message))
            turn = seen.get(place, 0)
            seen[place] = turn + 1
            if turn == len(turns):
                turns.append([])
            turns[turn].append(n)
    return turns


def _behind(batch: Sequence[OutMessage], outcomes: list[Outcome | None], n: int) -> bool:
    """A message whose key has one before it in the batch that was not stored is not sent."""
    for earlier in range(n):
        same = batch[earlier].key is not None and batch[earlier].key == batch[n].key
        if same and not isinstance(outcomes[earlier], Confirmed):
            outcomes[n] = RetryLater("it waits behind one that was not stored", after=0.0, scope="key")
            return True
    return False


def size_of(message: OutMessage) -> int:
    return len(message.body) + sum(
        len(name) + len("String") + len(found["StringValue"].encode())
        for name, found in _attributes(message).items()
    )


def cut(batch: Sequence[OutMessage], members: Sequence[int]) -> list[list[int]]:
    """Parts of one destination, of ten messages and 256 KiB at most: a call that is too long fails as a whole."""
    parts: dict[str, list[list[int]]] = {}
    bytes_of_last: dict[str, int] = {}
    for n in members:
        to, size = batch[n].destination, size_of(batch[n])
        found = parts.setdefault(to, [])
        if not found or len(found[-1]) == CALL or bytes_of_last[to] + size > CALL_BYTES:
            found.append([])
            bytes_of_last[to] = 0
        found[-1].append(n)
        bytes_of_last[to] += size
    return [part for found in parts.values() for part in found]


def _attributes(message: OutMessage) -> dict[str, dict[str, str]]:
    headers = {**message.headers, "content-type": message.content_type}
    first = sorted(headers, key=lambda name: not (name.startswith("ce-") or name == "content-type"))
    kept = [name for name in first if headers[name]][:ATTRIBUTES]
    return {name: {"DataType": "String", "StringValue": headers[name]} for name in kept}


def _send(
    clients: Clients, batch: Sequence[OutMessage], members: Sequence[int], deadline: float
) -> dict[int, Outcome]:
    """One call, in a thread."""
    to = batch[members[0]].destination
    if time.monotonic() >= deadline:
        return dict.fromkeys(members, RetryLater("there was no time left to send it"))
    topic = to.startswith("arn:")
    body = "Message" if topic else "MessageBody"
    entries = [
        {
            "Id": str(n),
            body: batch[n].body.decode(),
            "MessageAttributes": _attributes(batch[n]),
            "MessageGroupId": group_of(batch[n]),
            "MessageDeduplicationId": batch[n].id,
        }
        for n in members
    ]
    if not may_send():
        return dict.fromkeys(members, PAUSED)
    try:
        if topic:
            reply = clients.sns.publish_batch(TopicArn=to, PublishBatchRequestEntries=entries)
        else:
            reply = clients.sqs.send_message_batch(QueueUrl=clients.url_of(to), Entries=entries)
    except Exception as error:  # noqa: BLE001 whatever it says
        outcome = outcome_of(error, to)
        of_one = isinstance(outcome, Refused) and outcome.reason in ("too_large", "malformed")
        if of_one and len(members) > 1:  # which of them? Or all are too many bytes, as the service counts
            return {n: o for one in members for n, o in _send(clients, batch, [one], deadline).items()}
        return dict.fromkeys(members, outcome)
    return outcomes_of(reply, members)


def outcomes_of(reply: Mapping[str, Any], members: Sequence[int]) -> dict[int, Outcome]:
    """The outcomes of a call, message by message."""
    found: dict[int, Outcome] = {
        int(one["Id"]): Confirmed(receipt=one["MessageId"]) for one in reply.get("Successful", [])
    }
    for one in reply.get("Failed", []):
        found[int(one["Id"])] = failed(one)
    missing = RetryLater("the reply says nothing of it", unknown=True)
    return {n: found.get(n, missing) for n in members}


def failed(entry: Mapping[str, Any]) -> Outcome:
    """Why one message of a call was not taken."""
    code, text = str(entry.get("Code", "")), f"{entry.get('Code')}: {entry.get('Message', '')}"[:300]
    if code in _FORBIDDEN:
        return Refused("forbidden", text)
    if code in _LARGE or "TooLong" in code:
        return Refused("too_large", text)
    if entry.get("SenderFault") and "Throttl" not in code:
        return Refused("malformed", text)
    return RetryLater(text)


def outcome_of(error: BaseException, to: str) -> Outcome:
    """Why a call failed. An error that AWS names means that nothing was stored; any other may come after it was."""
    code = code_of(error)
    if code in _MISSING:
        return Refused("unroutable", f"there is no {to}")
    if code in _FORBIDDEN:
        return Refused("forbidden", said(error))
    if code in _LARGE:
        return Refused("too_large", said(error))
    if code in ("InvalidMessageContents", "InvalidParameterValue", "InvalidParameter"):
        return Refused("malformed", said(error))
    named = bool(code) and not code.startswith(("Internal", "ServiceUnavailable", "5"))
    return RetryLater(said(error), unknown=not named or code in _CREDENTIALS)


def code_of(error: BaseException) -> str:
    """Of an error that AWS returned."""
    found = getattr(error, "response", None)
    return str(found.get("Error", {}).get("Code", "")) if isinstance(found, dict) else ""


def said(error: BaseException) -> str:
    """Without what may be a secret: the code and one line."""
    found = getattr(error, "response", None)
    text = found.get("Error", {}).get("Message", "") if isinstance(found, dict) else str(error)
    line = (str(text).splitlines() or [""])[0][:300]
    return f"{code_of(error) or type(error).__name__}: {line}"


def _look(clients: Clients, name: str) -> None:
    if name.startswith("arn:"):
        clients.sns.get_topic_attributes(TopicArn=name)
    else:
        clients.sqs.get_queue_attributes(QueueUrl=clients.url_of(name), AttributeNames=["QueueArn"])


def library() -> tuple[Any, Any]:
    try:
        import boto3
        import boto3.session
        from botocore.config import Config
    except ImportError:
        raise MissingExtra("boto3", "sqs") from None
    return boto3, Config
