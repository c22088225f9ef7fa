"""Scene 14: an old snapshot. Somebody forgets a transaction, and vacuum may remove nothing that was deleted since."""

import contextlib
import random

import psycopg

from holdfast import Holdfast, Job
from holdfast.lab import outside
from holdfast.lab.acting import JOIN, KILL
from holdfast.lab.scene import DONE, JOBS, Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage
from holdfast.operate.doctor.thresholds import Limits
from holdfast.operate.operator import Operator

app = Holdfast()
app.queue("reports")
READING = "in the middle of a report"
OLD = 2  # seconds that a transaction is open: the view must name it
_DEAD = "SELECT coalesce(sum(dead), 0) FROM left_rows"


@app.task
def pack(number: int) -> None:
    pass


@app.task(queue="reports", max_attempts=1)
def report(job: Job) -> None:
    """Reads in one long transaction, as a report or a forgotten console does."""
    with contextlib.suppress(psycopg.OperationalError), outside.apart(app) as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        row = conn.execute("SELECT pg_backend_pid(), count(*) FROM holdfast.archive").fetchone()
        assert row is not None
        outside.did(f"opens a transaction in session {row[0]}", job, tone="held", session=row[0])
        outside.rest(READING, job)
        conn.execute("COMMIT")


def _forget(stage: Stage) -> None:
    stage.hold(READING)
    report.enqueue()
    stage.note("begins a report that does not end", "held")


def _pack(stage: Stage) -> None:
    count = int(stage.values["jobs"])
    app.enqueue_many(pack.job(number=n) for n in range(count))
    stage.note(f"enqueues {count} jobs", "done")


def _vacuum(stage: Stage) -> None:
    stage.sql("VACUUM holdfast.work")
    dead = stage.number(_DEAD)
    stage.note(f"vacuums: {dead} dead rows stay", "dead" if dead else "done")


def _doctor(stage: Stage) -> None:
    """What `holdfast doctor` says, and the fix that it prints."""
    limits = Limits(horizon=3600.0 if stage.unsafe else 1.0)
    doctor = Operator(app.database, "lab")
    diagnosis = doctor.doctor(only=["horizon"], limits=limits)
    named = [one for check in diagnosis.checks for one in check.findings if one.code == "horizon_session"]
    stage.note(named[0].what if named else "the doctor names nobody", "retry" if named else "done")
    for one in named:
        for line in one.details:
            stage.note(f"the doctor names {line[:80]}", "retry")
        doctor.fix("horizon", limits=limits, on_step=lambda said: stage.note(said, "done"))
    stage.sql("INSERT INTO looks (named) VALUES (%s)", [sum(len(one.details) for one in named)])
    if named:
        stage.wait(stage.holds, "the sessions that it named are gone")


def _end(stage: Stage) -> None:
    stage.hold(READING, False)
    stage.note("lets the report end", "done")


def _begin(stage: Stage) -> None:
    stage.start()


def _play(stage: Stage, chance: random.Random) -> None:
    stage.act("forget")
    stage.until_held(READING)
    stage.act("pack")
    stage.wait(
        lambda: not stage.number("SELECT count(*) FROM holdfast.work WHERE queue <> 'reports'"),
        "every other job is done",
    )
    stage.act("vacuum")
    stage.wait(lambda: stage.number(_DEAD), "dead rows stay, despite vacuum")
    stage.wait(
        lambda: stage.number(
            "SELECT count(*) FROM holders WHERE xact_start < clock_timestamp() - make_interval(secs => %s)",
            [OLD + 1],
        ),
        "the transaction is old",
    )
    stage.act("doctor")
    if stage.unsafe:
        return

    def removed() -> bool:
        stage.sql("VACUUM holdfast.work")
        return not stage.number(_DEAD)

    stage.wait(removed, "vacuum removes what was left")
    stage.act("end")
    stage.until_idle()


SCENE = Scene(
    number=14,
    name="old_snapshot",
    title="An old snapshot",
    short="Old snapshot",
    lead="Forget a transaction, and watch dead rows pile up until somebody names it.",
    story=(
        Chapter(
            "Begin a report that does not end. Its transaction may still read every row of now.",
            lambda s: s.number("SELECT count(*) FROM holders") > 0,
        ),
        Chapter(
            "Run jobs, and vacuum. Every claim and every end leaves a dead row, and none of them may go.",
            lambda s: s.number(_DEAD) > 0,
        ),
        Chapter(
            "Ask the doctor. It names the session by its pid, and its fix ends it.",
            lambda s: s.number("SELECT count(*) FROM looks WHERE named > 0") > 0,
        ),
        Chapter(
            "Vacuum again: the dead rows are gone.",
            lambda s: s.number("SELECT count(*) FROM looks WHERE named > 0") > 0 and not s.number(_DEAD),
        ),
    ),
    promise=Promise(
        "The doctor names the session that holds back cleanup, and its fix ends it.",
        (
            ("jobs done", "SELECT count(*) FROM holdfast.archive"),
            ("dead rows", _DEAD),
            ("sessions named", "SELECT coalesce(sum(named), 0) FROM looks"),
            (
                "old transactions that the doctor left",
                "SELECT count(*) FROM holders WHERE xact_start < (SELECT max(at) FROM looks) - interval '2 seconds'",
            ),
        ),
        ("old transactions that the doctor left",),
    ),
    unsafe="A doctor that waits an hour",
    then="The limit of an open transaction (horizon) is an hour. Nobody is named, and the dead rows stay.",
    schema=(
        "CREATE TABLE looks (at timestamptz NOT NULL DEFAULT clock_timestamp(), named int NOT NULL)",
        """CREATE VIEW holders AS
           SELECT pid, state, backend_xmin::text AS xmin, xact_start FROM pg_stat_activity
           WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
             AND backend_type = 'client backend'""",
        """CREATE VIEW left_rows AS
           SELECT relname AS partition, n_live_tup AS live, n_dead_tup AS dead FROM pg_stat_user_tables
           WHERE relid IN (SELECT relid FROM pg_partition_tree('holdfast.work'))""",
    ),
    tables=(
        Rows(
            "pg_stat_user_tables",
            "SELECT partition, live, dead FROM left_rows ORDER BY dead DESC LIMIT 8",
            "rows that jobs left behind, as the server counts them",
        ),
        Rows(
            "pg_stat_activity",
            """SELECT pid, state, xmin, round(extract(epoch FROM clock_timestamp() - xact_start)::numeric, 1)::float8 AS open
               FROM holders ORDER BY xact_start LIMIT 8""",
            "sessions that may still read old rows",
            ("open", "state", "xmin"),
        ),
        JOBS,
        DONE,
    ),
    acts=(
        Act("forget", "Forget a transaction", _forget, "lock"),
        Act("pack", "Run jobs", _pack),
        Act("vacuum", "Vacuum", _vacuum),
        Act("doctor", "Ask the doctor", _doctor),
        Act("end", "Let the report end", _end),
        JOIN,
        KILL,
    ),
    play=_play,
    app=app,
    knobs=(Knob("jobs", "Jobs", 200, 50, 1000, "", 50),),
    settings={"concurrency": 8},
    begin=_begin,
)
