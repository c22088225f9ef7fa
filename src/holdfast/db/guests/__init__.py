"""The user's own connections: found by what they are, without importing what is not installed.

A guest runs our statements inside the user's transaction. It never commits, rolls back or changes a setting.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, TypeVar

from ...errors import WrongConnection
from ...store.statement import Flow, Statement

T = TypeVar("T")


class Guest(Protocol):
    """A sync connection the user lent us."""

    def in_transaction(self) -> bool: ...

    def run(self, what: Statement[T] | Flow[T]) -> T: ...


class AsyncGuest(Protocol):
    """An async connection the user lent us."""

    def in_transaction(self) -> bool: ...

    async def arun(self, what: Statement[T] | Flow[T]) -> T: ...


# class the user's object has in its ancestry -> (module that adapts it, class in it)
_KINDS: dict[str, tuple[str, str]] = {
    "psycopg.Connection": ("holdfast.db.guests.psycopg", "PsycopgGuest"),
    "psycopg.AsyncConnection": ("holdfast.db.guests.psycopg", "AsyncPsycopgGuest"),
    "holdfast.db.transaction.Transaction": ("holdfast.db.guests.psycopg", "transaction_guest"),
    "holdfast.db.transaction.AsyncTransaction": ("holdfast.db.guests.psycopg", "async_transaction_guest"),
}


def _adapt(conn: object) -> Any:
    for kind in type(conn).__mro__:
        found = _KINDS.get(f"{kind.__module__}.{kind.__qualname__}")
        if found is not None:
            adapter: Callable[[object], Any] = getattr(import_module(found[0]), found[1])
            return adapter(conn)
    name = f"{type(conn).__module__}.{type(conn).__qualname__}"
    advice = "pass a psycopg 3 connection (psycopg.Connection or psycopg.AsyncConnection)"
    if name.startswith("psycopg2"):
        advice = "psycopg2 is not supported; open the transaction with psycopg 3: import psycopg"
    elif conn is None or isinstance(conn, str):
        advice = "pass the connection object whose transaction the job should join"
    raise WrongConnection(f"conn= got {name}, which Holdfast cannot use; {advice}")


def sync_guest(conn: object, method: str, other: str) -> Guest:
    guest = _adapt(conn)
    if not hasattr(guest, "run"):
        raise WrongConnection(
            f"{method}() got an async connection ({type(conn).__name__}); use await {other}()"
        )
    return guest  # type: ignore[no-any-return]


def async_guest(conn: object, method: str, other: str) -> AsyncGuest:
    guest = _adapt(conn)
    if not hasattr(guest, "arun"):
        raise WrongConnection(f"{method}() got a sync connection ({type(conn).__name__}); use {other}()")
    return guest  # type: ignore[no-any-return]
