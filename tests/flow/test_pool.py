"""The connections of an app: lent in turn, opened by those who need them, and replaced as soon as the server is back."""

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from tests.conftest import QUICK, await_until, wait_until
from tests.crash.proxy import Proxy, backends

from holdfast import DatabaseUnavailable, Holdfast
from holdfast.db import pool as module
from holdfast.db.pool import OPENING
from holdfast.db.pools import Pools
from holdfast.settings import Settings
from holdfast.testing import Kit

NAME = "holdfast"
SIZE = 6
HASTY = replace(QUICK, pool_size=SIZE, connect_timeout=1.5)
NOT_REACHED = "the database cannot be reached: "


@pytest.fixture
def proxy(holdfast_url: str) -> Iterator[Proxy]:
    proxy = Proxy(holdfast_url)
    yield proxy
    proxy.close()


@contextlib.contextmanager
def opened(url: str, settings: Settings = HASTY) -> Iterator[Pools]:
    kit = Kit(Holdfast(), url, settings)
    try:
        yield kit.database._ready()[1]
    finally:
        kit.close()


def fill(pools: Pools, number: int = SIZE) -> None:
    """So many connections are open, idle, and were not used for a while."""
    with contextlib.ExitStack() as lent:
        for _ in range(number):
            lent.enter_context(pools.connection())
    for conn in pools._all:
        conn.used_at = 0.0


async def afill(pools: Pools, number: int = SIZE) -> None:
    async with contextlib.AsyncExitStack() as lent:
        for _ in range(number):
            await lent.enter_async_context(pools.aconnection())
    for conn in pools._all:
        conn.used_at = 0.0


def cut_all(url: str) -> None:
    with psycopg.connect(url) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = %s",
            [NAME],
        )


def test_idle_connections_that_the_server_ended_delay_nobody(kit: Kit) -> None:
    with opened(kit.url) as pools:
        fill(pools)
        assert backends(kit.url, NAME) >= SIZE
        cut_all(kit.url)
        with pools.connection() as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
        fill(pools)


async def test_idle_connections_that_the_server_ended_delay_no_task(akit: Kit) -> None:
    with opened(akit.url) as pools:
        await afill(pools)
        cut_all(akit.url)
        async with pools.aconnection() as conn:
            assert await (await conn.execute("SELECT 1")).fetchone() == (1,)
        await afill(pools)
        await pools.aclose()


def test_an_enqueue_right_after_a_long_outage_has_a_connection(proxy: Proxy, app: Holdfast) -> None:
    @app.task
    def send() -> None: ...

    kit = Kit(app, proxy.url, replace(HASTY, connect_timeout=0.4))
    try:
        send.enqueue()
        proxy.refuse()
        for _ in range(10):
            with pytest.raises(DatabaseUnavailable) as caught:
                send.enqueue()
            assert str(caught.value).startswith(NOT_REACHED)
        proxy.heal()
        send.enqueue()
        assert kit.sql("SELECT count(*) AS n FROM holdfast.work") == [{"n": 2}]
    finally:
        kit.close()


async def test_an_aenqueue_right_after_a_long_outage_has_a_connection(proxy: Proxy, app: Holdfast) -> None:
    @app.task
    def send() -> None: ...

    kit = Kit(app, proxy.url, replace(HASTY, connect_timeout=0.4))
    try:
        await send.aenqueue()
        proxy.refuse()
        for _ in range(10):
            with pytest.raises(DatabaseUnavailable) as caught:
                await send.aenqueue()
            assert str(caught.value).startswith(NOT_REACHED)
        proxy.heal()
        await send.aenqueue()
    finally:
        await kit.database.aclose()
        kit.close()


def test_whoever_waits_in_an_outage_goes_on_when_the_server_is_back(proxy: Proxy) -> None:
    with opened(proxy.url, replace(HASTY, connect_timeout=60.0)) as pools:
        fill(pools, 1)
        proxy.refuse()
        ended: list[int] = []

        def use() -> None:
            with pools.connection() as conn:
                ended.extend(conn.execute("SELECT 1").fetchone() or ())

        users = [threading.Thread(target=use) for _ in range(2 * SIZE)]
        for user in users:
            user.start()
        wait_until(
            lambda: len(pools._sync[os.getpid()]._line) == len(users) - OPENING, "all others are in the line"
        )
        proxy.heal()
        for user in users:
            user.join(30)
        assert ended == [1] * len(users)


async def test_many_who_ask_at_once_share_few_connections(akit: Kit) -> None:
    with opened(akit.url, replace(HASTY, pool_size=300, connect_timeout=60.0)) as pools:

        async def use() -> None:
            async with pools.aconnection() as conn:
                await conn.execute("SELECT 1")

        await asyncio.gather(*(use() for _ in range(300)))
        assert len(pools._async[asyncio.get_running_loop()][1]._idle) < 50  # the server has room for 100
        await pools.aclose()


def test_a_server_without_room_serves_by_the_connections_that_are_open(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.db.sync_pool.FIRST_PAUSE", 60.0)  # it does not come to its second try
    with opened(proxy.url, replace(HASTY, connect_timeout=90.0)) as pools:
        with pools.connection() as conn:
            proxy.refuse_newcomers()
            served = threading.Event()

            def use() -> None:
                with pools.connection() as other:
                    assert other is conn
                    served.set()

            user = threading.Thread(target=use, daemon=True)
            user.start()
            wait_until(lambda: bool(pools._sync[os.getpid()]._retrying), "it could not open one")
        assert served.wait(30)
        user.join(30)


def test_those_who_wait_are_served_in_turn(kit: Kit) -> None:
    with opened(kit.url, replace(HASTY, pool_size=1, connect_timeout=60.0)) as pools:
        served: list[int] = []

        def use(number: int) -> None:
            with pools.connection():
                served.append(number)

        with pools.connection():
            line = pools._sync[os.getpid()]._line
            users = []
            for number in range(5):
                users.append(threading.Thread(target=use, args=[number]))
                users[-1].start()
                wait_until(lambda wanted=number + 1: len(line) == wanted, "it is in the line")  # type: ignore[misc]
        for user in users:
            user.join(30)
        assert served == [0, 1, 2, 3, 4]


def test_a_wait_that_was_given_up_takes_no_connection(kit: Kit) -> None:
    with opened(kit.url, replace(HASTY, pool_size=1, connect_timeout=0.2)) as pools:
        with pools.connection():
            for _ in range(3):
                with pytest.raises(
                    DatabaseUnavailable, match=r"all 1 connections of the pool were in use for 0\.2 s"
                ):
                    pools.connection().__enter__()
            assert not pools._sync[os.getpid()]._line
        fill(pools, 1)


async def test_no_cancellation_costs_a_connection(akit: Kit) -> None:
    chance = random.Random(7)
    with opened(akit.url, replace(HASTY, pool_size=3, connect_timeout=20.0)) as pools:

        async def use(number: int) -> None:
            async with pools.aconnection(lent=number % 3 == 0) as conn:
                await conn.execute("SELECT pg_sleep(0.002)" if number % 2 else "SELECT 1")
                if number % 10 == 0:
                    await conn.close()

        for round_ in range(40):
            if round_ % 8 == 0:
                cut_all(akit.url)
            users = [asyncio.create_task(use(chance.randrange(100))) for _ in range(12)]
            for _ in range(6):
                await asyncio.sleep(chance.choice((0, 0, 0.001, 0.004)))
                chance.choice(users).cancel()
            await asyncio.gather(*users, return_exceptions=True)
        await await_until(lambda: not pools._returning, "all have come back")
        pool = pools._async[asyncio.get_running_loop()][1]
        assert pool._count == len(pool._idle) <= 3
        await afill(pools, 3)
        await pools.aclose()


async def test_a_connection_goes_past_a_task_that_was_cancelled_at_that_moment(akit: Kit) -> None:
    with opened(akit.url, replace(HASTY, pool_size=1, connect_timeout=20.0)) as pools:
        lent = pools.aconnection()
        conn = await lent.__aenter__()
        pool = pools._async[asyncio.get_running_loop()][1]
        first, second = (asyncio.create_task(pool.take()) for _ in range(2))
        await await_until(lambda: len(pool._line) == 2, "both are in the line")
        first.cancel()
        await lent.__aexit__(None, None, None)
        assert await second is conn
        pool.give_back(conn)
        await pools.aclose()


def test_a_connection_that_nobody_uses_is_closed(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_IDLE", 0.05)
    with opened(kit.url) as pools:
        fill(pools)
        wait_until(lambda: pools._sync[os.getpid()]._count == 0, "they are closed")
        fill(pools)


def test_a_connection_comes_back_while_the_interpreter_ends(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Timer, "start", ends)
    with opened(kit.url) as pools:
        fill(pools)
        fill(pools)


async def test_a_connection_that_no_task_uses_is_closed(akit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_IDLE", 0.05)
    with opened(akit.url) as pools:
        await afill(pools)
        pool = pools._async[asyncio.get_running_loop()][1]
        await await_until(lambda: pool._count == 0, "they are closed")
        await afill(pools)
        await pools.aclose()


def test_an_old_connection_is_replaced_when_it_comes_back(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(kit.url) as pools:
        with pools.connection() as first:
            monkeypatch.setattr(module, "MAX_AGE", 0.0)
        assert first.closed
        monkeypatch.undo()
        with pools.connection() as second:
            pass
        with pools.connection() as third:
            assert third is second


def test_a_connection_with_an_open_transaction_is_lent_to_nobody(kit: Kit) -> None:
    with opened(kit.url) as pools:
        with pools.connection() as conn:
            conn.execute("BEGIN")
        assert conn.closed
        with pools.connection() as other:
            assert other.info.transaction_status == TransactionStatus.IDLE


def test_a_connection_that_its_last_user_closed_costs_no_place(kit: Kit) -> None:
    with opened(kit.url, replace(HASTY, pool_size=1)) as pools:
        with pools.connection() as kept:
            pass
        kept.close()
        with pools.connection() as other:
            assert other.execute("SELECT 1").fetchone() == (1,)


def test_a_reset_that_is_interrupted_costs_no_place(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with opened(kit.url, replace(HASTY, pool_size=1)) as pools:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), pools.connection(lent=True):
            patch.setattr("holdfast.db.pools._restore", interrupted)
        fill(pools, 1)


def test_a_server_that_says_nothing_is_not_called_a_full_pool(proxy: Proxy) -> None:
    errors: list[str] = []
    proxy.go_silent()
    with opened(proxy.url, replace(HASTY, connect_timeout=0.4)) as pools:

        def use() -> None:
            with contextlib.suppress(DatabaseUnavailable):
                try:
                    pools.connection().__enter__()
                except DatabaseUnavailable as error:
                    errors.append(str(error))

        users = [threading.Thread(target=use) for _ in range(OPENING + 2)]
        for user in users:
            user.start()
        for user in users:
            user.join(30)
    assert len(errors) == len(users)
    assert not [error for error in errors if "in use" in error]
    assert "the database did not take a connection within 0.4 s" in errors


def test_closing_ends_the_wait_of_those_in_the_line(kit: Kit) -> None:
    with opened(kit.url, replace(HASTY, pool_size=1, connect_timeout=60.0)) as pools:
        refused: list[str] = []

        def use() -> None:
            try:
                with pools.connection():
                    pass
            except DatabaseUnavailable as error:
                refused.append(str(error))

        with pools.connection() as lent:
            line = pools._sync[os.getpid()]._line
            user = threading.Thread(target=use)
            user.start()
            wait_until(lambda: len(line) == 1, "it is in the line")
            pools.close()
            user.join(30)
        assert refused == ["the app was closed while this waited for one of its connections"]
        assert lent.closed


def test_a_larger_pool_serves_those_in_the_line(kit: Kit) -> None:
    with opened(kit.url, replace(HASTY, pool_size=1, connect_timeout=60.0)) as pools:
        done = threading.Event()

        def use() -> None:
            with pools.connection():
                done.set()

        with pools.connection():
            pool = pools._sync[os.getpid()]
            user = threading.Thread(target=use)
            user.start()
            wait_until(lambda: len(pool._line) == 1, "it is in the line")
            pool.resize(2)
            assert done.wait(30)
        user.join(30)


def test_an_address_without_a_server_is_an_error_of_the_server(tmp_path: object) -> None:
    with opened(f"postgresql:///shop?host={tmp_path}", replace(HASTY, connect_timeout=0.3)) as pools:
        with pytest.raises(DatabaseUnavailable, match=NOT_REACHED):
            pools.connection().__enter__()
        assert pools._sync[os.getpid()]._count == 0


@pytest.mark.parametrize("when", ["first", "again"])
def test_a_pooler_that_takes_connections_and_answers_nothing_holds_no_thread(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """As a paused PgBouncer does: the first statement on a new connection, or a look whether an old one lives."""
    errors: list[str] = []
    with opened(proxy.url, replace(HASTY, connect_timeout=0.4)) as pools:
        if when == "first":
            configure = pools._configure

            def silent(conn: Any) -> None:
                proxy.go_silent()
                configure(conn)

            monkeypatch.setattr(pools, "_configure", silent)
        else:
            fill(pools, 1)
            for pool in pools._sync.values():
                monkeypatch.setattr(pool, "_is_fresh", lambda _: False)
            proxy.go_silent()

        def use() -> None:
            try:
                pools.connection().__enter__()
            except DatabaseUnavailable as error:
                errors.append(str(error))

        user = threading.Thread(target=use, daemon=True)
        user.start()
        user.join(30)
        assert not user.is_alive()
        assert len(errors) == 1
