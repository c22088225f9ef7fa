"""A producer of test_migrate_rolling.py: makes jobs in every way there is, until the file `stop-NAME` is there.

Each round notes its tags: `due`, what must have run in the end. An error ends the process with a traceback, and the test
with it.
"""

import asyncio
import functools
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any
from uuid import UUID

import psycopg
from tests.migration.rolling_app import (
    FOLDER,
    app,
    arecorded,
    doomed,
    failing,
    gathered,
    in_order,
    in_process,
    in_thread,
    limited,
    note,
    plain,
    recorded,
    shared,
    snoozing,
    stepped,
)

import holdfast
from holdfast.operate.dead import redrive_verb

URL = os.environ["HOLDFAST_DATABASE_URL"]
Ways = dict[str, Callable[[str], list[str]]]


def one_by_one(tag: str) -> list[str]:
    tasks = (plain, in_thread, recorded, arecorded, stepped, failing, snoozing, limited)
    for task in tasks:
        task.using(tags=["rolling"], metadata={"tag": tag}).enqueue(tag=f"{tag}-{task.name}")
    return [*(f"{tag}-{task.name}" for task in tasks), f"{tag}-recorded-more"]


def many(tag: str) -> list[str]:
    tags = [f"{tag}-{n}" for n in range(20)]
    app.enqueue_many([plain.using(priority=n % 3).job(tag=t) for n, t in enumerate(tags)])
    app.enqueue_many(gathered.job(f"{t}-gathered") for t in tags)
    return [*tags, *(f"{t}-gathered" for t in tags)]


def copied(tag: str) -> list[str]:
    tags = [f"{tag}-{n}" for n in range(10)]
    assert app.enqueue_copy(plain.job(tag=t) for t in tags) == 10
    return tags


def ordered(tag: str) -> list[str]:
    """Each producer has keys of its own, so that the order in which it enqueues is the order of the key."""
    jobs = [
        in_order.using(partition_key=f"{sys.argv[1]}-{n % 3}").job(
            tag=f"{tag}-{n}", n=n + 12 * int(tag.split("-")[1])
        )
        for n in range(12)
    ]
    app.enqueue_many(jobs[:6])
    for job in jobs[6:]:
        app.enqueue_many([job])
    return [f"{tag}-{n}" for n in range(12)]


def keyed(tag: str) -> list[str]:
    app.enqueue_many(shared.using(partition_key=f"tenant-{n % 4}").job(tag=f"{tag}-{n}") for n in range(8))
    return [f"{tag}-{n}" for n in range(8)]


def idempotent(tag: str) -> list[str]:
    first = plain.using(idempotency_key=tag).enqueue(tag=tag)
    again = plain.using(idempotency_key=tag).enqueue(tag=tag)
    assert (first.created, again.created, again.id) == (True, False, first.id)
    return [tag]


def replaced(tag: str) -> list[str]:
    plain.using(replace_key=tag, run_after=0.2).enqueue(tag=f"{tag}-a")
    again = plain.using(replace_key=tag, run_after=0.2).enqueue(tag=f"{tag}-b")
    return [f"{tag}-a", f"{tag}-b"] if again.created else [f"{tag}-b"]


def chained(tag: str) -> list[str]:
    last = recorded.job(tag=f"{tag}-last")
    plain.using(then=[in_thread.using(then=last).job(tag=f"{tag}-next")]).enqueue(tag=f"{tag}-first")
    members = [task.job(tag=f"{tag}-{task.name}") for task in (plain, recorded, in_thread)]
    group = app.group(members, then=plain.job(tag=f"{tag}-callback"))
    assert group.status().total == 3
    ends = (
        "first",
        "next",
        "last",
        "last-more",
        "plain",
        "recorded",
        "recorded-more",
        "in_thread",
        "callback",
    )
    return [f"{tag}-{end}" for end in ends]


def in_a_transaction(tag: str) -> list[str]:
    with psycopg.connect(URL) as conn:
        plain.using(conn=conn).enqueue(tag=tag)
        app.enqueue_many([limited.job(tag=f"{tag}-many")], conn=conn)
    with psycopg.connect(URL) as conn:
        plain.using(conn=conn).enqueue(tag=f"{tag}-never")
        conn.rollback()
    return [tag, f"{tag}-many"]


def by_sql(tag: str) -> list[str]:
    with psycopg.connect(URL) as conn:
        for key in (None, tag):
            call = "SELECT id, created, conflict FROM holdfast.enqueue('plain', %s::jsonb, idempotency_key => %s)"
            row = conn.execute(call, [f'{{"tag": "{tag}-{key}"}}', key]).fetchone()
            assert row is not None
            assert row[1:] == (True, None)
        conn.execute(
            "SELECT holdfast.enqueue('limited', jsonb_build_object('tag', %s::text), 'limited')", [f"{tag}-3"]
        )
        members = f'[{{"task": "plain", "payload": {{"tag": "{tag}-4"}}}}]'
        callback = f'[{{"task": "plain", "payload": {{"tag": "{tag}-5"}}}}]'
        conn.execute("SELECT * FROM holdfast.enqueue_group(%s::jsonb, %s::jsonb)", [members, callback])
    return [f"{tag}-None", f"{tag}-{tag}", *(f"{tag}-{n}" for n in (3, 4, 5))]


def answered(tag: str) -> list[str]:
    sent = app.send("in_thread", {"tag": tag})
    assert sent.result(timeout=120) == tag
    never = plain.using(run_after=3600).enqueue(tag=f"{tag}-never")
    assert never.cancel()
    return [tag]


def in_child(tag: str) -> list[str]:
    in_process.enqueue(tag=tag)
    return [tag]


def operated(tag: str) -> list[str]:
    """What operators do, from Python; the command line of an older release looks at the schema first."""
    dead = doomed.enqueue(tag=tag)
    verb("pauses", "pause_task")("failing")
    failing.enqueue(tag=f"{tag}-paused")
    verb("pauses", "pause_queue")("shared")
    until(lambda: bool(verb("jobs", "find_job")(dead.id).job.state == "dead_letter"))
    verb("overview", "overview")()
    verb("workers", "list_workers")()
    verb("jobs", "list_jobs")()
    verb("acts", "act_on")(redrive_verb(), [UUID(str(dead.id))])
    verb("pauses", "resume_queue")("shared")
    verb("pauses", "resume_task")("failing")
    return [tag, f"{tag}-paused"]


def two_eras(tag: str) -> list[str]:
    """A run that continues as new, and whose second signal may come in either era."""
    from tests.migration.rolling_app import NEXT, eras

    run = eras.using(id=tag).start(tag=tag, era=1)
    for key in ("a", "b"):
        run.signal(NEXT(key), idempotency_key=key)
    return [f"{tag}-{n}{end}" for n in (1, 2) for end in ("", "-called")]


def verb(module: str, name: str) -> Callable[..., Any]:
    """A verb of the operator; in releases that have none it is a function of the database."""
    try:
        from holdfast.operate.operator import Operator
    except ModuleNotFoundError:
        return functools.partial(getattr(import_module(f"holdfast.operate.{module}"), name), app.database)
    found: Callable[..., Any] = getattr(Operator(app.database, "rolling"), name)
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


async def amany(tag: str) -> list[str]:
    await app.aenqueue_many(arecorded.job(tag=f"{tag}-{n}") for n in range(5))
    await plain.aenqueue(tag=tag)
    await app.agroup([in_thread.job(tag=f"{tag}-in")], then=plain.job(tag=f"{tag}-then"))
    return [tag, *(f"{tag}-{n}" for n in range(5)), f"{tag}-in", f"{tag}-then"]


def main(name: str) -> None:
    print(f"rolling producer with {holdfast.__file__}", flush=True)
    ways: Ways = {
        way.__name__: way
        for way in (
            *(one_by_one, many, copied, ordered, keyed, idempotent, replaced, chained),
            *(in_a_transaction, by_sql, answered, in_child, operated),
        )
    }
    if os.environ.get("ROLLING_WORKFLOWS"):
        ways["two_eras"] = two_eras
    with asyncio.Runner() as runner:
        ways["amany"] = lambda tag: runner.run(amany(tag))
        number = 0
        while not (FOLDER / f"stop-{name}").exists():
            for kind, way in ways.items():
                tags = way(f"{name}-{number}-{kind}")
                note("due", kind=kind, round=number, tags=tags)
            number += 1
            time.sleep(0.05)
        runner.run(app.database.aclose())
    app.close()


if __name__ == "__main__":
    main(sys.argv[1])
