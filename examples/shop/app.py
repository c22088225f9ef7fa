"""A shop. Paying an order, its event and the job for its receipt are one transaction: all happen, or none does."""

import os
import time
from dataclasses import dataclass
from typing import Any

import psycopg

from holdfast import Event, Holdfast, Job, Published, Transaction, event

app = Holdfast()  # the database that HOLDFAST_DATABASE_URL names
app.queue("parcels", ordering="key")  # a customer's parcels leave one after the other

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, paid_at timestamptz, cents int NOT NULL DEFAULT 995);

-- A projection: what each customer has paid, kept up to date from events.
CREATE TABLE order_totals (customer int PRIMARY KEY, orders int, cents bigint);

-- The ledger inside: written in the job's own transaction. No unique key, so a duplicate would show.
CREATE TABLE receipts (order_id int, job_id uuid, fence text COLLATE "C");

-- The ledger outside: what the mail server saw. Nothing written here can be rolled back.
CREATE TABLE mails (order_id int, job_id uuid, fence text COLLATE "C", generation int, pid int,
                    at timestamptz DEFAULT clock_timestamp());

CREATE TABLE parcels (n int GENERATED ALWAYS AS IDENTITY, customer text, number int);
"""

SLOW_ORDER = 42  # its mail takes three seconds: time enough to pull the plug


@event("order.paid", key="customer:{customer}")
@dataclass
class OrderPaid:
    order_id: int
    customer: int
    cents: int


def pay(conn: psycopg.Connection[Any], order_id: int) -> Published:
    """Call it in a transaction: payment, job and event commit together."""
    conn.execute("UPDATE orders SET paid_at = now() WHERE id = %s", [order_id])
    send_receipt.using(conn=conn).enqueue(order_id=order_id)
    return app.publish(OrderPaid(order_id, customer=order_id % 10, cents=995), conn=conn)


@app.projection("order_totals", on=OrderPaid, tables=["order_totals"])
def totals(tx: Transaction, event: Event[OrderPaid]) -> None:
    """The row and the position in the log commit together: each payment is counted exactly once."""
    tx.execute(
        "INSERT INTO order_totals AS t VALUES (%s, 1, %s) ON CONFLICT (customer)"
        " DO UPDATE SET orders = t.orders + 1, cents = t.cents + excluded.cents",
        [event.data.customer, event.data.cents],
    )


@app.task
def send_receipt(job: Job, tx: Transaction, order_id: int) -> None:
    """Writes through `tx` commit together with the job's completion, exactly once."""
    send_mail(job, order_id)
    tx.execute("INSERT INTO receipts VALUES (%s, %s, %s)", [order_id, job.id, job.fence])


def send_mail(job: Job, order_id: int) -> None:
    """Outside our transaction, so it may happen again after a crash: with the same job id and a higher fence."""
    with psycopg.connect(app.database.dsn, autocommit=True) as outside:
        outside.execute(
            "INSERT INTO mails (order_id, job_id, fence, generation, pid) VALUES (%s, %s, %s, %s, %s)",
            [order_id, job.id, job.fence, job.generation, os.getpid()],
        )
    time.sleep(3.0 if order_id == SLOW_ORDER else 0.4)  # the mail server takes its time to say "accepted"


@app.task(queue="parcels")
def ship(tx: Transaction, customer: str, number: int) -> None:
    """Enqueued with `ship.using(partition_key=customer)`: one worker owns all of a customer's parcels."""
    time.sleep(0.1)
    tx.execute("INSERT INTO parcels (customer, number) VALUES (%s, %s)", [customer, number])
