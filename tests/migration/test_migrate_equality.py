"""schema.sql, the migrations one after the other, and the printed script: three ways to the same database."""

import re
import subprocess
from collections.abc import Callable

import pytest
from tests.migration.servers import Database

from holdfast import sql as files
from holdfast.db import migrate

SEEDS = (
    "SELECT name, relation, lease FROM holdfast.queues ORDER BY 1",
    "SELECT * FROM holdfast.archive_slots ORDER BY 1",
    "SELECT only_row, retention_days FROM holdfast.engine",
)


def dump(database: Database) -> list[str]:
    """The schema as pg_dump writes it, with storage options, statistics targets, privileges and comments."""
    done = subprocess.run(
        [database.server.bin / "pg_dump", "--schema-only", "--schema=holdfast", "--dbname", database.dsn],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    random_key = re.compile(r"\\(un)?restrict \w+")
    return [line for line in done.stdout.splitlines() if not random_key.fullmatch(line)]


def seeds(database: Database) -> list[object]:
    return [database.ask(query) for query in SEEDS]


def psql(database: Database, script: str) -> subprocess.CompletedProcess[str]:
    command = [str(database.server.bin / "psql"), "-X", "-q", "-o", "/dev/null", "--dbname", database.dsn]
    return subprocess.run(command, input=script, capture_output=True, text=True)


@pytest.mark.versions
def test_schema_file_and_migrations_make_the_same_schema(make_database: Callable[[], Database]) -> None:
    whole, stepwise = make_database(), make_database()
    whole.run(files.schema())
    migrate.up(stepwise.dsn)
    assert dump(whole) == dump(stepwise)
    assert seeds(whole) == seeds(stepwise)
    assert any("SET STATISTICS 0" in line for line in dump(stepwise)), "the dump must show what could differ"


@pytest.mark.versions
def test_the_printed_script_does_what_up_does(make_database: Callable[[], Database]) -> None:
    by_hand, by_up = make_database(), make_database()
    done = psql(by_hand, migrate.sql())
    assert (done.returncode, done.stderr) == (0, "")
    migrate.up(by_up.dsn)
    assert dump(by_hand) == dump(by_up)
    assert seeds(by_hand) == seeds(by_up)
    rows = "SELECT number, name FROM holdfast.migrations"
    assert by_hand.ask(rows) == by_up.ask(rows) == [(n, name) for n, name, _ in files.migrations()]
    assert migrate.up(by_hand.dsn) == []


NEXT = migrate.required_version() + 1
LATER = [
    (NEXT, "more", "-- holdfast: expand\nALTER TABLE holdfast.engine ADD COLUMN more int;\n"),
    (
        NEXT + 1,
        "index",
        """-- holdfast: expand
-- holdfast: no-transaction
-- for the test; not two statements
CREATE INDEX CONCURRENTLY IF NOT EXISTS engine_more ON holdfast.engine (more) WHERE more > 0;
COMMENT ON COLUMN holdfast.engine.more IS 'a; b -- c';
""",
    ),
    (
        NEXT + 2,
        "last",
        f"-- holdfast: contract (needs code >= {NEXT})\nALTER TABLE holdfast.engine DROP COLUMN more;\n",
    ),
]


@pytest.mark.versions
def test_later_migrations_by_script_and_by_up(make_database: Callable[[], Database]) -> None:
    known = [*files.migrations(), *LATER]
    by_hand, by_up = make_database(), make_database()
    assert migrate.up(by_up.dsn, migrations=known[:-1]) == [number for number, _, _ in known[:-1]]
    for first, last in ((1, 1), (2, NEXT), (NEXT + 1, NEXT + 1)):
        done = psql(by_hand, migrate.sql(first, last, migrations=known))
        assert (done.returncode, done.stderr) == (0, "")
    assert dump(by_hand) == dump(by_up)
    assert any("engine_more" in line for line in dump(by_up))
    assert by_up.ask(
        "SELECT col_description('holdfast.engine'::regclass, attnum) FROM pg_attribute "
        "WHERE attrelid = 'holdfast.engine'::regclass AND attname = 'more'"
    ) == [("a; b -- c",)]
    assert migrate.up(by_up.dsn, migrations=known) == [NEXT + 2]
    done = psql(by_hand, migrate.sql(NEXT + 2, NEXT + 2, migrations=known))
    assert (done.returncode, done.stderr) == (0, "")
    rows = f"SELECT number, name, needs_code FROM holdfast.migrations WHERE number >= {NEXT} ORDER BY number"
    assert (
        by_hand.ask(rows)
        == by_up.ask(rows)
        == [
            (NEXT, "more", NEXT - 1),
            (NEXT + 1, "index", NEXT),
            (NEXT + 2, "last", NEXT),
        ]
    )


def test_the_script_stops_on_a_database_that_is_elsewhere(database: Database) -> None:
    known = [*files.migrations(), *LATER]
    migrate.up(database.dsn)
    done = psql(database, migrate.sql(NEXT + 1, NEXT + 2, migrations=known))
    assert done.returncode == 3
    assert f"migration {NEXT + 1} needs a database that is at {NEXT}" in done.stderr
    done = psql(database, migrate.sql(1, 2, migrations=known))
    assert done.returncode == 3
    assert 'relation "migrations" already exists' in done.stderr
    assert database.ask("SELECT max(number) FROM holdfast.migrations") == [(NEXT - 1,)]


def test_shipped_migrations_are_numbered_without_gaps_and_declare_themselves() -> None:
    shipped = [migrate.text.Migration(*one) for one in files.migrations()]
    assert [m.number for m in shipped] == list(range(1, len(shipped) + 1))
    assert migrate.required_version() == len(shipped)
    for one in shipped:
        declared = {header.split()[0] for header in one.headers} & {"expand", "contract"}
        assert one.number == 1 or len(declared) == 1, f"{one} must say expand or contract"
        for statement in one.statements if not one.in_transaction else ():
            assert "IF NOT EXISTS" in statement or "IF EXISTS" in statement or "VALIDATE" in statement, (
                statement
            )
