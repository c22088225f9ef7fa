"""Every kind of connection we accept, in its own library's idiom: how it opens, begins, nests, writes and reads.

The suite talks to all of them in one way. An async kind has an event loop of its own, and each call runs in it to its end.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ClassVar, TypeVar

import psycopg
import sqlalchemy.exc
import sqlmodel
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from holdfast import Holdfast, Job, JobHandle, Message, Published, Receipt, Receiver, Run, WorkflowType
from holdfast.tasks.newjob import NewJob
from holdfast.tasks.task import Task

T = TypeVar("T")
ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, note text)"


class Undo(Exception):
    """Leaves a block, so that it rolls back."""


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str | None]


class SQLModelOrder(sqlmodel.SQLModel, table=True):
    __tablename__ = "orders"
    id: int = sqlmodel.Field(primary_key=True)
    note: str | None = None


def parts(url: str) -> dict[str, Any]:
    """Where the database is, in words that asyncpg and Django take too."""
    info = conninfo_to_dict(url)
    return {key: info.get(key) for key in ("host", "port", "user", "password", "dbname")}


def engine_url(driver: str, url: str) -> URL:
    at = parts(url)
    return URL.create(
        f"postgresql+{driver}", at["user"], at["password"], None, None, at["dbname"]
    ).update_query_dict({"host": str(at["host"]), "port": str(at["port"] or 5432)})


class Kind:
    """A connection of one kind on the test database. `isolation` and `autocommit` are set as its library sets them."""

    conn: Any = None
    advice: ClassVar[str] = "wrap it: with conn.transaction(): ..."
    read_only: ClassVar[type[Exception]] = (
        psycopg.errors.ReadOnlySqlTransaction
    )  # what a write raises where none is allowed

    def __init__(self, url: str, *, autocommit: bool = False, isolation: str | None = None) -> None:
        self.url = url
        self.autocommit = autocommit
        self.isolation = isolation

    def open(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.conn.close()

    def block(self) -> AbstractContextManager[Any]:
        """The library's own transaction."""
        raise NotImplementedError

    def nested(self) -> AbstractContextManager[Any]:
        """A savepoint in it."""
        raise NotImplementedError

    def write(self, order: int) -> None:
        raise NotImplementedError

    def one(self, query: str) -> Any:
        """The first column of the first row, read on this connection; None: it has no rows."""
        raise NotImplementedError

    def enqueue(self, task: Task[Any, Any], *args: Any, **options: Any) -> JobHandle[Any]:
        return task.using(conn=self.conn, **options).enqueue(*args)

    def enqueue_many(self, app: Holdfast, jobs: Iterable[NewJob[Any]]) -> list[JobHandle[Any]]:
        return app.enqueue_many(jobs, conn=self.conn)

    def send(self, app: Holdfast, task: str, payload: dict[str, Any], **options: Any) -> JobHandle[Any]:
        return app.send(task, payload, conn=self.conn, **options)

    def accept(self, receiver: Receiver[Any], headers: Any, body: bytes) -> Receipt:
        return receiver.accept(headers, body, conn=self.conn)

    def publish(self, app: Holdfast, *event: Any, **options: Any) -> Published:
        return app.publish(*event, conn=self.conn, **options)

    def publish_many(self, app: Holdfast, events: Iterable[object]) -> list[Published]:
        return app.publish_many(events, conn=self.conn)

    def append(
        self, app: Holdfast, stream: str, events: Iterable[object], expected: int | None = None
    ) -> int:
        return app.events.append(stream, events, expected_version=expected, conn=self.conn)

    def version(self, app: Holdfast, stream: str) -> int:
        return app.events.version(stream, conn=self.conn)

    def start(self, flow: WorkflowType[..., Any], *args: Any, **options: Any) -> Run[Any]:
        return flow.using(conn=self.conn, **options).start(*args)

    def signal(self, run: Run[Any], message: Message, **options: Any) -> bool:
        return run.signal(message, conn=self.conn, **options)

    def cancel(self, run: Run[Any], reason: str) -> bool:
        return run.cancel(reason, conn=self.conn)

    def guard(self, job: Job, resource: str) -> None:
        job.guard(conn=self.conn, resource=resource)

    def complete(self, job: Job, result: object = None) -> None:
        job.complete(conn=self.conn, result=result)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, url: str, **options: Any) -> Iterator["Kind"]:
        kind = cls(url, **options)
        try:
            kind.open()
            yield kind
        finally:
            kind.close()


class AsyncKind(Kind):
    """A kind whose methods are coroutines: `aopen` and so on; here they run to their end on a loop of their own."""

    advice = "wrap it: async with conn.transaction(): ..."

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.runner = asyncio.Runner()
        self.on_close: list[Callable[[], Awaitable[None]]] = []

    async def aopen(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        await self.conn.close()

    def ablock(self) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError

    def anested(self) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError

    async def awrite(self, order: int) -> None:
        raise NotImplementedError

    async def aone(self, query: str) -> Any:
        raise NotImplementedError

    def _run(self, it: Awaitable[T]) -> T:
        async def main() -> T:
            return await it

        return self.runner.run(main())

    @contextlib.contextmanager
    def _entered(self, block: AbstractAsyncContextManager[Any]) -> Iterator[None]:
        self._run(block.__aenter__())
        try:
            yield
        except BaseException as error:
            if not self._run(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._run(block.__aexit__(None, None, None))

    def open(self) -> None:
        self._run(self.aopen())

    def close(self) -> None:
        with self.runner:
            if self.conn is not None:
                self._run(self.aclose())
            for close in self.on_close:
                self._run(close())

    def block(self) -> AbstractContextManager[Any]:
        return self._entered(self.ablock())

    def nested(self) -> AbstractContextManager[Any]:
        return self._entered(self.anested())

    def write(self, order: int) -> None:
        self._run(self.awrite(order))

    def one(self, query: str) -> Any:
        return self._run(self.aone(query))

    def enqueue(self, task: Task[Any, Any], *args: Any, **options: Any) -> JobHandle[Any]:
        return self._run(task.using(conn=self.conn, **options).aenqueue(*args))

    def enqueue_many(self, app: Holdfast, jobs: Iterable[NewJob[Any]]) -> list[JobHandle[Any]]:
        return self._run(app.aenqueue_many(jobs, conn=self.conn))

    def send(self, app: Holdfast, task: str, payload: dict[str, Any], **options: Any) -> JobHandle[Any]:
        return self._run(app.asend(task, payload, conn=self.conn, **options))

    def accept(self, receiver: Receiver[Any], headers: Any, body: bytes) -> Receipt:
        return self._run(receiver.aaccept(headers, body, conn=self.conn))

    def publish(self, app: Holdfast, *event: Any, **options: Any) -> Published:
        return self._run(app.apublish(*event, conn=self.conn, **options))

    def publish_many(self, app: Holdfast, events: Iterable[object]) -> list[Published]:
        return self._run(app.apublish_many(events, conn=self.conn))

    def append(
        self, app: Holdfast, stream: str, events: Iterable[object], expected: int | None = None
    ) -> int:
        return self._run(app.events.aappend(stream, events, expected_version=expected, conn=self.conn))

    def version(self, app: Holdfast, stream: str) -> int:
        return self._run(app.events.aversion(stream, conn=self.conn))

    def start(self, flow: WorkflowType[..., Any], *args: Any, **options: Any) -> Run[Any]:
        return self._run(flow.using(conn=self.conn, **options).astart(*args))

    def signal(self, run: Run[Any], message: Message, **options: Any) -> bool:
        return self._run(run.asignal(message, conn=self.conn, **options))

    def cancel(self, run: Run[Any], reason: str) -> bool:
        return self._run(run.acancel(reason, conn=self.conn))

    def guard(self, job: Job, resource: str) -> None:
        self._run(job.aguard(conn=self.conn, resource=resource))

    def complete(self, job: Job, result: object = None) -> None:
        self._run(job.acomplete(conn=self.conn, result=result))


class Psycopg(Kind):
    conn: psycopg.Connection[Any]

    def open(self) -> None:
        self.conn = psycopg.connect(self.url, autocommit=self.autocommit)
        if self.isolation:
            self.conn.isolation_level = psycopg.IsolationLevel[self.isolation.replace(" ", "_")]

    def block(self) -> AbstractContextManager[Any]:
        return self.conn.transaction()

    def nested(self) -> AbstractContextManager[Any]:
        return self.conn.transaction()

    def write(self, order: int) -> None:
        self.conn.execute("INSERT INTO orders VALUES (%s)", [order])

    def one(self, query: str) -> Any:
        cursor = self.conn.execute(query.encode())
        return cursor.fetchone()[0] if cursor.description else None  # type: ignore[index]


class _OnEngine(Kind):
    """SQLAlchemy's, by the way they are opened on an engine."""

    engine: Engine
    advice = 'use an engine without isolation_level="AUTOCOMMIT"'
    read_only = sqlalchemy.exc.InternalError

    def open(self) -> None:
        level = "AUTOCOMMIT" if self.autocommit else self.isolation
        more = {"isolation_level": level} if level else {}
        self.engine = create_engine(engine_url("psycopg", self.url), **more)

    def close(self) -> None:
        if self.conn is not None:
            self.conn.close()
        self.engine.dispose()

    def block(self) -> AbstractContextManager[Any]:
        block: AbstractContextManager[Any] = self.conn.begin()
        return block

    def nested(self) -> AbstractContextManager[Any]:
        nested: AbstractContextManager[Any] = self.conn.begin_nested()
        return nested

    def write(self, order: int) -> None:
        self.conn.execute(text("INSERT INTO orders VALUES (:id)"), {"id": order})

    def one(self, query: str) -> Any:
        result = self.conn.execute(text(query))
        return result.scalar() if result.returns_rows else None


class SqlalchemyConnection(_OnEngine):
    conn: Connection

    def open(self) -> None:
        super().open()
        self.conn = self.engine.connect()


class SqlalchemySession(_OnEngine):
    """Writes through the unit of work: nothing is sent before the flush."""

    conn: Session

    def open(self) -> None:
        super().open()
        self.conn = Session(self.engine)

    def write(self, order: int) -> None:
        self.conn.add(Order(id=order))
        if self.autocommit:
            self.conn.flush()


class ScopedSession(SqlalchemySession):
    def open(self) -> None:
        _OnEngine.open(self)
        self.conn = scoped_session(sessionmaker(self.engine))  # type: ignore[assignment]


class SQLModelSession(_OnEngine):
    conn: sqlmodel.Session

    def open(self) -> None:
        super().open()
        self.conn = sqlmodel.Session(self.engine)

    def write(self, order: int) -> None:
        self.conn.add(SQLModelOrder(id=order))
        if self.autocommit:
            self.conn.flush()

    def one(self, query: str) -> Any:
        result = self.conn.connection().execute(text(query))
        return result.scalar() if result.returns_rows else None


def statements(engine: Engine) -> list[str]:
    """What goes through the engine from now on."""
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    return seen
