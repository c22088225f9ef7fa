"""One app on one test database."""

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from ..app import Holdfast
from ..model.clock import Clock
from ..model.state import HELD, PENDING, SCHEDULED
from ..runtime.service import Service
from ..settings import Settings
from ..shapes.events.checks import POISON
from ..shapes.events.contract import type_of
from ..shapes.events.declare import declared
from ..shapes.events.event import Event
from ..shapes.events.procedures import Subscriptions
from ..shapes.events.service import services
from ..store.queues import create_queue
from ..tasks.convert import converter
from ..tasks.task import Task
from .asking import Asking, Row, set_clock
from .workflows import WorkflowKit

_ALL = 1_000_000  # events
_PATIENCE = 60.0  # seconds until projections must have read all


class Kit:
    """Made by the `holdfast_kit` fixture: `kit = holdfast_kit(app)`. The app writes to the test database from then on."""

    def __init__(self, app: Holdfast, url: str, settings: Settings | None = None) -> None:
        self.app = app
        self.url = url
        self.clock = Clock()
        self.workflows = WorkflowKit(self)
        self._asking = Asking(url)
        self._before = app._opened
        app._opened = self.database = app._new_database(url, settings or Settings(), self.clock)
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
            set_clock(conn, self.clock)
            yield conn

    def sql(self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> list[Row]:
        """Run a statement and commit; its rows as dicts. Nothing of the session stays for the next."""
        with self._asking.lend(self.clock) as conn:
            cursor = conn.execute(query.encode(), params)
            return cursor.fetchall() if cursor.description is not None else []

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

    def run_projections(self) -> None:
        """Run projections, and let consumers turn events into jobs, until all that is committed is read. No job runs. When a
        projection fails this raises, with its error."""

        async def main() -> None:
            try:
                await self.arun_projections()
            finally:
                await self.database.aclose()

        asyncio.run(main())

    async def arun_projections(self) -> None:
        self.app.load()
        for service in services(self.database, self.app.tasks):
            service.worker = lambda: "kit"
            try:
                await self._read_all(service)
            finally:
                await service.finish()

    async def _read_all(self, service: Service) -> None:
        names = {d.name for d in declared(self.app.tasks)}
        deadline = time.monotonic() + _PATIENCE
        while True:
            await service.catch_up()
            found = await Subscriptions(self.database, "kit").list.arun()
            rows = [row for row in found if (row.replay_of or row.name) in names]
            failed = [row for row in rows if row.problem is not None and row.paused_by in (None, POISON)]
            if failed:
                raise AssertionError("; ".join(f"{row.name}: {row.problem}" for row in failed))
            behind = [row.name for row in rows if row.lag_events and row.status == "active"]
            if not behind:
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not all events were read within {_PATIENCE:g} s: {', '.join(behind)} behind"
                )
            await asyncio.sleep(0.01)

    def published(self, event: str | type, /, **fields: Any) -> list[Event[Any]]:
        """The events of this type, or pattern such as "order.*", whose data has these fields, in order. Only what is
        committed counts."""
        verbs = Subscriptions(self.database, "kit")
        found = verbs.read(verbs.state().start, _ALL, [_event_type(event)])
        wanted = {name: _plain(value) for name, value in fields.items()}
        return [e for e in found if _has(e, wanted)]

    def assert_published(self, event: str | type, /, **fields: Any) -> Event[Any]:
        """Some committed event of the type has these fields; returns the first."""
        if found := self.published(event, **fields):
            return found[0]
        name = _event_type(event)
        others = "\n".join(f"  {json.dumps(e.data)}" for e in self.published(event)) or "  none"
        types = ", ".join(sorted({e.type for e in self.published("*")})) or "no events at all"
        wanted = json.dumps({name: _plain(value) for name, value in fields.items()})
        raise AssertionError(
            f"no event {name} with {wanted} was published; of this type:\n{others}\npublished types: {types}"
        )

    def assert_not_published(self, event: str | type, /, **fields: Any) -> None:
        if found := self.published(event, **fields):
            raise AssertionError(
                f"event {found[0].id} of type {found[0].type} was published: {json.dumps(found[0].data)}"
            )

    def close(self) -> None:
        self._asking.close()
        self.database.close()
        self.app._opened = self._before
        self.app._writer.forget()


def _payload(task: Task[Any, Any] | str, arguments: dict[str, Any]) -> str:
    """The arguments as they are stored; a subset is enough, so each is converted by itself."""
    if isinstance(task, str):
        return json.dumps(arguments)
    return task.definition.codec.encode_some(arguments)


def _event_type(event: str | type) -> str:
    if isinstance(event, str):
        return event
    kind = type_of(event)
    if kind is None:
        raise TypeError(f"{event!r} is no event type: name it, or give a class with @event(...) above it")
    return kind.name


def _plain(value: Any) -> Any:
    """As it is in the JSON of an event."""
    return converter(type(value)).dump(value)


def _has(event: Event[Any], wanted: Mapping[str, Any]) -> bool:
    return event.data is not None and all(
        name in event.data and event.data[name] == value for name, value in wanted.items()
    )
