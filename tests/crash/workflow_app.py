"""The app of the crash tests of workflows, and the processes that run it.

Workers are forked from a process that has imported it all, so that one is there in a moment. A body leaves a line in a file
that survives every kill; what a transaction wrote is in the table `effects`, which has no unique key.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from holdfast import (
    AsyncTransaction,
    Holdfast,
    NonRetryable,
    Settings,
    Signal,
    SyncWorkflow,
    Transaction,
    Workflow,
    current_step,
    failpoints,
)

TABLE = "CREATE TABLE effects (run text NOT NULL, what text NOT NULL, fence text NOT NULL)"
POINTS = (
    *(
        "claim.after",
        "record.before",
        "record.done",
        "decide.before",
        "decide.done",
        "suspend.before",
        "suspend.done",
    ),
    *(
        "transact.before",
        "transact.done",
        "call.before",
        "call.done",
        "child.before",
        "child.done",
        "era.before",
        "era.done",
        "publish.before",
        "publish.done",
    ),
    *("settle.before", "settle.beside", "settle.committed", "body.begun", "body.done"),
)
TIMINGS = Settings(
    lease=20.0, heartbeat=0.5, dead_after=15.0, sweep=0.1, poll=0.05, concurrency=8, prefetch=0
)
GO = Signal("go", int)
folder = Path("/nonexistent")


def say(file: str, **fields: object) -> None:
    """One write of one line: whole or not there, even when the process is killed the next moment."""
    number = os.open(folder / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(number, f"{json.dumps(fields)}\n".encode())
    finally:
        os.close(number)


def begin(what: str) -> None:
    step = current_step()
    say("bodies", what=what, key=step.idempotency_key, fence=step.fence)
    failpoints.point("body.begun")


async def reserve(tx: AsyncTransaction, run: str) -> int:
    begin("reserve")
    await tx.execute("INSERT INTO effects VALUES (%s, 'reserve', %s)", [run, current_step().fence])
    return 1


def reserve_plainly(tx: Transaction, run: str) -> int:
    begin("reserve plainly")
    tx.execute("INSERT INTO effects VALUES (%s, 'reserve', %s)", [run, current_step().fence])
    return 1


async def charge(run: str) -> int:
    begin("charge")
    failpoints.point("body.done")
    return 2


async def label(run: str) -> str:
    begin("label")
    return run.partition(":")[0]


async def quick() -> str:
    begin("quick")
    return "quick"


async def refuse() -> None:
    begin("refuse")
    raise NonRetryable("no")


async def undo(what: str) -> None:
    begin(f"undo {what}")


def build(url: str) -> tuple[Holdfast, dict[str, Any]]:
    """The app, and its workflows by name."""
    app = Holdfast(url, settings=TIMINGS)

    @app.task(max_attempts=3)
    async def square(n: int) -> int:
        return n * n

    @app.workflow(sticky=0.05)
    async def child(wf: Workflow, run: str) -> int:
        return await wf.step(charge, run)

    @app.workflow(sticky=0.05)
    async def order(wf: Workflow, run: str) -> list[object]:
        """All that a run may do, up to a good end."""
        wf.on_failure(undo, "reserve")
        one = await wf.transact(reserve, run)
        wf.publish("crash.reserved", {"run": run}, key=run)
        two, three = await wf.gather(wf.step(charge, run), wf.step(label, run))
        place, winner = await wf.first(wf.step(quick), wf.sleep(3600))
        await wf.sleep(0.2)
        go = await wf.signal(GO)
        squares = await wf.map(square, [1, 2, 3], limit=2)
        await wf.publish("crash.squared", {"run": run}, key=run)
        started = await wf.start(child, run)
        return [one, two, three, place, winner, go, squares, await started.result()]

    @app.workflow(sticky=0.05)
    async def saga(wf: Workflow, run: str) -> str:
        """Ends with its compensations: by a cancel while it waits."""
        wf.on_failure(undo, "one")
        await wf.step(charge, run)
        wf.on_failure(undo, "two")
        await wf.transact(reserve, run)
        await wf.signal(GO)
        return "never"

    @app.workflow(sticky=0.05)
    async def fails(wf: Workflow, run: str) -> str:
        """Ends with its compensations: by a step that fails."""
        wf.on_failure(undo, "one")
        await wf.transact(reserve, run)
        wf.on_failure(undo, "two")
        await wf.step(refuse)
        return "never"

    @app.workflow(sticky=0.05)
    async def eras(wf: Workflow, run: str, n: int = 0) -> int:
        await wf.using(name=f"charge{n}").step(charge, run)
        if n < 2:
            wf.continue_as_new(run, n=n + 1)
        return n + await wf.signal(GO)

    @app.workflow(sticky=0.05)
    def plain(wf: SyncWorkflow, run: str) -> int:
        return wf.transact(reserve_plainly, run) + wf.transact(reserve_plainly, run)

    @app.workflow(sticky=0.05)
    async def steps(wf: Workflow, run: str) -> list[object]:
        """Its last record is written with its end."""
        return [await wf.step(charge, run), await wf.step(label, run), await wf.step(quick)]

    return app, {flow.name: flow for flow in (order, saga, fails, eras, plain, steps)}


@dataclass(frozen=True)
class Order:
    """What befalls a worker: at the `nth` time that it comes to `point`."""

    point: str = ""
    how: str = ""  # kill; stop: until another has ended the run; pause: until it is fenced; cut: its connections; server
    nth: int = 1


def _cut(url: str) -> None:
    """All connections of this database that are ours end now: there is one worker."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'holdfast%' AND pid <> pg_backend_pid()"
        )


def _end_server() -> None:
    """As a crash of the machine would, but for the disk: nothing is flushed, nobody is told."""
    postmaster = int((folder / "postmaster").read_text(encoding="ascii"))
    os.kill(postmaster, signal.SIGQUIT)


def work(url: str, place: str, order: Order) -> None:
    """A worker process; never returns by itself."""
    global folder  # noqa: PLW0603 of this process
    folder = Path(place)
    ways: dict[str, Callable[[], None]] = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "pause": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "cut": lambda: _cut(url),
        "server": _end_server,
    }
    for point in POINTS:
        failpoints.arm(point, _at(point, order, ways.get(order.how, lambda: None)))
    asyncio.run(build(url)[0].run_worker())


def _at(point: str, order: Order, act: Callable[[], None]) -> Callable[[], None]:
    seen = 0

    def reached() -> None:
        nonlocal seen
        seen += 1
        say("points", point=point, pid=os.getpid())
        if point == order.point and seen == order.nth:
            say("struck", point=point, how=order.how, pid=os.getpid())
            act()

    return reached
