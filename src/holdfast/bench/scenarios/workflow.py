"""`workflow`: runs of five steps that do nothing, in a closed loop with 1, 50 and 500 in flight, worker and producer in one
process. Beside them the same statements with no Python per run (`sql-`), what a run costs the server, and how long a signal
takes to the code that waits for it. What ended since is started again in one statement; a run is timed from before that
statement until its worker has settled it.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from ... import telemetry
from ...app import Holdfast
from ...model.state import JOB_COMPLETED
from ...runtime.gc_tuning import tuned_gc
from ...settings import Settings
from ...shapes.workflows.messages import Signal
from ...shapes.workflows.workflow import Workflow
from ..context import Bench
from ..loops import loop_factory
from ..postgres_cpu import server_cpu
from ..workflow_limit import limit
from .wal import position

STEPS = 5
IN_FLIGHT = (1, 50, 500)
GO = Signal("go", float)
START = (
    "SELECT s.run_id::text FROM holdfast.workflow_start_many("
    "'five', (SELECT array_agg(jsonb_build_object('n', n)) FROM generate_series(1, %s) AS n),"
    " version => 1, queue => 'workflows') s"
)
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
CALLS = (  # of all that reads or writes recorded steps; what functions do inside is not counted
    "SELECT coalesce(sum(s.calls), 0) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid"
    " WHERE d.datname = current_database() AND s.query ~ 'workflow_steps'"
)
ASLEEP = (
    "SELECT count(*),"
    " (SELECT a.sleepers > 0 FROM holdfast.asleep a WHERE a.queue = 'workflows' ORDER BY a.number DESC LIMIT 1)"
    " FROM holdfast.workflow_runs r JOIN holdfast.work w ON w.id = r.id AND w.queue = r.queue WHERE w.status = 'pending'"
)  # a run that was put away, and a worker that is to be notified
REST = 0.3  # seconds in which a run comes to its wait


async def nothing(n: int) -> int:
    return n


async def five(wf: Workflow, n: int) -> int:
    for _ in range(STEPS):
        n = await wf.step(nothing, n)
    return n


@dataclass
class Loop:
    """The result of a closed loop of that many runs."""

    runs: int
    seconds: float = 0.0
    server: float | None = None  # seconds of processor time
    client: float = 0.0
    wal: int = 0
    commits: int = 0
    statements: int | None = None  # about recorded steps; None: the server does not count them
    times: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.runs * STEPS / self.seconds

    @property
    def p50(self) -> float:
        return statistics.median(self.times) * 1000


def run(bench: Bench) -> None:
    for in_flight in IN_FLIGHT:
        if not bench.wants(f"in-flight-{in_flight}"):
            continue
        runs = max(in_flight, bench.sizes.runs * min(in_flight, 50) // 50)
        with bench.database() as url:
            found = in_a_loop(url, in_flight, runs)
        name = f"in-flight-{in_flight}"
        bench.add("workflow", name, "steps/s", found.rate)
        bench.add("workflow", f"{name} p50", "ms", found.p50)
        bench.add("workflow", f"{name} worker CPU", "us/run", found.client / found.runs * 1e6)
        if found.server is not None:
            bench.add("workflow", f"{name} server CPU", "us/run", found.server / found.runs * 1e6)
        if in_flight == 1 and found.statements is not None:
            bench.add("workflow", "statements of a step", "per step", found.statements / found.runs / STEPS)
        bench.say(f"workflow {name}: {found.rate:,.0f} steps/s, p50 {found.p50:.1f} ms")
    costs(bench)
    for in_flight in IN_FLIGHT:
        if not bench.wants(f"sql-{in_flight}"):
            continue
        with bench.database() as url:
            rate = limit(url, in_flight, max(3, bench.sizes.runs // max(in_flight, 10))) * STEPS
        bench.add("workflow", f"sql-{in_flight}", "steps/s", rate)
        bench.say(f"workflow sql-{in_flight}: {rate:,.0f} steps/s")
    for kind, sticky in (("resting", 60.0), ("suspended", 0.01)):
        with bench.database() as url, asyncio.Runner(loop_factory=loop_factory()) as runner:
            waits = runner.run(signals(url, sticky, max(5, min(50, bench.sizes.runs // 40))))
        bench.add("workflow", f"signal to code, {kind} p50", "ms", statistics.median(waits) * 1000)
        bench.say(f"workflow signal to code, {kind}: p50 {statistics.median(waits) * 1000:.1f} ms")


def in_a_loop(url: str, in_flight: int, runs: int, *, counted: bool = False) -> Loop:
    with tuned_gc(), asyncio.Runner(loop_factory=loop_factory()) as runner:  # as `holdfast worker` runs
        return runner.run(closed_loop(url, in_flight, runs, counted=counted))


def costs(bench: Bench) -> None:
    """At 50 in flight. On our own server without full-page images: how many there are depends on the last checkpoint."""
    own = bench.server.is_own
    if own:
        bench.server.set(full_page_writes="off")
    try:
        with bench.database() as url:
            found = in_a_loop(url, 50, bench.sizes.runs, counted=True)
    finally:
        if own:
            bench.server.set(full_page_writes="on")
    name = "WAL" if own else "WAL with full-page images"
    bench.add("workflow", name, "bytes/run", found.wal / found.runs)
    bench.add("workflow", "commits", "per run", found.commits / found.runs)
    bench.say(
        f"workflow: {found.wal / found.runs:,.0f} bytes of WAL, {found.commits / found.runs:.2f} commits per run"
    )


@contextlib.asynccontextmanager
async def working(url: str, concurrency: int, declare: Callable[[Holdfast], Any]) -> AsyncIterator[Any]:
    """A worker in this event loop that is in the registry."""
    async with Holdfast(url, settings=Settings(concurrency=concurrency)) as app:
        declared = declare(app)
        ready = asyncio.Event()
        with contextlib.ExitStack() as stack:
            stack.callback(telemetry.subscribe(lambda e: ready.set() if e.name == "worker.started" else None))
            worker = asyncio.create_task(app.run_worker(queues=["workflows"]))
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait({worker, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if worker.done():
                worker.result()
        try:
            yield declared
        finally:
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker


async def closed_loop(url: str, in_flight: int, runs: int, *, counted: bool = False) -> Loop:
    async with (
        working(url, max(10, in_flight), lambda app: app.workflow()(five)),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as conn,
    ):
        await _drive(conn, in_flight, min(runs, max(in_flight, 20)))  # imports, plans, connections
        found = Loop(runs)
        with psycopg.connect(url, autocommit=True) as beside:
            commits = await _commits(beside) if counted else 0
            calls = _calls(beside)
            wal, server, client = position(beside), server_cpu(beside), time.process_time()
            began = time.perf_counter()
            found.times = await _drive(conn, in_flight, runs)
            found.seconds = time.perf_counter() - began
            found.client = time.process_time() - client
            after = server_cpu(beside)
            found.server = None if after is None or server is None else after - server
            found.wal = position(beside) - wal
            found.statements = None if calls is None else (_calls(beside) or 0) - calls
            found.commits = await _commits(beside) - commits if counted else 0
        return found


async def _commits(conn: psycopg.Connection[Any]) -> int:
    """After the statistics of every session have arrived."""
    await asyncio.sleep(1.5)
    ((found,),) = conn.execute(COMMITS).fetchall()
    return int(found)


def _calls(conn: psycopg.Connection[Any]) -> int | None:
    if conn.execute("SELECT FROM pg_extension WHERE extname = 'pg_stat_statements'").fetchone() is None:
        return None
    ((found,),) = conn.execute(CALLS).fetchall()
    return int(found)


async def _drive(conn: psycopg.AsyncConnection[Any], in_flight: int, runs: int) -> list[float]:
    """All of them, at most `in_flight` at a time; how long each took."""
    began: dict[str, float] = {}
    early: dict[str, float] = {}  # ended before we know their ids
    times: list[float] = []
    news = asyncio.Event()

    def ended(event: telemetry.Event) -> None:
        run, at = str(event.fields["job"]), time.perf_counter()
        if (start := began.pop(run, None)) is None:
            early[run] = at
        else:
            times.append(at - start)
        news.set()

    stop = telemetry.subscribe(ended, JOB_COMPLETED)
    try:
        started = 0
        while len(times) < runs:
            free = min(in_flight - (started - len(times)), runs - started)
            if free:
                at = time.perf_counter()
                rows = await (await conn.execute(START, [free])).fetchall()
                started += free
                for (run,) in rows:
                    if run in early:
                        times.append(early.pop(run) - at)
                    else:
                        began[run] = at
            if len(times) < runs and (len(times) + in_flight <= started or started == runs):
                async with asyncio.timeout(120):
                    await news.wait()
                news.clear()
    finally:
        stop()
    return times


async def signals(url: str, sticky: float, count: int) -> list[float]:
    """From before the call that sends a signal to the code behind its wait; of runs in memory, or put away."""
    waits: list[float] = []
    done = asyncio.Event()

    def declare(app: Holdfast) -> Any:
        @app.workflow(sticky=sticky)
        async def listens(wf: Workflow) -> float:
            sent = await wf.signal(GO)
            waits.append(time.perf_counter() - sent)
            done.set()
            return sent

        return listens

    async with (
        working(url, 10, declare) as listens,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as conn,
    ):
        for n in range(count + 1):
            run = await listens.astart()
            await asyncio.sleep(REST)
            while sticky < 1 and (await (await conn.execute(ASLEEP)).fetchone()) != (1, True):  # noqa: ASYNC110 the server knows
                await asyncio.sleep(0.01)
            await run.asignal(GO(time.perf_counter()))
            async with asyncio.timeout(60):
                await done.wait()
            done.clear()
            await run.aresult(timeout=60)
            if n == 0:
                waits.clear()  # plans and connections
    return waits
