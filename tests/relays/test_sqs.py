"""What is special about SQS and SNS: calls are cut by count and bytes, one message of a group each, and topics."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace as replaced
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError
from tests.brokers import moto_server
from tests.relays.conformance_brokers import SqsBroker, aws, drained
from tests.relays.test_transports import message, send

from holdfast import ConfigurationError
from holdfast.contrib.sqs import CALL_BYTES, cut, failed, group_of, outcomes_of, size_of, sqs
from holdfast.transport import Confirmed, OutMessage, Refused, RetryLater, from_url


@pytest.fixture(scope="module")
def broker() -> Iterator[SqsBroker]:
    server = moto_server()
    made = SqsBroker(server)
    yield made
    made.end()
    server.end()


def large(to: str, n: int, size: int) -> OutMessage:
    return replaced(message(to, n, f"k{n}"), body=json.dumps({"data": {"n": n}, "fill": "x" * size}).encode())


def test_calls_have_ten_messages_and_256_kib_at_most() -> None:
    batch = [message("a.fifo", n, f"k{n}") for n in range(25)]
    assert [len(part) for part in cut(batch, range(25))] == [10, 10, 5]
    big = [large("a.fifo", n, 100_000) for n in range(5)]
    parts = cut(big, range(5))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert all(sum(size_of(big[n]) for n in part) <= CALL_BYTES for part in parts)
    both = [message("a.fifo", 1, "a"), message("b.fifo", 2, "b"), message("a.fifo", 3, "c")]
    assert cut(both, range(3)) == [[0, 2], [1]]


async def test_large_messages_are_all_stored_though_one_call_could_not_hold_them(broker: SqsBroker) -> None:
    to = await broker.destination("large")
    outcomes = await send(
        sqs(endpoint_url=broker.url, session=aws()), *(large(to, n, 100_000) for n in range(5))
    )
    assert [type(outcome) for outcome in outcomes] == [Confirmed] * 5
    assert len(await broker.read(to)) == 5


async def test_messages_of_one_group_go_one_by_one_and_keep_their_order(broker: SqsBroker) -> None:
    to = await broker.destination("group")
    batch = [message(to, n, "same") for n in range(1, 5)]
    outcomes = await send(sqs(endpoint_url=broker.url, session=aws()), *batch)
    assert [type(outcome) for outcome in outcomes] == [Confirmed] * 4
    assert [json.loads(one.body)["data"]["n"] for one in await broker.read(to)] == [1, 2, 3, 4]
    bad = replaced(batch[0], id=str(uuid4()), body=b"x" * 300_000)
    behind = replaced(batch[1], id=str(uuid4()))
    outcomes = await send(sqs(endpoint_url=broker.url, session=aws()), bad, behind)
    assert isinstance(outcomes[0], Refused)
    assert outcomes[1] == RetryLater("it waits behind one that was not stored", after=0.0, scope="key")
    assert list(await broker.read(to)) == []


async def test_a_topic_hands_messages_on_with_group_id_and_attributes(broker: SqsBroker) -> None:
    sns, client, name = broker.client("sns"), broker.client(), f"t{uuid4().hex[:8]}"
    topic = sns.create_topic(Name=f"{name}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
    queue = await broker.destination("behind")
    url = client.get_queue_url(QueueName=queue)["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})
    sent = message(topic, 1, "ключ")
    transport = sqs(endpoint_url=broker.url, session=aws())
    missing = message(topic.replace(name, "nobody"), 2, "b")
    outcomes = await send(transport, sent, missing)
    assert isinstance(outcomes[0], Confirmed)
    assert outcomes[1] == Refused("unroutable", f"there is no {missing.destination}")
    await transport.open()
    assert (await transport.check([topic, queue])).ok
    await transport.close()
    (found,) = await asyncio.to_thread(drained, client, url)
    assert found["Body"].encode() == sent.body
    assert found["Attributes"]["MessageGroupId"] == group_of(sent) != sent.key
    assert found["MessageAttributes"]["ce-id"]["StringValue"] == "x"


def test_why_one_message_of_a_call_failed_is_read_as_it_is_meant() -> None:
    bad = {"Code": "InvalidMessageContents", "Message": "no", "SenderFault": True}
    assert failed(bad) == Refused("malformed", "InvalidMessageContents: no")
    assert failed({"Code": "InternalError", "SenderFault": False}) == RetryLater("InternalError: ")
    assert failed({"Code": "ThrottlingException", "SenderFault": True}) == RetryLater("ThrottlingException: ")
    assert failed({"Code": "AccessDenied", "SenderFault": True}) == Refused("forbidden", "AccessDenied: ")


def test_a_failed_entry_of_a_call_is_no_success() -> None:
    reply = {
        "Successful": [{"Id": "4", "MessageId": "m4"}],
        "Failed": [{"Id": "7", "Code": "InternalError", "SenderFault": False}],
    }
    assert outcomes_of(reply, [4, 7, 9]) == {
        4: Confirmed(receipt="m4"),
        7: RetryLater("InternalError: "),
        9: RetryLater("the reply says nothing of it", unknown=True),
    }


@pytest.mark.parametrize("code", ["InvalidMessageContents", "InvalidParameterValue", "BatchRequestTooLong"])
async def test_a_call_that_is_refused_for_one_message_refuses_that_one_alone(
    broker: SqsBroker, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    to = await broker.destination("call")
    transport = sqs(endpoint_url=broker.url, session=aws())
    await transport.open()
    client: Any = transport._clients.sqs  # type: ignore[attr-defined]
    send_batch = client.send_message_batch

    def picky(**call: Any) -> Any:
        if any("bad" in entry["MessageBody"] for entry in call["Entries"]):
            raise ClientError({"Error": {"Code": code, "Message": "no"}}, "SendMessageBatch")
        return send_batch(**call)

    monkeypatch.setattr(client, "send_message_batch", picky)
    batch = [message(to, n, f"k{n}") for n in range(1, 5)]
    batch[1] = replaced(batch[1], body=b"bad")
    outcomes = await transport.publish(batch, timeout=30)
    await transport.close()
    assert [type(outcome) for outcome in outcomes] == [Confirmed, Refused, Confirmed, Confirmed]


async def test_a_header_of_the_event_is_not_the_type_of_the_message(broker: SqsBroker) -> None:
    to = await broker.destination("type")
    sent = replaced(message(to, 1), headers={"content-type": "text/plain", "ce-id": "x"})
    await send(sqs(endpoint_url=broker.url, session=aws()), sent)
    url = broker.client().get_queue_url(QueueName=to)["QueueUrl"]
    (found,) = await asyncio.to_thread(drained, broker.client(), url)
    assert found["MessageAttributes"]["content-type"]["StringValue"] == sent.content_type


async def test_what_is_no_fifo_queue_is_refused_and_addresses_are_read(broker: SqsBroker) -> None:
    (outcome,) = await send(sqs(endpoint_url=broker.url, session=aws()), message("orders", 1))
    assert outcome == Refused("malformed", "'orders' is no FIFO queue or topic: it must end with .fifo")
    assert type(from_url("sqs://eu-central-1?endpoint_url=http://127.0.0.1:1")).__name__ == "_Sqs"
    with pytest.raises(ConfigurationError, match="max_bytes must be 1 to 262144, not 0"):
        sqs(max_bytes=0)
