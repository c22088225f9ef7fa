"""Messages of an SQS queue, for `@app.consume(...)`. Needs the extra `sqs`."""

import hashlib
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigurationError
from ..transport import InMessage
from .sqs import CALL, Clients

_MOST_MESSAGES = 100  # messages of one batch: each has to be deleted before it becomes visible again


class SqsSource:
    def __init__(self, queue: str, region: str | None, endpoint_url: str | None, session: Any) -> None:
        if not queue:
            raise ConfigurationError("a source of SQS needs the name or the URL of its queue")
        self._queue = queue
        self._where = (region, endpoint_url, session)
        self._clients: Clients | None = None
        self._url = ""

    async def open(self) -> None:
        await self.close()
        self._clients = clients = Clients(*self._where)
        await clients.call(clients.enter)
        self._url = await clients.call(clients.url_of, self._queue)

    async def close(self) -> None:
        clients, self._clients = self._clients, None
        if clients is not None:
            clients.close()

    async def receive(self, limit: int, *, wait: float) -> Sequence[InMessage]:
        clients = self._opened()
        found: list[Any] = []
        most = min(limit, _MOST_MESSAGES)
        while len(found) < most:
            size = min(CALL, most - len(found))
            came = await clients.call(self._receive, clients, size, 0 if found else round(min(wait, 20.0)))
            found += came
            if len(came) < size:
                break
        return [self._message(one) for one in found]

    def _receive(self, clients: Clients, size: int, wait: int) -> list[Any]:
        reply = clients.sqs.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=size,
            WaitTimeSeconds=wait,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return list(reply.get("Messages", []))

    async def ack(self, receipts: Sequence[Any]) -> None:
        clients = self._opened()
        await self._each(clients, receipts, clients.sqs.delete_message_batch)

    async def release(self, receipts: Sequence[Any], *, delay: float) -> None:
        clients = self._opened()
        more = {"VisibilityTimeout": int(delay)}
        await self._each(clients, receipts, clients.sqs.change_message_visibility_batch, **more)

    async def _each(self, clients: Clients, receipts: Sequence[Any], verb: Any, **more: int) -> None:
        def work(part: Sequence[Any]) -> None:
            entries = [{"Id": str(n), "ReceiptHandle": one, **more} for n, one in enumerate(part)]
            reply = verb(QueueUrl=self._url, Entries=entries)
            if failed := reply.get("Failed"):
                raise ConnectionError(f"SQS kept {len(failed)} messages: {failed[0].get('Code')}")

        for start in range(0, len(receipts), CALL):
            await clients.call(work, receipts[start : start + CALL])

    def _opened(self) -> Clients:
        if self._clients is None:
            raise ConnectionError("it is not open")
        return self._clients

    def _message(self, one: dict[str, Any]) -> InMessage:
        headers = {
            name.lower(): found["StringValue"]
            for name, found in one.get("MessageAttributes", {}).items()
            if "StringValue" in found
        }
        about, body = one.get("Attributes", {}), one["Body"].encode()
        given, deliveries = (
            about.get("MessageDeduplicationId", ""),
            int(about.get("ApproximateReceiveCount", 1)),
        )
        if given == hashlib.sha256(body).hexdigest():  # of its content: two equal messages may both be meant
            given = ""
        return InMessage(
            id=headers.get("ce-id") or given or one["MessageId"],
            body=body,
            receipt=one["ReceiptHandle"],
            headers=headers,
            key=about.get("MessageGroupId"),
            source=self._queue,
            redelivered=deliveries > 1,
            deliveries=deliveries,
        )


def sqs_source(
    queue: str, *, region: str | None = None, endpoint_url: str | None = None, session: Any = None
) -> SqsSource:
    """Read an SQS queue: `@app.consume("orders", sqs_source("orders.fifo", region="eu-central-1"), Order)`.

    `queue` is its name or its URL. The id is the attribute `ce-id`, the deduplication id unless it is that of the content,
    else SQS's own. The key is the message group. What is not deleted within the queue's visibility timeout comes again."""
    return SqsSource(queue, region, endpoint_url, session)
