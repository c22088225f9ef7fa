"""Four workflows, and what a type checker makes of them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from holdfast import (
    AsyncTransaction,
    Backoff,
    NonRetryable,
    Registry,
    Signal,
    StepFailed,
    SyncWorkflow,
    Transaction,
    Workflow,
    current_step,
    event,
)
from holdfast.testing import WorkflowKit

app = Registry()

# 1. Checkout: a saga ------------------------------------------------------------------------------------------


class Cancellation(TypedDict):
    by: str


CANCELLED = Signal("cancelled", Cancellation)


async def reserve_stock(tx: AsyncTransaction, order_id: int) -> list[str]:
    await tx.execute("UPDATE stock SET reserved = reserved + 1 WHERE order_id = %s", [order_id])
    return ["SKU-1"]


async def release_stock(order_id: int) -> None: ...


async def charge(order_id: int, cents: int) -> str:
    step = current_step()
    if cents <= 0:
        raise NonRetryable("nothing to charge")
    return f"ch_{order_id}_{step.idempotency_key}"  # the same key in every attempt


async def refund(order_id: int) -> None: ...


async def make_label(order_id: int) -> str:
    return f"label-{order_id}"


@app.workflow(version=2, sticky=0.1)
async def checkout(wf: Workflow, order_id: int, cents: int) -> str:
    # pushed before the step that it undoes: a crash in between undoes too much, never too little
    wf.on_failure(release_stock, order_id)
    skus = await wf.transact(reserve_stock, order_id)
    wf.on_failure(refund, order_id)
    bank = wf.using(retry=Backoff(first=5, cap=600), max_attempts=8, timeout=30)
    try:
        charged, label = await wf.gather(bank.step(charge, order_id, cents), wf.step(make_label, order_id))
    except StepFailed as failed:
        wf.set_state({"failed": failed.key, "why": failed.kind})
        await wf.compensate()
        return "refused"
    wanted = await wf.signal(CANCELLED, timeout=timedelta(hours=1))
    if wanted:
        wf.set_state({"cancelled by": wanted.value["by"]})
        await wf.compensate()
        return "cancelled"
    await wf.sleep(timedelta(days=2))
    child = await wf.using(id=f"ship:{order_id}").start(ship, order_id, label)
    return f"{charged} {len(skus)} {await child.result()}"


@app.workflow
async def greet(wf: Workflow, name: str) -> str:
    """Without parentheses."""
    return f"hello {name}"


@app.workflow()
def ship(wf: SyncWorkflow, order_id: int, label: str) -> str:
    """A plain def: it runs in a thread and reads from top to bottom."""

    def book() -> str:
        return f"truck for {label}"

    truck = wf.step(book)
    wf.sleep(3600)
    return truck


# 2. Human approval with a timeout ------------------------------------------------------------------------------


class Decision(TypedDict):
    yes: bool
    who: str


DECIDED = Signal("decided", Decision)


async def ask(manager: str, expense: int) -> None: ...


@app.workflow(sticky=0.1)
async def approval(wf: Workflow, expense: int, managers: list[str]) -> str:
    for manager in managers:  # the same step name in a loop: ask, ask#2, ask#3
        await wf.step(ask, manager, expense)
        decision = await wf.signal(DECIDED, timeout=timedelta(days=3))
        if decision:
            return "approved" if decision.value["yes"] else "refused"
    return "nobody answered"


# 3. Fan-out with limits ---------------------------------------------------------------------------------


@app.task(queue="thumbnails", max_attempts=3)  # the queue has concurrency=50: a limit over the whole fleet
async def thumbnail(path: str) -> int:
    return len(path)


async def list_pages(album: int) -> list[str]:
    return [f"{album}/{n}.jpg" for n in range(200)]


@app.workflow()
async def album(wf: Workflow, number: int) -> int:
    pages = await wf.step(list_pages, number)
    sizes = await wf.map(thumbnail, pages, limit=20)  # 200 jobs, at most 20 of this run at once, one wake-up
    return sum(sizes)


# 4. An endless subscription ----------------------------------------------------------------------------------------

STOP = Signal("stop", str)


async def bill(customer: int, period: int) -> bool:
    return True


@app.workflow(sticky=0.1)
async def subscription(wf: Workflow, customer: int, period: int = 0) -> str:
    for _ in range(12):
        if wf.patched("grace"):
            paid = await wf.using(max_attempts=30, deadline=timedelta(days=10)).step(bill, customer, period)
        else:
            paid = await wf.step(bill, customer, period)
        if not paid:
            return "unpaid"
        period += 1
        if stop := await wf.signal(STOP, timeout=timedelta(days=30)):
            return f"stopped: {stop.value}"
    wf.continue_as_new(customer, period=period)  # a new history; unread signals, id and tags move along


# 5. A plain workflow with a transaction, events out, and a step that says how far it is ------------------------------


@event("album.printed", key="album:{number}")
@dataclass
class AlbumPrinted:
    number: int
    pages: int


def book_paper(tx: Transaction, pages: int) -> int:
    tx.execute("UPDATE paper SET sheets = sheets - %s", [pages])
    return pages


def print_pages(number: int, pages: int) -> int:
    for page in range(pages):
        current_step().heartbeat(f"page {page} of {pages} of album {number}")
    return pages


@app.workflow(sticky=0.1)
def printing(wf: SyncWorkflow, number: int, pages: int) -> int:
    sheets: int = wf.transact(book_paper, pages)
    done: int = wf.using(max_attempts=3, timeout=60).step(print_pages, number, sheets)
    wf.publish(AlbumPrinted(number, done))
    return done


@app.workflow(sticky=0.1)
async def announce(wf: Workflow, number: int) -> None:
    wf.publish("album.announced", {"number": number}, key=f"album:{number}")  # with the next record
    await wf.publish(AlbumPrinted(number, 0))  # now


async def test_printing(kit: WorkflowKit) -> None:
    report = kit.crash_everywhere(lambda: printing.start(1, pages=2), also=["printed"])
    report.assert_same()
    async with kit.mock(print_pages, lambda number, pages: pages):
        pages: int = await kit.arun(printing.start(1, pages=2))
    async for entries in kit.histories(printing, limit=10):
        print([entry.key for entry in entries], pages)


def test_checkout(kit: WorkflowKit) -> None:
    assert kit.run(checkout.start(1, cents=5), skip_time=True).startswith("ch_1")
    report = kit.crash_everywhere(lambda: checkout.start(2, cents=5))
    report.assert_same()
    assert report.repeats["reserve_stock"] == 1  # a Transaction step is never repeated once it committed


# From the outside ------------------------------------------------------------------------------------------------------


async def shop(conn: object) -> str:
    many = await checkout.astart_many((checkout.using(id=f"checkout:{n}").new(n, cents=5) for n in (1, 2)), conn=conn)
    first: str = many[0].id
    print(first)
    run = await checkout.using(id="checkout:9182", conn=conn).astart(9182, cents=995)
    await run.asignal(CANCELLED({"by": "customer"}), idempotency_key="click-1", conn=conn)
    return await run.aresult(timeout=10)

