"""A PostgreSQL with migrated databases in it, made once, and copied for everyone who runs tests at the same time."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import psycopg

from holdfast import sql as files
from holdfast.db import migrate
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer
from holdfast.errors import HoldfastError

LEAVING = 5.0  # seconds in which the sessions of a process that was killed are gone

# What a test may leave behind in a server, whose databases are its own otherwise.
TRACES = """
SELECT ARRAY(SELECT datname || coalesce(datacl::text, '') FROM pg_database ORDER BY 1),
       ARRAY(SELECT r::text FROM pg_authid r ORDER BY 1), ARRAY(SELECT m::text FROM pg_auth_members m ORDER BY 1),
       ARRAY(SELECT s::text FROM pg_db_role_setting s ORDER BY 1),
       ARRAY(SELECT name || '=' || setting FROM pg_file_settings ORDER BY 1),
       (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_prepared_xacts),
       (SELECT count(*) FROM pg_tablespace), (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc)
"""
STRANGERS = """
SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()
"""


def database(applied: int) -> str:
    """The database with so many migrations applied."""
    return f"mutants_{applied:04d}"


def folder_of(base: Path) -> str:
    """What the fixture holdfast_server calls its folder when pytest's temporary files are in `base`."""
    return f"holdfast-test-{hashlib.sha256(str(base.resolve()).encode()).hexdigest()[:12]}"


def _options() -> EmbeddedOptions:
    binaries = os.environ.get("HOLDFAST_TEST_PG_BIN")
    return EmbeddedOptions(durable=False, binaries=Path(binaries) if binaries else None)


class Seed:
    """A stopped server with a database for each wanted number of applied migrations."""

    def __init__(self, path: Path, wanted: set[int]) -> None:
        self.path = path
        known = list(files.migrations())
        with (
            EmbeddedServer.acquire(path, _options()) as server,
            psycopg.connect(server.dsn("postgres"), autocommit=True) as conn,
        ):
            before = "template0"
            for applied in sorted({0, len(known)} | wanted):
                name = database(applied)
                conn.execute(f"CREATE DATABASE {name} TEMPLATE {before} ENCODING 'UTF8'".encode())
                if applied:
                    migrate.up(server.dsn(name), migrations=known[:applied])
                before = name
        self.complete = len(known)


class Server:
    """A running copy of the seed. A test that left something behind gets the next one a new copy."""

    def __init__(self, seed: Seed, path: Path) -> None:
        self._seed = seed
        self._path = path
        self._held: EmbeddedServer | None = None
        self._traces: Any = None
        self.copies = 0

    def fit(self) -> None:
        """Have a server that nobody has left anything in."""
        with contextlib.suppress(psycopg.Error, HoldfastError, OSError):
            if self._held is not None and self._is_clean():
                return
        self.close()
        subprocess.run(["cp", "-a", self._seed.path, self._path], check=True)
        self._held = EmbeddedServer.acquire(self._path, _options())
        self._traces = self._look()
        self.copies += 1

    def _look(self) -> Any:
        assert self._held is not None
        with psycopg.connect(self._held.dsn("postgres"), autocommit=True) as conn:
            until = time.monotonic() + LEAVING
            while (row := conn.execute(STRANGERS.encode()).fetchone()) and row[0]:
                if time.monotonic() > until:
                    return None
                time.sleep(0.02)
            return (self._held.pid, conn.execute(TRACES.encode()).fetchone())

    def _is_clean(self) -> bool:
        return self._traces is not None and self._look() == self._traces

    def close(self) -> None:
        if self._held is not None:
            with contextlib.suppress(HoldfastError, OSError):
                self._held.release()
            self._held = None
        shutil.rmtree(self._path, ignore_errors=True)
