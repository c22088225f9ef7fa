"""Scene 11: a performance tuner. Each setting is measured here, on this machine; the total must be right at all of them."""

import random
import time

from holdfast import Holdfast, Transaction
from holdfast.lab import outside
from holdfast.lab.scene import JOBS, Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage

app = Holdfast()
PARTS = 4  # rows that hold the total


@app.task
def add(tx: Transaction, number: int) -> None:
    """One more, in the job's own transaction; unsafe: read, add one, write back."""
    part = number % PARTS
    if not outside.is_unsafe():
        tx.execute("UPDATE total SET n = n + 1 WHERE part = %s", [part])
        return
    with outside.apart(app) as conn:
        (before,) = conn.execute("SELECT n FROM total WHERE part = %s", [part]).fetchone() or (0,)
        time.sleep(0.002)
        conn.execute("UPDATE total SET n = %s WHERE part = %s", [before + 1, part])


def _measure(stage: Stage) -> None:
    """Jobs first, workers then: from the first claim to the last end."""
    values = stage.values
    jobs, workers = int(values["jobs"]), int(values["workers"])
    stage.place.server.set(fsync="on" if values["fsync"] else "off")
    first = stage.number("SELECT coalesce(sum(jobs), 0) FROM runs")
    app.enqueue_copy(add.job(number=n) for n in range(first, first + jobs))
    stage.note(f"enqueues {jobs} jobs for {workers} workers of {values['concurrency']:g} slots", "done")
    crew = [stage.start() for _ in range(workers)]
    stage.wait(lambda: not stage.number("SELECT count(*) FROM holdfast.work"), "all jobs are run", 600)
    (row,) = stage.sql(
        """INSERT INTO runs (jobs, workers, concurrency, prefetch, fsync, per_second, p95_ms)
           SELECT count(*), %s, %s, %s, %s, count(*) / extract(epoch FROM max(a.completed_at) - min(a.claimed_at)),
                  1000 * percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM a.completed_at - a.claimed_at))
           FROM holdfast.archive a WHERE (a.payload->>'number')::int >= %s RETURNING per_second::int""",
        [workers, int(values["concurrency"]), int(values["prefetch"]), bool(values["fsync"]), first],
    )
    stage.note(f"measures {row['per_second']} jobs a second", "done")
    for member in crew:
        member.drain()
    stage.wait(lambda: not stage.crew.alive, "its workers have left", 120)


def _play(stage: Stage, chance: random.Random) -> None:
    stage.values |= {"jobs": 120.0, "workers": 1.0, "concurrency": float(chance.choice((4, 8, 12)))}
    stage.act("measure")


SCENE = Scene(
    number=11,
    name="tuner",
    title="A performance tuner",
    short="Tuner",
    lead="Turn the knobs and measure, here and now. Figures of a busy machine differ from run to run.",
    story=(
        Chapter(
            "Measure once: jobs are enqueued first, then workers come and run them.",
            lambda s: s.number("SELECT count(*) FROM runs") > 0,
        ),
        Chapter(
            "Turn one knob, and measure again. Three runs of a setting show how much of it is chance.",
            lambda s: s.number("SELECT count(*) FROM settings_measured") > 1,
        ),
        Chapter(
            "The first row is the best that was measured: those are the lines for holdfast.toml.",
            lambda s: s.number("SELECT count(*) FROM settings_measured WHERE runs >= 3") > 0,
        ),
    ),
    promise=Promise(
        "More at a time changes how fast it is, never what comes out: each job counts once.",
        (
            ("jobs run", "SELECT count(*) FROM holdfast.archive WHERE status = 'completed'"),
            ("best, jobs a second", "SELECT coalesce(max(per_second), 0)::int FROM settings_measured"),
            (
                "missing in the total",
                """SELECT CASE WHEN EXISTS (SELECT FROM holdfast.work) THEN 0
                               ELSE abs((SELECT count(*) FROM holdfast.archive WHERE status = 'completed')
                                        - (SELECT sum(n) FROM total)) END""",
            ),
        ),
        ("missing in the total",),
    ),
    unsafe="Read, add one, write back",
    then="The handler counts on a connection apart, in two statements. The more run at a time, the more are lost.",
    schema=(
        "CREATE TABLE total (part int PRIMARY KEY, n bigint NOT NULL)",
        "INSERT INTO total SELECT p, 0 FROM generate_series(0, 3) AS p",
        """CREATE TABLE runs (n int GENERATED ALWAYS AS IDENTITY, jobs int, workers int, concurrency int, prefetch int,
                              fsync boolean, per_second float8, p95_ms float8)""",
        """CREATE VIEW settings_measured AS SELECT workers, concurrency, prefetch, fsync, count(*) AS runs,
                  avg(per_second) AS per_second, min(per_second) AS least, max(per_second) AS most, avg(p95_ms) AS p95_ms
           FROM runs GROUP BY workers, concurrency, prefetch, fsync""",
    ),
    tables=(
        JOBS,
        Rows(
            "settings_measured",
            """SELECT workers || ' x ' || concurrency || ', prefetch ' || prefetch
                      || CASE WHEN fsync THEN ', fsync' ELSE '' END AS setting,
                      round(per_second)::int AS per_second, round(least) || ' to ' || round(most) AS range,
                      round(p95_ms)::int AS p95_ms, runs
               FROM settings_measured ORDER BY per_second DESC LIMIT 20""",
            "jobs a second of each setting, best first: mean, least and most",
        ),
        Rows(
            "holdfast.toml",
            """SELECT 'concurrency = ' || concurrency AS line, 'prefetch = ' || prefetch AS next,
                      'processes = ' || workers AS last FROM settings_measured ORDER BY per_second DESC LIMIT 1""",
            "the lines of the best setting so far",
        ),
        Rows("total", "SELECT part, n FROM total ORDER BY part", "what the jobs counted"),
    ),
    acts=(Act("measure", "Measure", _measure),),
    play=_play,
    app=app,
    knobs=(
        Knob("jobs", "Jobs", 2000, 100, 20000, "", 100),
        Knob("workers", "Workers", 1, 1, 8),
        Knob("concurrency", "Jobs at a time, each worker", 10, 1, 100),
        Knob("prefetch", "Claimed ahead", 2, 0, 50),
        Knob("fsync", "Commits wait for the disk (0 or 1)", 0, 0, 1),
    ),
    settings={"concurrency": 10, "prefetch": 2},
    notes=False,
)
