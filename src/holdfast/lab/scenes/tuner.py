"""Scene 11: a performance tuner. Each setting is measured here, on this machine; the total must be right at all of them."""

import contextlib
import random
import time
from collections.abc import Iterator

from holdfast import Batch, Holdfast, Task, Transaction
from holdfast.lab import outside
from holdfast.lab.scene import JOBS, Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage

app = Holdfast()
PARTS = 4  # rows that hold the total
SIZES = range(10, 101, 10)  # of a batch
_WRITE_BACK = "UPDATE total SET n = %s WHERE part = %s"


def _read_and_write_back(part: int, more: int) -> None:
    with outside.apart(app) as conn:
        (before,) = conn.execute("SELECT n FROM total WHERE part = %s", [part]).fetchone() or (0,)
        time.sleep(0.002)
        conn.execute(_WRITE_BACK, [before + more, part])


@app.task
def add(tx: Transaction, number: int) -> None:
    """One more, in the job's own transaction; unsafe: read, add one, write back."""
    if outside.is_unsafe():
        _read_and_write_back(number % PARTS, 1)
    else:
        tx.execute("UPDATE total SET n = n + 1 WHERE part = %s", [number % PARTS])


def _batch_task(size: int) -> Task[[int], None]:
    @app.batch_task(size=size, wait=0.05, name=f"add_{size}")
    def add_many(batch: Batch[int]) -> None:
        """All of them in one transaction of its own; a job that comes again is in `counted` already."""
        part = batch.values[0] % PARTS
        if outside.is_unsafe():
            _read_and_write_back(part, len(batch.values))
            return
        ids = [item.job.id for item in batch]
        with outside.apart(app) as conn, conn.transaction():
            new = conn.execute(
                "INSERT INTO counted SELECT unnest(%s::uuid[]) ON CONFLICT DO NOTHING", [ids]
            ).rowcount
            conn.execute("UPDATE total SET n = n + %s WHERE part = %s", [new, part])

    return add_many


_BATCHES = {size: _batch_task(size) for size in SIZES}


def _measure(stage: Stage) -> None:
    """Jobs first, workers then: from the first claim to the last end."""
    values = {name: int(value) for name, value in stage.values.items()}
    first = stage.number("SELECT coalesce(sum(jobs), 0) FROM runs")
    numbers = range(first, first + values["jobs"])
    task = _BATCHES.get(values["batch"])
    app.enqueue_copy(add.job(number=n) if task is None else task.job(n) for n in numbers)
    said = f"{values['workers']} workers of {values['concurrency']} slots"
    stage.note(f"enqueues {values['jobs']} jobs for {said}", "done")
    with _commits(stage, wait=bool(values["fsync"])):
        crew = [stage.start() for _ in range(values["workers"])]
        stage.wait(lambda: not stage.number("SELECT count(*) FROM holdfast.work"), "all jobs are run", 600)
    (row,) = stage.sql(
        """INSERT INTO runs (jobs, workers, concurrency, prefetch, batch, lease, fsync, per_second, p95_ms)
           SELECT count(*), %s, %s, %s, %s, %s, %s,
                  count(*) / extract(epoch FROM max(a.completed_at) - min(a.claimed_at)),
                  1000 * percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM a.completed_at - a.claimed_at))
           FROM holdfast.archive a WHERE coalesce(a.payload->>'number', a.payload->>'item')::int >= %s
           RETURNING per_second::int""",
        [
            *(values[name] for name in ("workers", "concurrency", "prefetch", "batch")),
            stage.settings.lease,
            bool(values["fsync"]),
            first,
        ],
    )
    stage.note(f"measures {row['per_second']} jobs a second", "done")
    for member in crew:
        member.drain()
    stage.wait(lambda: not stage.crew.alive, "its workers have left", 120)


@contextlib.contextmanager
def _commits(stage: Stage, *, wait: bool) -> Iterator[None]:
    """Wait for the disk, for this measurement alone: other scenes are on the same server."""
    if not wait:
        yield
        return
    stage.place.server.set(fsync="on")
    try:
        yield
    finally:
        stage.place.server.set(fsync="off")


def _play(stage: Stage, chance: random.Random) -> None:
    first = {"jobs": 120.0, "workers": 1.0, "batch": 0.0, "lease": 4.0}
    stage.values |= {**first, "concurrency": float(chance.choice((4, 8, 12)))}
    stage.act("measure")
    stage.values |= {"batch": float(chance.choice(SIZES)), "lease": float(chance.randint(2, 60))}
    stage.act("measure")
    assert stage.number("SELECT count(*) FROM settings_measured") == 2


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
            "The longest bar is the best; its lines for holdfast.toml stand beside it. The knee is nearly as quick.",
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
    then="The handler counts on a connection apart, in two statements. The more calls run at a time, the more are lost.",
    schema=(
        "CREATE TABLE total (part int PRIMARY KEY, n bigint NOT NULL)",
        "INSERT INTO total SELECT p, 0 FROM generate_series(0, 3) AS p",
        "CREATE TABLE counted (job uuid PRIMARY KEY)",
        """CREATE TABLE runs (n int GENERATED ALWAYS AS IDENTITY, jobs int, workers int, concurrency int, prefetch int,
                              batch int, lease float8, fsync boolean, per_second float8, p95_ms float8)""",
        """CREATE VIEW settings_measured AS
           SELECT m.*, m.workers * m.concurrency AS slots, m.per_second = max(m.per_second) OVER () AS best,
                  m.per_second >= 0.9 * max(m.per_second) OVER () AS near
           FROM (SELECT workers, concurrency, prefetch, batch, lease, fsync, count(*) AS runs, avg(per_second) AS per_second,
                        min(per_second) AS least, max(per_second) AS most, avg(p95_ms) AS p95_ms
                 FROM runs GROUP BY workers, concurrency, prefetch, batch, lease, fsync) m""",
    ),
    tables=(
        JOBS,
        Rows(
            "settings_measured",
            """SELECT workers || ' x ' || concurrency || ', prefetch ' || prefetch || ', lease ' || lease || ' s'
                      || CASE WHEN batch > 0 THEN ', calls of ' || batch ELSE '' END
                      || CASE WHEN fsync THEN ', fsync' ELSE '' END AS setting,
                      round(per_second)::int AS per_second, round(least) || ' to ' || round(most) AS range,
                      round(p95_ms)::int AS p95_ms, runs,
                      CASE WHEN best THEN 'best'
                           WHEN near AND slots = min(slots) FILTER (WHERE near) OVER () THEN 'knee' END AS is
               FROM settings_measured ORDER BY settings_measured.per_second DESC LIMIT 20""",
            "jobs a second of each setting, best first: mean, least and most",
        ),
        Rows(
            "holdfast.toml",
            """SELECT 'concurrency = ' || concurrency AS line, 'prefetch = ' || prefetch AS next,
                      'processes = ' || workers AS more, 'lease = ' || lease AS last,
                      CASE WHEN batch > 0 THEN '@app.batch_task(size=' || batch || ')' END AS task
               FROM settings_measured ORDER BY per_second DESC LIMIT 1""",
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
        Knob("batch", "Jobs in one call (0: each by itself)", 0, 0, SIZES[-1], "", SIZES.step),
        Knob("lease", "Lease", 4, 2, 60, "s"),
        Knob("fsync", "Commits wait for the disk (0 or 1)", 0, 0, 1),
    ),
    settings={"concurrency": 10, "prefetch": 2},
    picture="bars",
    notes=False,
)
