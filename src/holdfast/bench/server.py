"""The server to measure: one of its own in a temporary folder, or the user's, with databases of our own on it."""

import contextlib
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ..db import migrate
from ..db.embedded import EmbeddedOptions, EmbeddedServer, reset
from ..errors import ConfigurationError, DatabaseUnavailable

# Durable as a production server is, and with room for a checkpoint to be rare: else it is the checkpoints that are measured.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "autovacuum_naptime": "10s",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "max_connections": "150",
    "shared_preload_libraries": "pg_stat_statements",
    "track_io_timing": "off",
}


class Server:
    """A server with a migrated database that others are cloned from."""

    def __init__(self, url: str, own: EmbeddedServer | None = None, *, copies: bool = False) -> None:
        """`copies`: databases are cloned file by file, which is quick where nothing waits for the disk."""
        self._url = url
        self._own = own
        self._strategy = sql.SQL(" STRATEGY FILE_COPY" if copies else "")
        self._suffix = uuid.uuid4().hex[:8]
        self._made: list[str] = []
        self.template = ""

    @property
    def is_own(self) -> bool:
        return self._own is not None

    @property
    def admin(self) -> str:
        """The URL of a database that is there already."""
        return self._url

    def url(self, database: str) -> str:
        if self._own is not None:
            return self._own.dsn(database)
        return make_conninfo(**{**conninfo_to_dict(self._url), "dbname": database})  # type: ignore[arg-type]

    def prepare(self, dress: Callable[[str], None]) -> None:
        """Make the database that others are cloned from; `dress` adds what the measurements need."""
        self.template = self._create(f"holdfast_bench_{self._suffix}", "template0", first=True)
        migrate.up(self.url(self.template))
        dress(self.url(self.template))
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.url(self.template)) as conn:
            conn.execute("CREATE EXTENSION pg_stat_statements")
            conn.execute(
                "SELECT FROM pg_stat_statements LIMIT 1"
            )  # where it is not loaded this fails, and nothing stays

    def _admin(self) -> psycopg.Connection[Any]:
        if self._own is not None:
            return psycopg.connect(self._own.dsn("postgres"), autocommit=True)
        try:
            return psycopg.connect(self._url, autocommit=True)
        except psycopg.OperationalError as error:
            raise DatabaseUnavailable(f"the server of --url does not answer: {error}") from None

    def _create(self, name: str, template: str, *, first: bool = False) -> str:
        encoding = sql.SQL(" ENCODING 'UTF8'" if first else "")
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
        with self._admin() as conn:
            try:
                conn.execute(create + encoding + self._strategy)
            except errors.InsufficientPrivilege:
                role = conn.info.user
                raise ConfigurationError(
                    f"role {role!r} may not create databases, and the bench measures in databases of its own. "
                    f"Allow it: ALTER ROLE {role} CREATEDB"
                ) from None
        self._made.append(name)
        return name

    def make(self) -> str:
        """A fresh migrated database that stays until the end; returns its URL."""
        name = self._create(
            f"holdfast_bench_{self._suffix}_{len(self._made)}_{uuid.uuid4().hex[:4]}", self.template
        )
        return self.url(name)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        """A fresh migrated database, dropped afterwards."""
        url = self.make()
        try:
            yield url
        finally:
            self.drop(url)

    def drop(self, url: str) -> None:
        self._drop(str(conninfo_to_dict(url)["dbname"]))

    def _drop(self, name: str) -> None:
        with self._admin() as conn:
            conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        self._made.remove(name)

    def checkpoint(self) -> None:
        """Begin a measurement with nothing left to write, where we may."""
        with self._admin() as conn, contextlib.suppress(errors.InsufficientPrivilege):
            conn.execute("CHECKPOINT")

    def set(self, **settings: str) -> None:
        """Change a setting of our own server."""
        assert self._own is not None
        with self._admin() as conn:
            for name, value in settings.items():
                conn.execute(
                    sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
                )
            conn.execute("SELECT pg_reload_conf()")

    def close(self) -> None:
        for name in reversed(self._made.copy()):
            with contextlib.suppress(psycopg.Error):
                self._drop(name)


@contextlib.contextmanager
def temporary_server(options: EmbeddedOptions) -> Iterator[EmbeddedServer]:
    """One in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        server_in(Path(folder) / "postgres", options) as own,
    ):
        yield own


@contextlib.contextmanager
def server_in(home: Path, options: EmbeddedOptions) -> Iterator[EmbeddedServer]:
    """One whose data is here. Nothing of it stays, also where root's data had to be put elsewhere."""
    own = EmbeddedServer.acquire(home, options)
    try:
        yield own
    finally:
        own.release()
        reset(home, force=True)


@contextlib.contextmanager
def open_server(url: str | None, dress: Callable[[str], None]) -> Iterator[Server]:
    if url is not None:
        yield from _serve(Server(url), dress)
        return
    with temporary_server(EmbeddedOptions(settings=SETTINGS)) as own:
        yield from _serve(Server(own.dsn("postgres"), own), dress)


def _serve(server: Server, dress: Callable[[str], None]) -> Iterator[Server]:
    try:
        server.prepare(dress)
        yield server
    finally:
        server.close()
