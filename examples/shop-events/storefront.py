"""A shop at its boundaries: FastAPI and SQLAlchemy inside, a broker, a warehouse and a payment provider outside.

An order and its event are one transaction. From the log the event goes to NATS (a relay), to the warehouse (a webhook)
and into `customer_totals` (a projection). The payment provider calls back (a receiver), and that makes the next event.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import psycopg
from fastapi import Depends, FastAPI
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.routing import Route

from holdfast import (
    AsyncTransaction,
    Egress,
    Event,
    Holdfast,
    ReceivedMessage,
    StandardWebhooks,
    Transaction,
    event,
)
from holdfast.contrib.nats import nats

WAREHOUSE_PORT = int(os.environ.get("WAREHOUSE_PORT", "8090"))
PAYMENTS_SECRET = os.environ.get("PAYMENTS_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
STREAM = "SHOP"
WAREHOUSE = {"tenant": "warehouse"}  # headers of an event: whose endpoints get it

shop = Holdfast()  # the database that HOLDFAST_DATABASE_URL names


async def connect() -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(shop.database.dsn)


engine = create_async_engine("postgresql+psycopg://", async_creator=connect, pool_size=10)
Session = async_sessionmaker(engine)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[int]
    cents: Mapped[int]
    paid_at: Mapped[datetime | None]


class CustomerTotal(Base):
    """The read model: what each customer has paid."""

    __tablename__ = "customer_totals"
    customer: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    orders: Mapped[int]
    cents: Mapped[int]


@event("order.placed", key="customer:{customer}")
@dataclass
class OrderPlaced:
    order_id: int
    customer: int
    cents: int


@event("order.paid", key="customer:{customer}")
@dataclass
class OrderPaid:
    order_id: int
    customer: int
    cents: int


# The ways out ---------------------------------------------------------------------------------------------------------

relay = shop.relay(
    "broker",
    nats(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"), stream=STREAM),
    on=["order.*"],
    route="shop.{type}.{key}",
)

hooks = shop.webhooks(
    on=["order.*"],
    tenant="tenant",  # the header that says whose endpoints an event goes to
    schedule=[1, 1, 2, 2, 3, 3, 5, 5],  # over seconds, where a real shop takes the default: over days
    egress=Egress(
        allow_http=True, allow_networks=["127.0.0.1/32"], ports=[WAREHOUSE_PORT]
    ),  # loopback: a demo
)


@shop.projection("customer_totals", on=OrderPaid, tables=["customer_totals"])
def totals(tx: Transaction, event: Event[OrderPaid]) -> None:
    tx.execute(
        "INSERT INTO customer_totals AS t VALUES (%s, 1, %s) ON CONFLICT (customer)"
        " DO UPDATE SET orders = t.orders + 1, cents = t.cents + excluded.cents",
        [event.data.customer, event.data.cents],
    )


# The way in -----------------------------------------------------------------------------------------------------------


@dataclass
class Payment:
    order_id: int
    cents: int


@shop.receive("payments", Payment, verify=StandardWebhooks(PAYMENTS_SECRET), key="order:{order_id}")
async def payment_came(tx: AsyncTransaction, message: ReceivedMessage[Payment]) -> None:
    """The order, its event and the completion of the job commit together: a payment counts once."""
    paid = message.data
    found = await tx.execute(
        "UPDATE orders SET paid_at = now() WHERE id = %s AND paid_at IS NULL RETURNING customer",
        [paid.order_id],
    )
    if row := await found.fetchone():
        await shop.apublish(OrderPaid(paid.order_id, row[0], paid.cents), headers=WAREHOUSE, conn=tx)


# The shop itself ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with shop:
        yield
    await engine.dispose()


web = FastAPI(lifespan=lifespan, routes=[Route("/hooks/payments", payment_came.asgi, methods=["POST"])])


def create_tables() -> None:
    """With a connection of psycopg: the engine belongs to the loop of the web server."""
    with create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(shop.database.dsn)
    ).begin() as conn:
        Base.metadata.create_all(conn)


async def session() -> AsyncIterator[AsyncSession]:
    async with Session() as session:
        yield session


@web.post("/orders", status_code=201)
async def place(
    customer: int, cents: int, session: Annotated[AsyncSession, Depends(session)]
) -> dict[str, int]:
    async with session.begin():  # committed before the response, not after it
        order = Order(customer=customer, cents=cents)
        session.add(order)
        await session.flush()
        placed = OrderPlaced(order.id, customer, cents)
        await shop.apublish(placed, headers=WAREHOUSE, conn=session)
    return {"order_id": placed.order_id}
