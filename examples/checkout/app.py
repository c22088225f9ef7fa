"""A checkout is one function: reserve, charge, receipt, wait for the shipment, notify the search. It outlives workers."""

import asyncio
import os
from datetime import timedelta

import psycopg

from holdfast import (
    AsyncTransaction,
    Holdfast,
    NonRetryable,
    Signal,
    Transaction,
    Workflow,
    WorkflowFailed,
    current_step,
)

app = Holdfast()  # the database that HOLDFAST_DATABASE_URL names
SHIPPED = Signal("shipped", str)  # with the number of the parcel

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, cents int NOT NULL, declined bool NOT NULL);

-- The ledgers inside: written in transactions of ours. No unique keys, so a duplicate would show.
CREATE TABLE reservations (order_id int, fence text COLLATE "C");
CREATE TABLE search (order_id int, parcel text);

-- The ledgers outside: what the bank, the mail server and the stock saw. Nothing written here can be rolled back.
CREATE TABLE outside (what text, order_id int, idempotency_key text, fence text COLLATE "C", pid int,
                      at timestamptz DEFAULT clock_timestamp());
"""


@app.workflow()
async def checkout(wf: Workflow, order_id: int, cents: int) -> str:
    """Called again from the top by whoever takes over, and given what was recorded."""
    wf.on_failure(release, order_id)
    await wf.transact(reserve, order_id)  # its row and its record commit together
    await wf.step(charge, order_id, cents)
    await wf.step(send_receipt, order_id)
    shipment = await wf.signal(SHIPPED, timeout=timedelta(days=3))  # durable, and holds no worker
    if shipment.value is None:
        raise WorkflowFailed(f"order {order_id} was not shipped in time")
    await wf.call(
        notify_search, order_id, shipment.value
    )  # a job of its own, with its own retries and limits
    return shipment.value


async def reserve(tx: AsyncTransaction, order_id: int) -> None:
    await tx.execute("INSERT INTO reservations VALUES (%s, %s)", [order_id, current_step().fence])


async def charge(order_id: int, cents: int) -> str:
    if order_id % 10 == 0:
        raise NonRetryable(f"the card of order {order_id} is declined")
    return await send("charge", order_id)


async def send_receipt(order_id: int) -> str:
    return await send("receipt", order_id)


async def release(order_id: int) -> None:
    await send("release", order_id)


@app.task
def notify_search(tx: Transaction, order_id: int, parcel: str) -> None:
    tx.execute("INSERT INTO search VALUES (%s, %s)", [order_id, parcel])


async def send(what: str, order_id: int) -> str:
    """Outside, so it may happen again after a crash: with the same idempotency key and a higher fence."""
    step = current_step()
    async with await psycopg.AsyncConnection.connect(app.database.dsn, autocommit=True) as outside:
        await outside.execute(
            "INSERT INTO outside (what, order_id, idempotency_key, fence, pid) VALUES (%s, %s, %s, %s, %s)",
            [what, order_id, step.idempotency_key, step.fence, os.getpid()],
        )
    await asyncio.sleep(0.4)  # the other side takes its time to say "accepted"
    return f"{what}-{order_id}"
