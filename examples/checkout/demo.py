"""The demo of workflows: 50 checkouts, two workers killed with -9 in the middle of them, and nothing done twice.

prepare     a fresh embedded server in .holdfast/demo-workflow, the shop's tables, three workers
trade       place orders, each twice (a double click) and some rolled back; kill two workers that have charges in flight
ship        send each run its signal, twice, some before it waits for it
judge       read the verdict from the ledgers; exit code 1 if a promise was broken
"""

import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from examples.checkout import app as shop
from examples.checkout.ledgers import broken, read, verdict_lines
from examples.shop.show import Screen
from examples.stage import LIMIT, Fleet, TimeUpError, interrupt, time_limit, unfinished, worker
from holdfast import HoldfastError
from holdfast.db import embedded

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path(".holdfast/demo-workflow")  # kept after the run
DATA, LOGS = PLACE / "data", PLACE / "logs"
URL = f"embedded:{DATA}"
FIRST, ORDERS, PER_SECOND = 9182, 50, 10
ROLLED_BACK = 7  # every 7th order is placed once more before, and rolled back
WORKERS, KILLS = 3, 2

Conn = psycopg.Connection[Any]


class Trade:
    """What is placed, killed and shipped so far."""

    def __init__(self, conn: Conn, fleet: Fleet, screen: Screen) -> None:
        self._conn, self._fleet, self._screen = conn, fleet, screen
        self._began = time.monotonic()
        self._placed: list[int] = []
        self._shipped: set[int] = set()
        self.killed: list[int] = []

    def to_the_end(self) -> None:
        while not self._is_done():
            self._place_what_is_due()
            self._kill_in_the_middle()
            self._ship()
            self._fleet.check()
            time.sleep(0.05)

    def _place_what_is_due(self) -> None:
        due = min(ORDERS, int((time.monotonic() - self._began) * PER_SECOND))
        while len(self._placed) < due:
            order_id = FIRST + len(self._placed)
            if order_id % ROLLED_BACK == 0:
                self._place(order_id + 100_000, commit=False)
            self._place(order_id)
            self._placed.append(order_id)

    def _place(self, order_id: int, *, commit: bool = True) -> None:
        """The order and its run are one transaction: both are there, or neither."""
        with self._conn.transaction():
            self._conn.execute("INSERT INTO orders VALUES (%s, 995, %s)", [order_id, order_id % 10 == 0])
            start = shop.checkout.using(id=f"order:{order_id}", conn=self._conn).start
            run, again = start(order_id, cents=995), start(order_id, cents=995)
            if run.run_id != again.run_id or again.created:
                raise HoldfastError(f"order {order_id}: the second click started another run")
            if not commit:
                raise psycopg.Rollback

    def _kill_in_the_middle(self) -> None:
        """A worker that has asked the bank and has not recorded the reply."""
        if len(self.killed) == KILLS or len(self._placed) < (len(self.killed) + 1) * ORDERS / 4:
            return
        row = self._conn.execute(
            "SELECT o.pid, array_agg(o.order_id) FROM outside o WHERE o.what = 'charge' AND o.pid <> ALL (%s)"
            " AND NOT EXISTS (SELECT FROM holdfast.workflow_steps s WHERE s.run_id || ':' || s.key = o.idempotency_key)"
            " AND EXISTS (SELECT FROM holdfast.workflow_runs r WHERE r.key = 'order:' || o.order_id AND r.ended_at IS NULL)"
            " GROUP BY o.pid ORDER BY count(*) DESC LIMIT 1",
            [self.killed],
        ).fetchone()
        if row is None:
            return
        pid, orders = row
        name = self._fleet.pids()[pid]
        self._fleet.kill(pid)
        self.killed.append(pid)
        self._screen.say(
            f"kill -9 {pid}: {name} is dead, the charges of {len(orders)} orders are in doubt", "bold red"
        )

    def _ship(self) -> None:
        """Even orders are shipped at once, also before their run waits; odd ones when their receipt is out."""
        receipts = {
            row[0] for row in self._conn.execute("SELECT order_id FROM outside WHERE what = 'receipt'")
        }
        for order_id in self._placed:
            if order_id not in self._shipped and (order_id % 2 == 0 or order_id in receipts):
                for _ in range(2):  # at least once, as carriers do
                    shop.checkout.get(f"order:{order_id}").signal(
                        shop.SHIPPED(f"parcel-{order_id}"), idempotency_key=f"parcel-{order_id}"
                    )
                self._shipped.add(order_id)

    def _is_done(self) -> bool:
        if len(self._placed) < ORDERS:
            return False
        return (
            self._conn.execute("SELECT FROM holdfast.workflow_runs WHERE ended_at IS NULL LIMIT 1").rowcount
            == 0
        )


def prepare_environment() -> None:
    """The demo's own database and nobody else's settings, for this process and for the workers."""
    os.chdir(ROOT)
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        del os.environ[name]
    os.environ["HOLDFAST_DATABASE_URL"] = URL
    os.environ["HOLDFAST_CONFIG"] = os.devnull


def connect() -> Conn:
    return psycopg.connect(shop.app.database.dsn, autocommit=True, connect_timeout=5)


def trade(screen: Screen, fleet: Fleet) -> tuple[int, bool]:
    """Returns how many workers were killed, and whether all was done in time."""
    done: Trade | None = None
    try:
        with time_limit(LIMIT):
            embedded.reset(DATA)
            LOGS.mkdir(parents=True, exist_ok=True)
            with connect() as conn:
                conn.execute(shop.TABLES)
                for number in range(1, WORKERS + 1):
                    fleet.start(f"worker-{number}", worker("examples.checkout.app:app"))
                while conn.execute("SELECT FROM holdfast.workers WHERE status = 'alive'").rowcount < WORKERS:
                    fleet.check()
                    time.sleep(0.05)
                screen.say(
                    f"{WORKERS} workers at default settings; {ORDERS} orders, the first is order:{FIRST}"
                )
                done = Trade(conn, fleet, screen)
                done.to_the_end()
                screen.say("all runs have ended", "bold green")
    except TimeUpError:
        if done is None:
            raise HoldfastError(f"Server and workers did not start within {LIMIT:g} s.") from None
        return len(done.killed), False
    return len(done.killed), True


def judge(screen: Screen, killed: int, in_time: bool) -> int:
    screen.write("")
    if not in_time:
        screen.write(unfinished(), "bold yellow")
        return 1
    with time_limit(30.0), connect() as conn:
        books = read(conn)
    wrong = broken(books) + ([] if killed == KILLS else ["no worker was killed in the middle"])
    *lines, verdict = verdict_lines(books, wrong, killed)
    for line in lines:
        screen.write(line)
    screen.write(verdict, "bold red" if wrong else "bold green")
    screen.write("\nTry it, the database is kept:")
    program = Path(sys.executable).parent / "holdfast"
    near = shlex.quote(str(program.relative_to(ROOT) if program.is_relative_to(ROOT) else program))
    query = "SELECT key, state, result, error FROM holdfast.workflow_runs ORDER BY key LIMIT 10"
    screen.write(f'  {near} db psql --path {DATA} -c "{query}"')
    return 1 if wrong else 0


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    prepare_environment()
    screen = Screen()
    fleet = Fleet(LOGS)
    try:
        screen.write(
            "A checkout is one function: reserve, charge, receipt, wait for the shipment, notify the search."
        )
        screen.write(
            f"{ORDERS} of them run; {KILLS} workers are killed while the bank has been asked and nothing is recorded."
        )
        killed, in_time = trade(screen, fleet)
        fleet.stop(patience=4.0)
        return judge(screen, killed, in_time)
    except KeyboardInterrupt:
        screen.write("Interrupted: stopping the workers.")
        return 130
    except (HoldfastError, psycopg.Error, OSError) as error:
        screen.write(f"{type(error).__name__}: {error}", "red")
        return 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        fleet.stop(patience=2.0)
        shop.app.close()


if __name__ == "__main__":
    sys.exit(main())
