"""Scene 13: cut the line. Connections break, the database goes away, and a commit is answered by nobody."""

import os
import random
import time
from collections.abc import Callable

import psycopg

from holdfast import Backoff, Holdfast, Job, Transaction
from holdfast.lab import outside
from holdfast.lab.acting import JOIN, KILL
from holdfast.lab.scene import DONE, JOBS, RECEIPTS, RECEIPTS_TABLE, Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage

app = Holdfast()
IN_HAND = "with a receipt in hand"


@app.task(max_attempts=100, retry=Backoff(first=0.1, cap=0.5))
def send_receipt(job: Job, tx: Transaction, order_id: int) -> None:
    tx.execute(
        "INSERT INTO receipts (order_id, generation, pid) VALUES (%s, %s, %s)",
        [order_id, job.generation, os.getpid()],
    )
    outside.rest(IN_HAND, job)


def _write(stage: Stage, conn: psycopg.Connection[object], order: int) -> None:
    """As an application pays an order: the job in its own transaction."""
    task = send_receipt.using(conn=conn)
    if not stage.unsafe:
        task = task.using(idempotency_key=f"order:{order}")
    task.enqueue(order_id=order)


def _pay(stage: Stage) -> None:
    for _ in range(int(stage.values["orders"])):
        order = stage.number("SELECT nextval('numbers')")
        with stage.transaction() as conn:
            _write(stage, conn, order)
        stage.sql("INSERT INTO acknowledged VALUES (%s)", [order])
    stage.note(f"pays {stage.values['orders']:.0f} orders", "done")


def _unsure(stage: Stage) -> None:
    """The connection breaks after the commit and before its reply. The worker cannot know, and tries again."""
    order = stage.number("SELECT nextval('numbers')")
    conn = psycopg.connect(stage.url)
    try:
        _write(stage, conn, order)
        conn.pgconn.exec_(b"COMMIT; SELECT pg_terminate_backend(pg_backend_pid())")
    finally:
        conn.close()
    stage.note(f"commits order {order}, and gets no answer", "dead")
    with stage.transaction() as again:
        _write(stage, again, order)
    stage.sql("INSERT INTO acknowledged VALUES (%s)", [order])
    stage.note(f"pays order {order} once more", "retry")
    stage.seen["unsure"] = True


def _cut(stage: Stage) -> None:
    count = stage.number("SELECT count(pg_terminate_backend(pid)) FROM lines")
    stage.note(f"cuts {count} connections of workers", "dead")
    stage.seen["cut"] = stage.seen.get("cut", 0) + count


def _let_in(stage: Stage, yes: bool) -> None:
    name = stage.sql("SELECT current_database() AS name")[0]["name"]
    with psycopg.connect(stage.place.server.admin, autocommit=True) as conn:
        conn.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {yes}'.encode())


def _away(stage: Stage) -> None:
    """No connection is accepted, and existing ones are closed: for workers, the server has stopped."""
    seconds = stage.values["seconds"]
    stage.note(f"takes the database away for {seconds:g} s", "dead")
    _let_in(stage, False)
    try:
        stage.wait(_nobody_is_in(stage), "everybody is out")
        time.sleep(seconds)
    finally:
        _let_in(stage, True)
    stage.note("the database is back", "done")
    stage.seen["back"] = True


def _nobody_is_in(stage: Stage) -> Callable[[], bool]:
    return lambda: not stage.sql("SELECT pg_terminate_backend(pid) FROM lines")


def _begin(stage: Stage) -> None:
    stage.start()
    stage.start()


def _play(stage: Stage, chance: random.Random) -> None:
    stage.act("hold")
    stage.act("unsure")
    stage.act("pay")
    stage.until_held(IN_HAND)
    for _ in range(chance.randint(1, 3)):
        stage.act("cut")
    stage.act("away")
    stage.act("hold")
    stage.until_idle()


def _hold(stage: Stage) -> None:
    on = not stage.holds_at(IN_HAND)
    stage.hold(IN_HAND, on)
    stage.note("holds the handlers" if on else "lets the handlers go", "held")


SCENE = Scene(
    number=13,
    name="cut_the_line",
    title="Cut the line",
    short="Cut the line",
    lead="Cut connections in the middle of a job, take the database away, and lose the answer to a commit.",
    story=(
        Chapter(
            "Pay an order whose commit gets no answer. The application cannot know, and pays it once more.",
            lambda s: "unsure" in s.seen,
        ),
        Chapter(
            "Hold the handlers, pay orders, and cut every connection. Open transactions are rolled back.",
            lambda s: s.seen.get("cut", 0) > 0,
        ),
        Chapter(
            "Take the database away for a moment. Workers wait, connect again, and continue.",
            lambda s: "back" in s.seen,
        ),
        Chapter(
            "Let the handlers go. Each order has one receipt.",
            lambda s: "back" in s.seen and not s.number("SELECT count(*) FROM holdfast.work"),
        ),
    ),
    promise=Promise(
        "A line that is cut, wherever it is, loses no order and does none twice.",
        (
            ("orders", "SELECT count(*) FROM acknowledged"),
            ("receipts", "SELECT count(*) FROM receipts"),
            (
                "orders that are lost",
                """SELECT count(*) FROM acknowledged a
                   WHERE NOT EXISTS (SELECT FROM receipts r WHERE r.order_id = a.order_id)
                     AND NOT EXISTS (SELECT FROM holdfast.work w WHERE (w.payload->>'order_id')::int = a.order_id)""",
            ),
            (
                "orders with two receipts",
                "SELECT count(*) FROM (SELECT FROM receipts GROUP BY order_id HAVING count(*) > 1) r",
            ),
        ),
        ("orders that are lost", "orders with two receipts"),
    ),
    unsafe="No idempotency key",
    then="The application tries again what it cannot be sure of. Without a key nobody knows that it is the same order: two "
    "jobs, two receipts.",
    schema=(
        "CREATE SEQUENCE numbers",
        "CREATE TABLE acknowledged (order_id int PRIMARY KEY)",
        RECEIPTS_TABLE,
        """CREATE VIEW lines AS
           SELECT pid, application_name AS session, coalesce(state, '') AS state FROM pg_stat_activity
           WHERE datname = current_database() AND application_name LIKE 'holdfast%'""",
    ),
    tables=(
        JOBS,
        RECEIPTS,
        Rows(
            "pg_stat_activity",
            "SELECT pid, session, state FROM lines ORDER BY session, pid LIMIT 20",
            "connections of workers to the server",
            ("state",),
        ),
        DONE,
    ),
    acts=(
        Act("pay", "Pay orders", _pay),
        Act("unsure", "Pay, and lose the answer", _unsure, "bolt"),
        Act("hold", "Hold the handlers", _hold, "lock"),
        Act("cut", "Cut all connections", _cut, "bolt"),
        Act("away", "Take the database away", _away, "bolt"),
        JOIN,
        KILL,
    ),
    play=_play,
    app=app,
    knobs=(Knob("orders", "Orders", 4, 1, 20), Knob("seconds", "Away for", 1, 0.5, 10, "s", 0.5)),
    settings={"concurrency": 4, "prefetch": 0},
    begin=_begin,
)
