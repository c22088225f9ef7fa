"""The kinds of connection, and a table of the user's own."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.guests.async_kinds import (
    AsyncConnectionAsyncpg,
    AsyncConnectionPsycopg,
    Asyncpg,
    AsyncpgFromPool,
    AsyncPsycopg,
    AsyncScopedSession,
    AsyncSessionAsyncpg,
    AsyncSessionPsycopg,
    SQLModelAsyncSession,
)
from tests.guests.django_kind import DjangoConnection
from tests.guests.kinds import (
    ORDERS,
    AsyncKind,
    Kind,
    Psycopg,
    ScopedSession,
    SqlalchemyConnection,
    SqlalchemySession,
    SQLModelSession,
)

from holdfast import Holdfast
from holdfast.tasks.task import Task
from holdfast.testing import Kit

KINDS: dict[str, type[Kind]] = {
    "psycopg": Psycopg,
    "psycopg-async": AsyncPsycopg,
    "asyncpg": Asyncpg,
    "asyncpg-pool": AsyncpgFromPool,
    "sqlalchemy-session": SqlalchemySession,
    "sqlalchemy-connection": SqlalchemyConnection,
    "sqlalchemy-asyncsession-asyncpg": AsyncSessionAsyncpg,
    "sqlalchemy-asyncsession-psycopg": AsyncSessionPsycopg,
    "sqlalchemy-asyncconnection-asyncpg": AsyncConnectionAsyncpg,
    "sqlalchemy-asyncconnection-psycopg": AsyncConnectionPsycopg,
    "sqlmodel-session": SQLModelSession,
    "django": DjangoConnection,
}
# Wrappers and subclasses of those: one test of each is enough.
MORE: dict[str, type[Kind]] = {
    "sqlalchemy-scoped-session": ScopedSession,
    "sqlalchemy-async-scoped-session": AsyncScopedSession,
    "sqlmodel-asyncsession": SQLModelAsyncSession,
}

Open = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(params=KINDS)
def kind_class(request: pytest.FixtureRequest) -> type[Kind]:
    return {**KINDS, **MORE}[request.param]


@pytest.fixture
def opened(kind_class: type[Kind], kit: Kit) -> Open:
    """Open a connection of this kind: `with opened() as kind`."""
    kit.sql(ORDERS)

    @contextlib.contextmanager
    def make(**options: Any) -> Iterator[Kind]:
        with kind_class.opened(kit.url, **options) as kind:
            if isinstance(kind, AsyncKind):
                kind.on_close.append(kit.database.aclose)
            yield kind

    return make


@pytest.fixture
def kind(opened: Open) -> Iterator[Kind]:
    with opened() as kind:
        yield kind


@pytest.fixture
def django(kit: Kit) -> Iterator[Any]:
    with DjangoConnection.opened(kit.url) as kind:
        yield kind


@pytest.fixture
def send(app: Holdfast) -> Task[[int], str]:
    @app.task
    def send(order_id: int) -> str:
        return str(order_id)

    return send


def orders(kit: Kit) -> list[int]:
    return [row["id"] for row in kit.sql("SELECT id FROM orders ORDER BY id")]


def waiting(kit: Kit) -> list[int]:
    """The orders whose jobs are there, as anybody else sees them."""
    return [row["payload"]["order_id"] for row in kit.jobs()]
