"""Alembic: `op.holdfast_upgrade()` in a migration, and a filter that keeps our schema out of autogenerate.

In env.py: `import holdfast.contrib.alembic`, which makes the operation known, and
`context.configure(..., include_name=holdfast.contrib.alembic.include_name)`.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.distribution import install

try:
    from alembic.operations import MigrateOperation, Operations
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"holdfast.contrib.alembic needs Alembic. Install it: {install('alembic')}"
    ) from missing
from sqlalchemy.engine import Connection

from holdfast.db import migrate
from holdfast.model.address import libpq_address

SCHEMA = "holdfast"

__all__ = ["HoldfastUpgrade", "include_name"]


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """For `context.configure(include_name=...)`: what is in the schema holdfast is not compared with your models."""
    schema = name if type_ == "schema" else parent_names.get("schema_name")
    return schema != SCHEMA


@Operations.register_operation("holdfast_upgrade")
class HoldfastUpgrade(MigrateOperation):
    """`op.holdfast_upgrade()`: does the same as `holdfast migrate up`, in a migration of yours."""

    @classmethod
    def holdfast_upgrade(cls, operations: Operations) -> None:
        """Bring the schema holdfast to what the installed release needs. It has a connection of its own, and each of its
        migrations commits by itself: should yours roll back, they stay, and a second call finds nothing to do."""
        operations.invoke(cls())


@Operations.implementation_for(HoldfastUpgrade)
def _upgrade(operations: Operations, operation: HoldfastUpgrade) -> None:
    context = operations.get_context()
    if context.as_sql:  # alembic upgrade --sql: the script for psql, with a transaction per migration
        with context.autocommit_block():
            context.impl.static_output(_script())
        return
    assert context.bind is not None
    migrate.up(address_of(context.bind))


def _script() -> str:
    """Every migration for psql, each behind a question whether the database has it: nobody can ask while this is written,
    and a second revision with this operation prints them all again."""
    parts = []
    for number in range(1, migrate.required_version() + 1):
        due = f"NOT EXISTS (SELECT FROM holdfast.migrations WHERE number = {number})"
        if number == 1:
            due = "to_regclass('holdfast.migrations') IS NULL"
        parts.append(
            f"SELECT {due} AS holdfast_due \\gset\n\\if :holdfast_due\n{migrate.sql(number, number)}\\endif\n"
        )
    return "\n".join(["\\set ON_ERROR_STOP on", *parts])


def address_of(conn: Connection) -> str:
    """The address that this connection of SQLAlchemy was made with, as libpq reads it, with its password."""
    raw: Any = conn.connection.driver_connection
    info = getattr(raw, "info", None)
    if (
        info is not None
    ):  # psycopg and psycopg2: also where the address came from a creator or from connect_args
        from psycopg.conninfo import make_conninfo

        parts = info.dsn if hasattr(info, "dsn") else make_conninfo(**info.dsn_parameters)
        return make_conninfo(parts, password=info.password or None)
    return libpq_address(conn.engine.url.render_as_string(hide_password=False))
