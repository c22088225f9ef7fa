"""What is no connection we can use is refused with the line that fixes it, before anything is sent."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator

import asyncpg
import psycopg
import psycopg2  # type: ignore[import-untyped]
import psycopg_pool
import pytest
from django.core.cache import cache
from django.db import connections
from django.db.utils import ConnectionHandler
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.guests.async_kinds import asyncpg_address
from tests.guests.django_kind import DjangoConnection, database
from tests.guests.kinds import Order, engine_url

from holdfast import Holdfast, Job, WrongConnection
from holdfast.tasks.task import Task
from holdfast.testing import Kit

Send = Task[[int], str]
USABLE = "which Holdfast cannot use; "


@pytest.fixture
def engine(kit: Kit) -> Iterator[Engine]:
    engine = create_engine(engine_url("psycopg", kit.url))
    yield engine
    engine.dispose()


@pytest.fixture
def async_engine(kit: Kit) -> AsyncEngine:
    """Never connected, so there is nothing to close."""
    return create_async_engine("postgresql+asyncpg://", connect_args=asyncpg_address(kit.url))


def said(send: Send, conn: object) -> str:
    with pytest.raises(WrongConnection) as caught:
        send.using(conn=conn).enqueue(1)
    return str(caught.value)


async def asaid(send: Send, conn: object) -> str:
    with pytest.raises(WrongConnection) as caught:
        await send.using(conn=conn).aenqueue(1)
    return str(caught.value)


# psycopg2 -------------------------------------------------------------------------------------------------------


def test_psycopg2(app: Holdfast, kit: Kit, send: Send) -> None:
    advice = "psycopg2 is not supported. Open it with psycopg 3: conn = psycopg.connect(...)"
    conn = psycopg2.connect(kit.url)
    try:
        assert said(send, conn) == f"conn= got psycopg2.extensions.connection, {USABLE}{advice}"
        assert said(send, conn.cursor()) == f"conn= got psycopg2.extensions.cursor, {USABLE}{advice}"
        assert asyncio.run(asaid(send, conn)) == said(send, conn)
        with pytest.raises(WrongConnection):
            app.enqueue_many([send.job(1)], conn=conn)
        with pytest.raises(WrongConnection):
            app.send("send", {"order_id": 1}, conn=conn)
        with conn.cursor() as cursor:
            cursor.execute("CREATE TABLE orders (id int)")
        conn.commit()  # and the transaction is usable
    finally:
        conn.close()
    assert kit.jobs() == []
    assert kit.sql("SELECT * FROM orders") == []


def test_sqlalchemy_on_another_driver_or_database(kit: Kit, send: Send) -> None:
    fix = 'connect with psycopg 3: create_engine("postgresql+psycopg://...")'
    on_psycopg2 = create_engine(engine_url("psycopg2", kit.url))
    with on_psycopg2.connect() as conn, Session(on_psycopg2) as session:
        assert said(send, conn) == f"conn= got a SQLAlchemy Connection on postgresql+psycopg2, {USABLE}{fix}"
        assert said(send, session) == f"conn= got a SQLAlchemy Session on postgresql+psycopg2, {USABLE}{fix}"
        assert not conn.in_transaction()
        assert not session.in_transaction()
    on_psycopg2.dispose()
    sqlite = create_engine("sqlite://")
    with Session(sqlite) as session:
        assert said(send, session) == f"conn= got a SQLAlchemy Session on sqlite+pysqlite, {USABLE}{fix}"
    sqlite.dispose()


async def test_an_async_session_on_another_database(kit: Kit, send: Send) -> None:
    engine = create_async_engine("mssql+aioodbc://", module=sqlite3)  # never connected: only its name counts
    session = AsyncSession(engine)
    assert await asaid(send, session) == (
        f"conn= got a SQLAlchemy AsyncSession on mssql+aioodbc, {USABLE}"
        'connect with psycopg 3: create_async_engine("postgresql+psycopg://...")'
    )
    await session.close()


DJANGO_ON_PSYCOPG2 = """
import sys
sys.modules["psycopg"] = None  # as where it is not installed
from django.conf import settings
settings.configure(INSTALLED_APPS=[], LOGGING_CONFIG=None)
import django
django.setup()
from django.db import connection, connections
from django.db.utils import ConnectionHandler
connections["default"] = ConnectionHandler({"default": DATABASE})["default"]
with connection.cursor() as cursor:
    cursor.execute("SELECT 1")
    assert type(connection.connection).__module__ == "psycopg2.extensions"
del sys.modules["psycopg"]
from holdfast import Holdfast, WrongConnection
app = Holdfast(sys.argv[1])
@app.task
def send() -> None: ...
try:
    send.using(conn=connection).enqueue()
except WrongConnection as error:
    print(error)
"""


def test_django_on_psycopg2(kit: Kit) -> None:
    code = DJANGO_ON_PSYCOPG2.replace("DATABASE", repr(database(kit.url)))
    done = subprocess.run([sys.executable, "-c", code, kit.url], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == (
        f"conn= got Django's connection 'default' on psycopg2, {USABLE}"
        "Django takes psycopg 3 where it finds it: pip install 'psycopg[binary]', and restart"
    ), done.stderr
    assert kit.jobs() == []


def test_django_on_another_database(kit: Kit, send: Send) -> None:
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    conn = ConnectionHandler({"default": sqlite})["default"]
    assert said(send, conn) == (
        f"conn= got Django's connection 'default' to sqlite, {USABLE}jobs live in PostgreSQL: pass the connection of an "
        'alias with "ENGINE": "django.db.backends.postgresql" in DATABASES'
    )


# What is no connection ------------------------------------------------------------------------------------------


def test_what_is_no_connection(kit: Kit, send: Send) -> None:
    anything = f"{USABLE}pass a connection of psycopg 3, asyncpg, SQLAlchemy, SQLModel or Django"
    object_wanted = f"{USABLE}pass the connection object whose transaction the job should join"
    assert said(send, 42) == f"conn= got builtins.int, {anything}"
    assert said(send, object()) == f"conn= got builtins.object, {anything}"
    assert said(send, "postgresql://") == f"conn= got builtins.str, {object_wanted}"
    assert said(send, psycopg.Connection) == (
        f"conn= got builtins.type, {USABLE}pass a connection, not its class"
    )
    assert said(send, cache) == f"conn= got django.utils.connection.ConnectionProxy, {anything}"
    memory = sqlite3.connect(":memory:")
    assert said(send, memory) == (
        f"conn= got sqlite3.Connection, {USABLE}jobs live in PostgreSQL: pass the PostgreSQL connection whose "
        "transaction the job should join"
    )
    cursor = "pass the connection, not its cursor: conn=cursor.connection"
    assert said(send, memory.cursor()) == f"conn= got sqlite3.Cursor, {USABLE}{cursor}"
    memory.close()
    with psycopg.connect(kit.url) as conn:
        assert said(send, conn.cursor()) == f"conn= got psycopg.Cursor, {USABLE}{cursor}"
        with conn.transaction() as tx:
            assert said(send, tx) == (
                f"conn= got psycopg.Transaction, {USABLE}pass the connection, not its transaction: "
                "with conn.transaction(): ..."
            )
    with DjangoConnection.opened(kit.url) as kind, kind.conn.cursor() as wrapped:
        assert said(send, wrapped) == (
            f"conn= got django.db.backends.utils.CursorWrapper, {USABLE}pass the connection, not its cursor: "
            "from django.db import connection"
        )
    assert said(send, connections) == (
        f'conn= got django.db.utils.ConnectionHandler, {USABLE}pass one of them: conn=connections["default"]'
    )
    assert kit.jobs() == []


def test_none_where_a_connection_must_be(app: Holdfast, kit: Kit) -> None:
    caught: list[str] = []

    @app.task
    def work(job: Job) -> None:
        with pytest.raises(WrongConnection) as error:
            job.complete(conn=None)
        caught.append(str(error.value))

    work.enqueue()
    kit.run_worker()
    assert caught == [
        f"conn= got builtins.NoneType, {USABLE}pass the connection object whose transaction the job should join"
    ]


def test_engines_makers_and_parts_of_sqlalchemy(
    kit: Kit, send: Send, engine: Engine, async_engine: AsyncEngine
) -> None:
    assert said(send, engine) == (
        f"conn= got sqlalchemy.engine.base.Engine, {USABLE}pass a Session or a Connection, not the Engine: "
        "with engine.begin() as conn: ..."
    )
    assert said(send, sessionmaker(engine)) == (
        f"conn= got sqlalchemy.orm.session.sessionmaker, {USABLE}pass a Session, not its maker: "
        "with Session.begin() as session: ..."
    )
    assert said(send, async_engine) == (
        f"conn= got sqlalchemy.ext.asyncio.engine.AsyncEngine, {USABLE}pass an AsyncSession or an AsyncConnection, not "
        "the engine: async with engine.begin() as conn: ..."
    )
    assert said(send, async_sessionmaker(async_engine)) == (
        f"conn= got sqlalchemy.ext.asyncio.session.async_sessionmaker, {USABLE}pass an AsyncSession, not its maker: "
        "async with Session.begin() as session: ..."
    )
    assert said(send, engine.begin()) == (
        f"conn= got contextlib._GeneratorContextManager, {USABLE}it was not entered: with ... as conn: ..."
    )
    whole = f"{USABLE}pass the Session or Connection itself, not a part of it: conn=session"
    with engine.connect() as conn, Session(engine) as session:
        assert said(send, conn.begin()) == f"conn= got sqlalchemy.engine.base.RootTransaction, {whole}"
        assert said(send, session.begin()) == f"conn= got sqlalchemy.orm.session.SessionTransaction, {whole}"
        assert said(send, conn.connection) == f"conn= got sqlalchemy.pool.base._ConnectionFairy, {whole}"
    assert kit.jobs() == []


def test_a_session_of_several_databases_says_which(kit: Kit, send: Send, engine: Engine) -> None:
    with Session(binds={Order: engine}) as session:
        assert said(send, session) == (
            f"conn= got a Session that does not say which of its databases is meant, {USABLE}"
            "name it: conn=session.connection(bind_arguments={...})"
        )
        send.using(conn=session.connection(bind_arguments={"mapper": Order})).enqueue(1)
        assert kit.jobs() == []
        session.commit()
    assert len(kit.jobs()) == 1


async def test_pools_and_what_was_not_awaited(akit: Kit, send: Send, async_engine: AsyncEngine) -> None:
    pool = await asyncpg.create_pool(**asyncpg_address(akit.url), min_size=1, max_size=1)
    take = "async with pool.acquire() as conn: ..."
    assert await asaid(send, pool) == (
        f"conn= got asyncpg.pool.Pool, {USABLE}take a connection out of it: {take}"
    )
    assert await asaid(send, pool.acquire()) == (
        f"conn= got asyncpg.pool.PoolAcquireContext, {USABLE}it was not entered: {take}"
    )
    async with pool.acquire() as conn:
        tx = conn.transaction()
        assert await asaid(send, tx) == (
            f"conn= got asyncpg.transaction.Transaction, {USABLE}pass the connection, not its transaction: "
            "async with conn.transaction(): ..."
        )
    assert await asaid(send, conn) == (
        f"conn= got a closed asyncpg.pool.PoolConnectionProxy, {USABLE}pass the one whose transaction is open"
    )
    await pool.close()
    unopened = psycopg_pool.ConnectionPool(akit.url, open=False)
    assert await asaid(send, unopened) == (
        f"conn= got psycopg_pool.pool.ConnectionPool, {USABLE}take a connection out of it: "
        "with pool.connection() as conn: ..."
    )
    aunopened = psycopg_pool.AsyncConnectionPool(akit.url, open=False)
    assert await asaid(send, aunopened) == (
        f"conn= got psycopg_pool.pool_async.AsyncConnectionPool, {USABLE}take a connection out of it: "
        "async with pool.connection() as conn: ..."
    )
    coroutine = psycopg.AsyncConnection.connect(akit.url)
    assert await asaid(send, coroutine) == (
        f"conn= got builtins.coroutine, {USABLE}it was not awaited: conn = await ..."
    )
    coroutine.close()
    assert await asaid(send, async_engine.connect()) == (
        f"conn= got an AsyncConnection that was not started, {USABLE}write: async with engine.begin() as conn: ..."
    )


async def test_a_closed_connection(akit: Kit, send: Send, engine: Engine, async_engine: AsyncEngine) -> None:
    advice = f", {USABLE}pass the one whose transaction is open"
    with psycopg.connect(akit.url) as conn:
        pass
    assert await asyncio.to_thread(said, send, conn) == f"conn= got a closed psycopg.Connection{advice}"
    async with await psycopg.AsyncConnection.connect(akit.url) as aconn:
        pass
    assert await asaid(send, aconn) == f"conn= got a closed psycopg.AsyncConnection{advice}"
    pg = await asyncpg.connect(**asyncpg_address(akit.url))
    await pg.close()
    assert await asaid(send, pg) == f"conn= got a closed asyncpg.connection.Connection{advice}"
    with engine.connect() as sa:
        pass
    assert said(send, sa) == f"conn= got a closed sqlalchemy.engine.base.Connection{advice}"
    async with async_engine.connect() as asa:
        pass
    await async_engine.dispose()
    assert (
        await asaid(send, asa) == f"conn= got a closed sqlalchemy.ext.asyncio.engine.AsyncConnection{advice}"
    )


# Sync and async -------------------------------------------------------------------------------------------------


async def test_the_wrong_method_names_the_right_one(
    app: Holdfast,
    akit: Kit,
    send: Send,
    engine: Engine,
    async_engine: AsyncEngine,
    django: DjangoConnection,
) -> None:
    pg = await asyncpg.connect(**asyncpg_address(akit.url))
    asession = AsyncSession(async_engine)
    try:
        assert said(send, pg) == "enqueue() got an async connection (Connection); use await aenqueue()"
        assert said(send, asession) == (
            "enqueue() got an async connection (AsyncSession); use await aenqueue()"
        )
        with pytest.raises(WrongConnection):
            app.enqueue_many([send.job(1)], conn=asession)
        with pytest.raises(WrongConnection):
            app.send("send", {"order_id": 1}, conn=pg)
    finally:
        await pg.close()
        await asession.close()
    with Session(engine) as session:
        assert await asaid(send, session) == ("aenqueue() got a sync connection (Session); use enqueue()")
        assert not session.in_transaction()
    assert await asaid(send, django.conn) == (
        "aenqueue() got a sync connection (DatabaseWrapper); use enqueue() in the function that opens the "
        "transaction, and call that with await sync_to_async(...)()"
    )
    assert akit.jobs() == []


async def test_the_sync_half_of_an_async_session(akit: Kit, send: Send, async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine) as session:
        text = await session.run_sync(lambda sync: said(send, sync))
    assert text == (
        f"conn= got a Session of an async engine, {USABLE}pass its AsyncSession or AsyncConnection to await aenqueue(), "
        "aguard() or acomplete()"
    )
    await async_engine.dispose()
