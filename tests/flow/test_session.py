"""A session listens to its socket only while a statement runs, whatever becomes of it, on either event loop."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import waiting

from holdfast.db import readiness
from holdfast.db.faults import ConnectionLost
from holdfast.db.session import Session
from holdfast.store.statement import Statement
from holdfast.testing import Kit

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    make = importlib.import_module(request.param).new_event_loop
    with asyncio.Runner(loop_factory=make) as runner:
        yield runner.run


class Heard:
    """Every ear that was made, and what it waited for."""

    def __init__(self) -> None:
        self.sockets: set[int] = set()
        self.wanted: list[int] = []
        self.on_wait: Callable[[], None] = lambda: None

    def nothing_is_left(self) -> bool:
        """Taking one away says whether there was one."""
        loop = asyncio.get_running_loop()
        return bool(self.sockets) and not any(
            take(fd) for fd in self.sockets for take in (loop.remove_reader, loop.remove_writer)
        )


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    found = Heard()

    class Noted(readiness.Readiness):
        def __init__(self, socket: int) -> None:
            super().__init__(socket)
            found.sockets.add(socket)

        async def until(self, wanted: int) -> int:
            found.wanted.append(wanted)
            found.on_wait()
            return await super().until(wanted)

    monkeypatch.setattr(readiness, "Readiness", Noted)
    return found


@asynccontextmanager
async def opened(kit: Kit) -> AsyncIterator[Session]:
    session = kit.database.session("test")
    try:
        yield session
    finally:
        await session.close()


def asking(text: str, *params: Any) -> Statement[Any]:
    return Statement("asking", text, params, lambda rows: rows[0][0] if rows else None)


async def it_works(session: Session) -> None:
    assert await session.run(asking("SELECT 42")) == 42


def test_a_large_answer_comes_in_pieces(kit: Kit, run: Run, heard: Heard) -> None:
    async def body() -> None:
        async with opened(kit) as session:
            await it_works(session)
            heard.wanted.clear()
            pieces = "SELECT repeat('abcdefgh', 500000) || n, pg_sleep(0.02) FROM generate_series(1, 5) n"
            rows = await session.run(Statement("asking", pieces, (), list))
            assert [text for text, _ in rows] == ["abcdefgh" * 500_000 + str(n) for n in range(1, 6)]
            assert len(heard.wanted) >= 4
            assert heard.nothing_is_left()
            await it_works(session)
        assert heard.nothing_is_left()

    run(body())


def test_a_large_parameter_waits_until_it_can_be_written(kit: Kit, run: Run, heard: Heard) -> None:
    async def body() -> None:
        async with opened(kit) as session:
            await it_works(session)
            heard.wanted.clear()
            assert await session.run(asking("SELECT length($1::text)", "x" * 30_000_000)) == 30_000_000
            assert any(wanted & waiting.WAIT_W for wanted in heard.wanted)
            assert heard.nothing_is_left()
            text = "y" * 10_000_000
            assert await session.run(asking("SELECT $1::text", text)) == text
            assert heard.nothing_is_left()
            await it_works(session)

    run(body())


def backend_ends(kit: Kit) -> None:
    with psycopg.connect(kit.url, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'holdfast test' AND datname = current_database()"
        )


@pytest.mark.parametrize(
    "statement", ["SELECT pg_sleep(30)", "SELECT repeat('x', 900) FROM generate_series(1, 200000)"]
)
def test_a_connection_that_is_cut_in_the_middle(kit: Kit, run: Run, heard: Heard, statement: str) -> None:
    async def body() -> None:
        async with opened(kit) as session:
            await it_works(session)
            waits = 0

            def cut() -> None:
                nonlocal waits
                waits += 1
                if waits == 3 or "sleep" in statement:
                    heard.on_wait = lambda: None
                    backend_ends(kit)

            heard.on_wait = cut
            with pytest.raises(ConnectionLost):
                await session.run(asking(statement))
            assert heard.nothing_is_left()
            await it_works(session)
            assert heard.nothing_is_left()

    run(body())


@pytest.mark.parametrize(
    ("statement", "params"),
    [("SELECT pg_sleep(30)", ()), ("SELECT pg_sleep(30), length($1::text)", ("x" * 30_000_000,))],
    ids=["reading", "writing"],
)
def test_a_statement_that_is_cancelled_in_the_middle(
    kit: Kit, run: Run, heard: Heard, statement: str, params: tuple[str, ...]
) -> None:
    async def body() -> None:
        async with opened(kit) as session:
            await it_works(session)
            task = asyncio.create_task(session.run(asking(statement, *params)))

            def cancel() -> None:
                asyncio.get_running_loop().call_soon(task.cancel)

            heard.on_wait = cancel
            with pytest.raises(asyncio.CancelledError):
                await task
            heard.on_wait = lambda: None
            assert heard.nothing_is_left()
            await it_works(session)
            assert heard.nothing_is_left()

    run(body())


def test_a_refused_statement_leaves_nothing_behind(kit: Kit, run: Run, heard: Heard) -> None:
    async def body() -> None:
        async with opened(kit) as session:
            with pytest.raises(psycopg.errors.UndefinedColumn):
                await session.run(asking("SELECT nothing"))
            assert heard.nothing_is_left()
            await it_works(session)

    run(body())


async def test_a_statement_that_is_run_often_is_prepared(akit: Kit) -> None:
    session = akit.database.session("settle", keep_plans=True)
    what = Statement("x", "SELECT $1::int + 815", (1,), lambda rows: rows[0][0])
    for _ in range(10):
        assert await session.run(what) == 816
    look = "SELECT count(*) FROM pg_prepared_statements WHERE statement = 'SELECT $1::int + 815'"
    assert await session.run(Statement("look", look, (), lambda rows: rows[0][0])) == 1
    await session.close()
