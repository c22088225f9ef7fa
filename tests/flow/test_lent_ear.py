"""A connection that is lent to an async handler keeps its place in the event loop from one statement to the next."""

import asyncio
from typing import Any

import psycopg
import pytest
from tests.conftest import await_until

from holdfast.db.pools import Pools
from holdfast.db.readiness import Readiness
from holdfast.db.transaction_end import OwnAsyncConnection
from holdfast.store.jobs import queue_names
from holdfast.testing import Kit

ASLEEP = """SELECT count(*) AS n FROM pg_stat_activity
WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active' AND datname = current_database()"""


@pytest.fixture
def pools(akit: Kit) -> Pools:
    return akit.database._ready()[1]


class Readers:
    """Calls of the event loop that add a reader and remove one, by socket."""

    def __init__(self, loop: Any, patch: pytest.MonkeyPatch) -> None:
        self.added: list[int] = []
        self.removed: list[int] = []
        add, remove = loop.add_reader, loop.remove_reader

        def adding(fd: int, *args: Any) -> None:
            self.added.append(fd)
            add(fd, *args)

        def removing(fd: int) -> bool:
            self.removed.append(fd)
            return bool(remove(fd))

        patch.setattr(loop, "add_reader", adding)
        patch.setattr(loop, "remove_reader", removing)


@pytest.fixture
async def readers(monkeypatch: pytest.MonkeyPatch) -> Any:
    return Readers(asyncio.get_running_loop(), monkeypatch)


async def test_three_statements_take_one_place(pools: Pools, readers: Readers) -> None:
    async with pools.aconnection(lent=True):
        pass
    before = len(readers.added)
    async with pools.aconnection(lent=True) as conn:
        for n in range(3):
            cursor = await conn.execute("SELECT %s::int", [n])
            assert await cursor.fetchall() == [(n,)]
        socket = conn.pgconn.socket
        assert readers.added[before:] == [socket]
        conn.is_reset = True  # nothing is sent behind it
    assert readers.added[before:] == [socket]
    assert readers.removed[-1] == socket


async def test_what_the_driver_waits_for_in_its_own_way_leaves_the_place_to_the_next(pools: Pools) -> None:
    async with pools.aconnection(lent=True) as conn:
        await conn.execute("SELECT 1")
        async for _ in conn.notifies(timeout=0.01):
            pass
        async with asyncio.timeout(20):
            assert await (await conn.execute("SELECT 2")).fetchall() == [(2,)]


async def test_a_cancelled_statement_is_cancelled_in_the_server_too(akit: Kit, pools: Pools) -> None:
    used: list[OwnAsyncConnection] = []

    async def sleeping() -> None:
        async with pools.aconnection(lent=True) as conn:
            used.append(conn)
            await conn.execute("SELECT pg_sleep(600)")

    task = asyncio.create_task(sleeping())
    await await_until(lambda: akit.sql(ASLEEP)[0]["n"] == 1, "it sleeps")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert akit.sql(ASLEEP)[0]["n"] == 0
    async with pools.aconnection(lent=True) as conn:
        assert conn is used[0]
        assert await (await conn.execute("SELECT 1")).fetchall() == [(1,)]


@pytest.mark.parametrize("how", ["closed", "ended by the server"])
async def test_a_socket_that_is_gone_leaves_no_place(
    akit: Kit, pools: Pools, readers: Readers, how: str
) -> None:
    """Its number goes to the next connection, whose place must be its own."""
    async with pools.aconnection(lent=True) as conn:
        await conn.execute("SELECT 1")
        socket = conn.pgconn.socket
        if how == "closed":
            await conn.close()
        else:
            with pytest.raises(psycopg.OperationalError):
                await conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        assert readers.added.count(socket) == readers.removed.count(socket) > 0
        assert conn._ear is None
    async with asyncio.timeout(20), pools.aconnection(lent=True) as conn:
        assert await (await conn.execute("SELECT 1")).fetchall() == [(1,)]


async def test_a_statement_by_itself_keeps_no_place(akit: Kit, readers: Readers) -> None:
    await akit.database.arun(queue_names)
    assert sorted(readers.added) == sorted(readers.removed) != []


async def test_what_nobody_reads_does_not_keep_the_event_loop_busy(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may end the session, or notify, while the handler waits for something else."""
    heard: list[int] = []
    plain = Readiness._heard

    def counted(self: Readiness, what: int) -> None:
        heard.append(what)
        plain(self, what)

    monkeypatch.setattr(Readiness, "_heard", counted)
    async with pools.aconnection(lent=True) as conn:
        await conn.execute("LISTEN here")
        await conn.commit()
        await conn.execute("SELECT 1")
        before = len(heard)
        async with pools.aconnection() as other:
            await other.execute("NOTIFY here")
            await other.commit()
        await conn.execute("COMMIT")  # what waited is sent now
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(heard) - before <= 10
        assert await (await conn.execute("SELECT 2")).fetchall() == [(2,)]


@pytest.mark.parametrize("lent", [False, True])
async def test_a_turn_that_was_cut_off_is_made_again(
    pools: Pools, lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the server has set the search_path is not known then."""
    async with pools.aconnection(lent=not lent) as first:
        pass
    execute = OwnAsyncConnection.execute

    async def cut_off(self: Any, *args: Any, **kwargs: Any) -> Any:
        await execute(self, *args, **kwargs)
        raise asyncio.CancelledError

    with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
        patch.setattr(OwnAsyncConnection, "execute", cut_off)
        async with pools.aconnection(lent=lent):
            pass
    for theirs in (not lent, lent):
        async with pools.aconnection(lent=theirs) as conn:
            if conn is first:
                ((path,),) = await (await conn.execute("SHOW search_path")).fetchall()
                assert (path == '"$user", public') is theirs


async def test_behind_a_pooler_nothing_is_prepared(pools: Pools) -> None:
    for _ in range(8):
        async with pools.aconnection(lent=True) as conn:
            conn.is_pooled = True
    async with pools.aconnection() as conn:
        found = await conn.execute("SELECT name FROM pg_prepared_statements WHERE name LIKE '\\_pg3%'")
        assert await found.fetchall() == []
