"""The async kinds."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg
import psycopg
import sqlalchemy.exc
import sqlmodel.ext.asyncio.session
from sqlalchemy import text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from tests.guests.kinds import AsyncKind, Order, SQLModelOrder, engine_url, parts


def asyncpg_address(url: str) -> dict[str, Any]:
    at = parts(url)
    at["database"] = at.pop("dbname")
    at["port"] = int(at["port"] or 5432)
    return at


class AsyncPsycopg(AsyncKind):
    conn: psycopg.AsyncConnection[Any]

    async def aopen(self) -> None:
        self.conn = await psycopg.AsyncConnection.connect(self.url, autocommit=self.autocommit)
        if self.isolation:
            await self.conn.set_isolation_level(psycopg.IsolationLevel[self.isolation.replace(" ", "_")])

    def ablock(self) -> AbstractAsyncContextManager[Any]:
        return self.conn.transaction()

    def anested(self) -> AbstractAsyncContextManager[Any]:
        return self.conn.transaction()

    async def awrite(self, order: int) -> None:
        await self.conn.execute("INSERT INTO orders VALUES (%s)", [order])

    async def aone(self, query: str) -> Any:
        cursor = await self.conn.execute(query.encode())
        return (await cursor.fetchone())[0] if cursor.description else None  # type: ignore[index]


class Asyncpg(AsyncKind):
    read_only = asyncpg.ReadOnlySQLTransactionError

    async def aopen(self) -> None:
        self.conn = await asyncpg.connect(**asyncpg_address(self.url))

    def ablock(self) -> AbstractAsyncContextManager[Any]:
        level: Any = self.isolation.lower().replace(" ", "_") if self.isolation else None
        return self.conn.transaction(isolation=level)  # type: ignore[no-any-return]

    def anested(self) -> AbstractAsyncContextManager[Any]:
        return self.conn.transaction()  # type: ignore[no-any-return]

    async def awrite(self, order: int) -> None:
        await self.conn.execute("INSERT INTO orders VALUES ($1)", order)

    async def aone(self, query: str) -> Any:
        return await self.conn.fetchval(query)


class AsyncpgFromPool(Asyncpg):
    pool: "asyncpg.Pool[asyncpg.Record]"

    async def aopen(self) -> None:
        self.pool = await asyncpg.create_pool(**asyncpg_address(self.url), min_size=1, max_size=1)
        self.conn = await self.pool.acquire()

    async def aclose(self) -> None:
        await self.pool.release(self.conn)
        await self.pool.close()


class _OnAsyncEngine(AsyncKind):
    driver = "asyncpg"
    engine: AsyncEngine
    advice = 'use an engine without isolation_level="AUTOCOMMIT"'
    read_only = sqlalchemy.exc.DBAPIError

    async def aopen(self) -> None:
        level = "AUTOCOMMIT" if self.autocommit else self.isolation
        more: dict[str, Any] = {"isolation_level": level} if level else {}
        if self.driver == "asyncpg":
            self.engine = create_async_engine(
                "postgresql+asyncpg://", connect_args=asyncpg_address(self.url), **more
            )
        else:
            self.engine = create_async_engine(engine_url(self.driver, self.url), **more)

    async def aclose(self) -> None:
        await self.conn.close()
        await self.engine.dispose()

    def ablock(self) -> AbstractAsyncContextManager[Any]:
        return self.conn.begin()  # type: ignore[no-any-return]

    def anested(self) -> AbstractAsyncContextManager[Any]:
        return self.conn.begin_nested()  # type: ignore[no-any-return]

    async def awrite(self, order: int) -> None:
        await self.conn.execute(text("INSERT INTO orders VALUES (:id)"), {"id": order})

    async def aone(self, query: str) -> Any:
        result = await self.conn.execute(text(query))
        return result.scalar() if result.returns_rows else None


class AsyncConnectionAsyncpg(_OnAsyncEngine):
    conn: AsyncConnection

    async def aopen(self) -> None:
        await super().aopen()
        self.conn = await self.engine.connect()


class AsyncConnectionPsycopg(AsyncConnectionAsyncpg):
    driver = "psycopg"
    read_only = sqlalchemy.exc.InternalError


class AsyncSessionAsyncpg(_OnAsyncEngine):
    conn: AsyncSession

    async def aopen(self) -> None:
        await super().aopen()
        self.conn = AsyncSession(self.engine)

    async def awrite(self, order: int) -> None:
        self.conn.add(Order(id=order))
        if self.autocommit:
            await self.conn.flush()


class AsyncSessionPsycopg(AsyncSessionAsyncpg):
    driver = "psycopg"
    read_only = sqlalchemy.exc.InternalError


class AsyncScopedSession(AsyncSessionAsyncpg):
    async def aopen(self) -> None:
        await _OnAsyncEngine.aopen(self)
        scope = async_scoped_session(async_sessionmaker(self.engine), lambda: "request")
        self.conn = scope  # type: ignore[assignment]


class SQLModelAsyncSession(_OnAsyncEngine):
    conn: sqlmodel.ext.asyncio.session.AsyncSession

    async def aopen(self) -> None:
        await super().aopen()
        self.conn = sqlmodel.ext.asyncio.session.AsyncSession(self.engine)

    async def awrite(self, order: int) -> None:
        self.conn.add(SQLModelOrder(id=order))
        if self.autocommit:
            await self.conn.flush()

    async def aone(self, query: str) -> Any:
        result = await (await self.conn.connection()).execute(text(query))
        return result.scalar() if result.returns_rows else None
