"""Scene 1: one worker, one receipt. The worker stops after every statement, so that each change can be looked at."""

import random

from holdfast import Backoff, Holdfast, Job
from holdfast.lab import outside
from holdfast.lab.crew import Member
from holdfast.lab.scene import (
    DONE,
    JOBS,
    MAILS,
    MAILS_TABLE,
    ORDERS,
    ORDERS_TABLE,
    Act,
    Chapter,
    Promise,
    Scene,
)
from holdfast.lab.stage import Stage

app = Holdfast()


@app.task(retry=Backoff(first=0.5, cap=2.0), max_attempts=20)
def send_receipt(job: Job, order_id: int) -> None:
    with outside.apart(app) as conn:
        row = conn.execute("SELECT answers FROM mail_server").fetchone()
    if not row or not row[0]:
        outside.did("finds no mail server", job, tone="retry")
        raise ConnectionError("the mail server does not answer")
    outside.mail(app, job, order_id)
    outside.step()


def _pay(stage: Stage, *, keep: bool = True) -> None:
    """The order and its receipt in one transaction; unsafe: the receipt by a second one, as if it went to another server."""
    with stage.transaction() as conn:
        (order,) = conn.execute("INSERT INTO orders (cents) VALUES (4200) RETURNING id").fetchone() or (0,)
        if stage.unsafe:
            send_receipt.enqueue(order_id=order)
        else:
            send_receipt.using(conn=conn).enqueue(order_id=order)
        if keep:
            stage.note(f"pays order {order} and enqueues its receipt, one commit", "done")
        else:
            conn.rollback()
            stage.note(f"rolls the payment of order {order} back", "dead")


def _rolled_back(stage: Stage) -> None:
    _pay(stage, keep=False)
    stage.seen["rolled back"] = True


def _step(stage: Stage) -> None:
    """One statement further."""
    for member in stage.crew.alive:
        if member.state == "frozen":
            member.wake()


def _mail_server(stage: Stage) -> None:
    (row,) = stage.sql("UPDATE mail_server SET answers = NOT answers RETURNING answers")
    stage.note("the mail server answers again" if row["answers"] else "the mail server is down", "held")


def _begin(stage: Stage) -> None:
    stage.stepping(True)
    stage.start()


def _until_stopped(stage: Stage, member: Member, what: str) -> None:
    stage.wait(lambda: member.state == "frozen", f"A stops: {what}")


def _play(stage: Stage, chance: random.Random) -> None:
    (member,) = stage.crew.alive
    failing = chance.random() < 0.5
    if failing:
        stage.act("mail_server")
    stage.act("pay")
    assert stage.number("SELECT count(*) FROM holdfast.work WHERE status = 'pending'") == 1
    _until_stopped(stage, member, "it has claimed")
    (row,) = stage.sql("SELECT status, lease_generation, attempts FROM holdfast.work")
    assert row == {"status": "processing", "lease_generation": 1, "attempts": 0}
    stage.act("step")
    if failing:
        _until_stopped(stage, member, "its failure is written")
        (row,) = stage.sql("SELECT status, attempts FROM holdfast.work")
        assert row == {"status": "pending", "attempts": 1}
        stage.act("mail_server")
        stage.act("step")
        _until_stopped(stage, member, "it has claimed again")
        stage.act("step")
    _until_stopped(stage, member, "the mail is out")
    assert stage.number("SELECT count(*) FROM mails") == 1
    assert stage.number("SELECT count(*) FROM holdfast.work WHERE status = 'processing'") == 1
    stage.act("step")
    _until_stopped(stage, member, "the job is settled")
    assert stage.number("SELECT count(*) FROM holdfast.archive WHERE status = 'completed'") == 1
    stage.act("roll_back")
    stage.stepping(False)
    stage.act("step")
    if stage.unsafe:
        stage.wait(lambda: not stage.holds(), "a receipt is sent for an order that nobody paid")
    else:
        stage.wait(
            lambda: not stage.number("SELECT count(*) FROM holdfast.work"), "nothing is left to be done"
        )


SCENE = Scene(
    number=1,
    name="one_receipt",
    title="One worker, one receipt",
    short="One receipt",
    lead="Go one statement at a time, and watch the columns of one row.",
    story=(
        Chapter(
            "Pay an order. The order and its receipt are written in one commit.",
            lambda s: s.number("SELECT count(*) FROM orders") > 0,
        ),
        Chapter(
            "Step. Worker A claims the job: status, generation, token and lease change.",
            lambda s: s.tape.count("claim") > 0,
        ),
        Chapter(
            "Step. The mail goes out, and the job says processing still.",
            lambda s: s.number("SELECT count(*) FROM mails") > 0,
        ),
        Chapter(
            "Step. The job moves to the archive in one statement.",
            lambda s: s.number("SELECT count(*) FROM holdfast.archive") > 0,
        ),
        Chapter(
            "Roll a payment back. There is no order, and no job: nothing to clean up.",
            lambda s: "rolled back" in s.seen,
        ),
    ),
    promise=Promise(
        "A job is there exactly when the transaction that enqueued it has committed.",
        (
            ("orders paid", "SELECT count(*) FROM orders"),
            (
                "receipts without payment",
                "SELECT count(*) FROM mails m WHERE NOT EXISTS (SELECT FROM orders o WHERE o.id = m.order_id)",
            ),
            (
                "orders without a job",
                """SELECT count(*) FROM orders o WHERE NOT EXISTS
                   (SELECT FROM holdfast.jobs j WHERE (j.payload->>'order_id')::int = o.id)""",
            ),
        ),
        ("receipts without payment", "orders without a job"),
    ),
    unsafe="Enqueue beside the payment",
    then="The job is written by a transaction of its own. Roll the payment back, and the receipt still goes out.",
    schema=(
        ORDERS_TABLE,
        MAILS_TABLE,
        "CREATE TABLE mail_server (answers boolean NOT NULL)",
        "INSERT INTO mail_server VALUES (true)",
    ),
    tables=(
        JOBS,
        DONE,
        ORDERS,
        MAILS,
    ),
    acts=(
        Act("pay", "Pay an order", _pay),
        Act("step", "Step", _step, "right"),
        Act("roll_back", "Pay, and roll back", _rolled_back, "x"),
        Act("mail_server", "Mail server down or up", _mail_server, "bolt"),
    ),
    play=_play,
    app=app,
    settings={"dead_after": 3600.0, "lease": 7200.0},  # a worker that stands still is not lost here
    begin=_begin,
)
