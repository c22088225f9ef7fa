"""The thread through the receiver: a POST is verified, its job is committed, and then the sender gets 2xx."""

from dataclasses import dataclass

from tests.receiver.support import SECRET, body_of, post, standard

from holdfast import AsyncTransaction, Holdfast, Job, ReceivedMessage, Receiver, StandardWebhooks, Transaction
from holdfast.testing import Kit

VERIFY = StandardWebhooks(SECRET)


@dataclass
class Paid:
    order_id: int


async def test_a_post_becomes_a_job_that_a_worker_runs(app: Holdfast, akit: Kit) -> None:
    seen: list[ReceivedMessage[Paid]] = []

    @app.receive("shop", Paid, verify=VERIFY)
    async def paid(message: ReceivedMessage[Paid]) -> None:
        seen.append(message)

    body = body_of(order_id=7)
    reply = await post(paid.asgi, [*standard(body), ("Authorization", "Bearer s3cret")], body)
    assert (reply.status, reply.text) == (202, "")
    again = await post(paid.asgi, standard(body), body)
    assert (again.status, again.text) == (200, "")
    (job,) = akit.jobs("paid")
    assert job["status"] == "pending"
    await akit.arun_worker()
    (message,) = seen
    assert (message.source, message.id, message.data) == ("shop", "msg_1", Paid(7))
    assert message.headers["webhook-id"] == "msg_1"
    assert "authorization" not in message.headers
    (row,) = akit.sql("SELECT * FROM holdfast.received")
    assert (row["source"], row["message_id"], row["job_id"]) == ("shop", "msg_1", job["id"])
    assert (row["expires_at"] - row["received_at"]).days == 30


async def test_injected_parameters_come_before_or_after_the_message(app: Holdfast, akit: Kit) -> None:
    akit.sql("CREATE TABLE paid (order_id int, job_id uuid)")

    @app.receive("a", Paid, verify=VERIFY)
    async def booked(job: Job, tx: AsyncTransaction, message: ReceivedMessage[Paid]) -> None:
        await tx.execute("INSERT INTO paid VALUES (%s, %s)", [message.data.order_id, job.id])

    @app.receive("b", Paid, verify=VERIFY)
    def booked_here(tx: Transaction, message: ReceivedMessage[Paid]) -> None:
        tx.execute("INSERT INTO paid VALUES (%s, NULL)", [message.data.order_id])

    @app.receive("c", Paid, verify=VERIFY)
    async def message_first(message: ReceivedMessage[Paid], job: Job, tx: AsyncTransaction) -> None:
        await tx.execute("INSERT INTO paid VALUES (%s, %s)", [message.data.order_id, job.id])

    @app.receive("d", Paid, verify=VERIFY)
    def message_first_here(message: ReceivedMessage[Paid], tx: Transaction) -> None:
        tx.execute("INSERT INTO paid VALUES (%s, NULL)", [message.data.order_id])

    receivers: list[Receiver[Paid]] = [booked, booked_here, message_first, message_first_here]
    for n, receiver in enumerate(receivers):
        body = body_of(order_id=n)
        assert (await post(receiver.asgi, standard(body), body)).status == 202
    await akit.arun_worker()
    assert [row["order_id"] for row in akit.sql("SELECT * FROM paid ORDER BY order_id")] == [0, 1, 2, 3]
