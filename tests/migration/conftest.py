"""Servers of each version, and databases that last one test.

A test that uses `server` runs on the newest version, one marked `versions` on all: on those between the oldest and the
newest in the long run alone, unless it is in ON_EVERY_VERSION (ADR 50). HOLDFAST_TEST_PG_18 and so on may name a running
server instead (as a superuser, without a database).
"""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from tests.migration.servers import Database, Server, unique
from tests.pg_versions import BETWEEN, NEWEST, VERSIONS, binaries_for, server_folder

from holdfast.db.embedded.launch import EmbeddedOptions
from holdfast.db.embedded.server import EmbeddedServer

ON_EVERY_VERSION = {"test_schema_file_and_migrations_make_the_same_schema"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        every = metafunc.definition.get_closest_marker("versions") is not None
        usual = metafunc.function.__name__ in ON_EVERY_VERSION
        majors = [
            pytest.param(major, marks=() if usual or major not in BETWEEN else pytest.mark.long)
            for major in (VERSIONS if every else (NEWEST,))
        ]
        metafunc.parametrize("server", majors, indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    major: int = request.param
    folder = binaries_for(major)
    if folder is None and os.environ.get("CI"):
        pytest.fail(f"CI must have PostgreSQL {major}")
    if folder is None:
        pytest.skip(f"there is no PostgreSQL {major} on this machine")
    given = os.environ.get(f"HOLDFAST_TEST_PG_{major}")
    if given:
        yield Server(major, folder, given)
        return
    home = server_folder()
    home.chmod(0o755)  # the server of a root process runs as somebody else
    try:
        options = EmbeddedOptions(durable=False, binaries=folder)
        with EmbeddedServer.acquire(home / "pg", options) as held:
            yield Server(major, folder, held.dsn("postgres"))
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def make_database(server: Server) -> Iterator[Callable[..., Database]]:
    made: list[str] = []

    def make(options: str = "") -> Database:
        name = unique("db")
        with server.connect() as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 {options}".encode())
        made.append(name)
        return Database(server, name)

    yield make
    with server.connect() as admin:
        for name in made:
            admin.execute(f"DROP DATABASE {name} (FORCE)".encode())


@pytest.fixture
def database(make_database: Callable[..., Database]) -> Database:
    return make_database()


@pytest.fixture
def role(server: Server, make_database: Callable[..., Database]) -> Iterator[str]:
    """A role that may log in and nothing else. Its databases are dropped before it."""
    name = unique("role")
    with server.connect() as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN".encode())
    yield name
    with server.connect() as admin:
        for (other,) in admin.execute("SELECT datname FROM pg_database WHERE datallowconn").fetchall():
            if other.startswith(f"mig_db_{os.getpid()}_"):
                with server.connect(other) as conn:
                    conn.execute(f"DROP OWNED BY {name} CASCADE".encode())
        admin.execute(f"DROP OWNED BY {name}".encode())
        admin.execute(f"DROP ROLE {name}".encode())
