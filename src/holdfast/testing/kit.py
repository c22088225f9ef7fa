"""One app on one test database."""

import asyncio
import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from ..app import Holdfast
from ..db.database import Database
from ..model.clock import Clock
from ..model.state import HELD, PENDING, SCHEDULED
from ..settings import Settings
from ..store.queues import create_queue
from ..tasks.task import Task

Row = dict[str, Any]


class Kit:
    """Made by the `holdfast_kit` fixture: `kit = holdfast_kit(app)`. The app writes to the test database from then on."""

    def __init__(self, app: Holdfast, url: str, settings: Settings | None = None) -> None:
        self.app = app
        self.url = url
        self.clock = Clock()
        self._before = app._opened
        app._opened = self.database = Database(url, settings or Settings(), self.clock)
        app._writer.forget()
        self.create_queues()

    def create_queues(self) -> None:
        """Make the queues that the app declares, with their rules. Done at the start; call it again after declaring more."""
        for name, rules in self.app.tasks.queue_rules().items():
            self.database.run(functools.partial(create_queue, name, rules=rules))

    def run_worker(
        self, *, queues: Sequence[str] = (), concurrency: int | None = None, until_idle: bool = True
    ) -> None:
        """Run a worker here until nothing is due."""

        async def main() -> None:
            try:
                await self.arun_worker(queues=queues, concurrency=concurrency, until_idle=until_idle)
            finally:
                await self.database.aclose()

        asyncio.run(main())

    async def arun_worker(
        self, *, queues: Sequence[str] = (), concurrency: int | None = None, until_idle: bool = True
    ) -> None:
        await self.app.run_worker(queues=queues, concurrency=concurrency, until_idle=until_idle)

    @contextlib.contextmanager
    def connect(self, **options: Any) -> Iterator[psycopg.Connection[Row]]:
        """A connection of your own to the test database, on the kit's clock."""
        with psycopg.Connection[Row].connect(self.url, row_factory=dict_row, **options) as conn:
            conn.execute(
                "SELECT set_config('holdfast.clock_offset', %s, false)", [f"{self.clock.offset} seconds"]
            )
            conn.commit()
            yield conn

    def sql(self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> list[Row]:
        """Run a statement and commit; its rows as dicts."""
        with self.connect() as conn:
            cursor = conn.execute(query.encode(), params)
            return cursor.fetchall() if cursor.description else []

    def jobs(self, task: Task[Any, Any] | str | None = None) -> list[Row]:
        """Every job, live, finished or dead, in the order they were enqueued."""
        name = task.name if isinstance(task, Task) else task
        return self.sql(
            "SELECT * FROM holdfast.jobs WHERE %(t)s::text IS NULL OR task = %(t)s ORDER BY seq", {"t": name}
        )

    def job(self, job_id: UUID) -> Row:
        (row,) = self.sql("SELECT * FROM holdfast.jobs WHERE id = %s", [job_id])
        return row

    def assert_enqueued(self, task: Task[Any, Any] | str, /, **arguments: Any) -> Row:
        """Some waiting job of the task has these arguments; returns its row."""
        name = task.name if isinstance(task, Task) else task
        waiting = [r for r in self.jobs(name) if r["status"] in (PENDING, SCHEDULED, HELD)]
        wanted = json.loads(_payload(task, arguments))
        for row in waiting:
            if {k: row["payload"].get(k) for k in wanted} == wanted:
                return row
        found = "\n".join(f"  {json.dumps(r['payload'])}" for r in waiting) or "  none"
        raise AssertionError(
            f"no waiting job of {name} with {json.dumps(wanted)}; waiting jobs of it:\n{found}"
        )

    def assert_not_enqueued(self, task: Task[Any, Any] | str, /, **arguments: Any) -> None:
        try:
            row = self.assert_enqueued(task, **arguments)
        except AssertionError:
            return
        raise AssertionError(f"job {row['id']} of {row['task']} waits with {json.dumps(row['payload'])}")

    def close(self) -> None:
        self.database.close()
        self.app._opened = self._before
        self.app._writer.forget()


def _payload(task: Task[Any, Any] | str, arguments: dict[str, Any]) -> str:
    """The arguments as they are stored; a subset is enough, so each is converted by itself."""
    if isinstance(task, str):
        return json.dumps(arguments)
    return task.definition.codec.encode_some(arguments)
