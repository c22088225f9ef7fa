"""Scene 5: the event log with a late commit. A cursor over a sequence passes by what commits late; pages do not."""

import os
import random
from typing import Any

import psycopg

from holdfast import Event, Holdfast
from holdfast.lab import outside
from holdfast.lab.acting import JOIN, KILL
from holdfast.lab.scene import JOBS, Act, Chapter, Promise, Rows, Scene
from holdfast.lab.stage import Stage

app = Holdfast()
SLOW = "slow"  # the open transaction, from act to act


@app.on("lab.order.paid", start="start")
def count_order(event: Event[Any]) -> None:
    """The reader that the log serves."""
    if not outside.is_unsafe():
        with outside.apart(app) as conn:
            conn.execute(
                "INSERT INTO delivered (event, order_id, pid) VALUES (%s, %s, %s)",
                [event.id, event.data["order_id"], os.getpid()],
            )
        outside.did(f"reads order {event.data['order_id']}", tone="done")


def _publish(conn: psycopg.Connection[Any]) -> int:
    (order,) = conn.execute("SELECT nextval('order_ids')::int").fetchone() or (0,)
    app.publish("lab.order.paid", {"order_id": order}, conn=conn)
    return int(order)


def _open(stage: Stage) -> None:
    if SLOW in stage.seen:
        return
    conn = psycopg.connect(stage.url)
    order = _publish(conn)
    stage.seen[SLOW] = (conn, order)
    stage.note(f"publishes order {order}, and does not commit yet", "held")


def _quick(stage: Stage) -> None:
    with stage.transaction() as conn:
        order = _publish(conn)
    stage.note(f"publishes order {order}, and commits", "done")


def _commit(stage: Stage) -> None:
    conn, order = stage.seen.pop(SLOW, (None, 0))
    if conn is not None:
        conn.commit()
        conn.close()
        stage.note(f"commits order {order}, late", "done")


def _read(stage: Stage) -> None:
    """What many write first: WHERE seq > the last one."""
    rows = stage.sql(
        """WITH new AS (SELECT e.seq, e.id, (e.data->>'order_id')::int AS order_id FROM holdfast.events e, plain_cursor c
                        WHERE e.seq > c.seq),
                moved AS (UPDATE plain_cursor SET seq = (SELECT max(n.seq) FROM new n) WHERE EXISTS (SELECT FROM new)),
                seen AS (INSERT INTO plain_read SELECT n.id FROM new n),
                kept AS (INSERT INTO delivered (event, order_id, pid)
                         SELECT n.id, n.order_id, %s FROM new n, plain_cursor c WHERE c.trusted)
           SELECT order_id FROM new ORDER BY seq""",
        [os.getpid()],
    )
    said = ", ".join(str(row["order_id"]) for row in rows) or "nothing"
    stage.note(f"the plain cursor reads {said}", "run")


def _begin(stage: Stage) -> None:
    stage.sql("INSERT INTO plain_cursor VALUES (0, %s)", [stage.unsafe])
    stage.start()


def _play(stage: Stage, chance: random.Random) -> None:
    stage.act("quick")
    stage.act("open")
    for _ in range(chance.randint(1, 3)):
        stage.act("quick")
    stage.act("read")
    if not stage.unsafe:
        stage.wait(
            lambda: (
                stage.number("SELECT count(*) FROM delivered")
                == stage.number("SELECT count(*) FROM holdfast.events")
            ),
            "what is committed is read",
        )
    stage.act("commit")
    stage.act("read")
    stage.wait(
        lambda: stage.number(
            "SELECT count(*) FROM holdfast.subscriptions s WHERE s.position = (SELECT count(*) FROM holdfast.events)"
        ),
        "the subscription is at the end of the log",
    )
    stage.until_idle()


_MISSED = """
    SELECT CASE WHEN c.trusted THEN (SELECT count(*) FROM unread u WHERE u.seq <= c.seq)
                WHEN EXISTS (SELECT FROM holdfast.work) THEN 0
                WHEN (SELECT coalesce(max(s.position), 0) FROM holdfast.subscriptions s)
                     < (SELECT count(*) FROM holdfast.events) THEN 0
                ELSE (SELECT count(*) FROM unread) END
    FROM plain_cursor c"""

SCENE = Scene(
    number=5,
    name="late_commit",
    title="The event log, with a late commit",
    short="Late commit",
    lead="Two publishers: the first to draw a number is the last to commit.",
    story=(
        Chapter(
            "A slow publisher draws its sequence number, and does not commit.",
            lambda s: SLOW in s.seen or s.number("SELECT count(*) FROM holdfast.events") > 1,
        ),
        Chapter(
            "Others publish and commit. Both readers read them; the plain cursor stands behind the gap.",
            lambda s: s.number("SELECT count(*) FROM delivered") > 0,
        ),
        Chapter(
            "The slow one commits. Its number is lower than the plain cursor's: it is passed by.",
            lambda s: s.number("SELECT count(*) FROM unread_by_plain") > 0,
        ),
        Chapter(
            "For the subscription it is the next page: one more position, without a gap.",
            lambda s: (
                s.number("SELECT count(*) FROM unread_by_plain") > 0
                and not s.number("SELECT count(*) FROM unread")
            ),
        ),
    ),
    promise=Promise(
        "Every committed event has a position, and every subscription reads it.",
        (
            ("events", "SELECT count(*) FROM holdfast.events"),
            ("behind the plain cursor", "SELECT count(*) FROM unread_by_plain"),
            ("events the reader missed", _MISSED),
        ),
        ("events the reader missed",),
    ),
    unsafe="Read by a plain cursor",
    then="The reader asks for seq > the last one that it saw. A number that was drawn early and commits late is never read.",
    schema=(
        "CREATE SEQUENCE order_ids",
        "CREATE TABLE plain_cursor (seq bigint NOT NULL, trusted boolean NOT NULL)",
        "CREATE TABLE delivered (n int GENERATED ALWAYS AS IDENTITY, event uuid NOT NULL, order_id int NOT NULL, pid int)",
        """CREATE VIEW unread AS SELECT e.seq, e.id FROM holdfast.events e
           WHERE NOT EXISTS (SELECT FROM delivered d WHERE d.event = e.id)""",
        "CREATE TABLE plain_read (event uuid)",
        """CREATE VIEW unread_by_plain AS SELECT e.seq FROM holdfast.events e, plain_cursor c
           WHERE e.seq <= c.seq AND NOT EXISTS (SELECT FROM plain_read p WHERE p.event = e.id)""",
    ),
    tables=(
        Rows(
            "holdfast.events",
            """SELECT e.seq, 'order ' || (e.data->>'order_id') AS about, e.xid::text AS transaction,
                      (SELECT count(*) FROM delivered d WHERE d.event = e.id) AS read
               FROM holdfast.events e ORDER BY e.seq DESC LIMIT 20""",
            "the log, by sequence number",
        ),
        Rows(
            "delivered",
            "SELECT n, 'order ' || order_id AS about, pid FROM delivered ORDER BY n DESC LIMIT 20",
            "what the reader was given, in order",
        ),
        Rows(
            "holdfast.event_pages",
            """SELECT last_pos, n AS events, lo AS first_seq, hi AS last_seq FROM holdfast.event_pages
               ORDER BY last_pos DESC LIMIT 20""",
            "pages: each the difference between two snapshots",
        ),
        Rows("plain_cursor", "SELECT 'seq >' AS asks, seq, trusted FROM plain_cursor", "the plain cursor"),
        Rows(
            "holdfast.subscriptions",
            "SELECT name, position, status FROM holdfast.subscriptions ORDER BY name LIMIT 20",
            "how far each subscription is",
        ),
        JOBS,
    ),
    acts=(
        Act("open", "Publish, do not commit", _open, "lock"),
        Act("quick", "Publish and commit", _quick),
        Act("read", "The plain cursor reads", _read, "eye"),
        Act("commit", "Commit the slow one", _commit, "right"),
        JOIN,
        KILL,
    ),
    play=_play,
    app=app,
    begin=_begin,
)
