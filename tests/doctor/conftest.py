"""A case per test: on the shared server, or on one of our own for faults of the whole server."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from tests.doctor.case import Case
from tests.pg_versions import bouncer_program, server_folder

from holdfast.db import migrate
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer

TEMPLATE = "odd_template"
ODD = {
    "max_connections": "40",
    "wal_level": "logical",
    "max_prepared_transactions": "5",
}


@pytest.fixture
def case(holdfast_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """In a folder with an app of its own, doctor_app:app."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = Case(holdfast_url, tmp_path)
    yield made
    made.close()
    sys.modules.pop("doctor_app", None)


@pytest.fixture(scope="session")
def odd_server() -> Iterator[EmbeddedServer]:
    """A server that tests may set wrong. It starts with everything off that makes a commit durable."""
    home = server_folder("hf-odd-")
    home.chmod(0o755)  # the server of a root process runs as somebody else
    binaries = os.environ.get("HOLDFAST_TEST_PG_BIN")
    options = EmbeddedOptions(durable=False, binaries=Path(binaries) if binaries else None, settings=ODD)
    try:
        with EmbeddedServer.acquire(home / "pg", options) as server:
            server.ensure_database(TEMPLATE)
            migrate.up(server.dsn(TEMPLATE))
            yield server
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def odd(odd_server: EmbeddedServer, tmp_path: Path) -> Iterator[Case]:
    """A fresh database on a server of our own; what ALTER SYSTEM changed is taken back."""
    name = f"odd_{uuid4().hex[:8]}"
    with psycopg.connect(odd_server.dsn("postgres"), autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}".encode())
    made = Case(odd_server.dsn(name), tmp_path)
    yield made
    made.close()
    with psycopg.connect(odd_server.dsn("postgres"), autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        conn.execute("ALTER SYSTEM RESET ALL")
        conn.execute("SELECT pg_reload_conf()")


@pytest.fixture
def pgbouncer() -> None:
    if bouncer_program() is None and os.environ.get("CI"):
        pytest.fail("CI must have pgbouncer")
    if bouncer_program() is None:
        pytest.skip("there is no pgbouncer on this machine")
