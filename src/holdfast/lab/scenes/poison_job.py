"""Scene 12: a poison job. It kills every process that runs it; what ran beside it must not pay for that."""

import os
import random

from holdfast import DeadLetter, Holdfast, Job
from holdfast.lab import outside
from holdfast.lab.acting import JOIN, KILL
from holdfast.lab.scene import DONE, JOBS, Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage

app = Holdfast()
IN_HAND = "with orders in hand"
FUSE = "before it kills its process"
_MOST_RUNS = 2  # runs that the unsafe handler allows an order
_BEGUN = "SELECT count(*) FROM runs WHERE order_id = %s"


@app.task(max_attempts=20)
def ship(job: Job, order_id: int, poison: bool) -> None:
    with outside.apart(app) as conn:
        begun = conn.execute(_BEGUN, [order_id]).fetchone()
        conn.execute("INSERT INTO runs (order_id, pid) VALUES (%s, %s)", [order_id, os.getpid()])
        if outside.is_unsafe() and begun is not None and begun[0] >= _MOST_RUNS:
            raise DeadLetter(f"order {order_id} began {begun[0]} times, and never ended")
        if poison:
            outside.rest(FUSE, job)
            conn.execute("INSERT INTO deaths (order_id, pid) VALUES (%s, %s)", [order_id, os.getpid()])
    if poison:
        outside.did(f"order {order_id} kills this process", job, tone="dead")
        os._exit(9)
    outside.rest(IN_HAND, job)
    outside.did(f"ships order {order_id}", job, tone="done")


def _enqueue(stage: Stage, *, poison: bool) -> None:
    order = stage.number("SELECT nextval('numbers')")
    ship.enqueue(order_id=order, poison=poison)


def _pay(stage: Stage) -> None:
    count = int(stage.values["orders"])
    for _ in range(count):
        _enqueue(stage, poison=False)
    stage.note(f"pays {count} orders", "done")


def _poison(stage: Stage) -> None:
    _enqueue(stage, poison=True)
    stage.note("pays an order that kills its process", "dead")


def _hold(stage: Stage) -> None:
    on = not stage.holds_at(IN_HAND)
    for place in (IN_HAND, FUSE):
        stage.hold(place, on)
    stage.note("holds the handlers" if on else "lets the handlers go", "held")


def _begin(stage: Stage) -> None:
    stage.start()


def _all_begun(stage: Stage, times: int) -> bool:
    """Every order has begun so often, and stands still."""
    return not stage.number(
        """SELECT count(*) FROM holdfast.work w
           WHERE (SELECT count(*) FROM runs r WHERE r.order_id = (w.payload->>'order_id')::int) < %s""",
        [times],
    )


def _play(stage: Stage, chance: random.Random) -> None:
    stage.act("hold")
    stage.act("pay")
    stage.act("poison")
    for times in (1, 2):
        stage.wait(lambda times=times: _all_begun(stage, times), "one worker has all of them in hand")  # type: ignore[misc]
        stage.hold(FUSE, False)
        stage.wait(lambda: not stage.crew.alive, "the worker dies")
        stage.hold(FUSE)
        stage.act("join")
    if stage.unsafe:
        stage.wait(lambda: not stage.holds(), "orders that did nothing wrong are given up")
        return
    for place in (IN_HAND, FUSE):
        stage.hold(place, False)
    stage.until_idle()


SCENE = Scene(
    number=12,
    name="poison_job",
    title="A poison job",
    short="Poison job",
    lead="One job kills every process that runs it. See who pays for it.",
    story=(
        Chapter(
            "Hold the handlers, pay orders, and one that kills its process. One worker has all of them in hand.",
            lambda s: s.number("SELECT count(DISTINCT order_id) FROM runs") > 1,
        ),
        Chapter(
            "Let go. The worker dies, and so does the next one: a first death says nothing about a job.",
            lambda s: s.number("SELECT count(*) FROM killed") > 1,
        ),
        Chapter(
            "All that died twice are suspects now. Each runs in a process of its own, and the killer dies alone.",
            lambda s: s.number("SELECT count(*) FROM deaths") > 2,
        ),
        Chapter(
            "The killer is a dead letter. The others are shipped, and none has lost an attempt.",
            lambda s: s.number("SELECT count(*) FROM holdfast.dead_letters") > 0,
        ),
    ),
    promise=Promise(
        "A job that kills its process costs two workers at most, and no other job an attempt.",
        (
            ("shipped", "SELECT count(*) FROM holdfast.archive"),
            ("workers killed", "SELECT count(*) FROM killed"),
            (
                "orders that killed more than two workers",
                "SELECT count(*) FROM (SELECT FROM killed GROUP BY order_id HAVING count(*) > 2) k",
            ),
            (
                "other orders that lost an attempt",
                """SELECT (SELECT count(*) FROM holdfast.dead_letters WHERE payload->>'poison' = 'false')
                        + (SELECT count(*) FROM holdfast.archive WHERE attempts > 1)""",
            ),
        ),
        ("orders that killed more than two workers", "other orders that lost an attempt"),
    ),
    unsafe="Count attempts when they begin",
    then="The handler notes each begin, and gives an order up that began twice and never ended. Orders that stood beside "
    "the killer began twice too.",
    schema=(
        "CREATE SEQUENCE numbers",
        "CREATE TABLE runs (order_id int NOT NULL, pid int NOT NULL)",
        "CREATE TABLE deaths (order_id int NOT NULL, pid int NOT NULL)",
        """CREATE VIEW killed AS
           SELECT order_id FROM deaths d WHERE EXISTS (SELECT FROM holdfast.workers k WHERE k.pid = d.pid)""",
    ),
    tables=(
        JOBS,
        Rows(
            "suspects",
            """SELECT right(w.id::text, 6) AS id, 'order ' || (w.payload->>'order_id') AS about, w.status, w.attempts,
                      w.crashes, w.suspect > 0 AS suspect FROM holdfast.work w ORDER BY w.seq LIMIT 20""",
            "of holdfast.work: deaths of each job, and which job is a suspect",
        ),
        Rows(
            "holdfast.dead_letters",
            """SELECT right(id::text, 6) AS id, 'order ' || (payload->>'order_id') AS about, attempts, crashes,
                      left(last_error, 60) AS error FROM holdfast.dead_letters ORDER BY died_at DESC LIMIT 20""",
            "given up",
        ),
        DONE,
    ),
    acts=(
        Act("pay", "Pay orders", _pay),
        Act("poison", "Pay a poisoned one", _poison, "bolt"),
        Act("hold", "Hold the handlers", _hold, "lock"),
        JOIN,
        KILL,
    ),
    play=_play,
    app=app,
    knobs=(Knob("orders", "Orders", 4, 1, 9),),
    settings={"concurrency": 10, "prefetch": 0},
    begin=_begin,
)
