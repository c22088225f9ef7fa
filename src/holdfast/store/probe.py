"""Statements about the connection itself."""

from datetime import datetime
from typing import Any

from .statement import Statement, named


def _only(rows: Any) -> Any:
    return rows[0][0]


def backend_pid() -> Statement[int]:
    return named("backend_pid", (), _only)


def which_database() -> Statement[tuple[float, str]]:
    return named("which_database", (), lambda rows: (rows[0][0], rows[0][1]))


def leave_mark(mark: str) -> Statement[str]:
    return named("leave_mark", (mark,), _only)


def read_mark() -> Statement[str | None]:
    return named("read_mark", (), _only)


def server_time() -> Statement[datetime]:
    return named("server_time", (), _only)
