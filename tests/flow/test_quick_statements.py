"""Statements that are sent without a cursor: when they are, when they are not, and that nobody can tell the difference."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Task, UnknownQueue
from holdfast.db import executors
from holdfast.db.prepared import prepared
from holdfast.model.job import NewRow
from holdfast.store.jobs import enqueue
from holdfast.testing import Kit

Send = Task[..., None]
Conn = psycopg.Connection[Any]
USUAL = 8  # more calls than the driver needs to prepare a statement


@pytest.fixture
def send(app: Holdfast) -> Send:
    @app.task
    async def send(note: str) -> None:
        return None

    return send


@pytest.fixture
def conn(kit: Kit, send: Send) -> Iterator[Conn]:
    """A connection of the user's on which the driver has prepared the statement, between two transactions."""
    with psycopg.connect(kit.url) as conn:
        _prepare(conn, send)
        yield conn


@pytest.fixture
def cursors(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Those that were made."""
    made: list[object] = []
    for name in ("OurCursor", "_AsyncCursor"):
        kind = getattr(executors, name)

        def counted(*args: Any, _kind: Any = kind, **kwargs: Any) -> Any:
            made.append(_kind(*args, **kwargs))
            return made[-1]

        monkeypatch.setattr(executors, name, counted)
    return made


def _prepare(conn: Conn, send: Send) -> None:
    for _ in range(USUAL):
        send.using(conn=conn).enqueue("before")
    conn.execute("DELETE FROM holdfast.work")
    conn.commit()
    conn.execute("SELECT 1")  # in a transaction


def notes(kit: Kit) -> list[str]:
    return [row["payload"]["note"] for row in kit.jobs()]


def test_a_prepared_enqueue_makes_no_cursor(kit: Kit, send: Send, conn: Conn, cursors: list[object]) -> None:
    handle = send.using(conn=conn, partition_key="k", tags=["a b"], metadata={"x": '"'}).enqueue('é "\\ {,}')
    conn.commit()
    assert cursors == []
    row = kit.job(handle.id)
    assert (row["payload"], row["partition_key"]) == ({"note": 'é "\\ {,}'}, "k")
    assert (row["tags"], row["metadata"]) == (["a b"], {"x": '"'})


async def test_nor_does_an_async_one(akit: Kit, send: Send, cursors: list[object]) -> None:
    async with await psycopg.AsyncConnection.connect(akit.url) as conn:
        for _ in range(USUAL):
            await send.using(conn=conn).aenqueue("before")
        made = len(cursors)
        handle = await send.using(conn=conn).aenqueue("é")
    assert 0 < made == len(cursors)
    assert akit.job(handle.id)["payload"] == {"note": "é"}


def test_nor_does_one_on_a_connection_of_the_app(kit: Kit, send: Send, cursors: list[object]) -> None:
    for _ in range(USUAL):
        send.enqueue("before")
    made = len(cursors)
    assert kit.job(send.enqueue("é").id)["payload"] == {"note": "é"}
    assert 0 < made == len(cursors)


def test_the_first_statement_of_a_transaction_begins_it(kit: Kit, send: Send, conn: Conn) -> None:
    conn.rollback()
    conn.prepare_threshold = 0
    send.using(conn=conn).enqueue("kept")  # prepared again: the rollback dropped everything
    conn.commit()
    send.using(conn=conn).enqueue("rolled back")
    conn.rollback()
    assert notes(kit) == ["kept"]


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_pipeline_has_its_cursor(
    kit: Kit, send: Send, conn: Conn, cursors: list[object], autocommit: bool
) -> None:
    conn.commit()
    conn.autocommit = autocommit
    with conn.pipeline(), conn.transaction():
        send.using(conn=conn).enqueue("one")
        send.using(conn=conn).enqueue("two")
    conn.commit()
    assert len(cursors) == 2
    assert notes(kit) == ["one", "two"]


def test_nothing_prepared_is_used_where_the_user_says_so(
    kit: Kit, send: Send, conn: Conn, cursors: list[object]
) -> None:
    conn.prepare_threshold = None
    send.using(conn=conn).enqueue("one")
    conn.commit()
    assert len(cursors) == 1
    assert notes(kit) == ["one"]


def test_another_encoding_has_its_cursor(kit: Kit, send: Send, conn: Conn, cursors: list[object]) -> None:
    conn.execute("SET client_encoding = 'LATIN1'")
    send.using(conn=conn).enqueue("é")
    conn.commit()
    assert len(cursors) == 1
    assert notes(kit) == ["é"]


def test_a_nul_is_refused_by_the_driver_and_cuts_nothing_off(send: Send, conn: Conn) -> None:
    row = send.job("x").row._replace(partition_key="a\0b")  # no option lets it through
    with pytest.raises(psycopg.DataError, match="NUL"):
        executors.run(conn, enqueue([row]))


def test_what_the_driver_dropped_is_prepared_again(kit: Kit, send: Send, conn: Conn) -> None:
    conn.execute("DEALLOCATE ALL")
    send.using(conn=conn).enqueue("one")
    conn.commit()
    assert notes(kit) == ["one"]


def test_what_the_driver_has_to_drop_is_dropped_first(send: Send, conn: Conn, cursors: list[object]) -> None:
    conn._prepared._to_flush.append(b"_pg3_none")
    send.using(conn=conn).enqueue("one")
    assert (len(cursors), list(conn._prepared._to_flush)) == (1, [])


def test_a_statement_that_is_used_is_not_the_next_to_be_dropped(send: Send, conn: Conn) -> None:
    conn.execute("SELECT 2", prepare=True)
    send.using(conn=conn).enqueue("one")
    assert b"enqueue" in list(conn._prepared._names)[-1][0]


def test_errors_are_those_of_the_driver(kit: Kit, send: Send, conn: Conn, cursors: list[object]) -> None:
    conn.commit()
    kit.sql("ALTER TABLE holdfast.work ADD CHECK (payload->>'note' <> 'é')")
    conn.execute("SELECT 1")
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        send.using(conn=conn).enqueue("é")
    assert caught.value.diag.table_name == "inbox"
    assert "é" in str(caught.value)
    assert cursors == []
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        send.using(conn=conn).enqueue("two")


def test_a_queue_that_is_gone_is_told(kit: Kit, send: Send, conn: Conn, cursors: list[object]) -> None:
    kit.sql("SELECT holdfast.create_queue('mail')")
    send.using(conn=conn, queue="mail").enqueue("one")
    conn.execute("DELETE FROM holdfast.work")
    conn.commit()
    kit.sql("DROP TABLE holdfast.queue_mail; DELETE FROM holdfast.queues WHERE name = 'mail'")
    conn.execute("SELECT 1")
    cursors.clear()
    with pytest.raises(UnknownQueue, match="'mail'"):
        send.using(conn=conn, queue="mail").enqueue("two")
    assert cursors == []


def test_listeners_hear_of_it(send: Send, conn: Conn, cursors: list[object]) -> None:
    heard: list[tuple[str, int]] = []
    stop = executors.listen_in(lambda statement, rows, _: heard.append((statement.name, len(rows[0][0]))))
    try:
        send.using(conn=conn).enqueue("one")
    finally:
        stop()
    assert (heard, cursors) == ([("enqueue_one", 3)], [])


def test_a_driver_with_other_names_inside_has_its_cursor(conn: Conn) -> None:
    """What a prepared statement is found by are names of the driver's own."""

    class Renamed:
        def __init__(self, conn: Conn) -> None:
            self.pgconn = conn.pgconn
            self.autocommit = conn.autocommit

    statement = enqueue([NewRow("send", '{"note": "x"}')])
    assert prepared(conn, statement) is not None
    assert prepared(Renamed(conn), statement) is None  # type: ignore[arg-type]
