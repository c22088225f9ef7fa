"""Scene 2: crash and dedupe. A worker is killed before or after its mail, and the api enqueues the same receipt twice."""

import os
import random

from holdfast import Holdfast, Job, Transaction
from holdfast.lab import outside
from holdfast.lab.acting import FREEZE, JOIN, KILL, WAKE
from holdfast.lab.scene import (
    DONE,
    JOBS,
    MAILS,
    MAILS_TABLE,
    ORDERS_TABLE,
    RECEIPTS,
    RECEIPTS_TABLE,
    Act,
    Chapter,
    Knob,
    Promise,
    Rows,
    Scene,
)
from holdfast.lab.stage import Stage

app = Holdfast()
BEFORE, AFTER = "before the mail", "after the mail"
_RECEIPT = "INSERT INTO receipts (order_id, generation, pid) VALUES (%s, %s, %s)"


@app.task(max_attempts=20)
def send_receipt(job: Job, tx: Transaction, order_id: int) -> None:
    row = (order_id, job.generation, os.getpid())
    if outside.is_unsafe():
        with outside.apart(app) as conn:
            conn.execute(_RECEIPT, row)
        outside.rest(BEFORE, job)
        outside.mail(app, job, order_id)
    else:
        tx.execute(_RECEIPT, row)
        outside.rest(BEFORE, job)
        job.once("mail", outside.mail, app, job, order_id)
    outside.rest(AFTER, job)


def _pay(stage: Stage, times: int = 1) -> None:
    with stage.transaction() as conn:
        (order,) = conn.execute("INSERT INTO orders DEFAULT VALUES RETURNING id").fetchone() or (0,)
    stage.note(f"pays order {order}", "done")
    for _ in range(times):
        key = {} if stage.unsafe else {"idempotency_key": f"receipt:{order}"}
        handle = send_receipt.using(**key).enqueue(order_id=order)  # type: ignore[arg-type]
        new = "a new job" if handle.created else "the job that is there"
        stage.note(f"enqueues its receipt: {new}", "" if handle.created else "held")


def _pay_twice(stage: Stage) -> None:
    """As an api does that got no answer, and asks again."""
    _pay(stage, 2)
    stage.seen["twice"] = True


def _hold(place: str) -> "Act":
    def turn(stage: Stage) -> None:
        on = not stage.holds_at(place)
        stage.hold(place, on)
        stage.note(f"{'holds' if on else 'lets go'} {place}", "held")

    return Act(place.split()[0], f"Hold {place}", turn, "lock")


def _begin(stage: Stage) -> None:
    stage.start()
    stage.start()


def _play(stage: Stage, chance: random.Random) -> None:
    place = chance.choice((BEFORE, AFTER))
    stage.hold(place)
    stage.act("pay")
    member = stage.until_held(place)
    stage.act("kill", member.name)
    stage.hold(place, False)
    stage.until_idle()
    assert stage.tape.count("job.swept") >= 1
    stage.act("pay_twice")
    stage.until_idle()


SCENE = Scene(
    number=2,
    name="crash_and_dedupe",
    title="Crash and dedupe",
    short="Crash, dedupe",
    lead="Kill a worker in the middle, and enqueue the same receipt twice.",
    story=(
        Chapter(
            "Hold the handlers before or after the mail, and pay an order.",
            lambda s: s.number("SELECT count(*) FROM orders") > 0,
        ),
        Chapter(
            "Kill -9 the owner. Its lease counts down, and nobody renews it.",
            lambda s: any(member.state == "killed" for member in s.crew.members.values()),
        ),
        Chapter(
            "The other worker fences it and takes the job back. Let go: it runs again, generation 2.",
            lambda s: s.tape.count("job.swept") > 0,
        ),
        Chapter(
            "Let the api ask twice. The second enqueue returns the job that is there.",
            lambda s: "twice" in s.seen,
        ),
    ),
    promise=Promise(
        "Each order has one receipt, however often workers die and callers ask again.",
        (
            ("orders", "SELECT count(*) FROM orders"),
            ("runs", "SELECT coalesce(sum(lease_generation), 0) FROM holdfast.jobs"),
            (
                "orders with two receipts",
                "SELECT count(*) FROM (SELECT FROM receipts GROUP BY order_id HAVING count(*) > 1) r",
            ),
            (
                "orders with two mails",
                "SELECT count(*) FROM (SELECT FROM mails GROUP BY order_id HAVING count(*) > 1) m",
            ),
        ),
        ("orders with two receipts", "orders with two mails"),
    ),
    unsafe="No key, no once, no transaction",
    then="The receipt is written on a connection apart, the mail is sent without once(), and the enqueue has no "
    "idempotency key. Everything that runs again is done again.",
    schema=(ORDERS_TABLE, RECEIPTS_TABLE, MAILS_TABLE),
    tables=(
        JOBS,
        RECEIPTS,
        MAILS,
        DONE,
        Rows(
            "holdfast.once",
            "SELECT right(job_id::text, 6) AS job, name FROM holdfast.once LIMIT 20",
            "steps done",
        ),
    ),
    acts=(
        Act("pay", "Pay an order", _pay),
        Act("pay_twice", "Pay, and ask twice", _pay_twice),
        _hold(BEFORE),
        _hold(AFTER),
        JOIN,
        KILL,
        FREEZE,
        WAKE,
    ),
    play=_play,
    app=app,
    knobs=(Knob("dead_after", "Silent until lost", 1.5, 1.0, 10.0, "s", 0.5),),
    begin=_begin,
)
