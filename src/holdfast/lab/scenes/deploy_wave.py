"""Scene 7: a deploy wave. Every worker is replaced while it works: by SIGTERM, which it obeys, or by kill -9."""

import os
import random
import time

from holdfast import Holdfast, Job
from holdfast.lab import outside
from holdfast.lab.acting import DRAIN, JOIN, KILL
from holdfast.lab.scene import DONE, JOBS, Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage

app = Holdfast()
MIDDLE = "in the middle of a page"


@app.task(max_attempts=20)
def render(job: Job, page: int, seconds: float) -> None:
    """Sync work of some time, as handlers have."""
    with outside.apart(app) as conn:  # it may be begun again elsewhere: a row for each time
        conn.execute(
            "INSERT INTO starts (page, generation, pid) VALUES (%s, %s, %s)",
            [page, job.generation, os.getpid()],
        )
    outside.rest(MIDDLE)
    time.sleep(seconds)


def _fill(stage: Stage) -> None:
    first = stage.number("SELECT count(*) FROM asked")
    count, seconds = int(stage.values["pages"]), stage.values["seconds"]
    stage.sql("INSERT INTO asked SELECT generate_series(%s::int, %s::int)", [first + 1, first + count])
    app.enqueue_many(render.job(page=first + n, seconds=seconds) for n in range(1, count + 1))
    stage.note(f"enqueues {count} pages", "done")


def _wave(stage: Stage) -> None:
    """Each worker in turn: a new one comes, the old one goes once the new one is there."""
    for old in stage.crew.alive:
        stage.start_ready()
        if stage.unsafe:
            stage.note(f"replaces {old.name} (kill -9)", "dead")
            old.kill()
        else:
            stage.note(f"replaces {old.name} (SIGTERM)", "held")
            old.drain()
    stage.seen["wave"] = True


def _begin(stage: Stage) -> None:
    stage.start()
    stage.start()


def _play(stage: Stage, chance: random.Random) -> None:
    stage.wait(lambda: stage.number("SELECT count(*) FROM holdfast.workers") >= 2, "two workers are there")
    stage.values |= {"pages": float(chance.randint(20, 40)), "seconds": 0.01}
    stage.hold(MIDDLE)  # so that every worker is in the middle of its pages when the wave comes
    stage.act("fill")
    stage.wait(lambda: stage.number("SELECT count(*) FROM starts") >= 8, "both workers render")
    stage.act("wave")
    stage.hold(MIDDLE, False)
    stage.until_idle()


SCENE = Scene(
    number=7,
    name="deploy_wave",
    title="A deploy wave",
    short="Deploy",
    lead="Replace every worker while it works, politely or not.",
    story=(
        Chapter(
            "Enqueue pages to render. Two workers share them.",
            lambda s: s.number("SELECT count(*) FROM asked") > 0,
        ),
        Chapter(
            "Start the wave. Each old worker gets SIGTERM: it claims no more, and finishes what runs.",
            lambda s: "wave" in s.seen,
        ),
        Chapter(
            "Jobs that it had not begun go back at once. Nobody waits for a lease to end.",
            lambda s: any(member.state == "left" for member in s.crew.members.values()),
        ),
        Chapter(
            "All pages are rendered, each begun once.",
            lambda s: "wave" in s.seen and not s.number("SELECT count(*) FROM holdfast.work"),
        ),
    ),
    promise=Promise(
        "A worker that is asked to leave finishes what it runs: a deploy cuts nothing off.",
        (
            ("pages", "SELECT count(*) FROM asked"),
            ("rendered", "SELECT count(*) FROM holdfast.archive WHERE status = 'completed'"),
            ("begun twice", "SELECT count(*) FROM (SELECT FROM starts GROUP BY page HAVING count(*) > 1) s"),
        ),
        ("begun twice",),
    ),
    unsafe="Deploy by kill −9",
    then="Old workers are killed. What they ran is lost until they are known to be dead, and is begun again.",
    schema=(
        "CREATE TABLE asked (page int PRIMARY KEY)",
        "CREATE TABLE starts (page int NOT NULL, generation bigint NOT NULL, pid int NOT NULL)",
    ),
    tables=(
        JOBS,
        Rows(
            "starts",
            """SELECT 'page ' || page AS about, count(*) AS begun, array_agg(pid ORDER BY generation)::text AS by
               FROM starts GROUP BY page ORDER BY count(*) DESC, page DESC LIMIT 20""",
            "how often each page was begun",
        ),
        DONE,
    ),
    acts=(
        Act("fill", "Enqueue pages", _fill),
        Act("wave", "Start the wave", _wave, "right"),
        JOIN,
        DRAIN,
        KILL,
    ),
    play=_play,
    app=app,
    knobs=(
        Knob("pages", "Pages", 60, 10, 500),
        Knob("seconds", "One page takes", 0.5, 0.1, 3.0, "s", 0.1),
        Knob("concurrency", "Jobs at a time, each worker", 4, 1, 20),
    ),
    settings={"concurrency": 4, "drain": 60.0},
    begin=_begin,
)
