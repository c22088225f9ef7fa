# ruff: noqa: E501
"""What the DBA set for a role holds on the connections that handlers get; the engine's own sessions have limits of their own."""

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.rights.life import as_role

from holdfast import AsyncTransaction, Holdfast, Transaction
from holdfast.db import pools
from holdfast.db.connect import PIN, UNPIN
from holdfast.db.database import Database
from holdfast.shapes.events import store
from holdfast.store.statement import Statement
from holdfast.testing import Kit

NAMES = ("statement_timeout", "idle_in_transaction_session_timeout", "search_path")


@pytest.fixture
def role(kit: Kit) -> Iterator[str]:
    name = f"limited_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(kit.url, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {name} LOGIN SUPERUSER".encode())
        yield name
        conn.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


def limit(kit: Kit, role: str, statement: str, idle: str) -> None:
    kit.sql(f"ALTER ROLE {role} SET statement_timeout = '{statement}'")
    kit.sql(f"ALTER ROLE {role} SET idle_in_transaction_session_timeout = '{idle}'")
    kit.sql(f"ALTER ROLE {role} SET search_path = shop, public")
    kit.app._opened = Database(as_role(kit.url, role), kit.database.settings, kit.clock)


def run(kit: Kit, timeout: float | None) -> list[list[str]]:
    """What an async and a sync handler saw, twice each: the second time on a connection that another handler had."""
    app, seen = Holdfast("postgresql://unused.invalid/none"), []
    options: Any = {} if timeout is None else {"timeout": timeout}
    app._opened = kit.app._opened

    @app.task(**options)
    async def look(tx: AsyncTransaction) -> None:
        seen.append([(await (await tx.execute(f"SHOW {name}")).fetchone())[0] for name in NAMES])  # type: ignore[index]

    @app.task(**options)
    def look_sync(tx: Transaction) -> None:
        seen.append([tx.execute(f"SHOW {name}").fetchone()[0] for name in NAMES])  # type: ignore[index]

    kit.app = app
    for task in (look, look_sync):
        task.enqueue()
        kit.run_worker(concurrency=1)
        task.enqueue()
        kit.run_worker(concurrency=1)
    assert app._opened is not None
    app._opened.close()
    assert len(seen) == 4
    return seen


@pytest.mark.parametrize(
    ("of_role", "of_task", "expected"),
    [
        (("5s", "7s"), None, ["5s", "7s"]),
        (("5s", "7s"), 60.0, ["5s", "7s"]),
        (("5min", "7min"), 60.0, ["1min", "1min"]),
        (("0", "0"), None, ["0", "0"]),
        (("0", "0"), 90.0, ["90s", "90s"]),
    ],
)
def test_handlers_have_the_limits_of_the_role_or_the_lower_one_of_the_task(
    kit: Kit, role: str, of_role: tuple[str, str], of_task: float | None, expected: list[str]
) -> None:
    limit(kit, role, *of_role)
    assert run(kit, of_task) == [[*expected, "shop, public"]] * 4


async def test_the_engines_sessions_have_their_own(akit: Kit, role: str) -> None:
    limit(akit, role, "5s", "7s")
    session = Database(as_role(akit.url, role), akit.database.settings, akit.clock).session("test")
    try:
        seen: list[Any] = [
            await session.run(Statement("show", f"SHOW {name}", (), lambda rows: rows[0][0]))
            for name in NAMES
        ]
    finally:
        await session.close()
    assert seen == ["10s", "10s", "pg_catalog, pg_temp"]


def test_what_is_safe_under_any_path_leaves_a_connection_as_it_is(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that publishes and runs handlers with a transaction does not go back and forth between two paths."""
    changes: list[str] = []
    turn = pools._turn

    def noted(conn: Any, lent: bool | None) -> str | None:
        found = turn(conn, lent)
        changes.extend([found] if found else [])
        return found

    def agreed(_: object) -> Any:
        return (yield from Statement("show", "SHOW search_path", (), bool))

    monkeypatch.setattr(pools, "_turn", noted)
    for _ in range(2):
        kit.app.database.transact(lambda tx: tx.execute("SELECT 1"), agreed)
        kit.app.publish("order.paid", {})
        kit.app.database.run(store.log_state)
    # To the handler's path, and to ours for a statement that is not qualified throughout.
    assert changes == [UNPIN, PIN] * 2


def test_a_connection_changes_hands_with_the_path_of_its_next_user(kit: Kit, role: str) -> None:
    limit(kit, role, "0", "0")
    database = kit.app.database
    found: list[str] = []

    def ours() -> str:
        return database.run(lambda: Statement("show", "SHOW search_path", (), lambda rows: str(rows[0][0])))

    def theirs() -> str:
        def body(tx: Transaction) -> None:
            found.append(str(tx.execute("SHOW search_path").fetchone()[0]))  # type: ignore[index]
            tx.execute("SET search_path = elsewhere")

        def finish(_: None) -> Any:
            return (
                yield from Statement("show", "SHOW search_path", (), lambda rows: rows[0][0] == "elsewhere")
            )

        database.transact(body, finish)

        def look(tx: Transaction) -> str:
            return str(tx.execute("SHOW search_path").fetchone()[0])  # type: ignore[index]

        def agreed(_: str) -> Any:
            return (yield from Statement("show", "SHOW search_path", (), bool))

        return database.transact(look, agreed)

    try:
        assert [ours(), theirs(), ours(), ours(), theirs(), theirs(), ours()] == [
            "pg_catalog, pg_temp", "shop, public", "pg_catalog, pg_temp", "pg_catalog, pg_temp", "shop, public", "shop, public", "pg_catalog, pg_temp",
        ]  # fmt: skip
        assert set(found) == {"shop, public"}
    finally:
        database.close()
