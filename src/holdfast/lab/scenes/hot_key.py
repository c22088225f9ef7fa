"""Scene 9: a hot key. One tenant enqueues a hundred times as much as the others, which must not wait behind it."""

import os
import random
import time

from holdfast import Holdfast, Job, sharded_key
from holdfast.lab import outside
from holdfast.lab.acting import DRAIN, JOIN, KILL
from holdfast.lab.scene import DONE, JOBS, Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage

app = Holdfast()
app.queue("fair", fair=True)
app.queue("plain")
app.queue("streams", ordering="key")
OTHERS = ("blue", "green", "red")
EACH = 3  # jobs of each of them


@app.task(queue="fair")
def index(job: Job, tenant: str, seconds: float, load: int) -> None:
    with outside.apart(app) as conn:
        conn.execute(
            "INSERT INTO ran (tenant, key, queue, load, pid) VALUES (%s, %s, %s, %s, %s)",
            [tenant, job.partition_key, job.queue, load, os.getpid()],
        )
    time.sleep(seconds)


def _fill(stage: Stage, queue: str, hot: int, seconds: float, shards: int = 1) -> None:
    """All of the hot key first, then a few of each other tenant: one statement, in this order."""
    load = stage.seen["load"] = stage.seen.get("load", 0) + 1

    def job(tenant: str, n: int) -> object:
        key = sharded_key(tenant, shards=shards, by=n) if shards > 1 and tenant == "hot" else tenant
        return index.using(queue=queue, partition_key=key).job(tenant=tenant, seconds=seconds, load=load)

    jobs = [job("hot", n) for n in range(hot)] + [job(name, n) for n in range(EACH) for name in OTHERS]
    app.enqueue_many(jobs)  # type: ignore[arg-type]
    stage.note(f"enqueues {hot} of the tenant hot and {EACH} of each other", "done")


def _enqueue(stage: Stage) -> None:
    queue = "plain" if stage.unsafe else "fair"
    _fill(stage, queue, int(stage.values["hot"]), stage.values["seconds"])


def _shards(stage: Stage) -> None:
    """In an ordered queue one key runs one job at a time; its shards run side by side."""
    _fill(stage, "streams", int(stage.values["hot"]), stage.values["seconds"], int(stage.values["shards"]))
    stage.seen["shards"] = True


def _begin(stage: Stage) -> None:
    stage.start()


def _play(stage: Stage, chance: random.Random) -> None:
    stage.wait(lambda: stage.number("SELECT count(*) FROM holdfast.workers"), "a worker is there")
    stage.values |= {"hot": float(chance.randint(60, 120)), "seconds": 0.002}
    stage.act("enqueue")
    stage.until_idle()


_BEHIND = """
    SELECT count(*) FROM ran r WHERE r.tenant <> 'hot' AND r.queue <> 'streams'
       AND (SELECT count(*) FROM ran h
            WHERE h.tenant = 'hot' AND h.queue = r.queue AND h.load = r.load AND h.n < r.n) > 50"""

SCENE = Scene(
    number=9,
    name="hot_key",
    title="A hot key, and shards",
    short="Hot key",
    lead="One tenant enqueues a hundred times as much as the others.",
    story=(
        Chapter(
            "Enqueue: all of the hot tenant's jobs come first, the others' behind them.",
            lambda s: s.number("SELECT count(*) FROM ran") > 0,
        ),
        Chapter(
            "Keys take turns. The few jobs of the others are done long before the hot tenant's.",
            lambda s: s.number("SELECT count(*) FROM ran WHERE tenant <> 'hot'") >= EACH * len(OTHERS),
        ),
        Chapter(
            "In an ordered queue a key runs one job at a time. Shards of it run side by side: watch the keys.",
            lambda s: "shards" in s.seen,
        ),
    ),
    promise=Promise(
        "In a fair queue every key gets its turn: a busy one does not make the others wait.",
        (
            ("run", "SELECT count(*) FROM ran"),
            ("of other tenants", "SELECT count(*) FROM ran WHERE tenant <> 'hot'"),
            ("behind 50 of the hot one", _BEHIND),
        ),
        ("behind 50 of the hot one",),
    ),
    unsafe="First come, first served",
    then="The same jobs in a queue that is not fair: the others wait until the hot tenant is done.",
    schema=(
        """CREATE TABLE ran (n int GENERATED ALWAYS AS IDENTITY, tenant text NOT NULL, key text, queue text NOT NULL,
                             load int NOT NULL, pid int NOT NULL,
                             at timestamptz NOT NULL DEFAULT clock_timestamp())""",
    ),
    tables=(
        JOBS,
        Rows(
            "ran",
            """SELECT tenant, count(*) AS jobs, min(n) AS first, max(n) AS last FROM ran
               GROUP BY tenant ORDER BY min(n) LIMIT 20""",
            "in which order tenants were served",
        ),
        Rows(
            "keys",
            """SELECT key, count(*) AS jobs, count(DISTINCT pid) AS workers FROM ran GROUP BY key ORDER BY key LIMIT 20""",
            "by partition key: shards are keys of their own",
        ),
        DONE,
    ),
    acts=(
        Act("enqueue", "Enqueue", _enqueue),
        Act("sharded", "Enqueue in order, sharded", _shards, "queues"),
        JOIN,
        DRAIN,
        KILL,
    ),
    play=_play,
    app=app,
    knobs=(
        Knob("hot", "Jobs of the hot tenant", 200, 60, 2000, "", 10),
        Knob("seconds", "One job takes", 0.05, 0.002, 1.0, "s", 0.002),
        Knob("shards", "Shards of the hot key", 4, 2, 16),
        Knob("concurrency", "Jobs at a time, each worker", 4, 1, 20),
    ),
    settings={"concurrency": 4},
    begin=_begin,
)
