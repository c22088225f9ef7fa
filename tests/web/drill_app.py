"""The shop of the drill: what it depends on is up or down as a test says, so that a cause can come and go."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from holdfast import (
    Backoff,
    Breaker,
    DeadLetter,
    Event,
    Holdfast,
    Registry,
    Transaction,
    Workflow,
    event,
)

QUICKLY = Backoff(first=0.01, cap=0.02)
down: set[str] = set()  # what does not work at this moment
shop = Registry("drill")
shop.queue("mail")
shop.queue("reports", concurrency=1)
shop.queue("parcels", ordering="key", on_dead_letter="block")


@event("order.paid")
@dataclass
class OrderPaid:
    number: int


@shop.task(name="mail.send", queue="mail", max_attempts=1)
def send(number: int) -> None:
    if "mail" in down:
        raise ConnectionRefusedError(f"mail.example refused letter {number}")


@shop.task(
    name="billing.charge",
    max_attempts=50,
    retry=QUICKLY,
    breaker=Breaker(failures=2, within=60, cooldown=3600),
)
def charge(number: int) -> None:
    if "bank" in down:
        raise TimeoutError("bank.example did not answer")


@shop.task(name="parcels.ship", queue="parcels", max_attempts=1)
def ship(number: int) -> None:
    if "carrier" in down:
        raise DeadLetter("the carrier has no such street")


@shop.task(name="reports.render", queue="reports")
async def render(number: int) -> None:
    while number == 0 and "printer" in down:  # noqa: ASYNC110 it is up when a test says so
        await asyncio.sleep(0.01)


@shop.projection("totals", on=OrderPaid, tables=["totals"], max_attempts=1, retry=QUICKLY)
def totals(tx: Transaction, event: Event[OrderPaid]) -> None:
    if "totals" in down:
        raise ValueError("there is no column cents")
    tx.execute("INSERT INTO totals VALUES (%s)", [event.data.number])


@shop.workflow(name="checkout")
async def checkout(wf: Workflow) -> str:
    first, then = (pack, pay) if "release" in down else (pay, pack)
    await wf.step(first)
    await wf.sleep(timedelta(minutes=1))
    await wf.step(then)
    return "done"


async def pay() -> str:
    return "paid"


async def pack() -> str:
    return "packed"


app = Holdfast(include=[shop])  # for a worker: the database that the environment names
