"""What a run of tests gets from us: a prepared database, and a record of how long each test took."""

import json
from pathlib import Path
from typing import Any

import pytest


class Recorder:
    """Writes {test: [outcome, seconds]} when the run ends. The worst outcome of setup, call and teardown counts."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._found: dict[str, tuple[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, seconds = self._found.get(report.nodeid, ("passed", 0.0))
        worst = report.outcome if outcome == "passed" else outcome
        self._found[report.nodeid] = (worst, seconds + report.duration)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._found), encoding="utf-8")


class Prepared:
    """The server of this run has its template already, or one that lacks only the migrations that were changed."""

    def __init__(self, server: Path, start: str, *, migrates: bool) -> None:
        self._server = server.resolve()
        self._start = start
        self._migrates = migrates

    def pytest_sessionstart(self) -> None:
        from psycopg import sql

        from holdfast.db import migrate
        from holdfast.testing import servers

        usual = servers.TestServer.template
        prepared = self

        def template(server: Any) -> str:
            if server._path.resolve() != prepared._server or server._given:
                return usual(server)  # of another version, or one that a test has to itself
            if not prepared._migrates:
                return prepared._start
            if server._template is None:
                name = f"holdfast_template_{server._suffix}"
                words = "CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY"
                with server._admin() as conn:
                    conn.execute(sql.SQL(words).format(sql.Identifier(name), sql.Identifier(prepared._start)))
                migrate.up(server.url(name))
                server._template = name
            return str(server._template)

        servers.TestServer.template = template  # type: ignore[method-assign,assignment]
