from holdfast import sharded_key
from holdfast import Event, GitHub, Job, ReceivedMessage, Transaction, event, upcast
from good import app, billing, both, index, order_totals, receipt, send_receipt, settle, nightly, crunch, OrderPaid, OrderPaidLater, OrderRefunded
from holdfast import SyncWorkflow, Workflow as Wf
from workflow_examples import CANCELLED, album, app as flows, book_paper, charge, checkout, thumbnail
send_receipt.enqueue("1")  # error
send_receipt.enqueue()  # error
send_receipt.using(delya=1)  # error
send_receipt.using(run_after=[1])  # error
settle.enqueue(tx=None, invoice_id=1)  # error
both.enqueue(1, 2)  # error
app.schedule("0 3 * * *", nightly)  # error
app.enqueue_many([crunch.job(rows=["x"])])  # error
app.queue("o", ordering="keys")  # error
index.enqueue(1)  # error
index.enqueue()  # error
billing.batch_task(sise=1)  # error
billing.batch_task()(nightly.func)  # error
billing.task(breaker=5)  # error
sharded_key("t", shards="8")  # error
app.publish(OrderPaid(1, 5), version=3)  # error
app.publish("order.paid", [1])  # error
app.publish(OrderPaid(1, 5), key=7)  # error
app.publish_many(OrderPaid(1, 5))  # error
app.events.append("order:1", [OrderPaid(1, 5)], expected_version="7")  # error
event(OrderPaid)  # error
app.on(OrderPaid, start="yesterday")  # error
app.on(OrderPaid, quue="mail")  # error
app.projection("p", on=OrderPaid, poison="ignore")  # error
app.projection("p", on=OrderPaid, shards="2")  # error
def wrong_type(e: Event[OrderRefunded]) -> None: ...
app.on(OrderPaid)(wrong_type)  # error
def wrong_field(e: Event[OrderPaid]) -> None: print(e.data.dollars)  # error
def between(job: Job, e: Event[OrderPaid], tx: Transaction) -> None: ...
app.on(OrderPaid)(between)  # error
def no_transaction(e: Event[OrderPaid]) -> None: ...
app.projection("p", on=OrderPaid)(no_transaction)  # error
def of_another(tx: Transaction, e: Event[OrderRefunded]) -> None: ...
app.projection("p", on=OrderPaid)(of_another)  # error
receipt.reset("middle")  # error
receipt.replay("start")  # error
order_totals.read_your_writes("all")  # error
event("a.b", compatibility="both")  # error
event("a.b", version="2")  # error
def wrong_way(old: OrderPaidLater) -> OrderPaid: return OrderPaid(1, 5)
upcast(OrderPaid, OrderPaidLater)(wrong_way)  # error
def to_another(old: OrderPaid) -> OrderRefunded: return OrderRefunded(1, 5)
upcast(OrderPaid, OrderPaidLater)(to_another)  # error
upcast("order.paid", OrderPaidLater)  # error
app.contracts.check("contracts.json")  # error
app.contracts.store(OrderPaid)  # error
app.receive("x", OrderPaid, verify="secret")  # error
app.receive("x", OrderPaid, verify=GitHub("s"), misfit="drop")  # error
def wrong_payload(m: ReceivedMessage[OrderRefunded]) -> None: ...
app.receive("x", OrderPaid, verify=GitHub("s"))(wrong_payload)  # error
def other_first(m: ReceivedMessage[OrderRefunded], tx: Transaction) -> None: ...
app.receive("x", OrderPaid, verify=GitHub("s"))(other_first)  # error
app.consume("x", GitHub("s"), OrderPaid)  # error
@flows.workflow()
async def wrong_flow(wf: Wf) -> int:
    a: int = await wf.step(charge, 1, 2)  # error
    await wf.step(charge, "1", 2)  # error
    await wf.step(charge, 1)  # error
    await wf.call(thumbnail, 3)  # error
    await wf.start(album, "x")  # error
    checkout.start(1)  # error
    checkout.new("1", cents=2)  # error
    checkout.start_many([1])  # error
    run = checkout.start(1, cents=2)
    run.signal(CANCELLED({"who": "x"}))  # error
    r: int = run.result()  # error
    got = await wf.signal(CANCELLED, timeout=3)
    got["by"]  # error
    return a + r
@flows.workflow()
def wrong_plain(wf: SyncWorkflow) -> int:
    wf.transact(book_paper, "many")  # error
    wf.transact(charge, 1, 2)  # error
    wf.publish("x", 3)  # error
    wf.using(max_attempts=2).transact(book_paper, "many")  # error
    wf.using(id="x")  # error
    return wf.transact(book_paper, 3)
