"""The roles of `holdfast roles sql` for one test."""

import uuid

import psycopg
from tests.rights.life import as_role

from holdfast.operate.roles import ROLES, roles_sql


class Roles:
    """Roles under a prefix of this test, and one that can log in for each: `roles.url("worker")`."""

    def __init__(self, dsn: str, *queues: str) -> None:
        self.dsn = dsn
        self.prefix = f"t{uuid.uuid4().hex[:8]}"
        self.queues = queues
        self.names = {name: f"{self.prefix}_{name}" for name in (*ROLES, *(f"producer_{q}" for q in queues))}
        self.run()
        with psycopg.connect(dsn, autocommit=True) as conn:
            for name in self.names.values():
                conn.execute(f"CREATE ROLE {name}_login LOGIN IN ROLE {name}".encode())

    def run(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(roles_sql(self.prefix, self.queues).encode())

    def url(self, role: str) -> str:
        return as_role(self.dsn, f"{self.names[role]}_login")

    def clear(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(
                f"REASSIGN OWNED BY {self.names['owner']}, {self.names['migrator']}_login TO CURRENT_USER".encode()
            )
            for name in [n for known in self.names.values() for n in (f"{known}_login", known)]:
                conn.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())
