"""The context of a scenario: the server, the sizes, and where its results go."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import psycopg
from rich.console import Console

from ..db.database import Database
from ..settings import Settings
from ..store.queues import create_queue
from .report import Report
from .server import Server
from .worker_app import app

T = TypeVar("T")

ORDERS = "CREATE TABLE bench_orders (id bigserial PRIMARY KEY, customer int NOT NULL, total numeric NOT NULL)"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a measurement is. Each is an option of the command; `--quick` takes them all down."""

    jobs: int = 100_000  # of a drain by an async handler; slower handlers get a part of it
    concurrency: int = 10  # of an async worker
    connections: int = 10  # of handlers with a transaction, and of the same statements by hand
    batch: int = 500  # of `limit`
    single: int = 2000  # transactions of `enqueue`
    rate: float = 1000.0  # jobs per second of `steady`
    seconds: float = 10.0  # of `steady` and `latency`
    idle: float = 20.0  # seconds of `idle`
    backlog: int = 1_000_000
    deep: int = 100_000  # jobs of the one key of `backlog`
    claimed: int = 50_000  # jobs drained in front of each backlog
    horizon: int = 300_000
    history: int = 10_000_000
    memory: int = 5_000_000
    runs: int = 2000  # of `workflow`, at 50 in flight and more


QUICK = Sizes(
    jobs=4000,
    single=200,
    rate=200.0,
    seconds=2.0,
    idle=4.0,
    backlog=20_000,
    deep=2000,
    claimed=2000,
    horizon=6000,
    history=20_000,
    memory=10_000,
    runs=100,
)


@dataclass
class Bench:
    server: Server
    report: Report
    sizes: Sizes = field(default_factory=Sizes)
    repeats: int = 5
    quick: bool = False
    console: Console = field(default_factory=lambda: Console(stderr=True))
    round: int = 0  # of `repeats`, from 0
    only: tuple[str, ...] = ()  # variants of drain, limit and backlog to measure; none: all
    _kept: dict[str, str] = field(default_factory=dict)

    def add(self, scenario: str, variant: str, unit: str, *values: float) -> None:
        self.report.add(scenario, variant, unit, *values)

    def wants(self, variant: str) -> bool:
        return not self.only or variant in self.only

    def say(self, text: str) -> None:
        """Progress, beside the results."""
        self.console.print(f"  {text}", style="dim", highlight=False)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a fresh migrated database with nothing left to write."""
        with self.server.fresh() as url:
            self.server.checkpoint()
            yield url

    def kept(self, name: str, prepare: Callable[[str], None]) -> str:
        """A database that is expensive to fill: made in the first round, used by the others."""
        if name not in self._kept:
            url = self.server.make()
            prepare(url)
            self._kept[name] = url
        return self._kept[name]


def dress(url: str) -> None:
    """Objects that the measurements need besides the schema: worker_app's queues, and a table of business rows."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(ORDERS)
    database = Database(url, Settings())
    try:
        for name, rules in app.tasks.queue_rules().items():
            database.run(functools.partial(create_queue, name, rules=rules))
    finally:
        database.close()
