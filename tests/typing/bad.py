from holdfast import sharded_key
from good import app, billing, both, index, send_receipt, settle, nightly, crunch
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
