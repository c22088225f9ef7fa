"""Scene 4: a lost notification. A job is committed, and no worker hears of it: the worker's own look finds it."""

import random

import psycopg

from holdfast import Holdfast, Job
from holdfast.lab import outside
from holdfast.lab.acting import DRAIN, JOIN, KILL
from holdfast.lab.scene import DONE, JOBS, Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage

app = Holdfast()


@app.task
def greet(job: Job, number: int) -> None:
    outside.did(f"greets {number}", job, tone="done")


def _number(stage: Stage) -> int:
    return stage.number("SELECT nextval('numbers')")


def _enqueue(stage: Stage) -> None:
    number = _number(stage)
    handle = greet.enqueue(number=number)
    stage.sql("INSERT INTO commits (number, job) VALUES (%s, %s)", [number, handle.id])
    told = stage.number("SELECT count(*) FROM holdfast.sleepers")
    stage.note(f"enqueues {number} and commits; workers asleep: {told}", "done")


def _nobody_sleeps(stage: Stage) -> bool:
    return not stage.number("SELECT count(*) FROM holdfast.sleepers")


def _is_asleep(stage: Stage) -> bool:
    """In the registry of sleepers, and past its last claim before the sleep."""
    looked = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                AND application_name = 'holdfast claim' AND query_start > clock_timestamp() - interval '0.6 seconds'"""
    return not _nobody_sleeps(stage) and not stage.number(looked)


def _untold(stage: Stage) -> None:
    """A transaction that enqueued before anybody slept, and commits after: it saw nobody, so it wakes nobody."""
    for member in stage.crew.alive:
        member.drain()
    stage.wait(lambda: not stage.crew.alive and _nobody_sleeps(stage), "nobody sleeps")
    number = _number(stage)
    with psycopg.connect(stage.url) as conn:
        handle = greet.using(conn=conn).enqueue(number=number)
        stage.note(f"enqueues {number} while nobody sleeps, and does not commit yet", "held")
        stage.start_ready()
        stage.wait(lambda: _is_asleep(stage), "the worker falls asleep")
        stage.note("the worker sleeps, and has heard nothing", "held")
    stage.sql("INSERT INTO commits (number, job) VALUES (%s, %s)", [number, handle.id])
    stage.note(f"commits {number}: no notification", "dead")
    stage.seen["untold"] = True


def _cut(stage: Stage) -> None:
    """As a restart of a proxy does."""
    cut = stage.number(
        """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
           WHERE datname = current_database() AND application_name = 'holdfast listen'"""
    )
    stage.note(f"cuts {cut} listening connections", "dead")


def _begin(stage: Stage) -> None:
    stage.start()


def _play(stage: Stage, chance: random.Random) -> None:
    stage.act("untold")
    if chance.random() < 0.5 and not stage.unsafe:  # a worker that listens again looks once
        stage.act("cut")
    if stage.unsafe:
        stage.wait(lambda: not stage.holds(), "the job is forgotten")
    else:
        stage.until_idle()


SCENE = Scene(
    number=4,
    name="lost_notification",
    title="A lost notification",
    short="Lost notification",
    lead="A notification is a hint. Take it away, and the job is still found.",
    story=(
        Chapter(
            "Enqueue. A sleeping worker is woken with the commit.",
            lambda s: s.number("SELECT count(*) FROM commits") > 0,
        ),
        Chapter(
            "Now a transaction enqueues before the worker sleeps, and commits after. It wakes nobody.",
            lambda s: "untold" in s.seen,
        ),
        Chapter(
            "The worker looks by itself once per poll interval, and finds the job.",
            lambda s: "untold" in s.seen and not s.number("SELECT count(*) FROM holdfast.work"),
        ),
    ),
    promise=Promise(
        "A due job is found within the poll interval, whatever happens to its notification.",
        (
            ("enqueued", "SELECT count(*) FROM commits"),
            ("run", "SELECT count(*) FROM holdfast.archive"),
            (
                "forgotten for 5 s",
                """SELECT count(*) FROM commits c JOIN holdfast.work w ON w.id = c.job
                   WHERE w.lease_generation = 0 AND c.at < clock_timestamp() - interval '5 seconds'
                     AND EXISTS (SELECT FROM holdfast.sleepers)""",
            ),
        ),
        ("forgotten for 5 s",),
    ),
    unsafe="Trust notifications alone",
    then="The worker looks by itself once an hour (poll). A job that woke nobody waits for that.",
    schema=(
        "CREATE SEQUENCE numbers",
        """CREATE TABLE commits (number int PRIMARY KEY, job uuid NOT NULL,
                                 at timestamptz NOT NULL DEFAULT clock_timestamp())""",
    ),
    tables=(
        JOBS,
        Rows(
            "holdfast.sleepers",
            "SELECT s.worker AS id, s.queue FROM holdfast.sleepers s LIMIT 20",
            "sleeping workers, which a commit wakes",
        ),
        DONE,
        Rows(
            "pg_stat_activity",
            """SELECT pid, application_name AS who, state FROM pg_stat_activity
               WHERE datname = current_database() AND application_name LIKE 'holdfast listen%' ORDER BY pid LIMIT 20""",
            "connections that listen",
        ),
    ),
    acts=(
        Act("enqueue", "Enqueue", _enqueue),
        Act("untold", "Enqueue, and wake nobody", _untold, "x"),
        Act("cut", "Cut the listeners", _cut, "bolt"),
        JOIN,
        DRAIN,
        KILL,
    ),
    play=_play,
    app=app,
    knobs=(Knob("poll", "Looks by itself every", 1.0, 0.5, 5.0, "s", 0.5),),
    settings={"poll": 1.0},
    unsafe_settings={"poll": 3600.0},
    begin=_begin,
)
