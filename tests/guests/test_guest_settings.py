"""What the caller has set on a connection neither reaches our statements nor is changed by them."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast
from uuid import UUID

import asyncpg
import psycopg
import pytest
import sqlalchemy.exc
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from django.db.utils import DatabaseError
from django.utils.connection import ConnectionProxy
from psycopg.rows import dict_row
from psycopg.types.json import JsonbDumper
from psycopg.types.string import TextLoader
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.guests.async_kinds import asyncpg_address
from tests.guests.conftest import orders, waiting
from tests.guests.django_kind import DjangoConnection
from tests.guests.kinds import (
    ORDERS,
    Order,
    Psycopg,
    SqlalchemyConnection,
    SqlalchemySession,
    engine_url,
    statements,
)
from werkzeug.local import LocalProxy

from holdfast import Holdfast, Job
from holdfast.db.guests.text import as_text
from holdfast.model.job import Grant, NewRow
from holdfast.model.outcome import Completed, Settlement
from holdfast.store.checked import lock_owned, settle_check
from holdfast.store.jobs import enqueue
from holdfast.store.owner import guard
from holdfast.store.settle import settle
from holdfast.store.statement import Statement
from holdfast.tasks.task import Task
from holdfast.testing import Kit

Send = Task[[int], str]


@pytest.fixture(autouse=True)
def _table(kit: Kit) -> None:
    kit.sql(ORDERS)


# asyncpg: codecs, record class, statement cache -----------------------------------------------------------------

SCALARS = ("uuid", "timestamptz", "int4", "int8", "float8", "bool", "text", "varchar", "json", "jsonb")


class Loud(asyncpg.Record):
    """A record class that says so when it is used."""

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError(f"the caller's record class was used for {key!r}")

    def __iter__(self) -> Any:
        raise AssertionError("the caller's record class was used")


def refuse(value: Any) -> Any:
    raise AssertionError(f"the caller's codec was used for {value!r}")


async def set_codecs(conn: Any, names: tuple[str, ...] = SCALARS) -> None:
    for name in names:
        await conn.set_type_codec(name, schema="pg_catalog", encoder=refuse, decoder=refuse)


def guests_statements() -> list[Statement[Any]]:
    """Every statement that runs on a caller's connection."""
    grant = Grant("inbox", UUID(int=1), 1, UUID(int=2))
    finish = next(iter(settle([Settlement(grant, Completed("1"))], "W1")))
    return [
        enqueue([NewRow("send", "{}")]),
        enqueue([NewRow("send", "{}", delay=n) for n in (0.0, 1.0)]),
        guard(grant, "ledger", "f"),
        finish,
        settle_check("inbox", [grant]),
        lock_owned(grant),
    ]


@pytest.mark.versions
async def test_a_guests_statement_takes_and_gives_only_arrays_of_text(akit: Kit) -> None:
    """The one type for which asyncpg takes no codec from its user, and which it knows without asking the server."""
    conn = await asyncpg.connect(**asyncpg_address(akit.url))
    try:
        for statement in guests_statements():
            prepared = await conn.prepare(as_text(statement)[0])
            assert {kind.name for kind in prepared.get_parameters()} == {"text[]"}, statement.name
            assert [column.type.name for column in prepared.get_attributes()] == ["text[]"], statement.name
        with pytest.raises(asyncpg.InterfaceError):
            await conn.set_type_codec("_text", schema="pg_catalog", encoder=refuse, decoder=refuse)
    finally:
        await conn.close()


@pytest.mark.versions
@pytest.mark.parametrize("cache", [0, 100])
def test_codecs_records_and_caches_of_asyncpg_stay_the_callers(
    app: Holdfast, kit: Kit, send: Send, cache: int
) -> None:
    logged: list[str] = []

    @app.task
    async def work(job: Job) -> int:
        conn = await asyncpg.connect(
            **asyncpg_address(kit.url), record_class=Loud, statement_cache_size=cache
        )
        try:
            await set_codecs(conn)
            conn.add_query_logger(lambda record: logged.append(record.query))
            async with conn.transaction():
                for n in range(3):  # the third from the cache
                    await send.using(conn=conn, run_after=3600, metadata={"n": n}).aenqueue(n)
                await app.aenqueue_many([send.using(run_after=3600).job(n) for n in (3, 4)], conn=conn)
                await job.aguard(conn=conn, resource="ledger")
                await job.acomplete(conn=conn, result=7)
            with pytest.raises(AssertionError, match="the caller's codec"):
                await conn.fetchval("SELECT gen_random_uuid()")
            with pytest.raises(AssertionError, match="the caller's record class"):
                (await conn.fetch("SELECT ARRAY['a']"))[0][0]
        finally:
            await conn.close()
        return 0

    handle = work.enqueue()
    kit.run_worker()
    assert handle.result(timeout=25) == 7
    assert [row["payload"]["order_id"] for row in kit.jobs(send)] == [0, 1, 2, 3, 4]
    ours = [query for query in logged if "holdfast." in query]
    rest = {query for query in logged if "holdfast." not in query}
    assert len(ours) == 6
    assert rest <= {"BEGIN;", "COMMIT;", "SELECT gen_random_uuid()", "SELECT ARRAY['a']"}, (
        "nothing was looked up or set"
    )


async def test_codecs_of_asyncpg_under_sqlalchemy_stay_the_callers(akit: Kit, send: Send) -> None:
    engine = create_async_engine(
        "postgresql+asyncpg://", connect_args=asyncpg_address(akit.url), json_deserializer=refuse
    )

    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(dbapi: Any, _: Any) -> None:
        dbapi.run_async(
            lambda conn: set_codecs(conn, ("uuid", "timestamptz", "int4", "int8", "float8", "bool"))
        )

    try:
        async with engine.begin() as conn:
            handle = await send.using(conn=conn).aenqueue(1)
            assert isinstance(handle.id, UUID)
        async with engine.connect() as conn:
            for query in ("SELECT 'a'::text, gen_random_uuid()", "SELECT '{}'::jsonb"):
                with pytest.raises(AssertionError, match="the caller's codec"):
                    await conn.exec_driver_sql(query)
    finally:
        await engine.dispose()
    assert waiting(akit) == [1]


async def test_options_of_an_async_engine_do_not_reach_our_statements(akit: Kit, send: Send) -> None:
    engine = create_async_engine(
        "postgresql+asyncpg://",
        connect_args=asyncpg_address(akit.url),
        execution_options={"stream_results": True, "yield_per": 1},
    )
    try:
        async with AsyncSession(engine) as session, session.begin():
            await send.using(conn=session).aenqueue(1)
            sync = (await session.connection()).sync_connection
            assert sync is not None
            assert dict(sync.get_execution_options()) == {"stream_results": True, "yield_per": 1}
    finally:
        await engine.dispose()
    assert waiting(akit) == [1]


async def test_asyncpg_without_a_transaction_block_but_with_begin(akit: Kit, send: Send) -> None:
    """Whether a transaction is open is what the server says, not which call opened it."""
    conn = await asyncpg.connect(**asyncpg_address(akit.url))
    try:
        await conn.execute("BEGIN")
        await send.using(conn=conn).aenqueue(1)
        assert conn.is_in_transaction()
        await conn.execute("ROLLBACK")
    finally:
        await conn.close()
    assert waiting(akit) == []


# psycopg: row factories and adapters, also under SQLAlchemy and Django ---------------------------------------------


def loud(conn: psycopg.Connection[Any]) -> None:
    """Adapters that would spoil our statements."""
    conn.adapters.register_loader("uuid", TextLoader)
    conn.adapters.register_loader(
        "text", type("Loader", (TextLoader,), {"load": lambda self, data: refuse(data)})
    )
    conn.adapters.register_dumper(list, JsonbDumper)
    conn.adapters.register_dumper(str, JsonbDumper)
    conn.row_factory = dict_row


def untouched(conn: psycopg.Connection[Any]) -> bool:
    row = conn.execute("SELECT gen_random_uuid() AS id").fetchone()
    return conn.row_factory is dict_row and isinstance(row, dict) and isinstance(row["id"], str)


def raw_of(kind: Any) -> psycopg.Connection[Any]:
    if isinstance(kind, Psycopg):
        return kind.conn
    if isinstance(kind, DjangoConnection):
        kind.conn.ensure_connection()
        return kind.conn.connection  # type: ignore[no-any-return]
    conn = kind.conn.connection() if isinstance(kind, SqlalchemySession) else kind.conn
    return cast(psycopg.Connection[Any], conn.connection.driver_connection)


@pytest.mark.parametrize("which", [Psycopg, SqlalchemyConnection, SqlalchemySession, DjangoConnection])
def test_row_factories_and_adapters_of_psycopg_stay_the_callers(kit: Kit, send: Send, which: Any) -> None:
    with which.opened(kit.url) as kind, kind.block():
        raw = raw_of(kind)
        loud(raw)
        handle = kind.enqueue(send, 1, tags=["a"], metadata={"b": [1]})
        assert isinstance(handle.id, UUID)
        assert untouched(raw)
    assert kit.job(handle.id)["tags"] == ["a"]


def test_a_proxy_is_what_it_stands_for(kit: Kit, send: Send, engine: Engine) -> None:
    with psycopg.connect(kit.url) as conn:
        send.using(conn=LocalProxy(lambda: conn)).enqueue(1)
        assert waiting(kit) == []
    with Session(engine) as session:
        send.using(conn=LocalProxy(lambda: session)).enqueue(2)
        assert waiting(kit) == [1]
        session.commit()
    assert waiting(kit) == [1, 2]


# SQLAlchemy -----------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(kit: Kit) -> Iterator[Engine]:
    engine = create_engine(engine_url("psycopg", kit.url))
    yield engine
    engine.dispose()


def test_enqueue_does_not_flush_and_commits_with_what_is_flushed_later(
    kit: Kit, send: Send, engine: Engine
) -> None:
    seen = statements(engine)
    with Session(engine) as session:
        session.add(Order(id=1))
        send.using(conn=session).enqueue(1)
        assert list(session.new) != []
        assert seen == []
        session.commit()
    assert [query.split()[0] for query in seen] == ["INSERT"]
    assert (orders(kit), waiting(kit)) == ([1], [1])


def test_a_session_joined_into_an_outer_connection(kit: Kit, send: Send, engine: Engine) -> None:
    """The pattern of test suites: the session commits, and the outer transaction rolls everything back."""
    with engine.connect() as conn:
        outer = conn.begin()
        with Session(conn, join_transaction_mode="create_savepoint") as session:
            session.add(Order(id=1))
            send.using(conn=session).enqueue(1)
            session.commit()
        assert conn.scalar(text("SELECT count(*) FROM holdfast.work")) == 1
        outer.rollback()
    assert (orders(kit), waiting(kit)) == ([], [])


def test_a_connection_has_begun_as_after_any_statement(kit: Kit, send: Send, engine: Engine) -> None:
    with engine.connect() as conn:
        send.using(conn=conn).enqueue(1)
        assert conn.in_transaction()
        conn.commit()
        assert waiting(kit) == [1]
        with conn.begin():
            send.using(conn=conn).enqueue(2)
    assert waiting(kit) == [1, 2]


def test_no_job_goes_past_a_transaction_that_is_over(kit: Kit, send: Send, engine: Engine) -> None:
    """Where SQLAlchemy would run nothing more, neither do we: the job would be in a transaction that nobody commits."""
    kit.sql("ALTER TABLE orders ADD UNIQUE (note) DEFERRABLE INITIALLY DEFERRED")
    task = send.using(queue="inbox")
    with engine.connect() as conn, conn.begin() as block:
        block.rollback()
        with pytest.raises(sqlalchemy.exc.InvalidRequestError, match="closed transaction"):
            task.using(conn=conn).enqueue(1)
    with engine.connect() as conn:
        conn.execute(text("INSERT INTO orders VALUES (1, 'a'), (2, 'a')"))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            conn.commit()
        with pytest.raises(sqlalchemy.exc.PendingRollbackError) as caught:
            task.using(conn=conn).enqueue(1)
        assert "roll it back before you continue" in str(caught.value)
        conn.rollback()
        task.using(conn=conn).enqueue(2)
        conn.commit()
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES (3)"))
        session.add(Order(id=3))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.flush()
        with pytest.raises(sqlalchemy.exc.PendingRollbackError):
            task.using(conn=session).enqueue(3)
        session.rollback()
    assert waiting(kit) == [2]


# Django ---------------------------------------------------------------------------------------------------------


def test_the_proxy_django_db_connection_is_one(kit: Kit, send: Send, django: DjangoConnection) -> None:
    proxy = ConnectionProxy(connections, django.alias)
    with transaction.atomic(using=django.alias):
        send.using(conn=proxy).enqueue(1)
        assert waiting(kit) == []
    assert waiting(kit) == [1]


def test_a_block_that_must_roll_back_takes_no_job(kit: Kit, send: Send, django: DjangoConnection) -> None:
    with django.block():
        transaction.set_rollback(True, using=django.alias)
        with pytest.raises(TransactionManagementError, match="An error occurred in the current transaction"):
            django.enqueue(send, 1)
    assert waiting(kit) == []


def test_a_connection_of_another_thread_is_refused_as_django_does(
    kit: Kit, send: Send, django: DjangoConnection
) -> None:
    caught: list[BaseException] = []
    django.conn.ensure_connection()

    def elsewhere() -> None:
        try:
            django.enqueue(send, 1)
        except DatabaseError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "can only be used in that same thread" in str(caught[0])
    assert waiting(kit) == []


async def test_in_an_event_loop_django_refuses(akit: Kit, send: Send, django: DjangoConnection) -> None:
    with pytest.raises(SynchronousOnlyOperation):
        django.enqueue(send, 1)
    assert waiting(akit) == []


def test_commits_by_hand_when_autocommit_is_off(kit: Kit, send: Send, django: DjangoConnection) -> None:
    django.conn.set_autocommit(False)
    django.enqueue(send, 1)
    assert waiting(kit) == []
    django.conn.commit()
    assert waiting(kit) == [1]
    django.conn.set_autocommit(True)


def test_jsonfield_and_cursor_wrappers_do_not_see_our_statements(
    kit: Kit, send: Send, django: DjangoConnection
) -> None:
    seen: list[str] = []

    def wrapper(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    with django.conn.execute_wrapper(wrapper), django.block():
        django.enqueue(send, 1)
        django.write(1)
    assert seen == ["INSERT INTO orders VALUES (%s)"]
    assert json.loads(kit.sql("SELECT payload::text AS p FROM holdfast.work")[0]["p"]) == {"order_id": 1}
