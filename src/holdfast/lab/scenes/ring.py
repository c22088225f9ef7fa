"""Scene 6: the ring. Workers come and go; of the keys move those of that one worker, and their order stays."""

import os
import random

from holdfast import Holdfast, Job
from holdfast.lab import outside
from holdfast.lab.acting import DRAIN, KILL
from holdfast.lab.crew import Member
from holdfast.lab.scene import JOBS, Act, Chapter, Knob, Promise, Rows, Scene
from holdfast.lab.stage import Stage
from holdfast.model.bucket import bucket
from holdfast.operate.operator import Operator

app = Holdfast()
app.queue("parcels", ordering="key")


@app.task(queue="parcels")
def ship(job: Job, number: int) -> None:
    with outside.apart(app) as conn:
        conn.execute(
            "INSERT INTO ran (key, number, pid) VALUES (%s, %s, %s)", [job.partition_key, number, os.getpid()]
        )


def _keys(stage: Stage) -> list[str]:
    return [f"order:{n}" for n in range(1, int(stage.values["keys"]) + 1)]


def _enqueue(stage: Stage) -> None:
    """One job for each key, each with the next number of its key."""
    first = stage.number("SELECT coalesce(max(number), 0) + 1 FROM asked")
    stage.sql("INSERT INTO asked VALUES (%s)", [first])
    app.enqueue_many(ship.using(partition_key=key).job(number=first) for key in _keys(stage))
    stage.note(f"enqueues number {first} of {len(_keys(stage))} keys", "done")


def _owners(stage: Stage) -> dict[str, int]:
    """By key: the pid of its owner. By the ring as it is, or as hash mod N would have it over the same workers."""
    (ring,) = Operator(app.database, "lab").rings("parcels")
    if not ring.workers:
        return {}
    owner = {
        bucket: worker.pid
        for worker in ring.workers
        for low, high in worker.ranges
        for bucket in range(low, high + 1)
    }
    if stage.unsafe:
        pids = sorted(worker.pid for worker in ring.workers)
        return {key: pids[bucket(key) % len(pids)] for key in _keys(stage)}
    return {key: owner[bucket(key)] for key in _keys(stage)}


def _seats(stage: Stage) -> set[int]:
    (ring,) = Operator(app.database, "lab").rings("parcels")
    return {worker.pid for worker in ring.workers}


def _round(stage: Stage) -> None:
    """Record the owner of each key, once the ring knows every worker."""
    stage.wait(
        lambda: _seats(stage) == {m.pid for m in stage.crew.alive if not stage.seen.get(f"leaves {m.name}")},
        "the ring knows its workers",
    )
    number = stage.number("SELECT coalesce(max(round), 0) + 1 FROM owners")
    for key, pid in _owners(stage).items():
        stage.sql("INSERT INTO owners (round, key, pid) VALUES (%s, %s, %s)", [number, key, pid])
    moved = stage.number("SELECT count(*) FROM moves WHERE round = %s", [number])
    stage.note(f"round {number}: {len(stage.crew.alive)} workers, {moved} of {len(_keys(stage))} keys moved")


def _join(stage: Stage) -> None:
    member = stage.start_ready()
    stage.note(f"worker {member.name} joins")
    _round(stage)


def _leave(stage: Stage, member: Member) -> None:
    stage.seen[f"leaves {member.name}"] = True
    DRAIN.run(stage, member)
    stage.wait(lambda: not member.is_alive, f"{member.name} leaves")
    _round(stage)


def _kill(stage: Stage, member: Member) -> None:
    KILL.run(stage, member)
    _round(stage)


def _begin(stage: Stage) -> None:
    stage.start()
    stage.start()
    stage.start()


def _play(stage: Stage, chance: random.Random) -> None:
    stage.act("look")
    stage.act("enqueue")
    stage.act("join")
    stage.act("enqueue")
    stage.act(chance.choice(("drain", "kill")), chance.choice(stage.crew.alive).name)
    stage.act("enqueue")
    stage.until_idle()


SCENE = Scene(
    number=6,
    name="ring",
    title="The ring",
    short="Ring",
    lead="Workers join, leave and die. Watch which keys move.",
    story=(
        Chapter("Record the owner of each key.", lambda s: s.number("SELECT count(*) FROM owners") > 0),
        Chapter(
            "Enqueue a job for each key: its owner runs it.",
            lambda s: s.number("SELECT count(*) FROM ran") > 0,
        ),
        Chapter(
            "A worker joins. It takes about one key in N, evenly from the others, and nothing else moves.",
            lambda s: s.number("SELECT coalesce(max(round), 0) FROM owners") > 1,
        ),
        Chapter(
            "Drain one, or kill it. Only its keys move, and each continues with its next number.",
            lambda s: len(s.crew.members) > len(s.crew.alive),
        ),
    ),
    promise=Promise(
        "A worker that comes or goes moves its own keys and no others, and no key runs out of order.",
        (
            ("keys", "SELECT count(DISTINCT key) FROM owners"),
            (
                "moved in the last round",
                "SELECT count(*) FROM moves WHERE round = (SELECT max(round) FROM owners)",
            ),
            (
                "needless moves",
                """SELECT count(*) FROM moves m WHERE
                   EXISTS (SELECT FROM owners o WHERE o.round = m.round AND o.pid = m.before)
                   AND EXISTS (SELECT FROM owners o WHERE o.round = m.round - 1 AND o.pid = m.after)""",
            ),
            (
                "out of order",
                "SELECT count(*) FROM ran a JOIN ran b ON b.key = a.key AND b.n > a.n AND b.number < a.number",
            ),
        ),
        ("needless moves", "out of order"),
    ),
    unsafe="hash mod N",
    then="The same keys and the same workers, owned by bucket mod N: computed, no worker does it. A worker that comes or "
    "goes moves keys between workers that stay.",
    schema=(
        "CREATE TABLE asked (number int PRIMARY KEY)",
        "CREATE TABLE owners (round int NOT NULL, key text NOT NULL, pid int NOT NULL, PRIMARY KEY (round, key))",
        "CREATE TABLE ran (n int GENERATED ALWAYS AS IDENTITY, key text NOT NULL, number int NOT NULL, pid int NOT NULL)",
        """CREATE VIEW moves AS SELECT b.round, b.key, a.pid AS before, b.pid AS after
           FROM owners a JOIN owners b ON b.key = a.key AND b.round = a.round + 1 AND b.pid <> a.pid""",
    ),
    tables=(
        JOBS,
        Rows(
            "owners",
            """SELECT o.pid, count(*) AS keys,
                      (SELECT count(*) FROM moves m WHERE m.round = o.round AND m.after = o.pid) AS came
               FROM owners o WHERE o.round = (SELECT max(round) FROM owners)
               GROUP BY o.round, o.pid ORDER BY o.pid LIMIT 20""",
            "how many keys each worker owns, and how many came in the last round",
        ),
        Rows(
            "holdfast.seats",
            """SELECT s.seat, k.pid, k.status FROM holdfast.seats s JOIN holdfast.workers k ON k.id = s.worker
               ORDER BY s.seat LIMIT 20""",
            "the ring: seats and their workers",
        ),
        Rows(
            "moves",
            "SELECT key, round, before, after FROM moves ORDER BY round DESC, key LIMIT 40",
            "keys that changed their owner",
        ),
    ),
    acts=(
        Act("look", "Write down the owners", _round, "eye"),
        Act("enqueue", "Enqueue for each key", _enqueue),
        Act("join", "A worker joins", _join, "workers"),
        Act("drain", "drain", _leave, "exit", of_worker=True),
        Act("kill", "kill −9", _kill, "bolt", of_worker=True),
    ),
    play=_play,
    app=app,
    knobs=(Knob("keys", "Keys", 60, 10, 200, "", 10),),
    begin=_begin,
    picture="ring",
)
