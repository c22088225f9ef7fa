"""Which sessions hold the lock that a migration waits for.

PostgreSQL can report that only while the wait lasts, so a second connection asks regularly and remembers.
"""

import threading
from types import TracebackType
from typing import NamedTuple, Self

import psycopg

from holdfast.db.migrate.address import Connection, connect, pinned
from holdfast.db.migrate.text import LOCK_KEY
from holdfast.errors import DatabaseUnavailable

_SESSION = """
SELECT pid, coalesce(usename, ''), coalesce(application_name, ''), coalesce(state, backend_type),
       extract(epoch FROM clock_timestamp() - coalesce(xact_start, backend_start))::float8,
       left(regexp_replace(coalesce(query, ''), '\\s+', ' ', 'g'), 200)
FROM pg_stat_activity
"""
_BLOCKING = f"{_SESSION} WHERE pid = ANY(pg_blocking_pids(%s)) ORDER BY xact_start"
_PREPARED = "SELECT 0 = ANY(pg_blocking_pids(%s))"
_MIGRATOR = f"""{_SESSION} WHERE pid IN (
    SELECT l.pid FROM pg_locks l, (VALUES ({LOCK_KEY})) AS key(class, object)
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.database =
              (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.classid = (key.class::bigint & 4294967295)::oid
      AND l.objid = (key.object::bigint & 4294967295)::oid)
"""  # noqa: S608 - constants


class Session(NamedTuple):
    pid: int
    role: str
    application: str
    state: str
    seconds: float
    query: str

    def __str__(self) -> str:
        if self.pid == 0:
            return "a prepared transaction (see pg_prepared_xacts)"
        who = ", ".join(filter(None, (f"role {self.role!r}" if self.role else "", self.application)))
        return f"pid {self.pid} ({who}, {self.state} for {self.seconds:.0f} s): {self.query}"


def other_migrators(conn: Connection) -> list[Session]:
    with pinned(conn):
        return [Session(*row) for row in conn.execute(_MIGRATOR.encode())]


class Watch:
    """While open, `blockers` are the sessions that were last seen to block `pid`."""

    def __init__(self, dsn: str, every: float) -> None:
        self.pid: int | None = None
        self.blockers: list[Session] = []
        self._dsn = dsn
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-migrate-watch", daemon=True)

    def _run(self) -> None:
        try:
            with connect(self._dsn) as conn:
                while not self._over.wait(self._every):
                    if self.pid is not None:
                        self.blockers = self._look(conn, self.pid) or self.blockers
        except (psycopg.Error, DatabaseUnavailable):
            return  # names are a help, not a need: no free connection must not fail a migration

    def _look(self, conn: Connection, pid: int) -> list[Session]:
        with pinned(conn):
            found = [Session(*row) for row in conn.execute(_BLOCKING.encode(), [pid])]
            prepared = conn.execute(_PREPARED.encode(), [pid]).fetchone() == (True,)
        return found + ([Session(0, "", "", "", 0.0, "")] if prepared else [])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
