"""Where `up` refuses: each message in full, and nothing changed."""

from collections.abc import Callable

import pytest
from tests.migration.servers import Database

from holdfast import Holdfast
from holdfast import sql as files
from holdfast.db import migrate
from holdfast.db.migrate.address import describe
from holdfast.db.migrate.preflight import Facts, check
from holdfast.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    HoldfastError,
    MigrationFailed,
    SchemaMissing,
    SchemaTooNew,
)

EVERY = [number for number, _, _ in files.migrations()]
NEXT = EVERY[-1] + 1
FINE = Facts(
    version="18.1",
    major=18,
    encoding="UTF8",
    standby=False,
    read_only=False,
    role="app",
    database="shop",
    may_create_schema=True,
    has_schema=False,
    may_create_in_schema=False,
    schema_has_objects=False,
    has_table=False,
    owner=None,
    may_alter=False,
    may_read=False,
)


def refusal(kind: type[HoldfastError], call: Callable[..., object], *args: object, **options: object) -> str:
    with pytest.raises(kind) as caught:
        call(*args, **options)
    assert type(caught.value) is kind
    return str(caught.value)


def has_schema(database: Database) -> bool:
    return bool(database.ask("SELECT FROM pg_namespace WHERE nspname = 'holdfast'"))


def test_the_usual_server_is_fine() -> None:
    check(FINE)
    check(FINE._replace(has_schema=True, may_create_in_schema=True, may_create_schema=False))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            FINE._replace(version="13.22", major=13),
            "the server is PostgreSQL 13.22; Holdfast needs 14 or newer. Upgrade the server.",
        ),
        (
            FINE._replace(standby=True, read_only=True),
            (
                "the server of database shop is a standby and takes no changes. "
                "Migrate the primary; the standby follows by itself."
            ),
        ),
    ],
    ids=["old", "standby"],
)
def test_a_server_that_cannot_be_used(facts: Facts, message: str) -> None:
    assert refusal(MigrationFailed, check, facts) == message


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_is_not_utf8(make_database: Callable[[str], Database], encoding: str) -> None:
    database = make_database(_in_encoding(make_database("").server.major, encoding))
    text = refusal(MigrationFailed, migrate.up, database.dsn)
    create = "CREATE DATABASE holdfast ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;"
    assert text == (
        f"database {database.name} has the encoding {encoding}; Holdfast needs UTF8. "
        f"Make another one: {create}"
    )
    assert not has_schema(database)
    other = f"{database.name}_utf8"
    with database.server.connect() as admin:
        admin.execute(create.replace("DATABASE holdfast", f"DATABASE {other}").encode())
        assert migrate.up(database.server.dsn(other)) == EVERY
        admin.execute(f"DROP DATABASE {other} (FORCE)".encode())


def _in_encoding(major: int, encoding: str) -> str:
    provider = "LOCALE_PROVIDER libc" if major >= 15 else ""
    return f"ENCODING '{encoding}' {provider} LC_COLLATE 'C' LC_CTYPE 'C'"


def test_a_read_only_role(database: Database, role: str) -> None:
    database.run(
        f"GRANT CREATE ON DATABASE {database.name} TO {role};"
        f"ALTER ROLE {role} SET default_transaction_read_only = on"
    )
    allow = f"ALTER ROLE {role} IN DATABASE {database.name} SET default_transaction_read_only = off;"
    dsn = database.server.dsn(database.name, user=role)
    assert refusal(MigrationFailed, migrate.up, dsn) == (
        f"sessions of role {role} in database {database.name} are read-only "
        "(default_transaction_read_only is on). "
        f"Allow this role to write: {allow}"
    )
    database.run(allow)
    assert migrate.up(dsn) == EVERY


def test_a_role_that_may_not_create_a_schema(database: Database, role: str) -> None:
    dsn = database.server.dsn(database.name, user=role)
    grant = f"GRANT CREATE ON DATABASE {database.name} TO {role};"
    assert refusal(MigrationFailed, migrate.up, dsn) == (
        f"role {role} may not create a schema in database {database.name}. As its owner or a superuser: "
        f"{grant} or give it only this one: CREATE SCHEMA holdfast AUTHORIZATION {role};"
    )
    assert not has_schema(database)
    database.run(grant)
    assert migrate.up(dsn) == EVERY


def test_a_role_that_may_not_use_the_prepared_schema(database: Database, role: str) -> None:
    database.run("CREATE SCHEMA holdfast")
    dsn = database.server.dsn(database.name, user=role)
    grant = f"GRANT USAGE, CREATE ON SCHEMA holdfast TO {role};"
    assert refusal(MigrationFailed, migrate.up, dsn) == (
        f"role {role} may not create tables in the schema holdfast. As its owner: {grant}"
    )
    database.run(grant)
    assert migrate.up(dsn) == EVERY


def test_an_empty_schema_made_by_a_dba_is_enough(database: Database, role: str) -> None:
    database.run(f"CREATE SCHEMA holdfast AUTHORIZATION {role}")
    dsn = database.server.dsn(database.name, user=role)
    assert migrate.up(dsn) == EVERY
    assert migrate.status(dsn).current == NEXT - 1


def test_a_role_that_does_not_own_the_tables(database: Database, role: str) -> None:
    migrate.up(database.dsn)
    dsn = database.server.dsn(database.name, user=role)
    owner = database.ask("SELECT quote_ident(current_user)")[0][0]
    read = f"GRANT USAGE ON SCHEMA holdfast TO {role}; GRANT SELECT ON holdfast.migrations TO {role};"
    message = (
        f"role {role} may not read holdfast.migrations. As {owner}: {read} "
        "or grant one of the roles that `holdfast roles sql` makes"
    )
    assert refusal(MigrationFailed, migrate.up, dsn) == message
    assert refusal(MigrationFailed, migrate.status, dsn) == message
    database.run(read)
    assert migrate.status(dsn).current == NEXT - 1
    assert migrate.up(dsn) == [], "who has nothing to change needs no right to change"
    more = [*files.migrations(), (NEXT, "more", "ALTER TABLE holdfast.engine ADD COLUMN more int;")]
    grant = f"GRANT {owner} TO {role};"
    assert refusal(MigrationFailed, migrate.up, dsn, migrations=more) == (
        f"role {role} may not change the tables of Holdfast, which belong to {owner}. "
        f"Connect as {owner}, or: {grant}"
    )
    database.run(grant)
    assert migrate.up(dsn, migrations=more) == [NEXT]


@pytest.mark.parametrize(
    "objects",
    [
        "CREATE TABLE holdfast.boats (id int)",
        "CREATE FUNCTION holdfast.sail() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TYPE holdfast.colour AS ENUM ('red')",
        "CREATE TABLE holdfast.migrations (version text)",
    ],
    ids=["table", "function", "type", "other-migrations"],
)
def test_a_schema_of_somebody_else(database: Database, objects: str) -> None:
    database.run(f"CREATE SCHEMA holdfast; {objects}")
    before = database.ask("SELECT oid, relname FROM pg_class ORDER BY 1")
    message = (
        f"the schema holdfast in database {database.name} is not Holdfast's: it has no usable table "
        "holdfast.migrations. Nothing was changed. Use another database, or move it away: "
        "ALTER SCHEMA holdfast RENAME TO holdfast_old;"
    )
    assert refusal(MigrationFailed, migrate.up, database.dsn) == message
    assert refusal(MigrationFailed, migrate.status, database.dsn) == message
    assert database.ask("SELECT oid, relname FROM pg_class ORDER BY 1") == before
    database.run("ALTER SCHEMA holdfast RENAME TO holdfast_old")
    assert migrate.up(database.dsn) == EVERY


def test_a_newer_database(database: Database) -> None:
    migrate.up(database.dsn)
    newest = migrate.required_version()
    future = newest + 1
    database.run(f"INSERT INTO holdfast.migrations VALUES ({future}, 'future')")
    message = (
        f"the database is at {future} and needs code that knows migration {future}, "
        f"this release knows up to {newest}: upgrade holdfast"
    )
    assert refusal(SchemaTooNew, migrate.up, database.dsn) == message
    assert refusal(SchemaTooNew, migrate.plan, database.dsn) == message
    assert migrate.status(database.dsn).current == future


def test_verify() -> None:
    migrate.verify(migrate.required_version())
    migrate.verify(4, required=4)
    assert refusal(SchemaMissing, migrate.verify, None) == (
        "the database has no holdfast schema. Run: holdfast migrate up"
    )
    assert refusal(SchemaMissing, migrate.verify, 3, 4) == (
        "the database is at 3, this release needs 4. Run: holdfast migrate up"
    )
    assert refusal(SchemaTooNew, migrate.verify, 9, 4) == (
        "the database is at 9 and needs code that knows migration 9, this release knows up to 4: upgrade holdfast"
    )
    migrate.verify(9, 4, needs_code=4)
    assert refusal(SchemaTooNew, migrate.verify, 9, 4, 5) == (
        "the database is at 9 and needs code that knows migration 5, this release knows up to 4: upgrade holdfast"
    )
    assert refusal(SchemaMissing, migrate.verify, 3, 4, 1) == (
        "the database is at 3, this release needs 4. Run: holdfast migrate up"
    )


def test_a_server_that_is_not_there() -> None:
    text = refusal(
        DatabaseUnavailable, migrate.status, "postgresql://app:hush@127.0.0.1:1/shop?connect_timeout=2"
    )
    assert text.startswith("cannot reach database 'shop' at 127.0.0.1:1 as 'app': ")
    assert "refused" in text
    assert "hush" not in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app:hu@sh@127.0.0.1:1/shop",
        "postgresql://app:hu/sh@127.0.0.1:1/shop",
        "postgresql://app:hu%sh@127.0.0.1:1/shop",
        "host=127.0.0.1 password=hu sh",
    ],
)
def test_a_password_that_breaks_the_address_is_not_shown(dsn: str) -> None:
    text = refusal(ConfigurationError, migrate.status, dsn)
    assert text == (
        "the database address cannot be read. Write postgresql://user@host:5432/name, "
        "with @ / : # ? and % in a password written as %40 %2F %3A %23 %3F and %25"
    )


@pytest.mark.parametrize("dsn", ["localhost/shop", "postgresql://app:hu%sh@127.0.0.1:1/shop"])
def test_an_app_with_an_address_that_cannot_be_read_says_so_at_once(dsn: str) -> None:
    """A pool would try it again and again, and log pieces of it."""
    app = Holdfast(dsn)

    @app.task
    def work() -> None: ...

    with app, pytest.raises(ConfigurationError, match="the database address cannot be read"):
        work.enqueue()


def test_what_is_said_of_an_address() -> None:
    assert (
        describe("postgresql://app:hush@db.example:5433/shop")
        == "database 'shop' at db.example:5433 as 'app'"
    )
    assert describe("") == "the default database at the default host"


def test_a_range_that_is_not_there() -> None:
    newest = migrate.required_version()
    assert refusal(ConfigurationError, migrate.sql, newest + 1, newest + 3) == (
        f"there are no migrations {newest + 1} to {newest + 3} (this release has 1 to {newest})"
    )


def test_a_header_with_a_typing_mistake(database: Database) -> None:
    wrong = [*files.migrations(), (NEXT, "more", "-- holdfast: no-transactions\nSELECT 1;")]
    assert refusal(MigrationFailed, migrate.up, database.dsn, migrations=wrong) == (
        f"migration {NEXT:04}_more has the header 'no-transactions' "
        "(known: expand, expand (needs code >= N), contract (needs code >= N), no-transaction)"
    )


def test_a_migration_that_asks_for_later_code_than_its_own(database: Database) -> None:
    wrong = [
        *files.migrations(),
        (NEXT, "more", f"-- holdfast: contract (needs code >= {NEXT + 1})\nSELECT 1;"),
    ]
    assert refusal(MigrationFailed, migrate.up, database.dsn, migrations=wrong) == (
        f"migration {NEXT:04}_more says that it needs code >= {NEXT + 1}, which is later than itself. "
        f"Name {NEXT} or less"
    )
