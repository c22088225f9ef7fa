"""Many migrators at once, and migrators that are killed."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from tests.conftest import wait_until
from tests.migration.servers import Database, eventually

from holdfast import failpoints
from holdfast import sql as files
from holdfast.db import migrate
from holdfast.errors import MigrationFailed

Migrations = list[tuple[int, str, str]]
MORE = (2, "more", "-- holdfast: expand\nCREATE TABLE holdfast.more (id int);")
INDEXES = (
    2,
    "indexes",
    """-- holdfast: expand
-- holdfast: no-transaction
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS once_one ON holdfast.once (name);
CREATE INDEX CONCURRENTLY IF NOT EXISTS once_two ON holdfast.once (queue);
""",
)
SRC = Path(__file__).parents[2] / "src"
STATE = (
    "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
    "WHERE c.relname IN ('once_one', 'once_two') ORDER BY 1"
)


def known(*later: tuple[int, str, str]) -> Migrations:
    return [*files.migrations()[:1], *later]


def migrators(database: Database) -> int:
    rows = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE application_name = 'holdfast migrate' AND datname = current_database()"
    )
    return int(database.ask(rows)[0][0])


def killed_at(point: str, database: Database, migrations: Migrations) -> None:
    """A real process that is killed in the middle; returns when the server has noticed."""
    program = (
        "import json, sys; from holdfast.db import migrate; "
        "migrate.up(sys.argv[1], migrations=json.loads(sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, database.dsn, json.dumps(migrations)],
        env=os.environ | {"PYTHONPATH": str(SRC), "HOLDFAST_FAILPOINTS": f"{point}=kill"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == -9, done.stderr
    eventually(lambda: migrators(database) == 0)


@pytest.fixture
def held_migrator(database: Database) -> Iterator[Callable[[], Future[list[int]]]]:
    """A migrator that stands still before its commit; the function lets it go on."""
    reached, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        failpoints.disarm("migrate.mid")  # only the first one stands still
        reached.set()
        assert go_on.wait(150)

    failpoints.arm("migrate.mid", hold)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(migrate.up, database.dsn, migrations=known())
        assert reached.wait(150)

        def release() -> Future[list[int]]:
            go_on.set()
            return future

        yield release
        go_on.set()
    failpoints.disarm("migrate.mid")


def test_the_second_migrator_waits_for_the_first(
    database: Database, held_migrator: Callable[[], Future[list[int]]]
) -> None:
    steps: list[str] = []

    def on_step(step: str) -> None:
        steps.append(step)
        if "another migrator is running" in step:
            held_migrator()

    assert migrate.up(database.dsn, on_step=on_step, migrations=known()) == []
    assert held_migrator().result(150) == [1]
    assert steps[0] == "0001_initial: applying"
    assert steps[-1] == "0001_initial: was applied by another"
    assert database.ask("SELECT number FROM holdfast.migrations") == [(1,)]


def test_the_second_migrator_gives_up_and_names_the_first(
    database: Database, held_migrator: Callable[[], Future[list[int]]]
) -> None:
    idle = (
        "SELECT pid, usename FROM pg_stat_activity WHERE state = 'idle in transaction' "
        "AND application_name = 'holdfast migrate' AND datname = current_database() "
        "AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)"
    )
    wait_until(lambda: len(database.ask(idle)) == 1, "the one that has the lock waits")
    holder = database.ask(idle)
    pid, user = holder[0]
    with pytest.raises(MigrationFailed) as caught:
        migrate.up(database.dsn, patience=0, migrations=known())
    text = str(caught.value)
    before, _, query = re.sub(r" for \d+ s\): ", " for 0 s): ", text, count=1).partition(" for 0 s): ")
    assert before == (
        "migration 0001_initial gave up after 0 s: another migrator is running: "
        f"pid {pid} (role '{user}', holdfast migrate, idle in transaction"
    )
    assert query.endswith(". Wait for it, then run again: holdfast migrate up")
    assert held_migrator().result(150) == [1]


@pytest.mark.versions
def test_many_migrators_apply_each_migration_once(database: Database) -> None:
    migrations = files.migrations()
    numbers = [number for number, _, _ in migrations] + [len(migrations) + 1]
    migrations.append((numbers[-1], "again", "-- holdfast: expand\nCREATE TABLE holdfast.again (id int);"))
    start = threading.Barrier(4)

    def run() -> list[int]:
        start.wait()
        return migrate.up(database.dsn, migrations=migrations)

    with ThreadPoolExecutor(4) as pool:
        results = [future.result(300) for future in [pool.submit(run) for _ in range(4)]]
    assert sorted(number for applied in results for number in applied) == numbers
    assert database.ask("SELECT number FROM holdfast.migrations ORDER BY 1") == [(n,) for n in numbers]


@pytest.mark.versions
def test_a_killed_first_migration_leaves_nothing(database: Database) -> None:
    killed_at("migrate.mid", database, known())
    assert database.ask("SELECT FROM pg_namespace WHERE nspname = 'holdfast'") == []
    assert migrate.up(database.dsn, migrations=known()) == [1]


def test_a_killed_later_migration_leaves_the_earlier_ones(database: Database) -> None:
    migrate.up(database.dsn, migrations=known())
    killed_at("migrate.mid", database, known(MORE))
    assert database.ask("SELECT number FROM holdfast.migrations") == [(1,)]
    assert database.ask("SELECT FROM pg_class WHERE relname = 'more'") == []
    assert migrate.up(database.dsn, migrations=known(MORE)) == [2]
    assert database.ask("SELECT count(*) FROM holdfast.more") == [(0,)]


@pytest.mark.versions
def test_a_killed_index_build_goes_on(database: Database) -> None:
    migrate.up(database.dsn, migrations=known())
    killed_at("migrate.between", database, known(INDEXES))
    assert database.ask(STATE) == [("once_one", True)]
    assert [number for number, _ in migrate.status(database.dsn, known(INDEXES)).pending] == [2]
    assert migrate.up(database.dsn, migrations=known(INDEXES)) == [2]
    assert database.ask(STATE) == [("once_one", True), ("once_two", True)]


def test_an_invalid_index_is_built_again(database: Database) -> None:
    migrate.up(database.dsn, migrations=known())
    database.run(
        "INSERT INTO holdfast.once "
        "SELECT holdfast.uuid7(), 'inbox', 'same', NULL, now() FROM generate_series(1, 2)"
    )
    with pytest.raises(MigrationFailed) as caught:
        migrate.up(database.dsn, migrations=known(INDEXES))
    user = database.ask("SELECT quote_ident(current_user)")[0][0]
    assert str(caught.value) == (
        f'migration 0002_indexes failed as role {user}: could not create unique index "once_one" (23505). '
        "Finished work is kept, and the next run continues from there."
    )
    assert database.ask(STATE) == [("once_one", False)]
    database.run("DELETE FROM holdfast.once")
    assert migrate.up(database.dsn, migrations=known(INDEXES)) == [2]
    assert database.ask(STATE) == [("once_one", True), ("once_two", True)]


def test_a_waiting_migrator_is_not_in_the_way_of_an_index_build(database: Database) -> None:
    """A build waits for every older snapshot; a migrator that waited inside a statement would be one."""
    migrate.up(database.dsn, migrations=known())
    waiting = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
        "AND query LIKE 'CREATE%INDEX CONCURRENTLY%'"
    )
    second_waits = threading.Event()
    with database.connect() as old, ThreadPoolExecutor(2) as pool:
        old.execute("BEGIN")
        old.execute("DELETE FROM holdfast.once")
        first = pool.submit(migrate.up, database.dsn, migrations=known(INDEXES))
        eventually(lambda: database.ask(waiting))
        second = pool.submit(
            migrate.up,
            database.dsn,
            migrations=known(INDEXES),
            on_step=lambda step: second_waits.set() if "another migrator" in step else None,
        )
        assert second_waits.wait(100)
        old.execute("COMMIT")
        assert (first.result(150), second.result(150)) == ([2], [])
    assert database.ask(STATE) == [("once_one", True), ("once_two", True)]


def test_a_failing_migration_changes_nothing(database: Database) -> None:
    bad = (2, "bad", "-- holdfast: expand\nCREATE TABLE holdfast.half (id int); SELECT 1 / 0;")
    with pytest.raises(MigrationFailed) as caught:
        migrate.up(database.dsn, migrations=known(bad))
    user = database.ask("SELECT quote_ident(current_user)")[0][0]
    assert str(caught.value) == (
        f"migration 0002_bad failed as role {user}: division by zero (22012). Nothing of it was applied."
    )
    assert isinstance(caught.value.__cause__, psycopg.errors.DivisionByZero)
    assert database.ask("SELECT number FROM holdfast.migrations") == [(1,)]
    assert database.ask("SELECT FROM pg_class WHERE relname = 'half'") == []


def test_a_lost_connection_is_named(database: Database) -> None:
    suicide = (2, "gone", "-- holdfast: expand\nSELECT pg_terminate_backend(pg_backend_pid());")
    with pytest.raises(MigrationFailed) as caught:
        migrate.up(database.dsn, migrations=known(suicide))
    text = str(caught.value)
    assert text.startswith("the connection was lost during migration 0002_gone: ")
    assert text.endswith(". Whether it was applied, says: holdfast migrate status")
    assert database.ask("SELECT number FROM holdfast.migrations") == [(1,)]


def test_settings_of_the_role_do_not_disturb(database: Database) -> None:
    database.run(
        f"ALTER DATABASE {database.name} SET statement_timeout = '300ms';"
        f"ALTER DATABASE {database.name} SET default_transaction_isolation = 'serializable';"
        f"ALTER DATABASE {database.name} SET standard_conforming_strings = off;"
        f"ALTER DATABASE {database.name} SET search_path = 'nowhere'"
    )
    slow = (
        2,
        "slow",
        """-- holdfast: expand
SELECT pg_sleep(0.4);
DO $$ BEGIN ASSERT current_setting('transaction_isolation') = 'read committed'; END $$;
DO $$ BEGIN ASSERT current_setting('search_path') = 'pg_catalog, pg_temp'; END $$;
""",
    )
    assert migrate.up(database.dsn, migrations=known(slow)) == [1, 2]
    with database.server.connect() as admin:
        admin.execute(f"ALTER DATABASE {database.name} RESET ALL".encode())
    assert database.ask(r"SELECT holdfast.bucket('a\b')") == [(544,)]
