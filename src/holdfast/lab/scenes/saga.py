"""Scene 10: a saga, interrupted. A checkout of three steps whose worker is killed between any two of them."""

import asyncio
import os
import random

from holdfast import Holdfast, NonRetryable, Workflow
from holdfast.lab import outside
from holdfast.lab.acting import JOIN, KILL
from holdfast.lab.scene import Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage

app = Holdfast()
STEPS = ("reserve", "charge", "ship")


def _place(step: str) -> str:
    return f"after {step}"


def _does(step: str, order_id: int) -> None:
    """The calls that the other shop got."""
    with outside.apart(app) as conn:
        conn.execute(
            "INSERT INTO effects (step, order_id, pid) VALUES (%s, %s, %s)", [step, order_id, os.getpid()]
        )
    outside.did(f"does {step} for order {order_id}", tone="run")


async def _rest(step: str) -> None:
    await asyncio.to_thread(outside.rest, _place(step))


async def reserve(order_id: int) -> str:
    _does("reserve", order_id)
    return "reserved"


async def charge(order_id: int, declined: bool) -> str:
    if declined:
        outside.did(f"finds the card of order {order_id} declined", tone="retry")
        raise NonRetryable("the card is declined")
    _does("charge", order_id)
    return "charged"


async def ship(order_id: int) -> str:
    _does("ship", order_id)
    return "shipped"


async def release(order_id: int) -> None:
    _does("release", order_id)


@app.workflow()
async def checkout(wf: Workflow, order_id: int, declined: bool = False) -> str:
    """Called again from the top by the next owner, with the recorded results."""
    wf.on_failure(release, order_id)
    await wf.step(reserve, order_id)
    await _rest("reserve")
    await wf.step(charge, order_id, declined)
    await _rest("charge")
    await wf.step(ship, order_id)
    return "done"


@app.task(max_attempts=1)
async def checkout_by_hand(order_id: int, declined: bool = False) -> str:
    """The same steps in a plain job: nothing is recorded between them."""
    await reserve(order_id)
    await _rest("reserve")
    await charge(order_id, declined)
    await _rest("charge")
    await ship(order_id)
    return "done"


def _order(stage: Stage, *, declined: bool = False) -> None:
    (row,) = stage.sql("INSERT INTO asked (declined) VALUES (%s) RETURNING id", [declined])
    if stage.unsafe:
        checkout_by_hand.enqueue(order_id=row["id"], declined=declined)
    else:
        checkout.start(order_id=row["id"], declined=declined)
    stage.note(
        f"starts the checkout of order {row['id']}{', whose card will be declined' if declined else ''}",
        "done",
    )


def _declined(stage: Stage) -> None:
    _order(stage, declined=True)


def _hold(step: str) -> Act:
    def turn(stage: Stage) -> None:
        on = not stage.holds_at(_place(step))
        stage.hold(_place(step), on)
        stage.note(f"{'holds' if on else 'lets go'} after {step}", "held")

    return Act(f"hold_{step}", f"Hold after {step}", turn, "lock")


def _begin(stage: Stage) -> None:
    stage.start()
    stage.start()


def _play(stage: Stage, chance: random.Random) -> None:
    step = chance.choice(("reserve", "charge"))
    place = _place(step)
    stage.hold(place)
    stage.act("order")
    member = stage.until_held(place)
    if not stage.unsafe:
        stage.wait(
            lambda: stage.number(
                "SELECT count(*) FROM holdfast.workflow_steps WHERE key LIKE %s", [f"%{step}%"]
            ),
            "the step is recorded",
        )
    stage.act("kill", member.name)
    stage.hold(place, False)
    stage.until_idle()
    stage.act("declined")
    stage.until_idle()


SCENE = Scene(
    number=10,
    name="saga",
    title="A saga, interrupted",
    short="Saga",
    lead="Kill the worker of a checkout between any two of its steps.",
    story=(
        Chapter(
            "Hold after a step, and start a checkout.", lambda s: s.number("SELECT count(*) FROM asked") > 0
        ),
        Chapter(
            "Kill -9 its worker between two steps.",
            lambda s: any(member.state == "killed" for member in s.crew.members.values()),
        ),
        Chapter(
            "Let go. The other worker gets the records, and continues with the next step.",
            lambda s: s.number("SELECT count(*) FROM effects WHERE step = 'ship'") > 0,
        ),
        Chapter(
            "Check out with a card that is declined: what was reserved is released.",
            lambda s: s.number("SELECT count(*) FROM effects WHERE step = 'release'") > 0,
        ),
    ),
    promise=Promise(
        "A step that was recorded is never done again, and what was begun is finished or undone.",
        (
            ("checkouts", "SELECT count(*) FROM asked"),
            (
                "steps done twice",
                "SELECT count(*) FROM (SELECT FROM effects GROUP BY step, order_id HAVING count(*) > 1) e",
            ),
            (
                "needless reservations",
                """SELECT count(*) FROM effects r WHERE r.step = 'reserve' AND NOT EXISTS
                   (SELECT FROM effects e WHERE e.order_id = r.order_id AND e.step IN ('ship', 'release'))
                   AND NOT EXISTS (SELECT FROM holdfast.work)""",
            ),
        ),
        ("steps done twice", "needless reservations"),
    ),
    unsafe="A plain job in place of a workflow",
    then="The same steps in one handler. After a crash all of them run again, and nobody undoes what a failure leaves.",
    schema=(
        "CREATE TABLE asked (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, declined boolean NOT NULL)",
        """CREATE TABLE effects (n int GENERATED ALWAYS AS IDENTITY, step text NOT NULL, order_id int NOT NULL,
                                 pid int NOT NULL)""",
    ),
    tables=(
        Rows(
            "holdfast.work",
            """SELECT right(w.id::text, 6) AS id, w.task, w.status, w.lease_generation AS generation, k.pid AS owner,
                      round(extract(epoch FROM c.lease_expires_at - holdfast.now())::numeric, 1)::float8 AS lease
               FROM holdfast.work w LEFT JOIN holdfast.claims c ON c.token = w.claim_token AND w.status = 'processing'
               LEFT JOIN holdfast.workers k ON k.id = c.worker ORDER BY w.seq LIMIT 20""",
            "runs that are not finished",
            ("lease",),
        ),
        Rows(
            "effects",
            "SELECT n, step || ' order ' || order_id AS about, pid FROM effects ORDER BY n DESC LIMIT 20",
            "what the shop next door saw",
        ),
        Rows(
            "holdfast.workflow_steps",
            """SELECT right(run_id::text, 6) || ' ' || key AS step, kind, outcome FROM holdfast.workflow_steps
               ORDER BY n DESC LIMIT 20""",
            "what is recorded",
        ),
        Rows(
            "holdfast.archive",
            "SELECT right(id::text, 6) AS id, task, status FROM holdfast.archive ORDER BY completed_at DESC LIMIT 20",
            "runs that are finished",
        ),
    ),
    acts=(
        Act("order", "Check out", _order),
        Act("declined", "Check out, declined", _declined, "x"),
        _hold("reserve"),
        _hold("charge"),
        JOIN,
        KILL,
    ),
    play=_play,
    app=app,
    knobs=(Knob("dead_after", "Silent until lost", 1.5, 1.0, 10.0, "s", 0.5),),
    begin=_begin,
)
