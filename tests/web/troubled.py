"""A shop in trouble, of every shape: for the pictures in the docs and for tests in a real browser."""

import contextlib
import linecache
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar

import psycopg
import uvicorn

from holdfast import Breaker, DeadLetter, Event, Holdfast, Registry, Signal, Transaction, Workflow, event
from holdfast.testing import Kit
from holdfast.web.application import Dashboard

P = ParamSpec("P")
T = TypeVar("T")
SHIPPED = Signal("shipped", str)
PLACE = "/srv/shop/billing.py"  # where a traceback finds the shop's code, wherever this file is
linecache.cache[PLACE] = (
    1,
    None,
    Path(__file__).read_text(encoding="utf-8").splitlines(keepends=True),
    PLACE,
)


def of_the_shop(function: Callable[P, T]) -> Callable[P, T]:
    function.__code__ = function.__code__.replace(co_filename=PLACE)
    return function


@event("order.paid", key="customer:{customer}")
@dataclass
class OrderPaid:
    order_id: int
    customer: int
    cents: int


shop = Registry("shop")
shop.queue("billing", concurrency=20)
shop.queue("mail", concurrency=20)
shop.queue("parcels", ordering="key", on_dead_letter="block")


@shop.task(
    name="billing.charge",
    queue="billing",
    max_attempts=8,
    breaker=Breaker(failures=5, within=60, cooldown=600),
)
@of_the_shop
def charge(order_id: int, cents: int, currency: str, card_token: str) -> None:
    raise TimeoutError("psp.example:443 did not answer in 5 s")


@shop.task(name="mail.send_receipt", queue="mail", max_attempts=1)
def send_receipt(order_id: int, to: str) -> str:
    if order_id % 9 == 0:
        raise ConnectionRefusedError(f"550 5.1.1 mailbox of {to} does not exist")
    return f"sent {order_id}"


@shop.task(name="reports.render", max_attempts=1)
def render(month: str) -> None:
    raise MemoryError("the report used more than 1 GiB")


@shop.task(name="parcels.ship", queue="parcels")
def ship(number: int) -> None:
    if number == 2:
        raise DeadLetter("AddressRejected: the carrier has no such street")


@shop.task(name="search.reindex")
def reindex(product: int) -> int:
    return product


shop.schedule("0 3 * * *", reindex.job(product=1), tz="Europe/Berlin", name="nightly-reindex")
shop.schedule(timedelta(minutes=15), reindex.job(product=2), name="reindex-often")


@shop.on(OrderPaid)
def book(event: Event[OrderPaid]) -> None:
    """A consumer."""


@shop.projection("order_totals", on=OrderPaid, tables=["order_totals"])
def totals(tx: Transaction, event: Event[OrderPaid]) -> None:
    tx.execute(
        "INSERT INTO order_totals AS t VALUES (%s, %s) ON CONFLICT (customer)"
        " DO UPDATE SET cents = t.cents + excluded.cents",
        [event.data.customer, event.data.cents],
    )


@shop.workflow(name="checkout")
async def checkout(wf: Workflow, order_id: int) -> str:
    wf.on_failure(give_back, order_id)
    await wf.step(reserve, order_id)
    await wf.step(pay, order_id)
    shipment = await wf.signal(SHIPPED, timeout=timedelta(days=3))
    return str(shipment.value)


async def reserve(order_id: int) -> str:
    return f"reserved {order_id}"


async def pay(order_id: int) -> str:
    if order_id == 13:
        raise ValueError("the card is declined")
    return f"paid {order_id}"


async def give_back(order_id: int) -> None:
    """The compensation."""


def make_trouble(kit: Kit) -> None:
    """What an on-call person finds in the morning."""
    app = kit.app
    with psycopg.connect(kit.url, autocommit=True) as conn:
        conn.execute("CREATE TABLE order_totals (customer int PRIMARY KEY, cents bigint)")
    for n in range(1, 60):
        app.send(
            "mail.send_receipt",
            {"order_id": n, "to": f"customer{n}@gmial.example"},
            queue="mail",
            tags=["vip"],
        )
        app.publish(OrderPaid(n, customer=n % 7, cents=995))
    for n in range(1, 12):
        payload = {"order_id": 9170 + n, "cents": 4995, "currency": "EUR", "card_token": "tok_live_4242"}
        app.send("billing.charge", payload, queue="billing", partition_key=f"order:{9170 + n}")
    for n in range(1, 5):
        app.send("parcels.ship", {"number": n}, queue="parcels", partition_key="order:9182")
    app.send("reports.render", {"month": "2026-05"})
    for n in range(1, 40):
        app.send("search.reindex", {"product": n})
    for n in (11, 12):
        checkout.using(id=f"order:{n}").start(order_id=n)
    kit.run_worker(concurrency=4)
    for n in range(1, 25):
        app.send("search.reindex", {"product": n}, run_after=timedelta(hours=n))
    for n in range(100, 112):
        app.send("search.reindex", {"product": n})


def shop_app() -> Holdfast:
    return Holdfast("postgresql://unused.invalid/none", include=[shop])


app = Holdfast(include=[shop])  # for a worker: the database that the environment names


@contextlib.contextmanager
def served(made: Dashboard, port: int = 0) -> Iterator[str]:
    """The dashboard on a real port, in a thread of its own."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()  # who comes before it serves waits
    config = uvicorn.Config(
        made, log_level="error", access_log=False, lifespan="on", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        sock.close()
