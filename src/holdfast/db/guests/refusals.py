"""Objects that are no usable connections, and the line that fixes each."""

from ...errors import WrongConnection

_PSYCOPG2 = "psycopg2 is not supported. Open it with psycopg 3: conn = psycopg.connect(...)"
_WHOLE = "pass the Session or Connection itself, not a part of it: conn=session"
_POOL = "take a connection out of it: with pool.connection() as conn: ..."
_CURSOR = "pass the connection, not its cursor: conn=cursor.connection"

# class in the object's ancestry -> what to write instead
_ADVICE = {
    "builtins.str": "pass the connection object whose transaction the job should join",
    "builtins.NoneType": "pass the connection object whose transaction the job should join",
    "builtins.type": "pass a connection, not its class",
    "builtins.coroutine": "it was not awaited: conn = await ...",
    "contextlib._GeneratorContextManager": "it was not entered: with ... as conn: ...",
    "contextlib._AsyncGeneratorContextManager": "it was not entered: async with ... as conn: ...",
    "psycopg._cursor_base.BaseCursor": _CURSOR,
    "psycopg.Transaction": "pass the connection, not its transaction: with conn.transaction(): ...",
    "psycopg.AsyncTransaction": "pass the connection, not its transaction: async with conn.transaction(): ...",
    "psycopg_pool.pool.ConnectionPool": _POOL,
    "psycopg_pool.pool_async.AsyncConnectionPool": f"take a connection out of it: async {_POOL.partition(': ')[2]}",
    "psycopg2.extensions.connection": _PSYCOPG2,
    "psycopg2.extensions.cursor": _PSYCOPG2,
    "asyncpg.pool.Pool": "take a connection out of it: async with pool.acquire() as conn: ...",
    "asyncpg.pool.PoolAcquireContext": "it was not entered: async with pool.acquire() as conn: ...",
    "asyncpg.transaction.Transaction": "pass the connection, not its transaction: async with conn.transaction(): ...",
    "sqlalchemy.engine.base.Engine": "pass a Session or a Connection, not the Engine: with engine.begin() as conn: ...",
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": "pass an AsyncSession or an AsyncConnection, not the engine: "
    "async with engine.begin() as conn: ...",
    "sqlalchemy.orm.session.sessionmaker": "pass a Session, not its maker: with Session.begin() as session: ...",
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": "pass an AsyncSession, not its maker: "
    "async with Session.begin() as session: ...",
    "sqlalchemy.engine.base.Transaction": _WHOLE,
    "sqlalchemy.orm.session.SessionTransaction": _WHOLE,
    "sqlalchemy.ext.asyncio.engine.AsyncTransaction": _WHOLE,
    "sqlalchemy.ext.asyncio.session.AsyncSessionTransaction": _WHOLE,
    "sqlalchemy.pool.base.PoolProxiedConnection": _WHOLE,
    "sqlalchemy.engine.interfaces.AdaptedConnection": _WHOLE,
    "django.db.utils.ConnectionHandler": 'pass one of them: conn=connections["default"]',
    "django.db.backends.utils.CursorWrapper": "pass the connection, not its cursor: from django.db import connection",
    "sqlite3.Connection": "jobs live in PostgreSQL: pass the PostgreSQL connection whose transaction the job should join",
}
_ANY = "pass a connection of psycopg 3, asyncpg, SQLAlchemy, SQLModel or Django"


def refusal(conn: object) -> WrongConnection:
    """The error for an object that is no known kind of connection."""
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(conn).__mro__]
    advice = next((_ADVICE[name] for name in names if name in _ADVICE), None)
    if advice is None:
        is_cursor = all(hasattr(conn, name) for name in ("execute", "fetchone", "connection"))
        advice = _CURSOR if is_cursor else _ANY
    return unusable(names[0], advice)


def closed(conn: object) -> WrongConnection:
    return unusable(f"a closed {_name(conn)}", "pass the one whose transaction is open")


def unusable(what: str, advice: str) -> WrongConnection:
    return WrongConnection(f"conn= got {what}, which Holdfast cannot use; {advice}")


def _name(conn: object) -> str:
    return f"{type(conn).__module__}.{type(conn).__qualname__}"
