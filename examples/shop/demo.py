"""The demo: pay orders, kill -9 a worker in the middle of a named job, and see that nothing is lost.

prepare     a fresh embedded server in .holdfast/demo, the shop's tables
work        pay orders, kill the worker that runs order 42, wait until every receipt is sent and every payment is summed up
move        ship parcels in order while a worker joins, one leaves and one is drained (moves.py)
judge       read the verdict from the database; exit code 1 if a promise was broken
"""

import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from examples.shop import app as shop
from examples.shop.moves import Moved, Moves
from examples.shop.show import Kill, Progress, Screen, broken, read_counts, verdict_lines
from examples.stage import LIMIT, Fleet, TimeUpError, interrupt, time_limit, unfinished, worker
from holdfast import HoldfastError, Published, ResultTimeout
from holdfast.db import embedded

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(".holdfast/demo")  # kept after the run
LOGS = Path(".holdfast/demo-logs")
URL = f"embedded:{DATA}"
ORDERS = 440
DECLINED = 11  # every 11th payment is rolled back
PAYABLE = ORDERS - ORDERS // DECLINED
ORDERS_PER_SECOND = 30
WORKERS = 3

Conn = psycopg.Connection[Any]


class Run:
    """One run: what was paid so far, and whether the worker was killed."""

    def __init__(self, conn: Conn, fleet: Fleet, screen: Screen) -> None:
        self._conn = conn
        self._fleet = fleet
        self._screen = screen
        self._began = time.monotonic()
        self._next_order = 1
        self._recovery_seen = False
        self._last_paid: Published | None = None
        self.kill: Kill | None = None

    def to_the_end(self) -> None:
        while not self._is_done():
            self._pay_what_is_due()
            if self.kill is None:
                self._kill_worker_of_named_job()
            elif not self._recovery_seen:
                self._look_for_recovery(self.kill)
            self._screen.show(self._progress())
            self._fleet.check()
            time.sleep(0.05)
        if self._last_paid is not None:
            with suppress(ResultTimeout):  # then the verdict says what is missing
                shop.totals.read_your_writes(self._last_paid, timeout=15)

    def _pay_what_is_due(self) -> None:
        due = min(ORDERS, int((time.monotonic() - self._began) * ORDERS_PER_SECOND))
        while self._next_order <= due:
            order_id, self._next_order = self._next_order, self._next_order + 1
            with self._conn.transaction():
                paid = shop.pay(self._conn, order_id)
                if order_id % DECLINED == 0:
                    raise psycopg.Rollback  # the card is declined after all: no payment, no job, no event
                self._last_paid = paid

    def _kill_worker_of_named_job(self) -> None:
        row = self._conn.execute(
            "SELECT j.id, j.lease_generation, j.claimed_by, w.pid, extract(epoch FROM clock_timestamp())::float8"
            " FROM mails m JOIN holdfast.jobs j ON j.id = m.job_id JOIN holdfast.workers w ON w.id = j.claimed_by"
            " WHERE m.order_id = %s AND j.status = 'processing'",
            [shop.SLOW_ORDER],
        ).fetchone()
        if row is None:
            return
        job_id, generation, worker, pid, at = row
        name = self._fleet.pids()[pid]
        self._fleet.kill(pid)
        held = self._conn.execute(
            "SELECT id FROM holdfast.jobs WHERE status = 'processing' AND claimed_by = %s", [worker]
        )
        self.kill = Kill(job_id, shop.SLOW_ORDER, generation, worker, pid, at, [row[0] for row in held])
        self._screen.say(f"job {job_id} (receipt of order {shop.SLOW_ORDER}) runs on {name}", "bold")
        self._screen.say(
            f"kill -9 {pid}: {name} is dead, with generation {generation} of that job and {len(self.kill.held) - 1} others",
            "bold red",
        )

    def _look_for_recovery(self, kill: Kill) -> None:
        row = self._conn.execute(
            "SELECT j.lease_generation, j.claimed_by, w.pid"
            " FROM mails m JOIN holdfast.jobs j ON j.id = m.job_id JOIN holdfast.workers w ON w.id = j.claimed_by"
            " WHERE m.job_id = %s AND m.generation > %s",
            [kill.job_id, kill.generation],
        ).fetchone()
        if row is None:
            return
        self._recovery_seen = True
        generation, worker, pid = row
        names = self._fleet.pids()
        self._screen.say(
            f"job {kill.job_id} runs again: generation {kill.generation} -> {generation},"
            f" {names[kill.pid]} ({kill.worker}) -> {names[pid]} ({worker})",
            "bold green",
        )

    def _is_done(self) -> bool:
        """All paid, and no job left that may still run."""
        if self._next_order <= ORDERS:
            return False
        live = self._conn.execute(
            "SELECT FROM holdfast.jobs WHERE status NOT IN ('completed', 'cancelled', 'dead_letter') LIMIT 1"
        )
        return live.rowcount == 0

    def _progress(self) -> Progress:
        row = self._conn.execute(
            "SELECT (SELECT count(*) FROM orders WHERE paid_at IS NOT NULL), (SELECT count(*) FROM receipts)"
        ).fetchone()
        held = self._conn.execute(
            "SELECT w.pid, count(*) FROM holdfast.jobs j JOIN holdfast.workers w ON w.id = j.claimed_by"
            " WHERE j.status = 'processing' GROUP BY w.pid"
        )
        jobs: dict[int, int] = dict(held.fetchall())
        workers = [
            (name, self._fleet.state(name), jobs.get(pid, 0)) for pid, name in self._fleet.pids().items()
        ]
        paid, receipts = row or (0, 0)
        return Progress(paid, receipts, PAYABLE, workers)


def prepare_environment() -> None:
    """The demo's own database and nobody else's settings, for this process and for the workers."""
    os.chdir(ROOT)
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        del os.environ[name]
    os.environ["HOLDFAST_DATABASE_URL"] = URL
    os.environ["HOLDFAST_CONFIG"] = os.devnull


def prepare_shop(screen: Screen) -> Conn:
    embedded.reset(DATA)
    conn = connect()
    LOGS.mkdir(parents=True, exist_ok=True)
    with conn.transaction():
        conn.execute(shop.TABLES)
        conn.execute("INSERT INTO orders (id) SELECT generate_series(1, %s)", [ORDERS])
    screen.say(f"PostgreSQL {conn.info.server_version // 10000} started in {DATA}, {ORDERS} orders")
    return conn


def connect() -> Conn:
    return psycopg.connect(
        shop.app.database.dsn, autocommit=True, connect_timeout=5, options="-c statement_timeout=5s"
    )


def wait_for_workers(conn: Conn, fleet: Fleet) -> None:
    while conn.execute("SELECT FROM holdfast.workers WHERE status = 'alive'").rowcount < WORKERS:
        fleet.check()
        time.sleep(0.05)


def work(screen: Screen, fleet: Fleet) -> tuple[Kill | None, Moved | None, bool]:
    """Answers who was killed, what moved, and whether all was done in time."""
    run: Run | None = None
    try:
        with time_limit(LIMIT), prepare_shop(screen) as conn:
            for number in range(1, WORKERS + 1):
                fleet.start(f"worker-{number}", worker("examples.shop.app:app"))
            wait_for_workers(conn, fleet)
            names = ", ".join(f"{name} is process {pid}" for pid, name in fleet.pids().items())
            screen.say(f"{WORKERS} workers at default settings: {names}")
            run = Run(conn, fleet, screen)
            run.to_the_end()
            screen.close()
            moved = Moves(conn, fleet, screen).to_the_end()
    except TimeUpError:
        if run is None:
            raise HoldfastError(f"Server and workers did not start within {LIMIT:g} s.") from None
        return run.kill, None, False
    return run.kill, moved, True


def judge(screen: Screen, kill: Kill | None, moved: Moved | None, in_time: bool) -> int:
    screen.write("")
    if not in_time:
        screen.write(unfinished(), "bold yellow")
        return 1
    with time_limit(30.0), connect() as conn:
        counts = read_counts(conn, kill)
    wrong = broken(counts, kill) + (moved.broken() if moved else [])
    *lines, verdict = verdict_lines(counts, kill, wrong)
    for line in lines:
        screen.write(line)
    screen.write(verdict, "bold red" if wrong else "bold green")
    if kill is not None:
        screen.write("\nTry it, the database is kept:")
        for command in commands(kill):
            screen.write(f"  {command}")
    return 1 if wrong else 0


def commands(kill: Kill) -> list[str]:
    program = Path(sys.executable).parent / "holdfast"
    near = program.relative_to(ROOT) if program.is_relative_to(ROOT) else program
    holdfast = shlex.quote(str(near))
    query = "SELECT order_id, job_id, array_agg(fence) FROM mails GROUP BY 1, 2 HAVING count(*) > 1"
    return [
        f"HOLDFAST_DATABASE_URL={URL} {holdfast} status",
        f"HOLDFAST_DATABASE_URL={URL} {holdfast} jobs show {kill.job_id}",
        f'{holdfast} db psql --path {DATA} -c "{query}"',
    ]


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    prepare_environment()
    screen = Screen()
    fleet = Fleet(LOGS)
    try:
        screen.write(
            "A shop pays orders. Each payment enqueues its receipt and publishes an event in the same transaction;"
        )
        screen.write(
            f"every {DECLINED}th is declined after that and rolled back, so neither receipt nor event may exist."
        )
        kill, moved, in_time = work(screen, fleet)
        screen.close()
        fleet.stop(patience=4.0)
        return judge(screen, kill, moved, in_time)
    except KeyboardInterrupt:
        screen.close()
        screen.write("Interrupted: stopping the workers.")
        return 130
    except (HoldfastError, psycopg.Error, OSError) as error:
        screen.close()
        screen.write(f"{type(error).__name__}: {error}", "red")
        return 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        screen.close()
        fleet.stop(patience=2.0)
        shop.app.close()


if __name__ == "__main__":
    sys.exit(main())
