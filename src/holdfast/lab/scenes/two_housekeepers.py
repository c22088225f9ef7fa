"""Scene 8: two housekeepers. A worker dies with jobs in hand, and two others clean up after it at the same time."""

import os
import random

from holdfast import Holdfast, Job, Transaction
from holdfast.lab import outside
from holdfast.lab.acting import JOIN, KILL
from holdfast.lab.scene import DONE, JOBS, RECEIPTS, RECEIPTS_TABLE, Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage

app = Holdfast()
app.queue("care")
IN_HAND = "with jobs in hand"
BROOM = "with the list in hand"


@app.task(max_attempts=20)
def send_receipt(job: Job, tx: Transaction, order_id: int) -> None:
    outside.rest(IN_HAND, job)
    tx.execute(
        "INSERT INTO receipts (order_id, generation, pid) VALUES (%s, %s, %s)",
        [order_id, job.generation, os.getpid()],
    )


@app.task(queue="care")
def clean_up(job: Job) -> None:
    """A housekeeper as it is often written: read which orders have no receipt, then enqueue those again."""
    with outside.apart(app) as conn:
        rows = conn.execute(
            "SELECT order_id FROM asked a WHERE NOT EXISTS (SELECT FROM receipts r WHERE r.order_id = a.order_id)"
        ).fetchall()
    outside.did(f"finds {len(rows)} orders without a receipt", job, tone="retry")
    outside.rest(BROOM, job)
    for (order_id,) in rows:
        send_receipt.enqueue(order_id=order_id)
    outside.did(f"enqueues {len(rows)} receipts again", job, tone="dead")


def _pay(stage: Stage) -> None:
    count = int(stage.values["orders"])
    first = stage.number("SELECT count(*) FROM asked")
    stage.sql("INSERT INTO asked SELECT generate_series(%s::int, %s::int)", [first + 1, first + count])
    app.enqueue_many(send_receipt.job(order_id=first + n) for n in range(1, count + 1))
    stage.note(f"pays {count} orders", "done")


def _hold(stage: Stage) -> None:
    on = not stage.holds_at(IN_HAND)
    stage.hold(IN_HAND, on)
    stage.note("holds the handlers" if on else "lets the handlers go", "held")


def _crash(stage: Stage) -> None:
    """Kill the worker that holds most, and call the housekeepers."""
    held = {
        worker["name"]: worker.get("jobs") or 0 for worker in stage.workers() if worker["state"] == "running"
    }
    name = max(held, key=lambda each: held[each])
    member = stage.crew.member(name)
    stage.sql("INSERT INTO dead_pids VALUES (%s)", [member.pid])
    stage.note(f"kill -9 {name}, which holds {held[name]} jobs", "dead")
    member.kill()
    if stage.unsafe:
        for _ in range(2):
            clean_up.enqueue()


def _begin(stage: Stage) -> None:
    for _ in range(3):
        stage.start()


def _play(stage: Stage, chance: random.Random) -> None:
    stage.wait(lambda: stage.number("SELECT count(*) FROM holdfast.workers") >= 3, "three workers are there")
    stage.values["orders"] = float(chance.randint(6, 9))
    stage.hold(IN_HAND)
    if stage.unsafe:
        stage.hold(BROOM)
    stage.act("pay")
    running = "SELECT count(*) FROM holdfast.work WHERE task = 'send_receipt' AND status = 'processing'"
    stage.wait(lambda: stage.number(running) == stage.values["orders"], "all jobs are in hand")
    stage.act("crash")
    if stage.unsafe:
        stage.wait(lambda: stage.tape.count("waits " + BROOM) == 2, "both housekeepers have their list")
        stage.hold(BROOM, False)
    stage.hold(IN_HAND, False)
    stage.until_idle()


SCENE = Scene(
    number=8,
    name="two_housekeepers",
    title="Two housekeepers",
    short="Housekeepers",
    lead="A worker dies with jobs in hand, and two others clean up at the same time.",
    story=(
        Chapter(
            "Hold the handlers, and pay orders: three workers take them.",
            lambda s: s.number("SELECT count(*) FROM asked") > 0,
        ),
        Chapter(
            "Kill one that holds jobs. Each of the others could take them back.",
            lambda s: s.number("SELECT count(*) FROM dead_pids") > 0,
        ),
        Chapter(
            "One of them has the turn to sweep, by the clock in a row. It takes the jobs back, once.",
            lambda s: s.tape.count("job.swept") > 0,
        ),
        Chapter(
            "Let the handlers go. Each order has one receipt.",
            lambda s: (
                s.number("SELECT count(*) FROM dead_pids") > 0
                and not s.number("SELECT count(*) FROM holdfast.work")
            ),
        ),
    ),
    promise=Promise(
        "A job whose owner is gone is taken back once, however many clean up.",
        (
            ("orders", "SELECT count(*) FROM asked"),
            (
                "taken back",
                "SELECT count(*) FROM holdfast.jobs WHERE task = 'send_receipt' AND lease_generation > 1",
            ),
            (
                "orders with two receipts",
                "SELECT count(*) FROM (SELECT FROM receipts GROUP BY order_id HAVING count(*) > 1) r",
            ),
        ),
        ("orders with two receipts",),
    ),
    unsafe="Two housekeepers of your own",
    then="Two jobs look for orders without a receipt and enqueue those again, as a script in a cron would. Both find the "
    "same, and so does Holdfast: three receipts.",
    schema=(
        "CREATE TABLE asked (order_id int PRIMARY KEY)",
        "CREATE TABLE dead_pids (pid int PRIMARY KEY)",
        RECEIPTS_TABLE,
    ),
    tables=(
        JOBS,
        RECEIPTS,
        Rows(
            "holdfast.engine",
            "SELECT 'turn' AS whose, to_char(last_sweep_at, 'HH24:MI:SS.MS') AS last_sweep FROM holdfast.engine",
            "the clock that says whose turn it is",
            ("last_sweep",),
        ),
        Rows(
            "holdfast.workers",
            "SELECT pid, status, ended, fenced_at IS NOT NULL AS fenced FROM holdfast.workers ORDER BY started_at LIMIT 20",
            "workers and their status",
        ),
        DONE,
    ),
    acts=(
        Act("pay", "Pay orders", _pay),
        Act("hold", "Hold the handlers", _hold, "lock"),
        Act("crash", "Kill one with jobs", _crash, "bolt"),
        JOIN,
        KILL,
    ),
    play=_play,
    app=app,
    knobs=(
        Knob("orders", "Orders", 9, 3, 60, "", 3),
        Knob("concurrency", "Jobs at a time, each worker", 8, 1, 20),
    ),
    settings={"concurrency": 8, "prefetch": 0},
    begin=_begin,
)
