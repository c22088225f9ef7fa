"""Migrations: bring a database to the schema this release needs, without stopping the traffic on it.

text        a migration file: its header, its statements, the script that `sql()` prints
address     a separate connection, and errors that never show a password
preflight   what a server, a database and a role need before anything is changed
blockers    which sessions hold the lock that a migration waits for
runner      apply what is pending; `up`, `status`, `plan`, `sql`, `verify`
"""

from holdfast.db.migrate.runner import (
    Applied,
    MigrationStatus,
    plan,
    required_version,
    sql,
    status,
    up,
    verify,
)

__all__ = [
    "Applied",
    "MigrationStatus",
    "plan",
    "required_version",
    "sql",
    "status",
    "up",
    "verify",
]
