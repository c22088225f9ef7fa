"""What a server, a database and a role need before anything is changed there.

`look` asks once, `check` decides without a connection: each refusal names the value and the line to run.
"""

from typing import Any, NamedTuple

import psycopg

from holdfast.db.migrate.address import Connection, pinned
from holdfast.errors import MigrationFailed

OLDEST = 14

# The catalogues are open to every role; to_regclass() and friends would fail without USAGE on the schema.
_LOOK = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int / 10000,
       pg_encoding_to_char(d.encoding), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
       quote_ident(current_user), quote_ident(d.datname), has_database_privilege(d.oid, 'CREATE'),
       n.oid IS NOT NULL,
       coalesce(has_schema_privilege(n.oid, 'CREATE') AND has_schema_privilege(n.oid, 'USAGE'), false),
       EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid)
           OR EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = n.oid)
           OR EXISTS (SELECT FROM pg_type t WHERE t.typnamespace = n.oid),
       m.oid IS NOT NULL, quote_ident(pg_get_userbyid(m.relowner)),
       coalesce(pg_has_role(m.relowner, 'USAGE'), false),
       coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(m.oid, 'SELECT'), false)
FROM pg_database d
LEFT JOIN pg_namespace n ON n.nspname = 'holdfast'
LEFT JOIN pg_class m ON m.relnamespace = n.oid AND m.relname = 'migrations' AND m.relkind = 'r'
WHERE d.datname = current_database()
"""
# A database that is to be upgraded has no column `needs_code` yet, and this is asked there too.
_APPLIED = """
SELECT m.number, m.name, m.applied_at, coalesce((to_jsonb(m) ->> 'needs_code')::int, m.number)
FROM holdfast.migrations m ORDER BY m.number
"""


class Facts(NamedTuple):
    """Names are quoted as SQL needs them."""

    version: str
    major: int
    encoding: str
    standby: bool
    read_only: bool
    role: str
    database: str
    may_create_schema: bool
    has_schema: bool
    may_create_in_schema: bool
    schema_has_objects: bool
    has_table: bool
    owner: str | None
    may_alter: bool
    may_read: bool


def look(conn: Connection) -> Facts:
    with pinned(conn):
        row = conn.execute(_LOOK).fetchone()
    assert row is not None
    return Facts(*row)


def check(facts: Facts) -> None:
    """May pending migrations be applied here?"""
    _check_server(facts)
    check_ours(facts)
    _check_privileges(facts)


def check_ours(facts: Facts) -> None:
    """Is this Holdfast's schema, and may its version be read?"""
    if facts.has_schema and facts.schema_has_objects and not facts.has_table:
        raise foreign(facts)
    if facts.has_table and not facts.may_read:
        raise MigrationFailed(
            f"role {facts.role} may not read holdfast.migrations. As {facts.owner}: "
            f"GRANT USAGE ON SCHEMA holdfast TO {facts.role}; "
            f"GRANT SELECT ON holdfast.migrations TO {facts.role}; "
            "or grant one of the roles that `holdfast roles sql` makes"
        )


def foreign(facts: Facts) -> MigrationFailed:
    return MigrationFailed(
        f"the schema holdfast in database {facts.database} is not Holdfast's: it has no usable table "
        "holdfast.migrations. Nothing was changed. Use another database, or move it away: "
        "ALTER SCHEMA holdfast RENAME TO holdfast_old;"
    )


def _check_server(facts: Facts) -> None:
    if facts.major < OLDEST:
        raise MigrationFailed(
            f"the server is PostgreSQL {facts.version}; Holdfast needs {OLDEST} or newer. Upgrade the server."
        )
    if facts.encoding != "UTF8":
        raise MigrationFailed(
            f"database {facts.database} has the encoding {facts.encoding}; Holdfast needs UTF8. Make another "
            "one: CREATE DATABASE holdfast ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;"
        )
    if facts.standby:
        raise MigrationFailed(
            f"the server of database {facts.database} is a standby and takes no changes. "
            "Migrate the primary; the standby follows by itself."
        )
    if facts.read_only:
        raise MigrationFailed(
            f"sessions of role {facts.role} in database {facts.database} are read-only "
            "(default_transaction_read_only is on). "
            f"Allow this role to write: ALTER ROLE {facts.role} IN DATABASE {facts.database} "
            "SET default_transaction_read_only = off;"
        )


def _check_privileges(facts: Facts) -> None:
    if not facts.has_schema and not facts.may_create_schema:
        raise MigrationFailed(
            f"role {facts.role} may not create a schema in database {facts.database}. As its owner or a "
            f"superuser: GRANT CREATE ON DATABASE {facts.database} TO {facts.role}; "
            f"or give it only this one: CREATE SCHEMA holdfast AUTHORIZATION {facts.role};"
        )
    if facts.has_schema and not facts.has_table and not facts.may_create_in_schema:
        raise MigrationFailed(
            f"role {facts.role} may not create tables in the schema holdfast. As its owner: "
            f"GRANT USAGE, CREATE ON SCHEMA holdfast TO {facts.role};"
        )
    if facts.has_table and not facts.may_alter:
        raise MigrationFailed(
            f"role {facts.role} may not change the tables of Holdfast, which belong to {facts.owner}. "
            f"Connect as {facts.owner}, or: GRANT {facts.owner} TO {facts.role};"
        )


def applied_rows(conn: Connection, facts: Facts) -> list[tuple[Any, ...]]:
    """(number, name, applied_at, needs_code) of what this database has; the table may not be there yet."""
    if not facts.has_table:
        return []
    try:
        with pinned(conn):
            return conn.execute(_APPLIED).fetchall()
    except psycopg.errors.UndefinedColumn:
        raise foreign(facts) from None
