"""A migration that cannot get its lock never holds up the others for longer than one try."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.migration.servers import Database, eventually

from holdfast import sql as files
from holdfast.db import migrate
from holdfast.errors import ConfigurationError, MigrationFailed

KNOWN = [
    *files.migrations()[:1],
    (2, "more", "-- holdfast: expand\nALTER TABLE holdfast.engine ADD COLUMN more int;"),
]
WAITING = (
    "SELECT FROM pg_stat_activity WHERE application_name = 'holdfast migrate' AND wait_event_type = 'Lock' "
    "AND datname = current_database()"
)


@pytest.fixture
def migrated(database: Database) -> Database:
    migrate.up(database.dsn, migrations=KNOWN[:1])
    return database


def test_it_gives_up_and_names_who_is_in_the_way(migrated: Database) -> None:
    with migrated.connect(application_name="report") as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT retention_days\n  FROM holdfast.engine")
        pid = reader.info.backend_pid
        with pytest.raises(MigrationFailed) as caught:
            migrate.up(migrated.dsn, lock_timeout=0.3, patience=0.5, migrations=KNOWN)
    user = migrated.ask("SELECT current_user")[0][0]
    assert re.sub(r"for \d+ s\)", "for N s)", str(caught.value)) == (
        "migration 0002_more gave up after 0.5 s: others hold the locks it needs: "
        f"pid {pid} (role '{user}', report, idle in transaction for N s): "
        "SELECT retention_days FROM holdfast.engine. "
        f"Nothing of it was applied. Wait for them or end them (SELECT pg_terminate_backend({pid});), "
        "then run again: holdfast migrate up"
    )
    assert migrate.status(migrated.dsn, KNOWN).pending == [(2, "more")]
    assert migrate.up(migrated.dsn, migrations=KNOWN) == [2]


@pytest.mark.versions
def test_it_goes_on_when_the_lock_is_let_go(migrated: Database) -> None:
    steps: list[str] = []
    tried = threading.Event()

    with migrated.connect() as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("BEGIN")
        reader.execute("SELECT FROM holdfast.engine")
        pid = reader.info.backend_pid

        def on_step(step: str) -> None:
            steps.append(step)
            if step.startswith(f"0002_more: waits for locks; pid {pid} ("):
                tried.set()

        running = pool.submit(migrate.up, migrated.dsn, lock_timeout=0.1, on_step=on_step, migrations=KNOWN)
        assert tried.wait(100)
        reader.execute("COMMIT")
        assert running.result(150) == [2]
    assert steps[0] == "0002_more: applying"
    assert re.fullmatch(r"0002_more: applied in \d+\.\d s", steps[-1])


def test_traffic_is_held_up_for_one_try_at_most(migrated: Database) -> None:
    longest, answers = 0.0, 0
    with migrated.connect() as reader, migrated.connect() as traffic, ThreadPoolExecutor(1) as pool:
        reader.execute("BEGIN")
        reader.execute("SELECT FROM holdfast.engine")
        running = pool.submit(migrate.up, migrated.dsn, lock_timeout=0.3, patience=4.0, migrations=KNOWN)
        eventually(lambda: migrated.ask(WAITING))
        while not running.done():
            started = time.monotonic()
            traffic.execute("SELECT FROM holdfast.engine")
            longest, answers = max(longest, time.monotonic() - started), answers + 1
        assert isinstance(running.exception(), MigrationFailed)
    assert answers > 5
    assert 0.05 < longest < 3.5, "one try of 0.3 s; without a lock_timeout it would be 4 s and more"


@pytest.mark.parametrize(
    ("lock_timeout", "patience", "wrong"),
    [
        (0.0, 1.0, "lock_timeout must be a finite number of at least 0.001 seconds, not 0.0"),
        (-1.0, 1.0, "lock_timeout must be a finite number of at least 0.001 seconds, not -1.0"),
        (1.0, -1.0, "patience must be a finite number of at least 0 seconds, not -1.0"),
        ("2s", "soon", 'patience must be a duration like "90s", "15m" or "1h30m", not \'soon\''),
    ],
)
def test_a_timeout_that_would_wait_for_ever_is_refused(
    lock_timeout: float, patience: float, wrong: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        migrate.up("dbname=never-asked", lock_timeout=lock_timeout, patience=patience)
    assert str(caught.value) == wrong
