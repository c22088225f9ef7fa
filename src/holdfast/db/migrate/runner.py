"""Apply what is pending.

Each migration is one transaction: an advisory lock, the version row, the statements. So two migrators apply
each one once, and one that is killed leaves nothing behind. A migration waits for a table's lock only for
`lock_timeout`, because every later session queues behind it; then it lets go, pauses, and tries again.

The advisory lock is asked for, never waited for: a waiting statement holds a snapshot, and CREATE INDEX
CONCURRENTLY in the migrator that has the lock would wait for that snapshot in turn.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import psycopg
from psycopg import errors as pg

from holdfast import failpoints, telemetry
from holdfast import sql as files
from holdfast.db.migrate import text
from holdfast.db.migrate.address import Connection, one_line, pinned, session
from holdfast.db.migrate.blockers import Session, Watch, other_migrators
from holdfast.db.migrate.preflight import Facts, applied_rows, check, check_ours, look
from holdfast.db.migrate.text import LOCK_KEY, Migration
from holdfast.errors import ConfigurationError, MigrationFailed, SchemaMissing, SchemaTooNew
from holdfast.model.duration import Duration, seconds

Migrations = Sequence[tuple[int, str, str]]

_SETTINGS = {
    "search_path": "pg_catalog, pg_temp",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "standard_conforming_strings": "on",
    "client_min_messages": "warning",
}
# The role that owns the schema, where we are another one and may become it: all that migrations make belongs to one owner.
_OWNER = """
SELECT quote_ident(pg_get_userbyid(o.id))
FROM (SELECT coalesce(m.relowner, n.nspowner) AS id FROM pg_namespace n
      LEFT JOIN pg_class m ON m.relnamespace = n.oid AND m.relname = 'migrations' AND m.relkind = 'r'
      WHERE n.nspname = 'holdfast') o
WHERE pg_get_userbyid(o.id) <> current_user
  AND pg_has_role(o.id, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)
"""
_INVALID = """
SELECT format('DROP INDEX CONCURRENTLY holdfast.%%I', c.relname)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relname = ANY(%s)
  AND c.relkind = 'i' AND NOT i.indisvalid
"""


class Applied(NamedTuple):
    number: int
    name: str
    applied_at: datetime
    needs_code: int  # the newest migration that code must know to run on this one


@dataclass(frozen=True)
class MigrationStatus:
    applied: list[Applied]
    pending: list[tuple[int, str]]
    known: int  # the newest migration of this release

    @property
    def current(self) -> int | None:
        return max((row.number for row in self.applied), default=None)

    @property
    def needs_code(self) -> int | None:
        """The newest migration that code must know to run on this database."""
        return max((row.needs_code for row in self.applied), default=None)

    @property
    def is_newer(self) -> bool:
        return self.current is not None and self.current > self.known

    def verify(self) -> None:
        verify(self.current, self.known, self.needs_code)


class _Busy(Exception):
    """Another migrator has the lock."""


def required_version() -> int:
    """The newest migration of this release."""
    return files.migrations()[-1][0]


def verify(current: int | None, required: int | None = None, needs_code: int | None = None) -> None:
    """May this release work on a database at `current` (None: no schema)? On its own version, and on a newer one whose
    migrations all say that code which knows no more than this release may run on them."""
    needed = required_version() if required is None else required
    if current is None:
        raise SchemaMissing("the database has no holdfast schema. Run: holdfast migrate up")
    if current < needed:
        raise SchemaMissing(
            f"the database is at {current}, this release needs {needed}. Run: holdfast migrate up"
        )
    oldest = current if needs_code is None else needs_code
    if oldest > needed:
        raise SchemaTooNew(
            f"the database is at {current} and needs code that knows migration {oldest}, "
            f"this release knows up to {needed}: upgrade holdfast"
        )


def sql(first: int = 1, last: int | None = None, migrations: Migrations | None = None) -> str:
    """The migrations as one script for psql, made without a connection. It does what `up` does."""
    return text.script(_known(migrations), first, last)


def status(dsn: str, migrations: Migrations | None = None) -> MigrationStatus:
    """What the database has and what it lacks. Changes nothing, and accepts a newer database."""
    with session(dsn) as conn:
        facts = look(conn)
        check_ours(facts)
        return _status(conn, facts, _known(migrations))


def plan(dsn: str, migrations: Migrations | None = None) -> list[tuple[int, str, str]]:
    """What `up` would apply now: nothing on a newer database that this release may run on."""
    known = _known(migrations)
    found = status(dsn, migrations)
    _refuse_newer(found)
    numbers = {number for number, _ in found.pending}
    return [(m.number, m.name, m.text) for m in known if m.number in numbers]


def up(
    dsn: str,
    *,
    lock_timeout: Duration = 2.0,
    patience: Duration = 60.0,
    on_step: Callable[[str], None] | None = None,
    migrations: Migrations | None = None,
) -> list[int]:
    """Apply what is pending and return its numbers.

    A lock is waited for `lock_timeout` at a time, for `patience` in all per migration.
    """
    try:
        per_try, in_all = seconds(lock_timeout, "lock_timeout", least=0.001), seconds(patience, "patience")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from None
    known = _known(migrations)
    with session(dsn) as conn:
        facts = look(conn)
        check_ours(facts)
        found = _status(conn, facts, known)
        _refuse_newer(found)
        numbers = {number for number, _ in found.pending}
        if not numbers:
            return []
        check(facts)
        with Watch(dsn, min(0.1, per_try / 4)) as watch:
            run = _Run(conn, facts, watch, per_try, in_all, on_step or (lambda _: None))
            return [m.number for m in known if m.number in numbers and run.apply(m)]


def _known(migrations: Migrations | None) -> list[Migration]:
    return [Migration(*one) for one in (files.migrations() if migrations is None else migrations)]


def _status(conn: Connection, facts: Facts, known: list[Migration]) -> MigrationStatus:
    applied = [Applied(*row) for row in applied_rows(conn, facts)]
    have = {row.number for row in applied}
    pending = [(m.number, m.name) for m in known if m.number not in have]
    return MigrationStatus(applied, pending, known[-1].number)


def _refuse_newer(found: MigrationStatus) -> None:
    if found.is_newer:
        found.verify()


@dataclass
class _Run:
    conn: Connection
    facts: Facts
    watch: Watch
    lock_timeout: float
    patience: float
    say: Callable[[str], None]

    def apply(self, migration: Migration) -> bool:
        """Apply one migration, trying until the locks are there. False: another migrator was first."""
        attempt = self._inside if migration.in_transaction else self._outside
        started = time.monotonic()
        self.watch.blockers = []
        self.say(f"{migration}: applying")
        while True:
            blockers: list[Session] = []
            try:
                done = attempt(migration)
            except _Busy:
                blockers, busy = other_migrators(self.conn), True
            except (pg.LockNotAvailable, pg.DeadlockDetected):
                blockers, busy = self.watch.blockers, False
            except psycopg.Error as error:
                raise self._failure(migration, error) from error
            else:
                seconds = time.monotonic() - started
                self.say(
                    f"{migration}: applied in {seconds:.1f} s"
                    if done
                    else f"{migration}: was applied by another"
                )
                if done:
                    telemetry.emit("migration.applied", number=migration.number, migration=migration.name)
                return done
            if time.monotonic() - started >= self.patience:
                raise self._gave_up(migration, blockers, busy)
            self._pause(migration, blockers, busy)

    def _inside(self, migration: Migration) -> bool:
        with pinned(self.conn):
            self._take_lock("pg_try_advisory_xact_lock")
            if self._has(migration):
                return False
            self._configure(self.lock_timeout, local=True)
            self._become_owner("SET LOCAL ROLE")
            if migration.number == 1:  # which makes the table of versions
                self.conn.execute(migration.text.encode())
                self.conn.execute(migration.row.encode())
            else:
                self.conn.execute(migration.row.encode())
                self.conn.execute(migration.text.encode())
            failpoints.point("migrate.mid")
        return True

    def _outside(self, migration: Migration) -> bool:
        """One statement after the other. After a kill the next run starts over: each tolerates a second run."""
        with pinned(self.conn):
            self._take_lock("pg_try_advisory_lock")
        try:
            if self._has(migration):
                return False
            with pinned(self.conn):
                leftovers = self.conn.execute(_INVALID, [migration.indexes]).fetchall()
                self._become_owner("SET ROLE")
            for statement in [*(str(row[0]) for row in leftovers), *migration.statements]:
                # CONCURRENTLY waits for old transactions too, and blocks nobody meanwhile.
                patient = "CONCURRENTLY" in statement.upper()
                self._configure(
                    max(self.patience, self.lock_timeout) if patient else self.lock_timeout, local=False
                )
                self.conn.execute(statement.encode())
                failpoints.point("migrate.between")
            self.conn.execute(migration.row.encode())
        finally:
            if not self.conn.broken:
                with pinned(self.conn):
                    self.conn.execute(f"SELECT pg_advisory_unlock({LOCK_KEY})".encode())
                self.conn.execute("RESET ROLE; RESET ALL")
        return True

    def _take_lock(self, function: str) -> None:
        row = self.conn.execute(f"SELECT {function}({LOCK_KEY}), pg_backend_pid()".encode()).fetchone()
        assert row is not None
        taken, self.watch.pid = row
        if not taken:
            raise _Busy

    def _has(self, migration: Migration) -> bool:
        return any(row[0] == migration.number for row in applied_rows(self.conn, look(self.conn)))

    def _configure(self, lock_timeout: float, *, local: bool) -> None:
        settings = _SETTINGS | {"lock_timeout": f"{max(1, round(lock_timeout * 1000))}ms"}
        if self.facts.major >= 17:
            settings["transaction_timeout"] = "0"
        for name, value in settings.items():
            self.conn.execute("SELECT pg_catalog.set_config(%s, %s, %s)", [name, value, local])

    def _become_owner(self, command: str) -> None:
        if row := self.conn.execute(_OWNER).fetchone():
            self.conn.execute(f"{command} {row[0]}".encode())

    def _pause(self, migration: Migration, blockers: list[Session], busy: bool) -> None:
        """As long as a try or longer, so that the sessions that queued behind it get through."""
        what = "another migrator is running" if busy else "waits for locks"
        self.say(f"{migration}: {what}" + "".join(f"; {session}" for session in blockers))
        time.sleep((0.1 if busy else min(1.0, self.lock_timeout)) * random.uniform(0.5, 1.5))  # noqa: S311

    def _gave_up(self, migration: Migration, blockers: list[Session], busy: bool) -> MigrationFailed:
        names = "; ".join(map(str, blockers)) or "nobody that can be seen now"
        again = "run again: holdfast migrate up"
        if busy:
            return MigrationFailed(
                f"migration {migration} gave up after {self.patience:g} s: "
                f"another migrator is running: {names}. Wait for it, then {again}"
            )
        pids = [str(session.pid) for session in blockers if session.pid]
        end = f"end them (SELECT pg_terminate_backend({pids[0]});)" if pids else "end them"
        return MigrationFailed(
            f"migration {migration} gave up after {self.patience:g} s: "
            f"others hold the locks it needs: {names}. {_state(migration)} "
            f"Wait for them or {end}, then {again}"
        )

    def _failure(self, migration: Migration, error: psycopg.Error) -> MigrationFailed:
        if self.conn.broken:
            return MigrationFailed(
                f"the connection was lost during migration {migration}: {one_line(error)}. "
                "Whether it was applied, says: holdfast migrate status"
            )
        reason = error.diag.message_primary or one_line(error)
        return MigrationFailed(
            f"migration {migration} failed as role {self.facts.role}: {reason} ({error.sqlstate}). "
            f"{_state(migration)}"
        )


def _state(migration: Migration) -> str:
    if migration.in_transaction:
        return "Nothing of it was applied."
    return "Finished work is kept, and the next run continues from there."
