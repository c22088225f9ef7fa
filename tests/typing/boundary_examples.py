"""Six uses of the boundaries, and what a type checker makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

import psycopg
from pydantic import BaseModel

from holdfast import (
    ASGI,
    AsyncTransaction,
    Backoff,
    Breaker,
    Capabilities,
    Confirmed,
    Egress,
    Event,
    GitHub,
    Health,
    Holdfast,
    OutMessage,
    Rate,
    ReceivedMessage,
    Refused,
    RetryLater,
    Scope,
    Stripe,
    Subscription,
    Transaction,
    event,
    nats,
    nats_source,
    upcast,
)
from holdfast.transport import Outcome

app = Holdfast("postgresql://unused.invalid/none")

# 1. Contracts: two versions of one type, and how the old becomes the new -----------------------------------------


@event("order.paid", version=1, key="order:{order_id}")
class OrderPaidV1(BaseModel):
    order_id: int
    amount: float


@event("order.paid", version=2, key="order:{order_id}", compatibility="backward")
class OrderPaid(BaseModel):
    order_id: int
    cents: int
    currency: str = "EUR"


@event("order.refunded", key="order:{order_id}")
@dataclass
class OrderRefunded:
    order_id: int
    cents: int


@upcast(OrderPaidV1, OrderPaid)
def in_cents(old: OrderPaidV1) -> OrderPaid:
    return OrderPaid(order_id=old.order_id, cents=round(old.amount * 100))


# 2. Publish in the caller's transaction, consume in a job ---------------------------------------------------------


def pay(conn: psycopg.Connection[Any], order_id: int, cents: int) -> UUID:
    conn.execute("UPDATE orders SET paid_at = now() WHERE id = %s", [order_id])
    return app.publish(OrderPaid(order_id=order_id, cents=cents), headers={"tenant": "acme"}, conn=conn).id


async def pay_by_name(conn: psycopg.AsyncConnection[Any]) -> None:
    await app.apublish("order.paid", {"order_id": 1, "cents": 995}, version=2, key="order:1", conn=conn)
    await app.apublish_many([OrderRefunded(1, 5), OrderPaid(order_id=2, cents=10)], conn=conn)


@app.on(OrderPaid, queue="mail", max_attempts=8, retry=Backoff(first=5, cap=600), breaker=Breaker(failures=5, within=60, cooldown=30))
async def send_receipt(paid: Event[OrderPaid]) -> None:
    print(paid.id, paid.data.order_id, paid.data.cents)


@app.on(OrderPaid, OrderRefunded)
def book(e: Event[OrderPaid | OrderRefunded], tx: Transaction) -> None:
    sign = -1 if isinstance(e.data, OrderRefunded) else 1
    tx.execute("INSERT INTO ledger VALUES (%s, %s)", [e.data.order_id, sign * e.data.cents])


@app.on("order.*", start="start")
def audit(e: Event[Any]) -> None:
    print(e.position, e.type, e.cloudevent())


# 3. A projection: effect and cursor in one transaction, rebuilt beside the live table ----------------------------


@app.projection("order_totals", on=(OrderPaid, OrderRefunded), tables=["order_totals"])
async def order_totals(tx: AsyncTransaction, batch: Sequence[Event[OrderPaid | OrderRefunded]]) -> None:
    for e in batch:
        await tx.execute("INSERT INTO order_totals VALUES (%s, %s) ON CONFLICT (order_id) DO UPDATE SET cents = excluded.cents", [e.data.order_id, e.data.cents])


def rebuild() -> tuple[int, int]:
    events, seconds = order_totals.lag()
    print(events, seconds)
    return order_totals.rebuild(version=2, rate=Rate(5000)).progress()


# 4. A relay, and a transport of one's own ------------------------------------------------------------------------

bus: Subscription = app.relay("bus", nats("nats://127.0.0.1:4222", stream="SHOP"), on=["order.*"], route="shop.{type}.{key}")


class LogTransport:
    """A third party's transport: 20 lines, no base class."""

    capabilities = Capabilities(order="destination", in_flight="prefix", dedup="none", max_bytes=65_536)

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        out: list[Outcome] = []
        for m in batch:
            if not m.destination:
                out.append(Refused("unroutable", "no destination"))
            elif m.destination.startswith("busy"):
                out.append(RetryLater("busy", after=5, scope="destination"))
            else:
                print(m.id, m.body)
                out.append(Confirmed())
        return out

    async def check(self, destinations: Sequence[str] | Any) -> Health:
        return Health(True)


app.relay("log", LogTransport(), on=["*"], route=lambda e: e.type, refused="skip")

# 5. Webhooks out: endpoints of tenants, their portal -------------------------------------------------------------

hooks = app.webhooks(on=["order.*"], tenant="tenant", disable_after=timedelta(days=5), egress=Egress(deny_networks=["198.51.100.0/24"]))

followed: Subscription = hooks  # lag, pause, resume, reset, replay


def new_endpoint(conn: psycopg.Connection[Any], tenant: str, url: str) -> str:
    endpoint = hooks.endpoints.create(tenant=tenant, url=url, events=["order.paid"], ordered=True, rate=Rate(10), conn=conn)
    assert endpoint.secret is not None
    return endpoint.secret.value


def after_an_outage(endpoint: UUID, since: datetime) -> int:
    hooks.ping(endpoint, tenant="acme")
    return hooks.redeliver_range(endpoint, tenant="acme", since=since, only="failed", rate=Rate(50))


async def who(scope: Scope) -> str | None:
    return "acme" if dict(scope["headers"]).get(b"authorization") == b"Bearer t0ken" else None


portal: ASGI = hooks.portal(authorize=who)

# 6. Receive: from HTTP and from a broker -------------------------------------------------------------------------


class StripeEvent(TypedDict):
    id: str
    type: str
    data: dict[str, Any]


@app.receive("stripe", StripeEvent, verify=Stripe(lambda: ["whsec_new", "whsec_old"]), queue="billing")
async def on_stripe(message: ReceivedMessage[StripeEvent], tx: AsyncTransaction) -> None:
    await tx.execute("INSERT INTO stripe_events VALUES (%s, %s)", [message.id, message.data["type"]])


@app.receive("github", dict[str, Any], verify=GitHub("s3cret"), max_bytes=25 << 20)
def on_push(message: ReceivedMessage[dict[str, Any]]) -> None:
    print(message.data["ref"])


@app.consume("warehouse", nats_source("nats://127.0.0.1:4222", stream="WH", durable="shop"), OrderRefunded, key="order:{order_id}")
async def on_refund(message: ReceivedMessage[OrderRefunded]) -> None:
    print(message.data.cents)


stripe_app: ASGI = on_stripe.asgi  # FastAPI: api.mount("/hooks/stripe", on_stripe.asgi)


def django_view(headers: dict[str, str], body: bytes, connection: object) -> int:
    """In atomic(): the message, its job and the view's own rows commit together; answer the status after it."""
    return on_push.accept(headers, body, conn=connection).status
