"""The user's own connections: found by what they are, without importing what is not installed.

A guest runs our statements inside the user's transaction. It never commits, rolls back or changes a setting. Errors
are raised as the user's library raises them, except for a missing schema.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, TypeVar

from ...errors import WrongConnection
from ...store.statement import Flow, Statement
from .refusals import refusal

T = TypeVar("T")


class Guest(Protocol):
    """A sync connection the user lent us."""

    @property
    def advice(self) -> str:
        """How to open a transaction on it."""
        ...

    def in_transaction(self) -> bool:
        """Whether a statement now is part of a transaction that the user ends."""
        ...

    def run(self, what: Statement[T] | Flow[T]) -> T: ...


class AsyncGuest(Protocol):
    """An async connection the user lent us."""

    @property
    def advice(self) -> str: ...

    async def in_transaction(self) -> bool: ...

    async def arun(self, what: Statement[T] | Flow[T]) -> T: ...


_Kinds = dict[
    str, tuple[str, str]
]  # class in the object's ancestry -> (module here that adapts it, name in it)

_SYNC: _Kinds = {
    "psycopg.Connection": ("psycopg", "PsycopgGuest"),
    "holdfast.db.transaction.Transaction": ("psycopg", "transaction_guest"),
    "sqlalchemy.orm.session.Session": ("sqlalchemy", "session_guest"),
    "sqlalchemy.orm.scoping.scoped_session": ("sqlalchemy", "session_guest"),
    "sqlalchemy.engine.base.Connection": ("sqlalchemy", "connection_guest"),
    "django.utils.connection.ConnectionProxy": ("django", "DjangoGuest"),
    "django.db.backends.base.base.BaseDatabaseWrapper": ("django", "DjangoGuest"),
}
_ASYNC: _Kinds = {
    "psycopg.AsyncConnection": ("psycopg", "AsyncPsycopgGuest"),
    "holdfast.db.transaction.AsyncTransaction": ("psycopg", "async_transaction_guest"),
    "asyncpg.connection.Connection": ("asyncpg", "AsyncpgGuest"),
    "asyncpg.pool.PoolConnectionProxy": ("asyncpg", "AsyncpgGuest"),
    "sqlalchemy.ext.asyncio.session.AsyncSession": ("sqlalchemy", "async_session_guest"),
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": ("sqlalchemy", "async_session_guest"),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": ("sqlalchemy", "async_connection_guest"),
}


def _find(kind: Any, kinds: _Kinds) -> tuple[str, str] | None:
    names = (f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__)
    return next((kinds[name] for name in names if name in kinds), None)


@functools.lru_cache(maxsize=64)
def _adapter(kind: Any, is_async: bool) -> Any:
    """None: there is none."""
    found = _find(kind, _ASYNC if is_async else _SYNC)
    return None if found is None else getattr(import_module(f".{found[0]}", __name__), found[1])


def _kind(conn: object) -> Any:
    """By `__class__`, not type(): a proxy, such as werkzeug's LocalProxy, reports its target there."""
    return conn.__class__


def sync_guest(conn: object, method: str, other: str) -> Guest:
    adapter: Callable[[object], Guest] | None = _adapter(_kind(conn), False)
    if adapter is None:
        if _find(_kind(conn), _ASYNC) is None:
            raise refusal(conn)
        raise WrongConnection(
            f"{method}() got an async connection ({type(conn).__name__}); use await {other}()"
        )
    return adapter(conn)


def async_guest(conn: object, method: str, other: str) -> AsyncGuest:
    adapter: Callable[[object], AsyncGuest] | None = _adapter(_kind(conn), True)
    if adapter is None:
        kind = _find(_kind(conn), _SYNC)
        if kind is None:
            raise refusal(conn)
        bridge = ""
        if kind[0] == "django":
            bridge = (
                " in the function that opens the transaction, and call that with await sync_to_async(...)()"
            )
        raise WrongConnection(
            f"{method}() got a sync connection ({type(conn).__name__}); use {other}(){bridge}"
        )
    return adapter(conn)
