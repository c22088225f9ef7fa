# ruff: noqa: E501
"""What an upgrade gives to roles that were given rights before."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo
from tests.conftest import QUICK
from tests.migration.servers import Database
from tests.migration.test_migrate_rolling import BEFORE, ROOT, source_of

from holdfast import Event, Holdfast, Rate
from holdfast import sql as files
from holdfast.db import migrate
from holdfast.db.database import Database as Opened
from holdfast.model.clock import Clock
from holdfast.testing import Kit

# What workers of 0.1.0 do to each table, and the functions that they call.
TABLES = {
    "SELECT": "migrations, queues",
    "SELECT, INSERT": "archive, parked_keys",
    "SELECT, UPDATE": "engine, archive_slots, limits",
    "SELECT, DELETE": "audit",
    "SELECT, UPDATE, DELETE": "work, inbox, groups, idempotency, replacements",
    "SELECT, INSERT, DELETE": "seats, sleepers, errors",
    "SELECT, INSERT, UPDATE": "breakers, schedules, dead_letters",
    "SELECT, INSERT, UPDATE, DELETE": "claims, workers, key_limits, paused_tasks, quarantine, once, progress, fences, throughput, firings",
}
FUNCTIONS = "enqueue, enqueue_many, enqueue_group, enqueue_specs, jobs_ended, close_group, conflict_text, wake, note_breaker, close_breaker, lock_streams"


def named(names: str) -> str:
    return ", ".join(f"holdfast.{name.strip()}" for name in names.split(","))


@pytest.fixture
def database(make_database: Callable[[], Database]) -> Database:
    database = make_database()
    migrate.up(database.dsn, migrations=files.migrations()[:1])
    return database


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    name = f'"Worker {uuid4().hex[:12]}"'  # to be quoted wherever it stands
    database.run(f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA holdfast TO {name}")
    yield name
    database.run(f"DROP OWNED BY {name}; DROP ROLE {name}")


def rights(database: Database, role: str, *tables: str) -> dict[str, str]:
    """S select, I insert, U update, D delete."""
    query = f"""SELECT t, string_agg(left(p, 1), '' ORDER BY n) FROM unnest('{{{",".join(tables)}}}'::text[]) t
                CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY AS u(p, n)
                WHERE has_table_privilege('{role.strip('"')}', 'holdfast.' || t, p) GROUP BY t"""
    return dict(database.ask(query))


def test_a_worker_that_does_not_own_the_schema_may_call_what_is_new_in_its_place(
    database: Database, role: str
) -> None:
    database.run(f"GRANT EXECUTE ON FUNCTION holdfast.jobs_ended TO {role}")
    migrate.up(database.dsn)
    allowed = f"""SELECT proname::text FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace
                  AND proname IN ('jobs_ended_at_commit', 'try_callback', 'write_jobs')
                  AND has_function_privilege('{role.strip('"')}', oid, 'EXECUTE') ORDER BY 1"""
    assert database.ask(allowed) == [("jobs_ended_at_commit",), ("try_callback",)]


@pytest.mark.parametrize("generous", [False, True])
def test_a_worker_that_does_not_own_the_schema_starts_and_runs_after_the_upgrade(
    database: Database, role: str, generous: bool
) -> None:
    if generous:
        for what in ("TABLES", "SEQUENCES", "FUNCTIONS"):
            database.run(f"GRANT ALL ON ALL {what} IN SCHEMA holdfast TO {role}")
    else:
        for given, tables in TABLES.items():
            database.run(f"GRANT {given} ON {named(tables)} TO {role}")
        database.run(f"GRANT EXECUTE ON FUNCTION {named(FUNCTIONS)} TO {role}")
    migrate.up(database.dsn)
    app = Holdfast("postgresql://unused.invalid/none")
    app.queue("limited", concurrency=2, rate=Rate(1000))
    ran: list[int] = []

    @app.task
    async def plain(n: int) -> None:
        ran.append(n)

    @app.task(queue="limited")
    async def within_limits(n: int) -> None:
        ran.append(n)

    Kit(app, database.dsn, QUICK).database.close()  # makes the queue, as the owner
    app._opened = worker = Opened(make_conninfo(database.dsn, user=role.strip('"')), QUICK, Clock())
    app._writer.forget()

    @app.on("order.*", start="start")
    async def mail(event: Event[Any]) -> None:
        ran.append(event.data["n"])

    async def main() -> None:
        await plain.aenqueue(1)
        await app.apublish("order.paid", {"n": 5}, key="order:5")
        await within_limits.aenqueue(2)
        await app.agroup([plain.job(3)], then=plain.job(4))
        try:
            await app.run_worker(until_idle=True)
        finally:
            await worker.aclose()

    asyncio.run(main())
    assert sorted(ran) == [1, 2, 3, 4, 5]
    expected = {
        "misfits": "SIUD",
        "key_holds": "SIUD",
        "limits": "SIUD",
        "errors": "SIUD",
        "dead_letters": "SIUD",
        "inbox": "SIUD",
        "asleep": "S",
        "group_counts": "SD",
        "subscriptions": "SIUD",
        "event_failures": "SIUD",
        "event_pages": "S",
        "event_ids": "SD",
    }
    assert rights(database, role, *expected) == expected
    if not generous:
        assert rights(database, role, "producers", "group_ends") == {}


def test_who_could_only_look_sees_what_is_new_and_changes_nothing(database: Database, role: str) -> None:
    database.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO {role}")
    migrate.up(database.dsn)
    tables = (
        "work",
        "misfits",
        "limits",
        "errors",
        "dead_letters",
        "inbox",
        "events",
        "subscriptions",
        "event_pages",
        "subscription_lag",
    )
    assert rights(database, role, *tables) == dict.fromkeys(tables, "S")


def roles_script(source: Path, prefix: str) -> str:
    """As that code prints it."""
    words = [sys.executable, "-m", "holdfast", "roles", "sql", "--prefix", prefix]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    done = subprocess.run(
        words,
        env={**environment, "PYTHONPATH": f"{source}"},  # that of another release, or of this tree
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_roles_need_no_second_script_for_the_newest_migration(
    make_database: Callable[[], Database], tmp_path: Path
) -> None:
    """Between the migration and the script workers of both releases run with what the roles have."""
    database, prefix = make_database(), f"up_{uuid4().hex[:8]}"
    known = files.migrations()
    migrate.up(database.dsn, migrations=known[:-1])
    database.run(roles_script(source_of(BEFORE[str(known[-1][0])], tmp_path), prefix))
    given = f"""
        SELECT o.what, a.grantee::regrole::text, a.privilege_type
        FROM (SELECT c.relname::text, c.relacl FROM pg_class c WHERE c.relnamespace = 'holdfast'::regnamespace
              UNION ALL SELECT a.attrelid::regclass || '.' || a.attname, a.attacl FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
              WHERE c.relnamespace = 'holdfast'::regnamespace
              UNION ALL SELECT p.oid::regprocedure::text, p.proacl FROM pg_proc p WHERE p.pronamespace = 'holdfast'::regnamespace
             ) AS o(what, acl)
        CROSS JOIN LATERAL aclexplode(o.acl) a JOIN pg_roles r ON r.oid = a.grantee
        WHERE r.rolname LIKE '{prefix}%' AND r.rolname <> '{prefix}_owner' ORDER BY 1, 2, 3"""
    try:
        migrate.up(database.dsn)
        after_it = database.ask(given)
        database.run(roles_script(ROOT / "src", prefix))
        assert database.ask(given) == after_it
        assert len(after_it) > 300
    finally:
        for (name,) in database.ask(f"SELECT rolname FROM pg_roles WHERE rolname LIKE '{prefix}%'"):
            database.run(f"REASSIGN OWNED BY {name} TO CURRENT_USER; DROP OWNED BY {name}; DROP ROLE {name}")
