"""Scene 3: a stale owner. A worker is frozen past its lease, and wakes up when its job belongs to somebody else."""

import os
import random

from holdfast import Holdfast, Job
from holdfast.lab import outside
from holdfast.lab.acting import FREEZE, JOIN, KILL, WAKE
from holdfast.lab.scene import DONE, JOBS, Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage

app = Holdfast()
IN_HAND = "with the label in hand"
_WRITE = """INSERT INTO labels (order_id, generation, pid) VALUES (%s, %s, %s)
            ON CONFLICT (order_id) DO UPDATE SET generation = EXCLUDED.generation, pid = EXCLUDED.pid"""


@app.task(max_attempts=20)
def print_label(job: Job, order_id: int) -> None:
    """Writes to a store of its own, not in the job's transaction: what it writes last stays."""
    outside.rest(IN_HAND, job)
    with outside.apart(app) as conn, conn.transaction():
        if not outside.is_unsafe():
            job.guard(conn=conn, resource=f"label:{order_id}")
        conn.execute(_WRITE, [order_id, job.generation, os.getpid()])
        conn.execute(
            "INSERT INTO writes (order_id, generation, pid) VALUES (%s, %s, %s)",
            [order_id, job.generation, os.getpid()],
        )
    outside.did(f"writes the label, generation {job.generation}", job, tone="run")


def _order(stage: Stage) -> None:
    order = stage.number("SELECT coalesce(max(order_id), 0) + 1 FROM asked")
    stage.sql("INSERT INTO asked VALUES (%s)", [order])
    print_label.enqueue(order_id=order)
    stage.note(f"enqueues the label of order {order}", "done")


def _hold(stage: Stage) -> None:
    on = not stage.holds_at(IN_HAND)
    stage.hold(IN_HAND, on)
    stage.note("holds the labels" if on else "lets the labels go", "held")


def _begin(stage: Stage) -> None:
    stage.start()
    stage.start()


def _play(stage: Stage, chance: random.Random) -> None:
    stage.hold(IN_HAND)
    stage.act("order")
    stale = stage.until_held(IN_HAND)
    stage.act("freeze", stale.name)
    stage.wait(
        lambda: stage.number("SELECT count(*) FROM holdfast.work WHERE lease_generation >= 2"),
        "somebody else claims the job",
    )
    stage.hold(IN_HAND, False)
    stage.wait(
        lambda: stage.number("SELECT count(*) FROM labels WHERE generation >= 2"), "the new owner writes"
    )
    stage.until_idle()
    stage.act("wake", stale.name)
    if stage.unsafe:
        stage.wait(lambda: not stage.holds(), "the stale owner's label replaces the newer one")
    else:
        stage.wait(lambda: stage.tape.count("guard", rows=0) > 0, "the guard refuses the stale owner")
        stage.wait(lambda: stage.tape.count("job.lost") > 0, "the stale owner learns of it")


SCENE = Scene(
    number=3,
    name="stale_owner",
    title="A stale owner",
    short="Stale owner",
    lead="Freeze a worker past its lease, wake it, and watch what it writes bounce.",
    story=(
        Chapter(
            "Hold the labels, and order one. A worker claims it; its lease counts down and is renewed.",
            lambda s: s.number("SELECT count(*) FROM asked") > 0 and s.tape.count("claim") > 0,
        ),
        Chapter(
            "Freeze the owner (SIGSTOP). It renews no more, and the other worker fences it.",
            lambda s: s.tape.count("worker.gone") > 0,
        ),
        Chapter(
            "Let the labels go. The new owner writes under generation 2.",
            lambda s: s.number("SELECT count(*) FROM writes WHERE generation > 1") > 0,
        ),
        Chapter(
            "Wake the first one. It does not know that it lost the job, and tries to write: 0 rows.",
            lambda s: s.tape.count("job.lost") > 0,
        ),
    ),
    promise=Promise(
        "An owner that lost its lease can change nothing.",
        (
            ("labels", "SELECT count(*) FROM labels"),
            ("owners fenced", "SELECT count(*) FROM holdfast.workers WHERE status = 'gone'"),
            (
                "labels of a stale owner",
                """SELECT count(*) FROM labels l WHERE l.generation <
                   (SELECT max(w.generation) FROM writes w WHERE w.order_id = l.order_id)""",
            ),
        ),
        ("labels of a stale owner",),
    ),
    unsafe="No fence",
    then="The handler writes without job.guard(). The worker that woke up replaces what the new owner has written.",
    schema=(
        "CREATE TABLE asked (order_id int PRIMARY KEY)",
        "CREATE TABLE labels (order_id int PRIMARY KEY, generation bigint NOT NULL, pid int NOT NULL)",
        "CREATE TABLE writes (order_id int NOT NULL, generation bigint NOT NULL, pid int NOT NULL)",
    ),
    tables=(
        JOBS,
        Rows(
            "labels",
            "SELECT 'order ' || order_id AS about, generation, pid FROM labels ORDER BY order_id DESC LIMIT 20",
            "content of the store now",
        ),
        Rows(
            "holdfast.fences",
            "SELECT resource, right(job_id::text, 6) AS job, right(fence, 6) AS fence FROM holdfast.fences LIMIT 20",
            "the highest fence that each resource has seen",
        ),
        DONE,
    ),
    acts=(
        Act("order", "Order a label", _order),
        Act("hold", "Hold the labels", _hold, "lock"),
        JOIN,
        FREEZE,
        WAKE,
        KILL,
    ),
    play=_play,
    app=app,
    knobs=(Knob("dead_after", "Silent until lost", 1.5, 1.0, 10.0, "s", 0.5),),
    begin=_begin,
)
