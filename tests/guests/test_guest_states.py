"""Guests in states that a conformance suite does not come by: pipelines, lost connections, an encoding without letters."""

import asyncio
from typing import Any

import psycopg
import pytest
import sqlalchemy.exc
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.guests.kinds import engine_url

from holdfast import Holdfast, Job, WrongConnection
from holdfast.testing import Kit


def test_a_pipeline_of_psycopg(app: Holdfast, kit: Kit) -> None:
    @app.task
    def note(n: int) -> None: ...

    @app.task
    def guarded(job: Job) -> None:
        with psycopg.connect(kit.url) as conn, conn.pipeline():
            job.guard(conn=conn, resource="ledger")
            conn.execute("INSERT INTO ledger VALUES (1)")
            job.complete(conn=conn)

    kit.sql("CREATE TABLE ledger (n int)")
    with psycopg.connect(kit.url) as conn, conn.pipeline():
        conn.execute("INSERT INTO ledger VALUES (0)")
        handle = note.using(conn=conn).enqueue(1)
        assert len(app.enqueue_many([note.job(2), note.job(3)], conn=conn)) == 2
    assert handle.created
    guarded.enqueue()
    kit.run_worker()
    assert {row["status"] for row in kit.jobs()} == {"completed"}
    assert kit.sql("SELECT n FROM ledger ORDER BY n") == [{"n": 0}, {"n": 1}]


async def test_a_pipeline_of_async_psycopg(app: Holdfast, akit: Kit) -> None:
    @app.task
    def note(n: int) -> None: ...

    async with await psycopg.AsyncConnection.connect(akit.url) as conn, conn.pipeline():
        handle = await note.using(conn=conn).aenqueue(1)
    assert handle.created
    assert [row["id"] for row in akit.jobs(note)] == [handle.id]


def kill(kit: Kit, pid: Any) -> None:
    kit.sql("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_a_connection_that_is_lost_in_our_statement_is_lost_to_sqlalchemy(app: Holdfast, kit: Kit) -> None:
    @app.task
    def note() -> None: ...

    engine = create_engine(engine_url("psycopg", kit.url))
    with Session(engine) as session:
        kill(kit, session.scalar(text("SELECT pg_backend_pid()")))
        with pytest.raises(sqlalchemy.exc.OperationalError) as caught:
            note.using(conn=session).enqueue()
        assert caught.value.connection_invalidated
        session.rollback()
        note.using(conn=session).enqueue()
        session.commit()
    engine.dispose()
    assert len(kit.jobs(note)) == 1


def test_and_to_its_async_session(app: Holdfast, kit: Kit) -> None:
    @app.task
    def note() -> None: ...

    async def main() -> None:
        engine = create_async_engine(engine_url("psycopg", kit.url))
        async with AsyncSession(engine) as session:
            kill(kit, await session.scalar(text("SELECT pg_backend_pid()")))
            with pytest.raises(sqlalchemy.exc.OperationalError) as caught:
                await note.using(conn=session).aenqueue()
            assert caught.value.connection_invalidated
            await session.rollback()
            await note.using(conn=session).aenqueue()
            await session.commit()
        await engine.dispose()

    asyncio.run(main())
    assert len(kit.jobs(note)) == 1


def test_a_connection_without_an_encoding_is_refused(app: Holdfast, kit: Kit) -> None:
    @app.task
    def note() -> None: ...

    with psycopg.connect(kit.url, client_encoding="SQL_ASCII") as conn:
        with pytest.raises(WrongConnection, match="first: SET client_encoding = 'UTF8'"):
            note.using(conn=conn).enqueue()
        conn.execute("SET client_encoding = 'UTF8'")
        note.using(conn=conn).enqueue()
