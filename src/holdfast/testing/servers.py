"""A PostgreSQL for tests: a server of its own, one migrated template, one clone of it per test."""

import contextlib
import os
import select
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ..db import migrate
from ..db.embedded import EmbeddedOptions, EmbeddedServer, reset
from ..errors import ConfigurationError, EmbeddedError

# Nothing is compiled: without statistics a plan over many empty tables looks dear, and to compile it takes a second.
_SETTINGS = {"jit_above_cost": "-1"}


class TestServer:
    """The server behind a test run: an embedded one, or the one named by HOLDFAST_TEST_DATABASE_URL.

    It is not durable (fsync off): tests want speed, and the folder is thrown away.
    """

    __test__ = False  # not a test class, whatever its name looks like

    def __init__(self, path: Path, binaries: Path | None = None) -> None:
        self._path = path
        self._given = os.environ.get("HOLDFAST_TEST_DATABASE_URL")
        self._server: EmbeddedServer | None = None
        if not self._given:
            options = EmbeddedOptions(durable=False, binaries=binaries, settings=_SETTINGS)
            self._server = EmbeddedServer.acquire(path, options)
        self._session: psycopg.Connection[Any] | None = None
        self._template: str | None = None
        self._suffix = uuid.uuid4().hex[:8]

    def url(self, database: str) -> str:
        if self._server is not None:
            return self._server.dsn(database)
        assert self._given is not None
        info = conninfo_to_dict(self._given)
        return make_conninfo(**{**info, "dbname": database})  # type: ignore[arg-type]

    @contextlib.contextmanager
    def _admin(self) -> Iterator[psycopg.Connection[Any]]:
        """A session that is kept: each test asks twice. One that the server has ended has something to read."""
        kept = self._session
        if kept is None or kept.closed or select.select([kept.fileno()], [], [], 0)[0]:
            self._session = kept = psycopg.connect(self.url("postgres"), autocommit=True)
        yield kept

    def template(self) -> str:
        """A migrated database to clone; made once."""
        if self._template is None:
            name = f"holdfast_template_{self._suffix}"
            with self._admin() as conn:
                conn.execute(
                    sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(
                        sql.Identifier(name)
                    )
                )
            migrate.up(self.url(name))
            self._template = name
        return self._template

    def clone(self) -> str:
        """A fresh migrated database; returns its name.

        Its files are copied. Through the log, the server's own choice, a schema of many small tables takes ten times
        as long. A copy needs two checkpoints, which are cheap on a server that is not durable."""
        name = f"holdfast_test_{uuid.uuid4().hex[:12]}"
        template = self.template()
        with self._admin() as conn:
            copies = self._server is not None and conn.info.server_version >= 150000
            conn.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}" + (" STRATEGY FILE_COPY" if copies else "")).format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )
        return name

    def drop(self, name: str) -> None:
        with self._admin() as conn:
            conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def close(self) -> None:
        if self._template is not None:
            self.drop(self._template)
        if self._session is not None:
            self._session.close()
        if self._server is not None:
            self._server.release()
            with contextlib.suppress(EmbeddedError, ConfigurationError):  # others of this run still use it
                reset(self._path)
